"""Which models to ask, in which order, from the `model` setting (behaviour.md 6, "Models").

Rules, first that fits:
- `inherit`: the request's own model, upstream and credential.
- `default`: Gemini 2.5 Flash.
- `openai/<name>`: straight over HTTP, to `api_base` or OpenAI itself.
- any name with an `api_base`: straight, unless its provider speaks a language of its own (Anthropic, Bedrock, …).
- all others: through litellm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from proxy.agents.llm import Target
from proxy.errors import ModelError

# a name, a list of choices, {"up_to": {tokens: choice}}, or {"model": name, "max_retries": n}
Choice: TypeAlias = str | Sequence[Any] | Mapping[Any, Any]

DEFAULT = "gemini/gemini-2.5-flash"
OPENAI = "https://api.openai.com/v1"
RETRIES = 2  # of one model; with the first try the three of behaviour.md 6

# litellm's names for servers that speak OpenAI's language: only the part after the prefix goes over the wire
# fmt: off
PLAIN = frozenset({
    "openai", "openai_like", "custom_openai", "hosted_vllm", "litellm_proxy", "lm_studio", "llamafile", "openrouter",
    "groq", "deepseek", "together_ai", "fireworks_ai", "xai", "mistral", "cerebras", "nvidia_nim", "perplexity",
    "deepinfra", "moonshot", "dashscope", "zai"
})
# providers with a language of their own: litellm translates, also for another base
NATIVE = frozenset({
    "anthropic", "azure", "azure_ai", "bedrock", "cohere", "cohere_chat", "gemini", "huggingface", "ollama",
    "ollama_chat", "palm", "predibase", "replicate", "sagemaker", "sagemaker_chat", "snowflake",
    "text-completion-openai", "vertex_ai", "vertex_ai_beta", "watsonx", "watsonx_text"
})
# fmt: on


def targets(
    choice: Choice, *, inherited: Target | None, api_base: str | None, api_key: str | None, input_tokens: int
) -> tuple[Target, ...]:
    """The models to try, in order; never empty.

    `inherited` is None when no request's credential is at hand: `inherit` is then skipped, and a ModelError if nothing
    else is chosen. `input_tokens` choose the tier.
    """
    found = tuple(
        target
        for name, retries in _models(choice, input_tokens)
        if (target := _target(name, retries, inherited, api_base, api_key))
    )
    if not found:
        raise ModelError(
            "no model to ask", "`inherit` needs a request's credential, which is gone; the next request brings it"
        )
    return found


def first(choice: Choice, input_tokens: int) -> str:
    """The name that is tried first, as written: `inherit` included."""
    return _models(choice, input_tokens)[0][0]


def above_largest(choice: Choice, input_tokens: int) -> bool:
    """Whether the input is beyond the largest tier: the largest is used, and the caller says so in the log."""
    tiers = _tiers(choice)
    return bool(tiers) and input_tokens > max(tiers)


def _models(choice: Choice, input_tokens: int) -> list[tuple[str, int]]:
    """Names and their retries, tiers resolved."""
    if isinstance(choice, str):
        return [(choice, RETRIES)]
    if isinstance(choice, Mapping):
        if tiers := _tiers(choice):
            fitting = min((limit for limit in tiers if input_tokens <= limit), default=max(tiers))
            return _models(tiers[fitting], input_tokens)
        retries = choice.get("max_retries")
        return [(str(choice["model"]), RETRIES if retries is None else int(retries))]
    return [model for item in choice for model in _models(item, input_tokens)]


def _tiers(choice: Choice) -> dict[int, Choice]:
    """Choices by the largest input they are for (inclusive); empty for any other kind of choice."""
    if isinstance(choice, Mapping) and "up_to" in choice:
        return {int(limit): item for limit, item in choice["up_to"].items()}
    return {}


def _target(
    name: str, retries: int, inherited: Target | None, api_base: str | None, api_key: str | None
) -> Target | None:
    if name == "inherit":
        return inherited
    if name == "default":
        name = DEFAULT
    provider, _, rest = name.partition("/")
    if provider == "openai" and rest:
        return _direct(rest, api_base or OPENAI, api_key, retries, inherited)
    if api_base and not (rest and provider in NATIVE):
        return _direct(rest if rest and provider in PLAIN else name, api_base, api_key, retries, inherited)
    return Target(name, "litellm", api_base, api_key=api_key, max_retries=retries)


def _direct(model: str, base: str, api_key: str | None, retries: int, inherited: Target | None) -> Target:
    """Without a key of its own, a model of the very server the request itself goes to is asked with the request's credential."""
    shared = not api_key and inherited is not None and inherited.base_url == base
    headers = inherited.headers if shared and inherited else ()
    key = inherited.api_key if shared and inherited else api_key
    return Target(model, "direct", base, headers, key, retries)
