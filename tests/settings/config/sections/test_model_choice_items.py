"""Models with their own address and key, and lists across providers."""

from __future__ import annotations

import pytest

from om_proxy.common.errors import ConfigError
from om_proxy.settings.config import Settings, parse, render_settings

KEY = "sk-proj-" + "a1B2c3D4" * 5
OWN = f'{{model: anthropic/b, api_base: "https://models.example/v1", api_key: "{KEY}", max_retries: 1}}'


@pytest.mark.parametrize(
    "model",
    [
        OWN,
        f"[openai/a, {OWN}]",
        f"{{up_to: {{10: openai/a, 20: {OWN}}}}}",
        f"{{up_to: {{10: [openai/a, {OWN}]}}}}",
    ],
    ids=["one", "list item", "tier", "list in a tier"],
)
def test_an_item_keeps_its_key_secret(model: str) -> None:
    """An item is accepted wherever a name is, and no listing or repr shows its key."""
    settings = parse(f"memory: {{model: {model}}}")
    shown = "\n".join(render_settings(settings)) + repr(settings.effective(None))
    assert "anthropic/b" in shown
    assert "https://models.example/v1" in shown
    assert KEY not in shown
    assert KEY[:12] not in shown


def test_in_an_override() -> None:
    """An override accepts and checks the same items."""
    settings = parse(f'models: {{"gpt*": {{model: [{OWN}]}}}}')
    (item,) = settings.effective("gpt-4o").observer_model
    assert isinstance(item, dict)
    assert item["api_key"].get_secret_value() == KEY
    assert settings.effective("other").observer_model == "auto"


def test_an_empty_key_is_none() -> None:
    """An empty text, as `"${NAME:-}"` of an unset variable gives, is no key."""
    (item,) = (
        parse('memory: {model: [{model: openai/a, api_key: ""}]}').effective(None).observer_model
    )
    assert item == {"model": "openai/a"}


@pytest.mark.parametrize(
    ("item", "rule"),
    [
        (f'{{model: openai/a, api_key: "{KEY}", url: x}}', "api_base, api_key, max_retries"),
        ('{model: openai/a, api_base: "ftp://x"}', "must be http:// or https://"),
        (
            '{model: openai/a, api_base: "https://x/v1/chat/completions"}',
            "must end before /chat/completions",
        ),
        (f'{{model: inherit, api_key: "{KEY}"}}', "leave api_base and api_key out"),
        (f'{{model: auto, api_key: "{KEY}"}}', "leave api_base and api_key out"),
        ("{model: openai/a, api_key: [x]}", "api_key must be text"),
        ("{model: openai/a, max_retries: -1}", "not a whole number of 0 or more"),
    ],
)
def test_a_faulty_item(item: str, rule: str) -> None:
    """The error names the key and the rule, and no secret."""
    with pytest.raises(ConfigError) as raised:
        parse(f"memory: {{model: [{item}]}}")
    assert "memory.model" in str(raised.value)
    assert rule in str(raised.value)
    assert KEY[:12] not in str(raised.value)


ACROSS = "[openai/a, anthropic/b]"
BASE = 'api_base: "https://gateway.example/v1"'


@pytest.mark.parametrize(
    "memory",
    [
        f"{{model: {ACROSS}, api_key: {KEY}}}",
        f"{{model: {ACROSS}, {BASE}}}",
        f"{{model: [openai/a, groq/b], {BASE}, api_key: {KEY}}}",
        f"{{model: [gpt-5-mini, claude-haiku-4-5], api_key: {KEY}}}",
        f"{{model: [default, openai/a], api_key: {KEY}}}",
        f"{{model: {{up_to: {{10: openai/a, 20: anthropic/b}}}}, api_key: {KEY}}}",
        f"{{observation: {{model: {ACROSS}}}, api_key: {KEY}}}",
        f"{{model: [openai/a, {{model: anthropic/b, max_retries: 1}}], api_key: {KEY}}}",
        f"{{observation: {{model: openai/a}}, reflection: {{model: anthropic/b}}, api_key: {KEY}}}",
    ],
)
def test_a_list_across_providers_is_refused(memory: str) -> None:
    """Under one shared key or address, one provider's key would go to another. The error says what
    to do."""
    with pytest.raises(ConfigError) as raised:
        parse(f"memory: {memory}")
    text = str(raised.value)
    assert "several providers" in text
    assert "give each model its own" in text
    assert KEY[:12] not in text


@pytest.mark.parametrize(
    "memory",
    [
        f"{{model: {ACROSS}}}",
        f"{{model: [openai/a, openai/b], api_key: {KEY}}}",
        f"{{model: [inherit, openai/b], api_key: {KEY}}}",
        f"{{model: [openai/a, {{model: anthropic/b, api_key: other}}], api_key: {KEY}}}",
        f"{{model: [qwen3, org/llama, hosted_vllm/mistral], {BASE}, api_key: {KEY}}}",
        f'{{model: [openai/a, {{model: groq/b, api_base: "https://api.groq.com/openai/v1"}}], {BASE}}}',
        f"{{model: {{up_to: {{10: openai/a, 20: openai/b}}}}, api_key: {KEY}}}",
        f"{{observation: {{model: openai/a}}, reflection: {{model: openai/b}}, api_key: {KEY}}}",
    ],
)
def test_lists_that_are_accepted(memory: str) -> None:
    """Each provider reads its own variable or has its own key, or all models are one provider's."""
    assert isinstance(parse(f"memory: {memory}"), Settings)


@pytest.mark.parametrize("section", ["models", "resources"])
@pytest.mark.parametrize(
    "own",
    ["model: anthropic/b", "observation: {model: anthropic/b}, reflection: {model: anthropic/b}"],
)
def test_an_override_takes_no_key_to_another_provider(section: str, own: str) -> None:
    """A key is meant for the models of its own level. With its own key in the override, or one
    address for both, no key goes to another provider."""
    memory = f"memory: {{model: openai/a, api_key: {KEY}}}"
    with pytest.raises(ConfigError, match="several providers") as raised:
        parse(f'{memory}\n{section}: {{"gpt*": {{{own}}}}}')
    assert KEY[:12] not in str(raised.value)
    assert parse(f'{memory}\n{section}: {{"gpt*": {{{own}, api_key: other}}}}')
    assert parse(
        f'memory: {{model: openai/a, api_key: {KEY}, {BASE}}}\n{section}: {{"gpt*": {{{own}}}}}'
    )
    assert parse(f'{memory}\n{section}: {{"gpt*": {{model: openai/b}}}}')


def test_an_override_that_makes_it_so() -> None:
    """A list that conflicts with the key of `memory` is reported at the override."""
    with pytest.raises(ConfigError, match="several providers"):
        parse(f'memory: {{api_key: {KEY}}}\nmodels: {{"gpt*": {{model: {ACROSS}}}}}')
