"""Which keys of the operator's memory spends, and which of all keys others may spend."""

from __future__ import annotations

import pytest

from om_proxy.engine.policy import list_open_keys, list_paid_models
from om_proxy.settings.config import parse

OPENAI = {"OPENAI_API_KEY": "sk-env"}
KEYED = "auth: {keys: [{tenant: a, key: 0123456789abcdef}]}\n"
OPEN = "server: {host: 0.0.0.0, admin_token: 0123456789abcdef}\n"
PAID = "upstream: [{name: b, base_url: 'http://h', api_key: k}]"
PAID_MEMORY = "memory: {model: openai/small, api_key: k}\n"
LOCAL_SERVER = "api_base: 'http://127.0.0.1:11434/v1'"


@pytest.mark.parametrize(
    ("text", "environ", "models"),
    [
        ("", OPENAI, ()),
        ("memory: {model: inherit, api_key: k}", OPENAI, ()),  # no model is asked with it
        (PAID_MEMORY, {}, ("openai/small",)),
        ("memory: {model: openai/small}", OPENAI, ("openai/small",)),
        ("memory: {model: openai/small}", {}, ()),  # it is asked with the key of the request
        ("memory: {model: gpt-5-mini}", OPENAI, ("gpt-5-mini",)),
        ("memory: {model: default}", {"GEMINI_API_KEY": "k"}, ("default",)),
        ("memory: {model: anthropic/small}", OPENAI, ()),
        ("memory: {model: bedrock/small}", {}, ("bedrock/small",)),  # by files, or by the machine
        ("memory: {model: [auto, {model: xai/small, api_key: k}]}", {}, ("xai/small",)),
        ("memory: {model: {up_to: {1000: openai/a, 2000: {model: openai/b, api_key: k}}}}", {}, ("openai/b",)),
        ("memory: {observation: {model: {model: openai/a, api_key: k}}, reflection: {model: openai/b}}", {}, ("openai/a",)),
        ("memory: {reflection: {model: {model: openai/b, api_key: k}}}", {}, ("openai/b",)),
        (f"memory: {{model: openai/local, {LOCAL_SERVER}}}", OPENAI, ()),  # for OpenAI's own server
        (f"memory: {{model: local, {LOCAL_SERVER}}}", {}, ()),
        (f"memory: {{model: local, {LOCAL_SERVER}, api_key: k}}", {}, ("local",)),
        ("memory: {model: ollama/local}", OPENAI, ()),
        ("models: {'gpt*': {model: openai/small, api_key: k}}", {}, ("openai/small",)),
        ("models: {'gpt*': {model: openai/small}}\nresources: {'a*': {memory: {api_key: k}}}", {}, ("openai/small",)),
        ("memory: {api_key: k}\nresources: {'a*': {observation: {model: openai/small}}}", {}, ("openai/small",)),
        ("memory: {enabled: false, model: openai/small, api_key: k}", {}, ()),
        ("memory: {enabled: false, model: openai/small, api_key: k}\nresources: {'a*': {enabled: true}}", {}, ("openai/small",)),
        ("memory: {retrieval: {enabled: true, vector: true, embedding_model: text-embedding-3-small}}", {}, ("text-embedding-3-small",)),
        ("memory: {retrieval: {enabled: true, vector: true, embedding_model: openai/vectors}}", OPENAI, ("openai/vectors",)),
        ("memory: {retrieval: {enabled: true, vector: true, embedding_model: openai/vectors}}", {}, ()),
        ("memory: {retrieval: {enabled: true, vector: true, embedding_model: 'local:/a'}}", OPENAI, ()),
    ],
)  # fmt: skip
def test_models_that_a_key_of_the_operator_s_pays(
    text: str, environ: dict[str, str], models: tuple[str, ...]
) -> None:
    """Keys of any level, and those of the environment, where they are for the model's address."""
    assert list_paid_models(parse(text), environ) == models


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            PAID,
            "upstream b has an api_key, and auth.keys is not set: every program of this machine",
        ),
        (OPEN + PAID, "ANYBODY WHO REACHES 0.0.0.0 CAN SPEND the api_key of upstream b"),
        (PAID_MEMORY, "memory model openai/small has an api_key, and auth.keys is not set"),
        (
            OPEN + PAID_MEMORY,
            "ANYBODY WHO REACHES 0.0.0.0 CAN SPEND the api_key of memory model openai/small",
        ),
        (KEYED + PAID, None),
        (OPEN + KEYED + PAID + "\n" + PAID_MEMORY, None),
        (OPEN + "upstream: [{base_url: 'http://h'}]", None),
    ],
)
def test_warning_of_a_key_that_others_can_spend(text: str, warning: str | None) -> None:
    """Without `auth.keys`, a warning names each upstream and memory model with a key, and who can
    spend it."""
    warnings = list_open_keys(parse(text), {})
    assert len(warnings) == (1 if warning else 0)
    assert all(line.startswith(str(warning)) for line in warnings)
