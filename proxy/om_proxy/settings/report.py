"""What `om-proxy check` prints: what the settings come to, each with its value and where it came from, and warnings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, SecretStr

from om_proxy.memory.thresholds import MIN_RAW_TOKENS, Limits
from om_proxy.settings.choice import Agent, chosen
from om_proxy.settings.effective import Effective, Layer, levels_of
from om_proxy.settings.faults import without_issued
from om_proxy.settings.model import Settings
from om_proxy.settings.quantities import written_duration, written_size
from om_proxy.settings.service import UpstreamSettings
from om_proxy.settings.source import Key, written
from om_proxy.settings.upstreams import upstream_warnings

DURATIONS = {
    "header_timeout",
    "body_timeout",
    "write_timeout",
    "keep_alive",
    "connect_timeout",
    "read_timeout",
    "block_timeout",
    "observer_interval",
    "call_timeout",
}
NOT_IN_EFFECT = (  # accepted and checked, but nothing acts on them yet; config/om-proxy.yaml marks the same ones
    "storage.prefix",
    "storage.encryption_key",
    "memory.retrieval.enabled",
    "memory.retrieval.vector",
    "memory.retrieval.scope",
    "memory.retrieval.max_steps",
    "memory.retrieval.embedding_model",
    "retention.ttl_days",
    "retention.max_observations",
    "retention.max_reflections",
    "telemetry.metrics",
    "telemetry.otel",
    "telemetry.resource_labels",
    "telemetry.thread_labels",
    "telemetry.debug_events",
)
NO_UPSTREAM = "none: the request is refused"
LONGEST = 80  # characters of an instruction that are shown
SIZES = {"body", "headers", "memory"}
_ADDRESS = re.compile(r"[a-z]+://\S*")


def summary_lines(settings: Settings, model: str | None = None, resource: str | None = None) -> list[str]:
    """What a reader wants to know first: which file, which server, who observes, at how many tokens."""
    effective, upstream = settings.effective(model, resource), settings.upstream_for(model)
    memory = effective.memory
    who = ", ".join(
        f"{agent} {shown(('model',), choice)}"
        for agent, choice in (("observer", effective.observer_model), ("reflector", effective.reflector_model))
    )
    return [
        f"settings: {settings.file or 'the built-in defaults; om-proxy init writes a file to edit'}",
        f"listens on: {settings.server.host}:{settings.server.port}",
        *(upstream_lines(settings) if model is None else ()),
        *(() if model is None else (f"upstream: {_upstream_line(upstream) if upstream else NO_UPSTREAM}",)),
        f"memory: {'on' if memory.enabled else 'off'}, scope {memory.scope}, {who}",
        f"store: {shown(('url',), settings.storage.url)}",
        *(f"tokens: {line}" for line in token_lines(effective.limits)),
    ]


def upstream_lines(settings: Settings) -> list[str]:
    """One line for each model server: its name, its address, and which models go there."""
    return [f"upstream: {_upstream_line(upstream)}" for upstream in settings.upstream]


def _upstream_line(upstream: UpstreamSettings) -> str:
    models = "every model" if "*" in upstream.match else "models " + shown(("match",), upstream.match)
    address = shown(("base_url",), upstream.base_url)
    return f"{without_issued(upstream.name)} at {address}, for {models}"


def effective_lines(settings: Settings, model: str | None = None, resource: str | None = None) -> list[str]:
    """One line a setting, `key = value  (origin)`, as it holds for this model and resource."""
    effective = settings.effective(model, resource)
    return [
        f"{written(key)} = {shown(key, value)}  ({_origin(settings, effective, key)})"
        for key, value in _view(settings, effective)
    ]


def attention_lines(settings: Settings, model: str | None = None, resource: str | None = None) -> list[str]:
    """What is allowed and will disappoint, or does nothing."""
    effective = settings.effective(model, resource)
    return [*warnings(effective), *upstream_warnings(settings), *without_effect(settings, effective)]


def token_lines(limits: Limits) -> list[str]:
    """What the ratios come to."""
    ahead = f"every {limits.interval} new ones" if limits.interval else "not ahead of time"
    reflected = f"prepared from {limits.reflect_from}" if limits.reflect_from else "not prepared ahead of time"
    return [
        f"messages are observed at {limits.observe_at}, {ahead}; about {limits.keep} stay raw; a request waits at {limits.block_at}",
        f"observations are reflected at {limits.reflect_at}, {reflected}; a request waits at {limits.reflect_block_at}",
        *_shared(limits),
        *_pauses(limits),
    ]


def _shared(limits: Limits) -> Iterator[str]:
    """How far a shared budget moves the thresholds at most."""
    if limits.shared:
        alone = limits.for_memory(log=0, pending=0)
        yield (
            f"the two share what the other leaves free: without observations, messages are observed at {alone.observe_at} and "
            f"a request waits at {alone.block_at}; without messages, observations are reflected at {alone.reflect_at}"
        )


def _pauses(limits: Limits) -> Iterator[str]:
    """What `auto` and silence come to with this model's provider."""
    if limits.activate_after_idle is not None:
        yield f"after a pause of {written_duration(limits.activate_after_idle)}, what was observed ahead becomes active"
    if limits.buffer_after_idle is not None and limits.interval:
        pause, least = written_duration(limits.buffer_after_idle), limits.interval // 2
        yield f"after a pause of {pause}, {least} new ones are enough to be observed ahead"


