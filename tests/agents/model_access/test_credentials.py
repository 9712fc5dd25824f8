"""Which variable holds the key of which provider."""

from __future__ import annotations

import pytest

from om_proxy.agents.model_access.credentials import (
    KEY_VARIABLES,
    PROVIDER_HOSTS,
    find_key,
    list_missing_variables,
    read_provider,
)
from om_proxy.agents.model_access.targets import (
    Choice,
    NamedModel,
    choose_targets,
    list_models,
)
from om_proxy.common.providers import PAID_PROVIDERS

ENVIRON = {
    "OPENAI_API_KEY": "openai-key",
    "GROQ_API_KEY": "groq-key",
    "TOGETHER_API_KEY": "together-key",
}
BASE = "http://models.example:8000/v1"


@pytest.mark.parametrize(
    ("model", "base", "key"),
    [
        ("openai/gpt-5-mini", None, "openai-key"),
        ("openai/gpt-5-mini", "https://api.openai.com/v1", "openai-key"),
        ("openai/gpt-5-mini", "https://eu.api.openai.com/v1", "openai-key"),
        ("groq/llama", "https://api.groq.com/openai/v1", "groq-key"),
        ("together_ai/llama", None, "together-key"),
        ("openai/gpt-5-mini", BASE, None),
        ("openai/gpt-5-mini", "http://api.openai.com/v1", None),
        ("openai/gpt-5-mini", "https://api.openai.com.evil.example/v1", None),
        ("groq/llama", "https://api.openai.com/v1", None),
        ("xai/grok", None, None),
        ("qwen3", None, None),
    ],
)
def test_a_variable_goes_to_its_own_provider(model: str, base: str | None, key: str | None) -> None:
    """A provider's key goes to no other server: none with the same prefix, no look-alike, none
    without TLS."""
    assert find_key(model, base, ENVIRON) == key


@pytest.mark.parametrize(
    ("model", "base", "names"),
    [
        ("openai/gpt-5-mini", None, ()),
        ("xai/grok", None, ("XAI_API_KEY",)),
        ("default", None, ("GEMINI_API_KEY", "GOOGLE_API_KEY")),
        ("claude-haiku-4-5", None, ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")),
        ("xai/grok", BASE, ()),
        ("qwen3", BASE, ()),
        ("ollama_chat/qwen3", None, ()),
        ("bedrock/claude", None, ()),
        ("hosted_vllm/qwen3", BASE, ()),
    ],
)
def test_what_is_missing(model: str, base: str | None, names: tuple[str, ...]) -> None:
    """A key is missing only if one is certainly needed: local servers and clouds are not judged."""
    assert list_missing_variables(model, base, ENVIRON) == names


def test_every_provider_is_known_to_the_others() -> None:
    """The tables use the same prefixes."""
    assert set(PROVIDER_HOSTS) <= set(KEY_VARIABLES) <= PAID_PROVIDERS


def test_every_model_of_a_choice() -> None:
    """Every model is found: in lists, tiers and lists in tiers."""
    own = {"model": "groq/b", "api_base": BASE, "api_key": "k", "max_retries": 1}
    choice: Choice = {"up_to": {10: "a", 20: ["inherit", own]}}
    assert list_models(choice) == [
        NamedModel("a"),
        NamedModel("inherit"),
        NamedModel("groq/b", 1, BASE, "k"),
    ]
    assert [read_provider(model.name) for model in list_models(choice)] == [None, None, "groq"]


def asked(
    choice: Choice, api_base: str | None = None, api_key: str | None = None
) -> list[tuple[str, str | None, str | None]]:
    found = choose_targets(
        choice,
        inherited=None,
        api_base=api_base,
        api_key=api_key,
        input_tokens=0,
        default_model="gemini/gemini-3.5-flash-lite",
        environ=ENVIRON,
    )
    return [(target.model, target.base_url, target.api_key) for target in found]


def test_openai_finds_its_variable() -> None:
    """`memory.model: openai/…` alone uses the variable; a configured key comes first."""
    assert asked("openai/gpt-5-mini") == [("gpt-5-mini", "https://api.openai.com/v1", "openai-key")]
    assert asked("openai/gpt-5-mini", api_key="k")[0][2] == "k"
    assert asked("openai/gpt-5-mini", api_base=BASE)[0][2] is None


def test_each_model_has_its_own() -> None:
    """A model's own address or key is used for that model only; a shared key goes to the shared
    address only."""
    choice: Choice = [
        {"model": "openai/a", "api_key": "own"},
        {"model": "qwen3", "api_base": BASE},
        {"model": "qwen4", "api_base": BASE, "api_key": "theirs"},
    ]
    assert asked(choice, api_key="shared") == [
        ("a", "https://api.openai.com/v1", "own"),
        ("qwen3", BASE, None),
        ("qwen4", BASE, "theirs"),
    ]
    assert asked(
        {"up_to": {10: {"model": "groq/b", "api_base": "https://api.groq.com/openai/v1"}}}
    ) == [("b", "https://api.groq.com/openai/v1", "groq-key")]


def test_a_shared_key_goes_to_the_shared_address() -> None:
    """The shared key is also used if the model repeats the shared address."""
    assert asked([{"model": "qwen3", "api_base": BASE}, "qwen4"], api_base=BASE, api_key="k") == [
        ("qwen3", BASE, "k"),
        ("qwen4", BASE, "k"),
    ]
