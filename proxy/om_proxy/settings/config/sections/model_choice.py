"""Choose the models of the observer and the reflector: parse what the file may hold, and find the
level of the configuration that decides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import PlainValidator, SecretStr

from om_proxy.common.providers import PAID_PROVIDERS
from om_proxy.settings.config.sections.section import Fault, normalize_base_url

# the request's own model, upstream and credential
# (docs/contributing/behaviour.md#models)
INHERIT_MODEL = "inherit"
# a small model on the request's own server, or the request's own; the default
AUTO_MODEL = "auto"
# they take address and credential from a request
REQUEST_MODELS = (AUTO_MODEL, INHERIT_MODEL)

Agent = Literal["observation", "reflection"]

_PROVIDERS_BY_NAME = {"gpt": "openai", "claude": "anthropic", "command": "cohere"}
ModelEntry = str | dict[str, Any]  # a model's name, or {model, api_base, api_key, max_retries}
ModelEntries = ModelEntry | list[ModelEntry]  # one, or several to try in order
# or tiers: {"up_to": {input tokens: names}}
ModelChoice = ModelEntries | dict[str, dict[int, ModelEntries]]

_CHOICE_RULE = (
    "must be auto, inherit, default, a model's name, {model, api_base, api_key, max_retries}, a list of these, "
    "or {up_to: {<input tokens>: <one of these>}}"
)
MODEL_ENTRY_KEYS = {"model", "api_base", "api_key", "max_retries"}


def parse_model_choice(value: Any) -> ModelChoice:
    """Parse the value of a `model` setting: numbers become integers, and tiers are sorted."""
    tiers = value.get("up_to") if isinstance(value, Mapping) and len(value) == 1 else None
    if not isinstance(tiers, Mapping) or not tiers:
        return _parse_entries(value)
    parsed_tiers = [
        (_parse_whole_number(max_tokens, 1), _parse_entries(entries))
        for max_tokens, entries in tiers.items()
    ]
    return {"up_to": dict(sorted(parsed_tiers))}


def _parse_entries(value: Any) -> ModelEntries:
    if isinstance(value, list | tuple) and value:
        return [_parse_entry(item) for item in value]
    return _parse_entry(value)


def _parse_entry(value: Any) -> ModelEntry:
    if not isinstance(value, Mapping):
        return _parse_name(value)
    if not {"model"} <= set(value) <= MODEL_ENTRY_KEYS:
        raise ValueError(_CHOICE_RULE)
    entry: dict[str, Any] = {"model": _parse_name(value["model"])}
    if "max_retries" in value:
        entry["max_retries"] = _parse_whole_number(value["max_retries"], 0)
    if value.get("api_base") is not None:
        entry["api_base"] = _parse_base_url(value["api_base"])
    if value.get("api_key"):
        entry["api_key"] = _parse_key(value["api_key"])
    if entry["model"] in REQUEST_MODELS and {"api_base", "api_key"} & set(entry):
        raise ValueError(
            f"{entry['model']} takes address and credential from the request: leave api_base and api_key out"
        )
    return entry


def _parse_base_url(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(_CHOICE_RULE)
    try:
        return normalize_base_url(value)
    except ValueError as exc:
        raise ValueError(f"api_base {exc}") from exc


def _parse_key(value: Any) -> SecretStr:
    """Wrap the key so that no repr, log or listing shows it. No error repeats the key."""
    if isinstance(value, SecretStr):
        return value
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise ValueError("api_key must be text")
    return SecretStr(str(value).strip())


def _parse_name(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(_CHOICE_RULE)
    return value.strip()


def _parse_whole_number(value: Any, minimum: int) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if isinstance(value, bool | float) or number < minimum:
        raise ValueError(f"{_CHOICE_RULE}; {value!r} is not a whole number of {minimum} or more")
    return number


ModelChoiceField = Annotated[ModelChoice, PlainValidator(parse_model_choice)]


def find_cross_provider_fault(choice: Any, *, api_base: str | None, has_key: bool) -> str | None:
    """Return the rule that a choice of models breaks under one shared `api_base` or `api_key`
    (docs/contributing/behaviour.md#models), or None.

    One provider's key must not go to another provider, and one address serves one provider. A name
    without a provider, or with the wire format of a server (`hosted_vllm/…`), fits any provider.
    """
    entries = [entry for entry in _list_entries(choice) if entry["model"] not in REQUEST_MODELS]
    key_sharers = {
        _find_provider(entry)
        for entry in entries
        if not entry.get("api_key") and entry.get("api_base") in (None, api_base)
    }
    base_sharers = {_find_provider(entry) for entry in entries if not entry.get("api_base")}
    if has_key and len(key_sharers - {None}) > 1:
        return _render_cross_provider_fault("api_key", key_sharers)
    if api_base and len(base_sharers - {None}) > 1:
        return _render_cross_provider_fault("api_base", base_sharers)
    return None


def _render_cross_provider_fault(key: str, providers: set[str | None]) -> str:
    names = ", ".join(sorted(name for name in providers if name))
    return (
        f"names models of several providers ({names}) under one memory.{key}: remove memory.{key}, and give each model "
        f"its own, as in {{model: <name>, {key}: …}}, or set each provider's variable"
    )


def _list_entries(choice: Any) -> Iterator[dict[str, Any]]:
    if isinstance(choice, str):
        yield {"model": choice}
    elif isinstance(choice, Mapping):
        if "up_to" in choice:
            for entries in choice["up_to"].values():
                yield from _list_entries(entries)
        else:
            yield dict(choice)
    elif isinstance(choice, list | tuple):
        for entry in choice:
            yield from _list_entries(entry)


def _find_provider(entry: Mapping[str, Any]) -> str | None:
    name = str(entry["model"])
    if name == "default":
        return "gemini"
    prefix, _, name_at_provider = name.partition("/")
    if name_at_provider and prefix in PAID_PROVIDERS:
        return prefix
    return _PROVIDERS_BY_NAME.get(name.partition("-")[0])


def list_model_conflicts(level: Mapping[str, Any]) -> list[Fault]:
    """List the agents' own models that conflict with `model` on the same level."""
    rule = "cannot be set together with `model` on the same level: set one of them"
    keys = [] if _is_unset(level.get("model")) else ["observation", "reflection"]
    return [
        (f"{key}.model", rule) for key in keys if not _is_unset(_get_value(level, (key, "model")))
    ]


class ChosenModel(NamedTuple):
    """A choice, and the setting that decided it."""

    choice: ModelChoice
    level: int  # the index of the setting's level; -1: the default
    key: tuple[str, ...]  # the path of the setting on its level


def choose_model(levels: Sequence[Mapping[str, Any]], agent: Agent) -> ChosenModel:
    """Choose an agent's model. `levels`: from the least specific (`memory`) to the most specific.

    The most specific level that sets a model decides. On that level, the agent's own `model` takes
    precedence over the level's `model`. If no level sets one for this agent, it takes the other
    agent's own model. `auto` and `inherit` give way to any of these on `memory`; on a more specific
    level they cancel the choice of the levels before.
    """
    other: Agent = "reflection" if agent == "observation" else "observation"
    return (
        _find_most_specific(levels, (agent, "model"), ("model",))
        or _find_most_specific(levels, (other, "model"))
        or _find_inherited(levels[:1], agent)
        or ChosenModel(AUTO_MODEL, -1, (agent, "model"))
    )


def _find_inherited(levels: Sequence[Mapping[str, Any]], agent: Agent) -> ChosenModel | None:
    for level in levels:
        for key in ((agent, "model"), ("model",)):
            if _get_value(level, key) == INHERIT_MODEL:
                return ChosenModel(INHERIT_MODEL, 0, key)
    return None


def _find_most_specific(
    levels: Sequence[Mapping[str, Any]], *keys: tuple[str, ...]
) -> ChosenModel | None:
    """Return the choice of the most specific level that sets one of these keys. On one level,
    earlier keys take precedence."""
    for depth in range(len(levels) - 1, -1, -1):
        values = [(_get_value(levels[depth], key), key) for key in keys]
        for value, key in values:
            if not _is_unset(value):
                return ChosenModel(parse_model_choice(value), depth, key)
        for value, key in values:
            if depth and value in REQUEST_MODELS:
                return ChosenModel(value, depth, key)
    return None


def _get_value(level: Mapping[str, Any], key: tuple[str, ...]) -> Any:
    value: Any = level
    for part in key:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _is_unset(value: Any) -> bool:
    return value is None or value in REQUEST_MODELS
