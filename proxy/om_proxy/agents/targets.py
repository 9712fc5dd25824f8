"""Which models to ask, in which order, from the `model` setting (docs/spec/behaviour.md#models).

Rules, first that fits:
- `inherit`: the request's own model, upstream and credential.
- `default`: Gemini 2.5 Flash.
- `openai/<name>`: straight over HTTP, to `api_base` or OpenAI itself.
- any name with an `api_base`: straight, unless its provider speaks a language of its own (Anthropic, Bedrock, …).
- all others: through litellm.

The key, first that is there: the model's own, the configured one, the provider's variable in the environment (credentials.py), and
on the very server the request itself goes to, the request's credential. A shared key is for the shared address: a model with an
address of its own does not get it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from om_proxy.agents.credentials import find_key, reveal
from om_proxy.agents.llm import Target
from om_proxy.errors import ModelError

# a name, a list of choices, {"up_to": {tokens: choice}}, or {"model": name} with max_retries, api_base, api_key
Choice: TypeAlias = str | Sequence[Any] | Mapping[Any, Any]

DEFAULT = "gemini/gemini-2.5-flash"
OPENAI = "https://api.openai.com/v1"
RETRIES = 2  # of one model; with the first try the three of docs/spec/behaviour.md#failures

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


@dataclass(frozen=True, slots=True)
class Named:
    """A model as the settings name it, with what they say of this one."""

    name: str
    retries: int = RETRIES
    base: str | None = None
    key: str | None = field(default=None, repr=False)


def targets(
    choice: Choice,
    *,
    inherited: Target | None,
    api_base: str | None,
    api_key: str | None,
    input_tokens: int,
    environ: Mapping[str, str] | None = None,
) -> tuple[Target, ...]:
    """The models to try, in order; never empty.

    `inherited` is None when no request's credential is at hand: `inherit` is then skipped, and a ModelError if nothing
    else is chosen. `input_tokens` choose the tier. `environ` is where providers' keys are looked for.
    """
    found = tuple(
        target
        for model in _models(choice, input_tokens)
        if (target := _target(_shared(model, api_base, api_key), inherited, environ or {}))
    )
    if not found:
        raise ModelError(
            "no model to ask", "`inherit` needs a request's credential, which is gone; the next request brings it"
        )
    return found


def first(choice: Choice, input_tokens: int) -> str:
    """The name that is tried first, as written: `inherit` included."""
    return _models(choice, input_tokens)[0].name


def above_largest(choice: Choice, input_tokens: int) -> bool:
    """Whether the input is beyond the largest tier: the largest is used, and the caller says so in the log."""
    tiers = _tiers(choice)
    return bool(tiers) and input_tokens > max(tiers)


def _shared(model: Named, api_base: str | None, api_key: str | None) -> Named:
    """With the address and key that all models share, as far as it has none of its own."""
    key = model.key or (api_key if model.base in (None, api_base) else None)
    return replace(model, base=model.base or api_base, key=key)


def _models(choice: Choice, input_tokens: int) -> list[Named]:
    """The models with what is said of each, tiers resolved."""
    if isinstance(choice, str):
        return [Named(choice)]
    if isinstance(choice, Mapping):
        if tiers := _tiers(choice):
            fitting = min((limit for limit in tiers if input_tokens <= limit), default=max(tiers))
            return _models(tiers[fitting], input_tokens)
        retries = choice.get("max_retries")
        own = choice.get("api_base"), reveal(choice.get("api_key"))
        return [Named(str(choice["model"]), RETRIES if retries is None else int(retries), *own)]
    return [model for item in choice for model in _models(item, input_tokens)]


def _tiers(choice: Choice) -> dict[int, Choice]:
    """Choices by the largest input they are for (inclusive); empty for any other kind of choice."""
    if isinstance(choice, Mapping) and "up_to" in choice:
        return {int(limit): item for limit, item in choice["up_to"].items()}
    return {}


def _target(model: Named, inherited: Target | None, environ: Mapping[str, str]) -> Target | None:
    if model.name == "inherit":
        return inherited
    name, base = DEFAULT if model.name == "default" else model.name, model.base
    provider, _, rest = name.partition("/")
    if provider == "openai" and rest:
        return _direct(model, rest, base or OPENAI, inherited, environ)
    if base and not (rest and provider in NATIVE):
        return _direct(model, rest if rest and provider in PLAIN else name, base, inherited, environ)
    return Target(name, "litellm", base, api_key=model.key, max_retries=model.retries)


def _direct(model: Named, name: str, base: str, inherited: Target | None, environ: Mapping[str, str]) -> Target:
    """Without a key of its own, a model of the very server the request itself goes to is asked with the request's credential."""
    key = model.key or find_key(model.name, base, environ)
    if not key and inherited is not None and inherited.base_url == base:
        return Target(name, "direct", base, inherited.headers, inherited.api_key, model.retries)
    return Target(name, "direct", base, (), key, model.retries)
