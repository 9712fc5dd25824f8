"""Merge the overrides that match a model and a resource into `memory` and `context`."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from pydantic import ValidationError

from om_proxy.common.errors import ConfigError
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.settings.config.sections.memory import (
    SHARED_KEY_MODELS,
    ContextSettings,
    MemorySettings,
    ObservationSettings,
    ReflectionSettings,
    expand_short_forms,
)
from om_proxy.settings.config.sections.model_choice import (
    AUTO_MODEL,
    REQUEST_MODELS,
    ModelChoice,
    choose_model,
)
from om_proxy.settings.config.sections.quantities import (
    MIN_BLOCK_AFTER_TOKENS,
    convert_multiple,
    convert_share,
    count_kept_tokens,
    render_duration,
)
from om_proxy.settings.config.sections.section import Section
from om_proxy.settings.config.sections.service import ResourceRetention, RetentionSettings
from om_proxy.settings.config.source import Key
from om_proxy.settings.config.validation_messages import MAX_SHOWN_CHARS, render_faults

MAX_THREAD_OVERRIDES_BYTES = 4_096
HIDDEN_NAME = "(a name that is no setting's)"
MAX_CACHED_THREAD_OVERRIDES = 256  # different sets of thresholds whose merged settings are cached
# the default of background.call_timeout: waiting longer for a memory call gains nothing
MAX_THREAD_BLOCK_TIMEOUT_S = 120.0
# OpenAI's short-lived prompt caches may last this long at quiet times
# (docs/contributing/behaviour.md#render-date)
CERTAINLY_COLD_S = 3_600.0

DEFAULT_RETENTION = RetentionSettings()
# of the layer that holds a thread's own thresholds
THREAD_LAYER_KIND = "threads"
RESOURCE_LAYER_KIND = "resources"


@dataclass(frozen=True, slots=True, eq=False)  # compared and hashed as itself: it keys a cache
class Layer:
    """One override: its place in the file, such as `models["gpt-4o*"]`, and its values."""

    kind: str  # models | resources | threads
    glob: str
    values: Mapping[str, Any]

    def matches(self, name: str) -> bool:
        return fnmatch.fnmatchcase(name, self.glob)

    @property
    def level(self) -> dict[str, Any]:
        """The override's keys as one flat level: the keys inside its `memory: {…}` or `context:
        {…}` are moved up."""
        level = dict(expand_short_forms(self.values))
        for section in ("memory", "context"):
            section_values = level.get(section)
            if isinstance(section_values, Mapping):
                del level[section]
                level.update(section_values)
        level = dict(expand_short_forms(level))
        if self.kind == RESOURCE_LAYER_KIND:
            level.pop("retention", None)
        return level

    @property
    def retention(self) -> dict[str, Any]:
        """The part of the override that is about retention, which a resource may have."""
        has_any = self.kind == RESOURCE_LAYER_KIND and "retention" in self.values
        return {"retention": self.values["retention"]} if has_any else {}

    @property
    def inherits_model(self) -> bool:
        """Whether the override makes the request's own model a memory model."""
        level = self.level
        agents = (level.get("observation"), level.get("reflection"))
        sections = (level, *(agent for agent in agents if isinstance(agent, Mapping)))
        return any(section.get("model") in REQUEST_MODELS for section in sections)

    def get_path_in_file(self, key: Key) -> Key:
        """Return the path of a key in the file: `(layout,)` may be written inside `context`."""
        for section in ("memory", "context"):
            section_values = self.values.get(section)
            if key and isinstance(section_values, Mapping) and key[0] in section_values:
                return (self.kind, self.glob, section, *key)
        return (self.kind, self.glob, *key)

    @property
    def specificity(self) -> tuple[bool, int]:
        """The sort key of layers, from the least to the most specific: models before resources,
        then by the number of literal characters."""
        return self.kind == RESOURCE_LAYER_KIND, len(re.sub(r"\[!?.[^]]*\]|[*?]", "", self.glob))


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """The settings in force for one model and one resource. The memory models are written as in the
    file: a name, a list of names, or `{"up_to": {tokens: name}}`."""

    memory: MemorySettings
    context: ContextSettings
    limits: Limits
    observer_model: ModelChoice
    reflector_model: ModelChoice
    layers: tuple[Layer, ...] = ()  # from the least to the most specific
    cache_lifetime_s: float = CERTAINLY_COLD_S  # of the provider's prompt cache
    retention: RetentionSettings = DEFAULT_RETENTION
    _by_overrides: dict[bytes, Effective] = field(default_factory=dict, compare=False, repr=False)

    def with_overrides(self, overrides: bytes | None) -> Effective:
        """Return these settings with a thread's own thresholds merged in. `overrides`:
        `Memory.overrides`, as a row has them.

        Overrides that break a rule are ignored: the configuration may have changed since, or
        somebody wrote the row by other ways than the admin API.
        """
        if overrides is None:
            return self
        effective = self._by_overrides.get(overrides)
        if effective is None:
            if len(self._by_overrides) >= MAX_CACHED_THREAD_OVERRIDES:
                self._by_overrides.clear()
            effective = self._by_overrides[overrides] = self._apply_overrides(overrides)
        return effective

    def _apply_overrides(self, overrides: bytes) -> Effective:
        try:
            effective = _apply_thresholds(self, parse_thread_overrides(overrides))
        except ConfigError:
            return self
        limits = effective.limits
        block_timeout_s = min(limits.block_timeout_s, get_max_thread_block_timeout(self))
        limits = replace(limits, prices=self.limits.prices, block_timeout_s=block_timeout_s)
        return replace(effective, limits=limits)


# the settings that a thread may override
THREAD_THRESHOLDS = {
    "observation": frozenset(
        {
            "message_tokens",
            "buffer_tokens",
            "buffer_activation",
            "block_after",
            "block_timeout",
            "previous_observer_tokens",
            "buffer_on_idle",
        }
    ),
    "reflection": frozenset({"observation_tokens", "buffer_activation", "block_after"}),
}
SECTIONS_WITH_THRESHOLDS: dict[str, type[Section]] = {
    "observation": ObservationSettings,
    "reflection": ReflectionSettings,
}
Thresholds = dict[str, dict[str, Any]]  # of a thread, by section and name


def get_max_thread_block_timeout(base: Effective) -> float:
    """Return the longest `block_timeout` in seconds that a thread may set. There is a limit because
    each waiting request counts towards `limits.in_flight`."""
    return max(base.limits.block_timeout_s, MAX_THREAD_BLOCK_TIMEOUT_S)


def parse_thread_overrides(stored: bytes) -> Thresholds:
    """Return the thresholds in a thread's stored overrides. Raises ConfigError unless they are what
    `merge_thread_overrides` may have written, with whatever configuration."""
    if len(stored) > MAX_THREAD_OVERRIDES_BYTES:
        raise ConfigError(f"a thread's settings have at most {MAX_THREAD_OVERRIDES_BYTES} bytes")
    try:
        thresholds = orjson.loads(stored)
    except orjson.JSONDecodeError:
        thresholds = None
    if not isinstance(thresholds, dict):
        raise ConfigError("a thread's settings are a JSON object of thresholds")
    _check_threshold_names(thresholds)
    for section, values in thresholds.items():
        _check_threshold_values(section, values)
    return thresholds


def check_thread_overrides(base: Effective, stored: bytes) -> None:
    """Raise ConfigError for overrides that `merge_thread_overrides` would not write with `base`."""
    thresholds = parse_thread_overrides(stored)
    effective = _apply_thresholds(base, thresholds)
    max_timeout_s = get_max_thread_block_timeout(base)
    if effective.limits.block_timeout_s > max_timeout_s:
        raise ConfigError(
            "observation.block_timeout of a thread must be at most"
            f" {render_duration(max_timeout_s)}"
        )


def merge_thread_overrides(
    base: Effective, changes: Mapping[str, Any], stored: bytes | None = None
) -> bytes | None:
    """Merge changed thresholds into a thread's stored ones. Return the bytes to store; None if no
    threshold is left. A value of None removes a threshold. Stored ones that break a rule by
    themselves are dropped.

    Raises ConfigError for a key that is not a threshold, or a value that breaks a rule together
    with `base`.
    """
    _check_threshold_names(changes)
    merged = merge_levels([read_valid_overrides(stored), changes])
    thresholds = {}
    for section, values in merged.items():
        values_set = {name: value for name, value in values.items() if value is not None}
        if values_set:
            thresholds[section] = values_set
    overrides = json.dumps(thresholds, sort_keys=True).encode()
    check_thread_overrides(base, overrides)
    return overrides if thresholds else None


def read_valid_overrides(stored: bytes | None) -> Thresholds:
    """Return the thresholds in a thread's stored overrides; none if they break a rule."""
    try:
        return parse_thread_overrides(stored) if stored else {}
    except ConfigError:
        return {}


def _check_threshold_names(changes: Mapping[str, Any]) -> None:
    for section, values in changes.items():
        if section not in THREAD_THRESHOLDS or not isinstance(values, Mapping):
            raise ConfigError(
                f"{_show_name(section)}: a thread has thresholds in {' and '.join(THREAD_THRESHOLDS)} only"
            )
        if unknown_names := sorted(set(values) - THREAD_THRESHOLDS[section]):
            names = ", ".join(sorted(THREAD_THRESHOLDS[section]))
            raise ConfigError(
                f"{section}.{_show_name(unknown_names[0])} is not a threshold of a thread;"
                f" the thresholds are {names}"
            )


def _show_name(name: str) -> str:
    """Return the name of a setting as an error may show it: it may come from a stored row."""
    return name if name.isidentifier() and len(name) <= MAX_SHOWN_CHARS else HIDDEN_NAME


def _check_threshold_values(section: str, values: Mapping[str, Any]) -> None:
    """Raise ConfigError for a value that no configuration could have. Rules between values depend
    on the configuration: they have no place in the section, and are left out."""
    try:
        SECTIONS_WITH_THRESHOLDS[section].model_validate(values)
    except ValidationError as exc:
        if any(error["loc"] for error in exc.errors()):
            raise ConfigError(f"{section}.{render_faults(exc)}") from None


def _apply_thresholds(base: Effective, thresholds: Mapping[str, Any]) -> Effective:
    """Return `base` with a thread's own thresholds. Raises ConfigError."""
    layer = Layer(THREAD_LAYER_KIND, "*", thresholds)
    try:
        return apply_layers(
            base.memory,
            base.context,
            (layer,),
            cache_lifetime_s=base.cache_lifetime_s,
            retention=base.retention,
        )
    except ValidationError as exc:
        raise ConfigError(render_faults(exc)) from None


def compute_limits(
    memory: MemorySettings,
    context: ContextSettings,
    *,
    cache_lifetime_s: float = CERTAINLY_COLD_S,
    max_log_entries: int | None = None,
) -> Limits:
    """Convert the thresholds to plain tokens and seconds. `cache_lifetime_s`: how long the provider
    keeps a prompt, which is what `auto` means."""
    observation, reflection = memory.observation, memory.reflection
    observe_from_tokens = observation.message_tokens
    reflect_from_tokens = reflection.observation_tokens
    is_buffering = observation.buffer_tokens is not False
    idle_s = (
        cache_lifetime_s if memory.activate_after_idle == "auto" else memory.activate_after_idle
    )
    return Limits(
        observe_from_tokens=observe_from_tokens,
        interval_tokens=None
        if observation.buffer_tokens is False
        else convert_share(observation.buffer_tokens, observe_from_tokens),
        keep_tokens=count_kept_tokens(observation.buffer_activation, observe_from_tokens)
        if is_buffering
        else 0,
        block_from_tokens=_compute_block_tokens(
            observation.block_after,
            "block_after" in observation.model_fields_set or is_buffering,
            observe_from_tokens,
        ),
        block_timeout_s=observation.block_timeout,
        log_excerpt_tokens=None
        if observation.previous_observer_tokens is False
        else observation.previous_observer_tokens,
        buffer_after_idle_s=(idle_s or cache_lifetime_s) if observation.buffer_on_idle else None,
        share_after_idle_s=None
        if observation.buffer_on_idle is False
        else idle_s or cache_lifetime_s,
        reflect_from_tokens=reflect_from_tokens,
        reflect_ahead_from_tokens=max(1, round(reflect_from_tokens * reflection.buffer_activation))
        if is_buffering
        else None,
        reflect_block_from_tokens=_compute_block_tokens(
            reflection.block_after,
            "block_after" in reflection.model_fields_set or is_buffering,
            reflect_from_tokens,
        ),
        max_log_entries=max_log_entries,
        activate_after_idle_s=idle_s,
        activate_on_provider_change=memory.activate_on_provider_change,
        cache_lifetime_s=max(cache_lifetime_s, CERTAINLY_COLD_S),
        tail_limit_tokens=context.tail_limit,
        has_shared_budget=memory.share_token_budget,
        fixed_thresholds=frozenset(_list_thresholds_in_tokens(memory)),
    )


def _list_thresholds_in_tokens(memory: MemorySettings) -> Iterator[str]:
    """List the thresholds of `Limits` that the settings set in tokens, not as shares or
    multiples."""
    observation, reflection = memory.observation, memory.reflection
    is_in_tokens = {
        "interval_tokens": observation.buffer_tokens >= 1,
        "keep_tokens": observation.buffer_activation > 1,
        "block_from_tokens": observation.block_after >= MIN_BLOCK_AFTER_TOKENS,
        "reflect_block_from_tokens": reflection.block_after >= MIN_BLOCK_AFTER_TOKENS,
    }
    return (name for name, is_fixed in is_in_tokens.items() if is_fixed)


def _compute_block_tokens(block_after: float, is_in_force: bool, threshold: int) -> int:
    """Return the tokens at which a request waits. Without buffering, the default of `block_after`
    is 1.0: requests wait at the threshold (docs/contributing/behaviour.md#wait)."""
    return max(threshold, convert_multiple(block_after, threshold)) if is_in_force else threshold


def apply_layers(
    memory: MemorySettings,
    context: ContextSettings,
    layers: Sequence[Layer],
    *,
    cache_lifetime_s: float = CERTAINLY_COLD_S,
    retention: RetentionSettings = DEFAULT_RETENTION,
) -> Effective:
    """Merge `layers`, the least specific first, into `memory`, `context` and `retention`.
    `cache_lifetime_s`: as in `compute_limits`. Raises pydantic's ValidationError if the result
    breaks a rule."""
    retention = apply_retention(retention, layers)
    levels = list_levels(memory, layers)
    merged = merge_levels(_remove_models(level) for level in levels)
    context_values = {
        key: merged.pop(key) for key in list(merged) if key in ContextSettings.model_fields
    }
    observer = choose_model(levels, "observation").choice
    reflector = choose_model(levels, "reflection").choice
    for section, model in (("observation", observer), ("reflection", reflector)):
        if model != AUTO_MODEL:
            merged[section] = merge_levels([merged.get(section, {}), {"model": model}])
    retrieval = merged.get("retrieval", {})
    if isinstance(retrieval, Mapping) and retrieval.get("scope") is None:
        scope = merged.get("scope", memory.scope)
        merged["retrieval"] = {**retrieval, "scope": scope}
    memory = MemorySettings.model_validate(
        merged, context={SHARED_KEY_MODELS: _list_models_of_shared_key(levels)}
    )
    context = ContextSettings.model_validate(
        context.model_dump(exclude_unset=True) | context_values
    )
    return Effective(
        memory=memory,
        context=context,
        limits=compute_limits(
            memory,
            context,
            cache_lifetime_s=cache_lifetime_s,
            max_log_entries=retention.max_observations,
        ),
        observer_model=observer,
        reflector_model=reflector,
        layers=tuple(layers),
        cache_lifetime_s=cache_lifetime_s,
        retention=retention,
    )


def apply_retention(retention: RetentionSettings, layers: Sequence[Layer]) -> RetentionSettings:
    """Merge the retention of `layers`, the least specific first, into `retention`. Raises pydantic's
    ValidationError."""
    own = [layer.retention for layer in layers if layer.retention]
    if not own:
        return retention
    for values in own:
        ResourceRetention.model_validate(values)
    merged = merge_levels([retention.model_dump(), *(values["retention"] for values in own)])
    return RetentionSettings.model_validate(merged)


def _list_models_of_shared_key(levels: Sequence[Mapping[str, Any]]) -> list[ModelChoice]:
    """Return the models of the most specific level with an `api_key`. A more specific level must
    not send that key to another provider. The list is empty with an `api_base`, because the key
    then goes to that address only."""
    key_level = max(
        (depth for depth, level in enumerate(levels) if level.get("api_key")), default=-1
    )
    if key_level < 0 or any(level.get("api_base") for level in levels):
        return []
    return [
        choose_model(levels[: key_level + 1], agent).choice
        for agent in ("observation", "reflection")
    ]


def list_levels(memory: MemorySettings, layers: Sequence[Layer]) -> list[dict[str, Any]]:
    """Return the values of each level, from `memory` to the most specific override."""
    return [memory.model_dump(exclude_unset=True), *(layer.level for layer in layers)]


def merge_levels(levels: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge levels key by key. A later level takes precedence. Lists are replaced, not merged."""
    result: dict[str, Any] = {}
    for level in levels:
        for key, value in level.items():
            earlier = result.get(key)
            if isinstance(earlier, dict) and isinstance(value, dict):
                result[key] = merge_levels([earlier, value])
            else:
                result[key] = value
    return result


def _remove_models(level: Mapping[str, Any]) -> dict[str, Any]:
    """Return the level without its models, because models are chosen by level, not merged by
    key."""
    values = {key: value for key, value in level.items() if key != "model"}
    for section in ("observation", "reflection"):
        if isinstance(values.get(section), Mapping):
            values[section] = {
                key: value for key, value in values[section].items() if key != "model"
            }
    return values
