"""The rules of `models:` and `resources:`, checked at load for each override and for those that can
meet."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from pydantic import ValidationError

from om_proxy.settings.effective import Layer, apply_layers
from om_proxy.settings.memory import ContextSettings, MemorySettings, list_model_conflicts
from om_proxy.settings.model_choice import parse_model_choice
from om_proxy.settings.source import Key, render_path
from om_proxy.settings.validation_messages import list_faults


def list_override_faults(
    memory: MemorySettings, context: ContextSettings, layers: Sequence[Layer]
) -> Iterator[tuple[Key, str]]:
    """Each broken rule with the path of the override's key that breaks it. `layers` from the least
    to the most specific."""
    sound = []
    for layer in layers:
        found = [*_list_own_faults(layer), *_list_merged_faults(memory, context, [layer])]
        yield from found
        sound += [] if found else [layer]
    for pair in combinations(sound, 2):
        if _can_meet(*pair) and _have_common_section(*pair):
            for path, rule in _list_merged_faults(memory, context, pair):
                yield path, f"{rule} where {render_path((pair[0].kind, pair[0].glob))} fits too"


def _list_own_faults(layer: Layer) -> Iterator[tuple[Key, str]]:
    """What merging would hide: an override's own models."""
    level = layer.level
    for section in ((), ("observation",), ("reflection",)):
        around: Any = level.get(section[0], {}) if section else level
        if isinstance(around, Mapping) and around.get("model") is not None:
            try:
                parse_model_choice(around["model"])
            except ValueError as exc:
                yield layer.written_at((*section, "model")), str(exc)
    yield from (
        (layer.written_at(tuple(key.split("."))), rule) for key, rule in list_model_conflicts(level)
    )


def _list_merged_faults(
    memory: MemorySettings, context: ContextSettings, layers: Sequence[Layer]
) -> Iterator[tuple[Key, str]]:
    """Faults of the merged result, laid at the door of the most specific layer. Wrong models are
    told by `_list_own_faults`."""
    last = layers[-1]
    try:
        apply_layers(memory, context, layers)
    except ValidationError as exc:
        yield from ((last.written_at(path), rule) for path, rule in list_faults(exc))
    except ValueError:
        return


def _can_meet(first: Layer, second: Layer) -> bool:
    """A model and a resource always can; two of a kind if one glob lies within the other."""
    if first.kind != second.kind:
        return True
    return fnmatch.fnmatchcase(first.glob, second.glob) or fnmatch.fnmatchcase(
        second.glob, first.glob
    )


def _have_common_section(first: Layer, second: Layer) -> bool:
    """Rules look across the keys of one section only."""
    return any(
        isinstance(value, Mapping) and key in second.level for key, value in first.level.items()
    )
