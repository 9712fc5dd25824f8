"""What holds for one model and one resource: the overrides that fit, laid over `memory` and
`context`."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from om_proxy.errors import ConfigError
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.settings.memory import (
    SHARED_KEY_MODELS,
    ContextSettings,
    MemorySettings,
    expand_short_forms,
)
from om_proxy.settings.model_choice import INHERIT_MODEL, ModelChoice, choose_model
from om_proxy.settings.quantities import (
    MIN_BLOCK_AFTER_TOKENS,
    convert_multiple,
    convert_share,
    count_kept_tokens,
    render_duration,
)
from om_proxy.settings.source import Key
from om_proxy.settings.validation_messages import list_faults

MAX_CACHED_THREAD_OVERRIDES = 256  # with thresholds of their own whose settings are kept made
MAX_THREAD_BLOCK_TIMEOUT_S = (
    120.0  # what a memory call may take by default: nothing is waited for beyond it
)
# seconds; OpenAI's short-lived caches may last so long at quiet times
# (docs/spec/behaviour.md#render-date)
CERTAINLY_COLD_S = 3_600.0


@dataclass(frozen=True, slots=True, eq=False)  # compared and hashed as itself: it keys a cache
class Layer:
    """One override: where it stands (`models["gpt-4o*"]`), and what it says."""

    kind: str  # models | resources
    glob: str
    values: Mapping[str, Any]

    def fits(self, name: str) -> bool:
        return fnmatch.fnmatchcase(name, self.glob)

    @property
    def level(self) -> dict[str, Any]:
        """Its keys as one level of `memory`, with those of `context` among them: `context: {…}`
        within it is opened up."""
        level = dict(expand_short_forms(self.values))
        for section in ("memory", "context"):
            inside = level.get(section)
            if isinstance(inside, Mapping):
                del level[section]
                level.update(inside)
        return dict(expand_short_forms(level))

    def written_at(self, key: Key) -> Key:
        """Where the override says it: `(layout,)` may stand within `context`."""
        for section in ("memory", "context"):
            inside = self.values.get(section)
            if isinstance(inside, Mapping) and key[:1] and key[0] in inside:
                return (self.kind, self.glob, section, *key)
        return (self.kind, self.glob, *key)

    @property
    def rank(self) -> tuple[bool, int]:
        """Sorts from the least specific on: resources over models, then by the number of literal
        characters."""
        return self.kind == "resources", len(re.sub(r"\[!?.[^]]*\]|[*?]", "", self.glob))


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """One pair's settings. The models are as written: a name, a list of names, or `{"up_to":
    {tokens: name}}`."""

    memory: MemorySettings
    context: ContextSettings
    limits: Limits
    observer_model: ModelChoice
    reflector_model: ModelChoice
    layers: tuple[Layer, ...] = ()  # from the least to the most specific
    cold: float = (
        CERTAINLY_COLD_S  # seconds the provider keeps a prompt, as `limits` was given them
    )
    _by_overrides: dict[bytes, Effective] = field(default_factory=dict, compare=False, repr=False)

    def with_overrides(self, overrides: bytes | None) -> Effective:
        """With one thread's own thresholds over it, if it has any: `Memory.overrides`, made by
        `merge_thread_overrides`.

        Where the configuration has changed since so that they break a rule with it, they do not
        count."""
        if overrides is None:
            return self
        found = self._by_overrides.get(overrides)
        if found is None:
            if len(self._by_overrides) >= MAX_CACHED_THREAD_OVERRIDES:
                self._by_overrides.clear()
            found = self._by_overrides[overrides] = self._apply_overrides(overrides)
        return found

    def _apply_overrides(self, overrides: bytes) -> Effective:
        layer = Layer("threads", "*", json.loads(overrides))
        try:
            found = apply_layers(self.memory, self.context, (layer,), cache_lives=self.cold)
        except ValidationError:
            return self
        longest = min(found.limits.block_timeout, get_max_thread_block_timeout(self))
        return replace(
            found, limits=replace(found.limits, prices=self.limits.prices, block_timeout=longest)
        )


THREAD_THRESHOLDS = {  # what a thread may have of its own; the rest is the operator's
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


def get_max_thread_block_timeout(base: Effective) -> float:
    """The longest `block_timeout` in seconds that a thread may have of its own: each waiting
    request holds a place of the server's."""
    return max(base.limits.block_timeout, MAX_THREAD_BLOCK_TIMEOUT_S)


def merge_thread_overrides(
    base: Effective, wanted: Mapping[str, Any], over: bytes | None = None
) -> bytes | None:
    """A thread's own thresholds as they are stored, laid over those it has; None for none. A value
    of null takes one back.

    Raises ConfigError naming what is no threshold, or what breaks a rule with the settings that
    hold otherwise.
    """
    for section, values in wanted.items():
        if section not in THREAD_THRESHOLDS or not isinstance(values, Mapping):
            raise ConfigError(
                f"{section}: a thread has thresholds in {' and '.join(THREAD_THRESHOLDS)} only"
            )
        if strangers := sorted(set(values) - THREAD_THRESHOLDS[section]):
            known = ", ".join(sorted(THREAD_THRESHOLDS[section]))
            raise ConfigError(
                f"{section}.{strangers[0]} is not a threshold of a thread; the thresholds are {known}"
            )
    merged = merge_levels([json.loads(over) if over else {}, wanted])
    kept = {
        section: {k: v for k, v in values.items() if v is not None}
        for section, values in merged.items()
    }
    kept = {section: values for section, values in kept.items() if values}
    try:
        found = apply_layers(
            base.memory, base.context, (Layer("threads", "*", kept),), cache_lives=base.cold
        )
    except ValidationError as exc:
        raise ConfigError(
            "; ".join(f"{'.'.join(map(str, path))} {rule}" for path, rule in list_faults(exc))
        ) from None
    if found.limits.block_timeout > (longest := get_max_thread_block_timeout(base)):
        raise ConfigError(
            f"observation.block_timeout of a thread is at most {render_duration(longest)}"
        )
    return json.dumps(kept, sort_keys=True).encode() if kept else None


def compute_limits(
    memory: MemorySettings, context: ContextSettings, *, cache_lives: float = CERTAINLY_COLD_S
) -> Limits:
    """The thresholds as plain tokens and seconds. `cache_lives`: seconds the provider keeps a
    prompt, for `auto`."""
    observation, reflection = memory.observation, memory.reflection
    whole, most = observation.message_tokens, reflection.observation_tokens
    buffering = observation.buffer_tokens is not False
    idle = cache_lives if memory.activate_after_idle == "auto" else memory.activate_after_idle
    return Limits(
        observe_at=whole,
        interval=None
        if observation.buffer_tokens is False
        else convert_share(observation.buffer_tokens, whole),
        keep=count_kept_tokens(observation.buffer_activation, whole) if buffering else 0,
        block_at=_compute_block_at(
            observation.block_after,
            "block_after" in observation.model_fields_set or buffering,
            whole,
        ),
        block_timeout=observation.block_timeout,
        previous=None
        if observation.previous_observer_tokens is False
        else observation.previous_observer_tokens,
        buffer_after_idle=(idle or cache_lives) if observation.buffer_on_idle else None,
        reflect_at=most,
        reflect_from=max(1, round(most * reflection.buffer_activation)) if buffering else None,
        reflect_block_at=_compute_block_at(
            reflection.block_after, "block_after" in reflection.model_fields_set or buffering, most
        ),
        activate_after_idle=idle,
        activate_on_provider_change=memory.activate_on_provider_change,
        cache_lives=max(cache_lives, CERTAINLY_COLD_S),
        tail_limit=context.tail_limit,
        shared=memory.share_token_budget,
        fixed=frozenset(_list_thresholds_in_tokens(memory)),
    )


def _list_thresholds_in_tokens(memory: MemorySettings) -> Iterator[str]:
    """Names of the thresholds of `Limits` that are written in tokens, not as shares."""
    observation, reflection = memory.observation, memory.reflection
    written = {
        "interval": observation.buffer_tokens >= 1,
        "keep": observation.buffer_activation > 1,
        "block_at": observation.block_after >= MIN_BLOCK_AFTER_TOKENS,
        "reflect_block_at": reflection.block_after >= MIN_BLOCK_AFTER_TOKENS,
    }
    return (name for name, tokens in written.items() if tokens)


def _compute_block_at(block_after: float, counts: bool, threshold: int) -> int:
    """Without buffering, a `block_after` nobody wrote is 1.0: the work is done at the threshold
    (docs/spec/behaviour.md#wait)."""
    return max(threshold, convert_multiple(block_after, threshold)) if counts else threshold


def apply_layers(
    memory: MemorySettings,
    context: ContextSettings,
    layers: Sequence[Layer],
    *,
    cache_lives: float = CERTAINLY_COLD_S,
) -> Effective:
    """`layers` from the least to the most specific; `cache_lives` as in `limits`. Raises pydantic's
    ValidationError where the result breaks a rule."""
    levels = list_levels(memory, layers)
    merged = merge_levels(_remove_models(level) for level in levels)
    parts = {key: merged.pop(key) for key in list(merged) if key in ContextSettings.model_fields}
    observer, reflector = (
        choose_model(levels, "observation").choice,
        choose_model(levels, "reflection").choice,
    )
    for section, model in (("observation", observer), ("reflection", reflector)):
        if model != INHERIT_MODEL:
            merged[section] = merge_levels([merged.get(section, {}), {"model": model}])
    memory = MemorySettings.model_validate(
        merged, context={SHARED_KEY_MODELS: _list_models_of_shared_key(levels)}
    )
    context = ContextSettings.model_validate(context.model_dump(exclude_unset=True) | parts)
    return Effective(
        memory=memory,
        context=context,
        limits=compute_limits(memory, context, cache_lives=cache_lives),
        observer_model=observer,
        reflector_model=reflector,
        layers=tuple(layers),
        cold=cache_lives,
    )


def _list_models_of_shared_key(levels: Sequence[Mapping[str, Any]]) -> list[ModelChoice]:
    """What the level that gives the shared key asks with it: a more specific one must not take that
    key to another provider. With an address beside it, the key goes nowhere else."""
    keyed = max((depth for depth, level in enumerate(levels) if level.get("api_key")), default=-1)
    if keyed < 0 or any(level.get("api_base") for level in levels):
        return []
    return [
        choose_model(levels[: keyed + 1], agent).choice for agent in ("observation", "reflection")
    ]


def list_levels(memory: MemorySettings, layers: Sequence[Layer]) -> list[dict[str, Any]]:
    """What each level says, from `memory` to the most specific."""
    return [memory.model_dump(exclude_unset=True), *(layer.level for layer in layers)]


def merge_levels(levels: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Later over earlier, key by key; lists are replaced whole."""
    result: dict[str, Any] = {}
    for level in levels:
        for key, value in level.items():
            below = result.get(key)
            result[key] = (
                merge_levels([below, value])
                if isinstance(below, dict) and isinstance(value, dict)
                else value
            )
    return result


def _remove_models(level: Mapping[str, Any]) -> dict[str, Any]:
    """Models are chosen by level, not merged by key."""
    own = {key: value for key, value in level.items() if key != "model"}
    for section in ("observation", "reflection"):
        if isinstance(own.get(section), Mapping):
            own[section] = {key: value for key, value in own[section].items() if key != "model"}
    return own
