"""The models to ask, and their order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from om_proxy.agents.model_access.llm import Target
from om_proxy.agents.model_access.targets import (
    OPENAI_BASE_URL,
    Choice,
    choose_targets,
    is_above_largest_tier,
)
from om_proxy.common.errors import ModelError

OWN = Target(
    "gpt-4o", "direct", "https://up.example/v1", (("authorization", "Bearer secret-of-the-caller"),)
)
DEFAULT_MODEL = "gemini/gemini-3.5-flash-lite"
BASE = "http://models.example:8000/v1"


def chosen(
    choice: Choice,
    inherited: Target | None = OWN,
    api_base: str | None = None,
    api_key: str | None = None,
    size: int = 0,
    small_model: str | None = None,
) -> tuple[Target, ...]:
    return choose_targets(
        choice,
        inherited=inherited,
        api_base=api_base,
        api_key=api_key,
        input_tokens=size,
        default_model=DEFAULT_MODEL,
        small_model=small_model,
    )


def test_inherit() -> None:
    """`inherit` means the request's own model, upstream and credential."""
    assert chosen("inherit", api_base=BASE, api_key="k") == (OWN,)


def test_auto() -> None:
    """`auto` means a small model on the request's own server with its credential, then the request's
    own; only the latter where no small one is known."""
    small = replace(OWN, model="small", is_guess=True)
    assert chosen("auto", api_base=BASE, api_key="k", small_model="small") == (small, OWN)
    assert chosen("auto") == (OWN,)
    with pytest.raises(ModelError, match="auto"):
        chosen("auto", inherited=None, small_model="small")
    assert chosen("inherit", small_model="small") == (OWN,)


def test_the_key_of_a_subscription_is_for_no_call_of_ours() -> None:
    """A model with such a key is left out, whoever configured it."""
    key = "sk-ant-oat01-x"
    assert chosen(["openai/a", "inherit"], api_key=key) == (OWN,)
    with pytest.raises(ModelError):
        chosen("openai/a", api_key=key)


def test_inherit_without_a_request() -> None:
    """Without a request's credential, `inherit` is skipped in a list; alone it raises."""
    with pytest.raises(ModelError, match="inherit"):
        chosen("inherit", inherited=None)
    assert [t.model for t in chosen(["inherit", "default"], inherited=None)] == [DEFAULT_MODEL]


@pytest.mark.parametrize(
    ("name", "base", "expected"),
    [
        ("default", None, Target(DEFAULT_MODEL, "litellm", None, api_key="k")),
        (
            "gemini/gemini-2.5-pro",
            None,
            Target("gemini/gemini-2.5-pro", "litellm", None, api_key="k"),
        ),
        ("claude-haiku-4-5", None, Target("claude-haiku-4-5", "litellm", None, api_key="k")),
        ("openai/gpt-5-mini", None, Target("gpt-5-mini", "direct", OPENAI_BASE_URL, api_key="k")),
        ("openai/gpt-5-mini", BASE, Target("gpt-5-mini", "direct", BASE, api_key="k")),
        ("qwen3", BASE, Target("qwen3", "direct", BASE, api_key="k")),
        ("hosted_vllm/org/qwen3", BASE, Target("org/qwen3", "direct", BASE, api_key="k")),
        ("org/qwen3", BASE, Target("org/qwen3", "direct", BASE, api_key="k")),
        (
            "anthropic/claude-haiku-4-5",
            BASE,
            Target("anthropic/claude-haiku-4-5", "litellm", BASE, api_key="k"),
        ),
        ("azure/own-name", BASE, Target("azure/own-name", "litellm", BASE, api_key="k")),
    ],
)
def test_named(name: str, base: str | None, expected: Target) -> None:
    """Models with OpenAI's API are asked over HTTP, all others through litellm, with the configured
    base and key."""
    assert chosen(name, api_base=base, api_key="k") == (expected,)


def test_the_request_s_own_server() -> None:
    """Without a configured key, another model on the request's own server gets the request's
    credential."""
    (target,) = chosen("openai/gpt-5-mini", api_base=OWN.base_url)
    assert target == replace(OWN, model="gpt-5-mini")
    (elsewhere,) = chosen("openai/gpt-5-mini", api_base=BASE)
    assert elsewhere.headers == ()
    (keyed,) = chosen("openai/gpt-5-mini", api_base=OWN.base_url, api_key="k")
    assert (keyed.headers, keyed.api_key) == ((), "k")


def test_list() -> None:
    """A list's models are tried in order; an item may set its retries."""
    found = chosen(
        ["inherit", {"model": "qwen3", "max_retries": 0}, {"model": "default"}], api_base=BASE
    )
    assert [(t.model, t.max_retries) for t in found] == [
        ("gpt-4o", 2),
        ("qwen3", 0),
        (DEFAULT_MODEL, 2),
    ]


@pytest.mark.parametrize(
    ("size", "model", "above"),
    [
        (0, "a", False),
        (10_000, "a", False),
        (10_001, "b", False),
        (40_000, "b", False),
        (40_001, "b", True),
    ],
)
def test_tiers(size: int, model: str, above: bool) -> None:
    """Bounds are inclusive and sorted; above the largest, the largest tier is used, and the caller
    can find out."""
    choice = {"up_to": {40_000: "b", 10_000: "a"}}
    assert [t.model for t in chosen(choice, api_base=BASE, size=size)] == [model]
    assert is_above_largest_tier(choice, size) is above


def test_no_tiers_are_never_exceeded() -> None:
    """A name or a list has no largest tier."""
    assert not is_above_largest_tier("default", 10**9)
    assert not is_above_largest_tier([{"model": "a"}], 10**9)


def test_repr_shows_no_credential() -> None:
    """A target's repr, which may be logged, shows no credential."""
    assert "secret" not in repr(OWN)
    assert "hidden" not in repr(Target("m", api_key="hidden"))
