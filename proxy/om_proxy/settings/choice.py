"""Which model a background mind uses: what may be written, and which level of configuration decides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import PlainValidator, SecretStr

from om_proxy.settings.section import plain_url

# the request's own model, upstream and credential; counts as unset (docs/spec/behaviour.md#models)
INHERIT = "inherit"

Agent = Literal["observation", "reflection"]

# Prefixes that name who is paid. Others name a language (`hosted_vllm`, `litellm_proxy`), or are a part of the model's own name.
# fmt: off
PROVIDERS = frozenset({
    "openai", "anthropic", "azure", "azure_ai", "bedrock", "cerebras", "cohere", "cohere_chat", "dashscope", "deepinfra", "deepseek",
    "fireworks_ai", "gemini", "groq", "huggingface", "mistral", "moonshot", "nvidia_nim", "ollama", "ollama_chat", "openrouter",
    "perplexity", "predibase", "replicate", "sagemaker", "sagemaker_chat", "snowflake", "text-completion-openai", "together_ai",
    "vertex_ai", "vertex_ai_beta", "watsonx", "watsonx_text", "xai", "zai"
})
# fmt: on
_FAMILIES = {"gpt": "openai", "claude": "anthropic", "command": "cohere"}
Item = str | dict[str, Any]  # a name, or {model, api_base, api_key, max_retries}
Names = Item | list[Item]  # one, or several to try in order
Choice = Names | dict[str, dict[int, Names]]  # or {"up_to": {input tokens: names}}

_RULE = (
    "must be inherit, default, a model's name, {model, api_base, api_key, max_retries}, a list of these, "
    "or {up_to: {<input tokens>: <one of these>}}"
)
ITEM_KEYS = {"model", "api_base", "api_key", "max_retries"}


def choice(value: Any) -> Choice:
    """The choice as written, its numbers made whole and its tiers sorted."""
    tiers = value.get("up_to") if isinstance(value, Mapping) and len(value) == 1 else None
    if not isinstance(tiers, Mapping) or not tiers:
        return _names(value)
    return {"up_to": dict(sorted((_whole(size, 1), _names(names)) for size, names in tiers.items()))}


def _names(value: Any) -> Names:
    if isinstance(value, list | tuple) and value:
        return [_item(item) for item in value]
    return _item(value)


def _item(value: Any) -> Item:
    if not isinstance(value, Mapping):
        return _name(value)
    if not {"model"} <= set(value) <= ITEM_KEYS:
        raise ValueError(_RULE)
    item: dict[str, Any] = {"model": _name(value["model"])}
    if "max_retries" in value:
        item["max_retries"] = _whole(value["max_retries"], 0)
    if value.get("api_base") is not None:
        item["api_base"] = _base(value["api_base"])
    if value.get("api_key"):
        item["api_key"] = _key(value["api_key"])
    if item["model"] == INHERIT and {"api_base", "api_key"} & set(item):
        raise ValueError("inherit takes address and credential from the request: leave api_base and api_key out")
    return item


def _base(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(_RULE)
    try:
        return plain_url(value)
    except ValueError as exc:
        raise ValueError(f"api_base {exc}") from exc


def _key(value: Any) -> SecretStr:
    """A secret from here on: it stands in no repr, log or listing. It is never named in an error."""
    if isinstance(value, SecretStr):
        return value
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise ValueError("api_key must be text")
    return SecretStr(str(value))


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(_RULE)
    return value.strip()


def _whole(value: Any, least: int) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if isinstance(value, bool | float) or number < least:
        raise ValueError(_RULE + f"; {value!r} is no whole number from {least} on")
    return number


ModelChoice = Annotated[Choice, PlainValidator(choice)]


def cross_provider_fault(written: Any, *, api_base: str | None, has_key: bool) -> str | None:
    """The rule that a choice of models breaks under one shared `api_base` or `api_key`
    (docs/spec/behaviour.md#models); None: none.

    One provider's key must not go to another, and one address serves one of them. A name without a provider, or with the mere
    language of a server (`hosted_vllm/…`), is whatever stands at the shared address.
    """
    models = [item for item in _flat(written) if item["model"] != INHERIT]
    by_key = {
        _provider(item) for item in models if not item.get("api_key") and item.get("api_base") in (None, api_base)
    }
    by_base = {_provider(item) for item in models if not item.get("api_base")}
    if has_key and len(by_key - {None}) > 1:
        return _refusal("api_key", by_key)
    if api_base and len(by_base - {None}) > 1:
        return _refusal("api_base", by_base)
    return None


def _refusal(key: str, providers: set[str | None]) -> str:
    names = ", ".join(sorted(name for name in providers if name))
    return (
        f"names models of several providers ({names}) under one memory.{key}: give each its own, as in "
        f"{{model: <name>, {key}: …}}, and take memory.{key} out, or leave it out and set each provider's variable"
    )


def _flat(written: Any) -> Iterator[dict[str, Any]]:
    if isinstance(written, str):
        yield {"model": written}
    elif isinstance(written, Mapping):
        if "up_to" in written:
            for names in written["up_to"].values():
                yield from _flat(names)
        else:
            yield dict(written)
    elif isinstance(written, list | tuple):
        for item in written:
            yield from _flat(item)


def _provider(item: Mapping[str, Any]) -> str | None:
    name = str(item["model"])
    if name == "default":
        return "gemini"
    prefix, slash, rest = name.partition("/")
    return prefix if slash and rest and prefix in PROVIDERS else _FAMILIES.get(name.partition("-")[0])


def excluded(level: Mapping[str, Any]) -> tuple[Agent, ...]:
    """The agents whose own `model` may not stand beside this level's `model`."""
    if _unset(level.get("model")):
        return ()
    agents: tuple[Agent, ...] = ("observation", "reflection")
    return tuple(agent for agent in agents if not _unset(_at(level, (agent, "model"))))


class Decided(NamedTuple):
    """A choice, and which level's which key made it; level -1: nobody's."""

    choice: Choice
    level: int
    key: tuple[str, ...]


def chosen(levels: Sequence[Mapping[str, Any]], agent: Agent) -> Decided:
    """What this agent uses. `levels`: from the least specific (`memory`) to the most specific.

    The most specific level that says anything decides: there its own `model`, else the level's. What one agent lacks on every
    level, the other's own choice serves. `inherit` is as good as silence on `memory`; above it, it takes a choice back.
    """
    other: Agent = "reflection" if agent == "observation" else "observation"
    both = ("model",)
    return (
        _first(levels, (agent, "model"), both)
        or _first(levels, (other, "model"))
        or Decided(INHERIT, -1, (agent, "model"))
    )


def _first(levels: Sequence[Mapping[str, Any]], *keys: tuple[str, ...]) -> Decided | None:
    for depth in range(len(levels) - 1, -1, -1):
        said = [(_at(levels[depth], key), key) for key in keys]
        for value, key in said:
            if not _unset(value):
                return Decided(choice(value), depth, key)
        for value, key in said:
            if depth and value == INHERIT:
                return Decided(INHERIT, depth, key)
    return None


def _at(level: Mapping[str, Any], key: tuple[str, ...]) -> Any:
    inside: Any = level
    for part in key:
        inside = inside.get(part) if isinstance(inside, Mapping) else None
    return inside


def _unset(value: Any) -> bool:
    return value is None or value == INHERIT
