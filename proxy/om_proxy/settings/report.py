"""Render what `om-proxy check` prints: a summary, each setting with its value and origin, and
warnings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, SecretStr

from om_proxy.memory.lifecycle.thresholds import MIN_RAW_TOKENS, Limits
from om_proxy.settings.effective import Effective, Layer, list_levels
from om_proxy.settings.model_choice import Agent, choose_model
from om_proxy.settings.quantities import render_duration, render_size
from om_proxy.settings.service import UpstreamSettings
from om_proxy.settings.snapshot import Settings
from om_proxy.settings.source import Key, render_path
from om_proxy.settings.upstream_warnings import list_upstream_warnings
from om_proxy.settings.validation_messages import redact_credentials

DURATION_SETTINGS = {
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
# accepted and checked, but not used yet; config/om-proxy.yaml marks the same settings
NOT_IN_EFFECT = (
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
MAX_SHOWN_CHARS = 80  # of a text, such as an instruction
SIZE_SETTINGS = {"body", "headers", "memory"}
_URL_PATTERN = re.compile(r"[a-z]+://\S*")


def render_summary(
    settings: Settings, model: str | None = None, resource: str | None = None
) -> list[str]:
    """Render what a reader wants to know first: the file, the servers, the memory models, the
    thresholds."""
    upstream = settings.upstream_for(model)
    return [
        f"settings: {settings.file or 'the built-in defaults; om-proxy init writes a file to edit'}",
        f"listens on: {settings.server.host}:{settings.server.port}",
        *(render_upstreams(settings) if model is None else ()),
        *(
            ()
            if model is None
            else (f"upstream: {_render_upstream(upstream) if upstream else NO_UPSTREAM}",)
        ),
        *render_memory_summary(settings, model, resource),
    ]


def render_memory_summary(
    settings: Settings, model: str | None = None, resource: str | None = None
) -> list[str]:
    """Render the memory models, the store and the thresholds, for the summary and for what a
    starting server prints."""
    effective = settings.effective(model, resource)
    memory = effective.memory
    models = ", ".join(
        f"{agent} {render_value(('model',), choice)}"
        for agent, choice in (
            ("observer", effective.observer_model),
            ("reflector", effective.reflector_model),
        )
    )
    return [
        f"memory: {'on' if memory.enabled else 'off'}, scope {memory.scope}, {models}",
        f"store: {render_value(('url',), settings.storage.url)}",
        *(f"tokens: {line}" for line in render_thresholds(effective.limits)),
    ]


def render_upstreams(settings: Settings) -> list[str]:
    """Render a line for each model server: its name, its address, and the models that go there."""
    return [f"upstream: {_render_upstream(upstream)}" for upstream in settings.upstream]


def _render_upstream(upstream: UpstreamSettings) -> str:
    models = (
        "every model"
        if "*" in upstream.match
        else "models " + render_value(("match",), upstream.match)
    )
    address = render_value(("base_url",), upstream.base_url)
    return f"{redact_credentials(upstream.name)} at {address}, for {models}"


def render_settings(
    settings: Settings, model: str | None = None, resource: str | None = None
) -> list[str]:
    """Render a line for each setting in force for this model and resource: `key = value
    (origin)`."""
    effective = settings.effective(model, resource)
    return [
        f"{render_path(key)} = {render_value(key, value)}  ({_find_origin(settings, effective, key)})"
        for key, value in _list_settings_in_force(settings, effective)
    ]


def list_warnings(
    settings: Settings, model: str | None = None, resource: str | None = None
) -> list[str]:
    """List what is allowed, but works badly or does nothing."""
    effective = settings.effective(model, resource)
    return [
        *list_memory_warnings(effective),
        *list_upstream_warnings(settings),
        *list_settings_without_effect(settings, effective),
    ]


def render_thresholds(limits: Limits) -> list[str]:
    """Render the thresholds, with ratios converted to tokens."""
    observed = (
        f"every {limits.interval_tokens} new ones"
        if limits.interval_tokens
        else "not ahead of time"
    )
    reflected = (
        f"prepared from {limits.reflect_ahead_from_tokens}"
        if limits.reflect_ahead_from_tokens
        else "not prepared ahead of time"
    )
    return [
        f"messages are observed at {limits.observe_from_tokens}, {observed}; "
        f"about {limits.keep_tokens} stay raw; a request waits at {limits.block_from_tokens}",
        f"observations are reflected at {limits.reflect_from_tokens}, {reflected}; a request waits at {limits.reflect_block_from_tokens}",
        *_render_shared_budget(limits),
        *_render_idle_thresholds(limits),
    ]


def _render_shared_budget(limits: Limits) -> Iterator[str]:
    """Render how far a shared budget moves the thresholds at most."""
    if limits.has_shared_budget:
        alone = limits.for_memory(log_tokens=0, pending_tokens=0)
        yield (
            f"messages and observations share one budget: without observations, messages are observed at {alone.observe_from_tokens} and "
            f"a request waits at {alone.block_from_tokens}; without messages, observations are reflected at {alone.reflect_from_tokens}"
        )


def _render_idle_thresholds(limits: Limits) -> Iterator[str]:
    """Render the pauses that `auto` and unset values mean for this model's provider."""
    if limits.activate_after_idle_s is not None:
        yield f"after a pause of {render_duration(limits.activate_after_idle_s)}, what was observed ahead becomes active"
    if limits.buffer_after_idle_s is not None and limits.interval_tokens:
        pause, tokens = render_duration(limits.buffer_after_idle_s), limits.interval_tokens // 2
        yield f"after a pause of {pause}, {tokens} new ones are enough to be observed ahead"


