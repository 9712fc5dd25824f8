"""Render what `om-proxy check` prints: a summary, each setting with its value and origin, and
warnings."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import BaseModel, SecretStr

from om_proxy.common.apis import API_NAMES
from om_proxy.memory.lifecycle.thresholds import MIN_RAW_TOKENS, Limits
from om_proxy.settings.config.effective import THREAD_LAYER_KIND, Effective, Layer, list_levels
from om_proxy.settings.config.sections.model_choice import Agent, choose_model
from om_proxy.settings.config.sections.quantities import render_duration, render_size
from om_proxy.settings.config.sections.service import UpstreamSettings
from om_proxy.settings.config.sections.storage import hide_password
from om_proxy.settings.config.snapshot import Settings
from om_proxy.settings.config.source import Key, render_path
from om_proxy.settings.config.validation_messages import redact_credentials
from om_proxy.settings.identity.local_requests import is_loopback_host

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
    "timeout",
}
# settings that are accepted and checked, but not used yet; config/om-proxy.yaml marks them too
NOT_IN_EFFECT: tuple[str, ...] = ()
THREAD_ORIGIN = "the thread's own"  # of a threshold that was set for one thread
NO_UPSTREAM = "upstream: none: the request is refused"
MAX_SHOWN_CHARS = 80  # of a text, such as an instruction
SIZE_SETTINGS = {"body", "headers", "memory"}
HOSTS_WITHOUT_PATH = frozenset({"api.deepseek.com", "api.perplexity.ai"})
_URL_PATTERN = re.compile(r"[a-z]+://\S*")


def render_summary(
    settings: Settings, model: str | None = None, resource: str | None = None
) -> list[str]:
    """Render what a reader wants to know first: the file, the model servers, the memory models and
    the thresholds."""
    upstreams = render_upstreams(settings)
    if model is not None:
        found = [settings.upstream_for(model, api) for api in API_NAMES]
        upstreams = [
            line for line in upstreams if line in map(_render_upstream, filter(None, found))
        ]
        upstreams = upstreams or [NO_UPSTREAM]
    return [
        f"settings: {settings.file or 'the built-in defaults; om-proxy init writes a file to edit'}",
        f"listens on: {settings.server.host}:{settings.server.port}",
        *upstreams,
        *render_memory_summary(settings, model, resource),
    ]


def render_memory_summary(
    settings: Settings, model: str | None = None, resource: str | None = None
) -> list[str]:
    """Render the memory models, the store and the thresholds, for the summary and for what a
    starting server prints."""
    effective = settings.effective(model, resource)
    memory = effective.memory
    observer = render_value(("model",), effective.observer_model)
    reflector = render_value(("model",), effective.reflector_model)
    return [
        f"memory: {'on' if memory.enabled else 'off'}, scope {memory.scope},"
        f" observer {observer}, reflector {reflector}",
        f"store: {render_value(('url',), settings.storage.shown_url)}",
        *_render_key_store(settings),
        *(f"tokens: {line}" for line in render_thresholds(effective.limits)),
    ]


def _render_key_store(settings: Settings) -> list[str]:
    if settings.storage.keys_url is None:
        return []
    return [f"keys of the store: {render_value(('url',), settings.storage.shown_keys_url)}"]


def render_upstreams(settings: Settings) -> list[str]:
    """Render a line for each model server: its name, its address, and the models and APIs that go
    there."""
    return [_render_upstream(upstream) for upstream in settings.upstream]


def _render_upstream(upstream: UpstreamSettings) -> str:
    models = (
        "every model"
        if "*" in upstream.match
        else "models " + render_value(("match",), upstream.match)
    )
    address = render_value(("base_url",), upstream.base_url)
    apis = ", ".join(upstream.apis)
    return f"upstream: {redact_credentials(upstream.name)} at {address}, for {models} ({apis})"


class SettingLine(NamedTuple):
    """A setting in force."""

    name: str  # as `memory.observation.message_tokens`
    value: str  # as the file writes it; a secret is `(set)`
    origin: str  # where it was set: a file and line, an environment variable, or `default`


def list_settings(
    settings: Settings, model: str | None = None, resource: str | None = None
) -> list[SettingLine]:
    """List each setting in force for this model and resource."""
    return list_effective_settings(settings, settings.effective(model, resource))


def list_effective_settings(settings: Settings, effective: Effective) -> list[SettingLine]:
    """List each setting, with those of `effective` under `memory` and `context`."""
    return [
        SettingLine(
            render_path(key), render_value(key, value), _find_origin(settings, effective, key)
        )
        for key, value in _list_settings_in_force(settings, effective)
    ]


def render_settings(
    settings: Settings, model: str | None = None, resource: str | None = None
) -> list[str]:
    """Render a line for each setting in force: `key = value  (origin)`."""
    return [
        f"{line.name} = {line.value}  ({line.origin})"
        for line in list_settings(settings, model, resource)
    ]


def list_warnings(
    settings: Settings, model: str | None = None, resource: str | None = None
) -> list[str]:
    """List a warning for each setting that is allowed, but works badly or does nothing."""
    effective = settings.effective(model, resource)
    return [
        *settings.ignored_variables,
        *list_memory_warnings(effective),
        *list_upstream_warnings(settings),
        *list_address_warnings(settings),
        *list_external_warnings(settings),
        *list_settings_without_effect(settings, effective),
    ]


def render_thresholds(limits: Limits) -> list[str]:
    """Render the thresholds in tokens."""
    interval = "not ahead of time"
    if limits.interval_tokens:
        interval = f"every {limits.interval_tokens} new ones"
    preparation = "not prepared ahead of time"
    if limits.reflect_ahead_from_tokens:
        preparation = f"prepared from {limits.reflect_ahead_from_tokens}"
    return [
        f"messages are observed at {limits.observe_from_tokens}, {interval}; "
        f"about {limits.keep_tokens} stay raw; a request waits at {limits.block_from_tokens}",
        f"observations are reflected at {limits.reflect_from_tokens}, {preparation};"
        f" a request waits at {limits.reflect_block_from_tokens}",
        *_render_shared_budget(limits),
        *_render_idle_thresholds(limits),
    ]


def _render_shared_budget(limits: Limits) -> Iterator[str]:
    """Render the highest thresholds that a shared budget allows."""
    if limits.has_shared_budget:
        highest = limits.for_memory(log_tokens=0, pending_tokens=0)
        yield (
            f"messages and observations share one budget: without observations, messages are observed at {highest.observe_from_tokens} and "
            f"a request waits at {highest.block_from_tokens}; without messages, observations are reflected at {highest.reflect_from_tokens}"
        )


def _render_idle_thresholds(limits: Limits) -> Iterator[str]:
    """Render the pauses in force for this model's provider, which `auto` and unset values depend
    on."""
    if limits.activate_after_idle_s is not None:
        yield f"after a pause of {render_duration(limits.activate_after_idle_s)}, what was observed ahead becomes active"
    if limits.buffer_after_idle_s is not None and limits.interval_tokens:
        pause = render_duration(limits.buffer_after_idle_s)
        tokens = limits.interval_tokens // 2
        yield f"after a pause of {pause}, {tokens} new ones are enough to be observed ahead"


def list_memory_warnings(effective: Effective) -> list[str]:
    """List a warning for each value under `memory` and `context` that is allowed, but works
    badly."""
    limits = effective.limits
    warnings = []
    if limits.interval_tokens and limits.keep_tokens < limits.interval_tokens:
        warnings.append(
            f"buffer_activation leaves {limits.keep_tokens} tokens raw, less than one buffering interval ({limits.interval_tokens}): "
            "activations come in quick succession, and each breaks the provider's prompt cache"
        )
    if limits.interval_tokens and limits.keep_tokens < MIN_RAW_TOKENS:
        warnings.append(
            f"less than {MIN_RAW_TOKENS} tokens stay raw after an activation: the model sees little except its notes"
        )
    if not limits.interval_tokens and limits.block_from_tokens > limits.observe_from_tokens:
        warnings.append(
            f"buffer_tokens is off, and block_after delays observing to {limits.block_from_tokens} tokens: leave block_after out"
        )
    needs_buffering = (
        limits.activate_after_idle_s
        or limits.activate_on_provider_change
        or limits.buffer_after_idle_s
    )
    if needs_buffering and not limits.interval_tokens:
        warnings.append(
            "buffer_tokens is off: nothing is observed ahead, so activate_after_idle, activate_on_provider_change and "
            "buffer_on_idle have nothing to work with"
        )
    block_from_tokens = limits.for_memory(log_tokens=0, pending_tokens=0).block_from_tokens
    if limits.tail_limit_tokens is not None and limits.tail_limit_tokens < block_from_tokens:
        warnings.append(
            f"context.tail_limit ({limits.tail_limit_tokens}) is below {block_from_tokens}, where a request waits for an observation: "
            "raw messages are left out of prompts before they are observed"
        )
    if not effective.memory.enabled:
        warnings.append("memory is off: nothing is read or written")
    return warnings


def list_external_warnings(settings: Settings) -> Iterator[str]:
    """List a warning if a worker cannot do all the work that is left to it."""
    if settings.background.external and settings.may_need_caller:
        yield (
            "background.external: a memory model is inherited, so a worker cannot do its work: "
            "this process does, where it has the call; set memory.model or the upstream's api_key"
        )


def list_settings_without_effect(settings: Settings, effective: Effective) -> Iterator[str]:
    """List a warning for each setting that differs from its default, but is not in effect yet."""
    default_settings = Settings()
    default_effective = default_settings.effective(None)
    defaults = dict(_list_settings_in_force(default_settings, default_effective))
    for key, value in _list_settings_in_force(settings, effective):
        if render_path(key) in NOT_IN_EFFECT and value != defaults[key]:
            yield f"{render_path(key)} = {render_value(key, value)} is accepted, but not in effect yet"


def _is_list_of_secrets(value: Any) -> bool:
    return isinstance(value, tuple) and any(isinstance(item, SecretStr) for item in value)


def render_value(key: Key, value: Any) -> str:
    """Render a value as the file writes it. A secret is rendered as `(set)`."""
    name = key[-1]
    if isinstance(value, SecretStr) or _is_list_of_secrets(value):
        return "(set)"
    if value is None:
        return "off" if name == "activate_after_idle" else "null"
    if name in DURATION_SETTINGS or (name == "activate_after_idle" and isinstance(value, float)):
        return render_duration(value)
    if name in SIZE_SETTINGS:
        return render_size(value)
    if name in ("url", "keys_url") and isinstance(value, str):
        return _render_plain_value(hide_password(value))
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
    return _render_text(str(value))


def _render_text(value: str) -> str:
    # before the text is cut, because half a key is not recognised
    text = redact_credentials(value)
    if _URL_PATTERN.fullmatch(text):
        return _hide_url_secrets(text)
    if len(text) <= MAX_SHOWN_CHARS and "\n" not in text:
        return text
    return f"{text.splitlines()[0][:MAX_SHOWN_CHARS]}…"


def _hide_url_secrets(text: str) -> str:
    """Remove the user and the query of a URL: either may be a credential."""
    text, question_mark, _ = text.partition("?")
    scheme, _, address = text.partition("://")
    authority, slash, path = address.partition("/")
    _, at_sign, host = authority.rpartition("@")
    user = "…@" if at_sign else ""
    query = "?…" if question_mark else ""
    return f"{scheme}://{user}{host}{slash}{path}{query}"


def _list_settings_in_force(settings: Settings, effective: Effective) -> Iterator[tuple[Key, Any]]:
    """List the settings in force. `memory.model` is left out, because the models of the two agents
    replace it."""
    memory = effective.memory
    observation = memory.observation.model_copy(update={"model": effective.observer_model})
    reflection = memory.reflection.model_copy(update={"model": effective.reflector_model})
    settings_in_force = settings.model_copy(
        update={
            "memory": memory.model_copy(
                update={"observation": observation, "reflection": reflection}
            ),
            "context": effective.context,
            "retention": effective.retention,
            "models": {},
            "resources": {},
        }
    )
    hidden_keys = {("memory", "model"), ("models",), ("resources",)}
    return (
        (key, value) for key, value in _list_leaves(settings_in_force) if key not in hidden_keys
    )


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
    if key == ("memory", "observation", "model"):
        return find_model_origin(settings, effective, "observation")
    if key == ("memory", "reflection", "model"):
        return find_model_origin(settings, effective, "reflection")
    if key[0] in {"memory", "context"}:
        for layer in reversed(effective.layers):
            if _has_key(layer.level, key[1:]):
                return _render_layer_origin(settings, layer, key[1:])
    if key[0] == "retention":
        for layer in reversed(effective.layers):
            if _has_key(layer.retention, key):
                return _render_layer_origin(settings, layer, key)
    return settings.origin(key) or "default"


def find_model_origin(settings: Settings, effective: Effective, agent: Agent) -> str:
    """Find the origin of an agent's model. A model is chosen by level, so its setting may be
    `model`, or the other agent's model."""
    model = choose_model(list_levels(settings.memory, effective.layers), agent)
    if model.level > 0:
        layer = effective.layers[model.level - 1]
        return f"{_render_layer_origin(settings, layer, model.key)}, {render_path(model.key)}"
    if model.level == 0:
        key = ("memory", *model.key)
        return f"{settings.origin(key) or 'set'}, {render_path(key)}"
    return "default"


