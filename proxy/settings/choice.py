"""Which model a background mind uses: what may be written, and which level of configuration decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import PlainValidator

INHERIT = "inherit"  # the request's own model, upstream and credential; counts as unset (behaviour.md 6)

Agent = Literal["observation", "reflection"]
Names = str | list[str | dict[str, Any]]  # a name, or several to try in order, each a name or {model, max_retries}
Choice = Names | dict[str, dict[int, Names]]  # or {"up_to": {input tokens: names}}

_RULE = (
    "must be inherit, default, a model's name, a list of names (or {model, max_retries}), "
    "or {up_to: {<input tokens>: <name>}}"
)


def choice(value: Any) -> Choice:
    """The choice as written, its numbers made whole and its tiers sorted."""
    tiers = value.get("up_to") if isinstance(value, Mapping) and len(value) == 1 else None
    if not isinstance(tiers, Mapping) or not tiers:
        return _names(value)
    return {"up_to": dict(sorted((_whole(size, 1), _names(names)) for size, names in tiers.items()))}


def _names(value: Any) -> Names:
    if isinstance(value, list | tuple) and value:
        return [_item(item) for item in value]
    return _name(value)


def _item(value: Any) -> str | dict[str, Any]:
    if not isinstance(value, Mapping):
        return _name(value)
    if not {"model"} <= set(value) <= {"model", "max_retries"}:
        raise ValueError(_RULE)
    item: dict[str, Any] = {"model": _name(value["model"])}
    if "max_retries" in value:
        item["max_retries"] = _whole(value["max_retries"], 0)
    return item


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