def warnings(effective: Effective) -> list[str]:
    """What is allowed and will disappoint."""
    limits, memory = effective.limits, effective.memory
    found = []
    if limits.interval and limits.keep < limits.interval:
        found.append(
            f"buffer_activation leaves {limits.keep} tokens raw, less than one buffering interval ({limits.interval}): "
            "activations come in quick succession, and each breaks the provider's prompt cache"
        )
    if limits.interval and limits.keep < MIN_RAW_TOKENS:
        found.append(
            f"less than {MIN_RAW_TOKENS} tokens stay raw after an activation: the model sees little but its notes"
        )
    if not limits.interval and limits.block_at > limits.observe_at:
        found.append(
            f"buffer_tokens is off, and block_after delays observing to {limits.block_at} tokens: leave block_after out"
        )
    if not limits.interval and (
        limits.activate_after_idle or limits.activate_on_provider_change or limits.buffer_after_idle
    ):
        found.append(
            "buffer_tokens is off: nothing is observed ahead, so activate_after_idle, activate_on_provider_change and "
            "buffer_on_idle have nothing to work with"
        )
    waits_at = limits.for_memory(log=0, pending=0).block_at
    if limits.tail_limit is not None and limits.tail_limit < waits_at:
        found.append(
            f"context.tail_limit ({limits.tail_limit}) is below {waits_at}, where a request waits for an observation: "
            "raw messages are left out of prompts before they are observed"
        )
    if not memory.enabled:
        found.append("memory is off: nothing is read or written")
    return found


def without_effect(settings: Settings, effective: Effective) -> Iterator[str]:
    """What was set in the belief that it does something. Its default is as much without effect, but nobody asked for it."""
    defaults = Settings()
    usual = dict(_view(defaults, defaults.effective(None)))
    for key, value in _view(settings, effective):
        if written(key) in NOT_IN_EFFECT and value != usual[key]:
            yield f"{written(key)} = {shown(key, value)} is accepted, but not in effect yet"


def shown(key: Key, value: Any) -> str:
    """As the file would write it; a secret only as set or not."""
    name = key[-1]
    if isinstance(value, SecretStr):
        return "(set)"
    if value is None:
        return "off" if name == "activate_after_idle" else "null"
    if name in DURATIONS or (name == "activate_after_idle" and isinstance(value, float)):
        return written_duration(value)
    if name in SIZES:
        return written_size(value)
    return _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, bool | SecretStr):
        return "(set)" if isinstance(value, SecretStr) else str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(_plain(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_plain(item)}' for key, item in value.items())}}}"
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else f"{value:g}"
    text = without_issued(str(value))  # before it is clipped: half a key has no shape
    if _ADDRESS.fullmatch(text):
        return _url(text)
    return text if len(text) <= LONGEST and "\n" not in text else f"{text.splitlines()[0][:LONGEST]}…"


def _url(text: str) -> str:
    """Without its user and its query, either of which may be a credential."""
    text, query, _ = text.partition("?")
    scheme, _, rest = text.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{'…@' if '@' in host else ''}{host.rpartition('@')[2]}{slash}{path}{'?…' if query else ''}"


def _view(settings: Settings, effective: Effective) -> Iterator[tuple[Key, Any]]:
    """The settings as they hold; `memory.model` is left out, for what it came to stands at the two agents."""
    memory = effective.memory
    observation = memory.observation.model_copy(update={"model": effective.observer_model})
    reflection = memory.reflection.model_copy(update={"model": effective.reflector_model})
    view = {"memory": memory.model_copy(update={"observation": observation, "reflection": reflection})}
    whole = settings.model_copy(update=view | {"context": effective.context, "models": {}, "resources": {}})
    hidden = {("memory", "model"), ("models",), ("resources",)}
    return ((key, value) for key, value in _leaves(whole) if key not in hidden)


def _leaves(value: Any, key: Key = ()) -> Iterator[tuple[Key, Any]]:
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _leaves(getattr(value, name), (*key, name))
    elif isinstance(value, tuple) and any(isinstance(item, BaseModel) for item in value):
        for index, item in enumerate(value):
            yield from _leaves(item, (*key, index))
    else:
        yield key, value


def _origin(settings: Settings, effective: Effective, key: Key) -> str:
    """The most specific place that says it."""
    inner = key[1:]
    if inner in {("observation", "model"), ("reflection", "model")} and key[0] == "memory":
        return _model_origin(settings, effective, "observation" if key[1] == "observation" else "reflection")
    for layer in reversed(effective.layers) if key[0] in {"memory", "context"} else ():
        if _says(layer.level, inner):
            return _layer_origin(settings, layer, inner)
    return settings.origin(key) or "default"


def _model_origin(settings: Settings, effective: Effective, agent: Agent) -> str:
    """Models are chosen by level: the key that decided may be `model`, or the other agent's."""
    decided = chosen(levels_of(settings.memory, effective.layers), agent)
    if decided.level > 0:
        return f"{_layer_origin(settings, effective.layers[decided.level - 1], decided.key)}, {written(decided.key)}"
    if decided.level == 0:
        key = ("memory", *decided.key)
        return f"{settings.origin(key) or 'set'}, {written(key)}"
    return "default"


def _layer_origin(settings: Settings, layer: Layer, inner: Key) -> str:
    where = settings.origin(layer.written_at(inner)) or settings.origin((layer.kind, layer.glob))
    return f'{layer.kind}["{without_issued(layer.glob)}"]{f", {where}" if where else ""}'


def _says(values: Any, key: Key) -> bool:
    for part in key:
        if not isinstance(values, dict) or part not in values:
            return False
        values = values[part]
    return True