def _render_layer_origin(settings: Settings, layer: Layer, key: Key) -> str:
    if layer.kind == THREAD_LAYER_KIND:
        return THREAD_ORIGIN
    origin = settings.origin(layer.get_path_in_file(key))
    origin = origin or settings.origin((layer.kind, layer.glob))
    place = f'{layer.kind}["{redact_credentials(layer.glob)}"]'
    return f"{place}, {origin}" if origin else place


def _has_key(values: Any, key: Key) -> bool:
    for part in key:
        if not isinstance(values, dict) or part not in values:
            return False
        values = values[part]
    return True


def list_upstream_warnings(settings: Settings) -> Iterator[str]:
    """List a warning for each API without an upstream, for each upstream without `api_key` while
    `auth.keys` is set, and for each upstream that no request can reach."""
    for api in API_NAMES:
        if not settings.list_upstreams(api):
            yield (
                f"no upstream is for the API {api}: its requests get 400 om_no_upstream; add it to "
                "`apis` of one"
            )
    for index, upstream in enumerate(settings.upstream):
        name = redact_credentials(upstream.name)
        place = settings.place(("upstream", index, "base_url"))
        if settings.auth.keys and upstream.api_key is None:
            yield (
                f"{place}upstream {name} has no api_key, and auth.keys is set: its requests are sent without "
                "a credential, which is right for a server that asks for none; else set its api_key, or let the "
                "client send the provider's key in Authorization or x-api-key beside X-OM-Authorization"
            )
        if is_unreachable(upstream, settings.upstream[:index]):
            yield (
                f"{place}upstream {name} never gets a request: earlier upstreams of its APIs match every "
                "model that it matches; move it before them, or remove it"
            )


