"""Check the rules of `models:` and `resources:` at load: for each override, and for each pair of
overrides that one request can match. Three overrides together are not checked, nor is every pair of
globs with a set of characters."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from pydantic import ValidationError

from om_proxy.settings.config.effective import Layer, apply_layers
from om_proxy.settings.config.sections.memory import ContextSettings, MemorySettings
from om_proxy.settings.config.sections.model_choice import list_model_conflicts, parse_model_choice
from om_proxy.settings.config.source import Key, render_path
from om_proxy.settings.config.validation_messages import list_faults


def list_override_faults(
    memory: MemorySettings, context: ContextSettings, layers: Sequence[Layer]
) -> Iterator[tuple[Key, str]]:
    """List each broken rule with the path of the override's key that breaks it. `layers`: the least
    specific first."""
    valid_layers = []
    for layer in layers:
        faults = [*_list_own_faults(layer), *_list_merged_faults(memory, context, [layer])]
        yield from faults
        if not faults:
            valid_layers.append(layer)
    for first, second in combinations(valid_layers, 2):
        if _can_match_together(first, second) and _can_break_rule(first, second):
            for path, rule in _list_merged_faults(memory, context, (first, second)):
                yield path, f"{rule} where {render_path((first.kind, first.glob))} matches too"


def _list_own_faults(layer: Layer) -> Iterator[tuple[Key, str]]:
    """List the faults of an override's own models, which merging would hide."""
    level = layer.level
    for section in ((), ("observation",), ("reflection",)):
        values: Any = level.get(section[0], {}) if section else level
        if isinstance(values, Mapping) and values.get("model") is not None:
            try:
                parse_model_choice(values["model"])
            except ValueError as exc:
                yield layer.get_path_in_file((*section, "model")), str(exc)
    yield from (
        (layer.get_path_in_file(tuple(key.split("."))), rule)
        for key, rule in list_model_conflicts(level)
    )


def _list_merged_faults(
    memory: MemorySettings, context: ContextSettings, layers: Sequence[Layer]
) -> Iterator[tuple[Key, str]]:
    """List the faults of the merged result, with paths in the most specific layer.
    `_list_own_faults` lists the faults of models that cannot be parsed."""
    most_specific = layers[-1]
    try:
        apply_layers(memory, context, layers)
    except ValidationError as exc:
        yield from ((most_specific.get_path_in_file(path), rule) for path, rule in list_faults(exc))
    except ValueError:
        return


def _can_match_together(first: Layer, second: Layer) -> bool:
    """Return whether one request can match both layers. A model and a resource always can."""
    return first.kind != second.kind or can_globs_meet(first.glob, second.glob)


def can_globs_meet(first: str, second: str) -> bool:
    """Return whether some name matches both globs.

    A glob with a set of characters (`[45]`) is compared as a name: it meets another glob that
    matches it, or that it matches.
    """
    if "[" in first + second:
        return fnmatch.fnmatchcase(first, second) or fnmatch.fnmatchcase(second, first)
    # row by row: whether the rest of `first` meets each rest of `second`
    row = [True]
    for letter in reversed(second):
        row.append(row[-1] and letter == "*")
    for letter in reversed(first):
        below, row = row, [row[0] and letter == "*"]
        for place, other in enumerate(reversed(second), 1):
            if letter == "*" or other == "*":
                row.append(row[place - 1] or below[place])
            else:
                row.append(below[place - 1] and (letter == other or "?" in (letter, other)))
    return row[-1]


def _can_break_rule(first: Layer, second: Layer) -> bool:
    """Return whether a rule may compare a value of one layer with a value of the other: both set
    keys of one section, or one sets the key or address that the other's model would share."""
    has_common_section = any(
        isinstance(value, Mapping) and key in second.level for key, value in first.level.items()
    )
    return (
        has_common_section
        or (_sets_access(first) and _sets_model(second))
        or (_sets_access(second) and _sets_model(first))
    )


def _sets_access(layer: Layer) -> bool:
    return "api_key" in layer.level or "api_base" in layer.level


def _sets_model(layer: Layer) -> bool:
    return any(
        "model" in section
        for section in (layer.level, *layer.level.values())
        if isinstance(section, Mapping)
    )