def list_memory_warnings(effective: Effective) -> list[str]:
    """List what is allowed under `memory` and `context`, but works badly."""
    limits, memory = effective.limits, effective.memory
    found = []
    if limits.interval_tokens and limits.keep_tokens < limits.interval_tokens:
        found.append(
            f"buffer_activation leaves {limits.keep_tokens} tokens raw, less than one buffering interval ({limits.interval_tokens}): "
            "activations come in quick succession, and each breaks the provider's prompt cache"
        )
    if limits.interval_tokens and limits.keep_tokens < MIN_RAW_TOKENS:
        found.append(
            f"less than {MIN_RAW_TOKENS} tokens stay raw after an activation: the model sees little except its notes"
        )
    if not limits.interval_tokens and limits.block_from_tokens > limits.observe_from_tokens:
        found.append(
            f"buffer_tokens is off, and block_after delays observing to {limits.block_from_tokens} tokens: leave block_after out"
        )
    if not limits.interval_tokens and (
        limits.activate_after_idle_s
        or limits.activate_on_provider_change
        or limits.buffer_after_idle_s
    ):
        found.append(
            "buffer_tokens is off: nothing is observed ahead, so activate_after_idle, activate_on_provider_change and "
            "buffer_on_idle have nothing to work with"
        )
    waits_at = limits.for_memory(log_tokens=0, pending_tokens=0).block_from_tokens
    if limits.tail_limit_tokens is not None and limits.tail_limit_tokens < waits_at:
        found.append(
            f"context.tail_limit ({limits.tail_limit_tokens}) is below {waits_at}, where a request waits for an observation: "
            "raw messages are left out of prompts before they are observed"
        )
    if not memory.enabled:
        found.append("memory is off: nothing is read or written")
    return found


def list_settings_without_effect(settings: Settings, effective: Effective) -> Iterator[str]:
    """List the settings that differ from their default, but are not in effect yet."""
    default_settings = Settings()
    default_effective = default_settings.effective(None)
    defaults = dict(_list_settings_in_force(default_settings, default_effective))
    for key, value in _list_settings_in_force(settings, effective):
        if render_path(key) in NOT_IN_EFFECT and value != defaults[key]:
            yield f"{render_path(key)} = {render_value(key, value)} is accepted, but not in effect yet"