def list_address_warnings(settings: Settings) -> Iterator[str]:
    """List a warning for each address without a path, as that of most servers has, and for the
    proxy's own, whose requests would go round until `limits.in_flight` ends them."""
    for index, upstream in enumerate(settings.upstream):
        parts = urlsplit(upstream.base_url)
        if not parts.path and parts.hostname not in HOSTS_WITHOUT_PATH:
            place = settings.place(("upstream", index, "base_url"))
            yield (
                f"{place}{upstream.path_in_settings}.base_url has no path, and most servers want "
                f"{upstream.base_url}/v1: om-proxy doctor asks which address the server knows"
            )
        if is_loopback_host(parts.hostname or "") and parts.port == settings.server.port:
            place = settings.place(("upstream", index, "base_url"))
            yield (
                f"{place}{upstream.path_in_settings}.base_url is this proxy's own address, so its requests would "
                "come back to it: name the model server, or set another server.port"
            )


def is_unreachable(upstream: UpstreamSettings, earlier: Sequence[UpstreamSettings]) -> bool:
    """Return whether earlier upstreams match every model that this one matches, by each of its APIs.
    If in doubt, return False."""
    return all(
        any(_covers(wide, glob) for other in earlier if api in other.apis for wide in other.match)
        for api in upstream.apis
        for glob in upstream.match
    )


def _covers(wide_glob: str, glob: str) -> bool:
    """Return whether `wide_glob` matches every name that `glob` matches. If in doubt, return False.

    If `*` is the only wildcard in `wide_glob`, the answer is whether `wide_glob` matches the text
    of `glob` itself, because its stars can match the wildcards in that text. That proves nothing
    for a class in brackets, which matches one character of a name but has more characters itself.
    """
    if wide_glob in {glob, "*"}:
        return True
    has_only_stars = not set("?[]") & set(wide_glob)
    return has_only_stars and "[" not in glob and fnmatch.fnmatchcase(glob, wide_glob)