def render_value(key: Key, value: Any) -> str:
    """Render a value as the file writes it. Of a secret, render only that it is set."""
    name = key[-1]
    if isinstance(value, SecretStr):
        return "(set)"
    if value is None:
        return "off" if name == "activate_after_idle" else "null"
    if name in DURATION_SETTINGS or (name == "activate_after_idle" and isinstance(value, float)):
        return render_duration(value)
    if name in SIZE_SETTINGS:
        return render_size(value)
    return _render_plain_value(value)


def _render_plain_value(value: Any) -> str:
    if isinstance(value, bool | SecretStr):
        return "(set)" if isinstance(value, SecretStr) else str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(_render_plain_value(item) for item in value)}]"
    if isinstance(value, dict):
        return (
            f"{{{', '.join(f'{key}: {_render_plain_value(item)}' for key, item in value.items())}}}"
        )
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else f"{value:g}"
    text = redact_credentials(str(value))  # before it is cut: half a key is not recognised
    if _URL_PATTERN.fullmatch(text):
        return _hide_url_secrets(text)
    return (
        text
        if len(text) <= MAX_SHOWN_CHARS and "\n" not in text
        else f"{text.splitlines()[0][:MAX_SHOWN_CHARS]}…"
    )


def _hide_url_secrets(text: str) -> str:
    """Remove a URL's user and query: either may be a credential."""
    text, query, _ = text.partition("?")
    scheme, _, rest = text.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{'…@' if '@' in host else ''}{host.rpartition('@')[2]}{slash}{path}{'?…' if query else ''}"


def _list_settings_in_force(settings: Settings, effective: Effective) -> Iterator[tuple[Key, Any]]:
    """List the settings in force. `memory.model` is left out, because the two agents' models stand
    for it."""
    memory = effective.memory
    observation = memory.observation.model_copy(update={"model": effective.observer_model})
    reflection = memory.reflection.model_copy(update={"model": effective.reflector_model})
    view = {
        "memory": memory.model_copy(update={"observation": observation, "reflection": reflection})
    }
    in_force = settings.model_copy(
        update=view | {"context": effective.context, "models": {}, "resources": {}}
    )
    hidden = {("memory", "model"), ("models",), ("resources",)}
    return ((key, value) for key, value in _list_leaves(in_force) if key not in hidden)


def _list_leaves(value: Any, key: Key = ()) -> Iterator[tuple[Key, Any]]:
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _list_leaves(getattr(value, name), (*key, name))
    elif isinstance(value, tuple) and any(isinstance(item, BaseModel) for item in value):
        for index, item in enumerate(value):
            yield from _list_leaves(item, (*key, index))
    else:
        yield key, value


def _find_origin(settings: Settings, effective: Effective, key: Key) -> str:
    """Find the most specific origin of a setting."""
    inner = key[1:]
    if inner in {("observation", "model"), ("reflection", "model")} and key[0] == "memory":
        return _find_model_origin(
            settings, effective, "observation" if key[1] == "observation" else "reflection"
        )
    for layer in reversed(effective.layers) if key[0] in {"memory", "context"} else ():
        if _has_key(layer.level, inner):
            return _render_layer_origin(settings, layer, inner)
    return settings.origin(key) or "default"


def _find_model_origin(settings: Settings, effective: Effective, agent: Agent) -> str:
    """Find the origin of an agent's model. Models are chosen by level, so the key that decided may
    be `model`, or the other agent's."""
    decided = choose_model(list_levels(settings.memory, effective.layers), agent)
    if decided.level > 0:
        return f"{_render_layer_origin(settings, effective.layers[decided.level - 1], decided.key)}, {render_path(decided.key)}"
    if decided.level == 0:
        key = ("memory", *decided.key)
        return f"{settings.origin(key) or 'set'}, {render_path(key)}"
    return "default"


def _render_layer_origin(settings: Settings, layer: Layer, inner: Key) -> str:
    origin = settings.origin(layer.get_path_in_file(inner)) or settings.origin(
        (layer.kind, layer.glob)
    )
    return f'{layer.kind}["{redact_credentials(layer.glob)}"]{f", {origin}" if origin else ""}'


def _has_key(values: Any, key: Key) -> bool:
    for part in key:
        if not isinstance(values, dict) or part not in values:
            return False
        values = values[part]
    return True
