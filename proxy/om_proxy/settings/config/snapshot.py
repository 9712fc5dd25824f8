"""Settings: one frozen snapshot of the whole configuration."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from om_proxy.common.apis import ApiName
from om_proxy.common.bounded_cache import BoundedCache
from om_proxy.common.errors import ConfigError
from om_proxy.memory.lifecycle.economy import cache_lifetime
from om_proxy.settings.config.effective import Effective, Layer, apply_layers, apply_retention
from om_proxy.settings.config.override_checks import list_override_faults
from om_proxy.settings.config.sections.memory import (
    ContextSettings,
    MemorySettings,
    expand_short_forms,
)
from om_proxy.settings.config.sections.model_choice import REQUEST_MODELS
from om_proxy.settings.config.sections.section import Section, raise_faults
from om_proxy.settings.config.sections.service import (
    AuthSettings,
    BackgroundSettings,
    IdentitySettings,
    LimitSettings,
    McpSettings,
    RetentionSettings,
    ServerSettings,
    SideRequestSettings,
    TelemetrySettings,
    UpstreamSettings,
)
from om_proxy.settings.config.sections.storage import StorageSettings
from om_proxy.settings.config.source import DEFAULT_UPSTREAMS, Key
from om_proxy.settings.config.validation_messages import render_faults

MIN_SECRET_CHARS = 16  # of what opens a server that others reach; a webhook's secret has as many
# pairs of a model and a resource; bounded, because the client names both
MAX_CACHED_PAIRS = 4_096

Override = Annotated[dict[str, Any], BeforeValidator(expand_short_forms)]


class Settings(Section):
    """The whole configuration. It never changes: a reload replaces it. `Settings()` holds the
    built-in defaults; `load` reads a file."""

    server: ServerSettings = ServerSettings()
    limits: LimitSettings = LimitSettings()
    upstream: tuple[UpstreamSettings, ...] = Field(
        default=tuple(
            UpstreamSettings.model_validate(upstream).with_index(index)
            for index, upstream in enumerate(DEFAULT_UPSTREAMS)
        ),
        min_length=1,
    )
    auth: AuthSettings = AuthSettings()
    identity: IdentitySettings = IdentitySettings()
    side_requests: SideRequestSettings = SideRequestSettings()
    storage: StorageSettings = StorageSettings()
    memory: MemorySettings = MemorySettings()
    context: ContextSettings = ContextSettings()
    background: BackgroundSettings = BackgroundSettings()
    retention: RetentionSettings = RetentionSettings()
    models: dict[str, Override] = Field(default_factory=dict)
    resources: dict[str, Override] = Field(default_factory=dict)
    mcp: McpSettings = McpSettings()
    telemetry: TelemetrySettings = TelemetrySettings()

    @field_validator("upstream")
    @classmethod
    def _number_upstreams(
        cls, upstreams: tuple[UpstreamSettings, ...]
    ) -> tuple[UpstreamSettings, ...]:
        return tuple(upstream.with_index(index) for index, upstream in enumerate(upstreams))

    _origins: Mapping[Key, str] = PrivateAttr(default_factory=dict)
    _file: Path | None = PrivateAttr(default=None)
    _ignored_variables: tuple[str, ...] = PrivateAttr(default=())
    _layers: tuple[Layer, ...] = PrivateAttr(default=())

    @model_validator(mode="after")
    def _check_names_and_workers(self) -> Self:
        names = [upstream.name for upstream in self.upstream]
        faults = [
            (f"upstream.{index}.name", "is already the name of an earlier upstream")
            for index, name in enumerate(names)
            if name in names[:index]
        ]
        if not self.storage.is_shared:
            rule = (
                "needs a file or a server in storage.url,"
                " because processes cannot share a store in memory"
            )
            if self.server.workers > 1:
                faults.append(("server.workers", f"above 1 {rule}"))
            if self.background.external:
                faults.append(("background.external", rule))
        faults += self._list_short_secrets()
        raise_faults(faults)
        return self

    def _list_short_secrets(self) -> Iterator[tuple[str, str]]:
        """List each secret that others could guess on an address that they reach. Those that are
        checked everywhere, `auth.token_secret` and the secrets of webhooks, are longer."""
        if self.server.is_loopback:
            return
        secrets = {
            "server.admin_token": self.server.admin_token,
            "telemetry.metrics_token": self.telemetry.metrics_token,
            **{f"auth.keys.{index}.key": item.key for index, item in enumerate(self.auth.keys)},
        }
        for name, secret in secrets.items():
            if secret is not None and len(secret.get_secret_value().strip()) < MIN_SECRET_CHARS:
                yield (
                    name,
                    f"must have at least {MIN_SECRET_CHARS} characters on an address other than "
                    "loopback; `openssl rand -hex 32` makes one",
                )

    def model_post_init(self, context: Any, /) -> None:
        layers = [
            Layer(kind, glob, values)
            for kind in ("models", "resources")
            for glob, values in getattr(self, kind).items()
        ]
        # the sort is stable: of equally specific layers, the later one in the file wins
        self._layers = tuple(sorted(layers, key=lambda layer: layer.specificity))

    @property
    def may_inherit_model(self) -> bool:
        """Whether a memory model is asked on a request's own server, for some model or resource."""
        base = self.effective(None)
        choices = (base.observer_model, base.reflector_model)
        return any(choice in REQUEST_MODELS for choice in choices) or any(
            layer.inherits_model for layer in self._layers
        )

    @property
    def may_retrieve(self) -> bool:
        """Whether any model or resource may have `memory.retrieval` on."""
        base = self.effective(None).memory.retrieval.enabled
        return bool(base) or any("retrieval" in layer.level for layer in self._layers)

    @property
    def may_index(self) -> bool:
        """Whether the messages of any thread may be indexed."""
        search = self.storage.search
        return self.may_retrieve if search == "auto" else search == "true"

    @property
    def keeps_vectors(self) -> bool:
        """Whether the store may keep vectors: they belong to an index of plain texts."""
        storage = self.storage
        return not (storage.search == "false" or storage.encryption_key or storage.is_redis)

    @property
    def may_embed(self) -> bool:
        """Whether any model or resource may have `retrieval.vector` on."""
        base = self.effective(None).memory.retrieval
        return bool(base.enabled and base.vector) or any(
            section.get("vector") for section in self._list_retrieval_overrides()
        )

    def _list_retrieval_overrides(self) -> list[Mapping[str, Any]]:
        levels = [layer.level.get("retrieval") for layer in self._layers]
        return [section for section in levels if isinstance(section, Mapping)]

    @property
    def embedding_models(self) -> tuple[str, ...]:
        """The embedding models that vectors of some messages may be made by."""
        if not (self.keeps_vectors and self.may_embed):
            return ()
        base, sections = self.effective(None).memory.retrieval, self._list_retrieval_overrides()
        names = [base.embedding_model, *(one.get("embedding_model") for one in sections)]
        return tuple(dict.fromkeys(name for name in names if isinstance(name, str) and name))

    @property
    def may_need_caller(self) -> bool:
        """Whether the work on any memory may need a credential that only a request brings."""
        served = [one for one in self.upstream if {*one.apis} & {*self.identity.apis}]
        return self.may_inherit_model and not all(upstream.api_key for upstream in served)

    def list_upstreams(self, api: ApiName) -> list[UpstreamSettings]:
        """Return the upstreams that are for this API."""
        return [upstream for upstream in self.upstream if api in upstream.apis]

    def upstream_for(self, model: str | None, api: ApiName = "chat") -> UpstreamSettings | None:
        """Return the first upstream that is for this API and whose `match` matches the model, or
        None. A request without a model matches `*` only."""
        for upstream in self.list_upstreams(api):
            if any(fnmatch.fnmatchcase(model or "", glob) for glob in upstream.match):
                return upstream
        return None

    def find_server(self, model: str | None, api: ApiName | None = None) -> UpstreamSettings | None:
        """Return the upstream of this model and API as `upstream_for` does; None for an API that is
        not known stands for the first one that has such an upstream."""
        if api is not None:
            return self.upstream_for(model, api)
        found = (self.upstream_for(model, name) for name in self.identity.apis)
        return next(filter(None, found), None)

    def effective(
        self, model: str | None, resource: str | None = None, api: ApiName | None = None
    ) -> Effective:
        """Return the settings in force for this model and resource. `api`: that conversations with
        the model have; None: as in `find_server`. Raises ConfigError if overrides that could not be
        checked together contradict each other."""
        pair = (model, resource, api)
        if effective := self._effective_by_pair.get(pair):
            return effective
        names = {"models": model, "resources": resource}
        matching = tuple(
            layer
            for layer in self._layers
            if (name := names[layer.kind]) is not None and layer.matches(name)
        )
        effective = self._apply_layers(matching, self._find_cache_lifetime(model, api))
        self._effective_by_pair.put(pair, effective)
        return effective

    def list_effective(self) -> tuple[Effective, ...]:
        """Return the settings in force without overrides, and with each override alone."""
        cache_lifetime_s = self._find_cache_lifetime(None)
        alone = [(layer,) for layer in self._layers]
        return tuple(self._apply_layers(layers, cache_lifetime_s) for layers in ((), *alone))

    def find_lifetime(self, resource: str) -> float | None:
        """Return the seconds after its last turn that a thread of this resource is kept; None: for
        ever."""
        matching = [layer for layer in self._retention_layers if layer.matches(resource)]
        return apply_retention(self.retention, matching).lifetime_s

    def find_max_reflections(self, resource: str) -> int | None:
        """Return how many older generations all logs of this resource may have; None: any
        number."""
        matching = [layer for layer in self._retention_layers if layer.matches(resource)]
        return apply_retention(self.retention, matching).max_reflections

    @property
    def limits_reflections(self) -> bool:
        """Whether any resource may have only so many older generations."""
        found = [
            self.retention,
            *(apply_retention(self.retention, [one]) for one in self._retention_layers),
        ]
        return any(one.max_reflections is not None for one in found)

    def list_lifetimes(self) -> tuple[float, ...]:
        """Return all lifetimes that a thread may have, the longest first."""
        found = {self.retention.lifetime_s}
        found |= {
            apply_retention(self.retention, [one]).lifetime_s for one in self._retention_layers
        }
        return tuple(sorted((one for one in found if one is not None), reverse=True))

    def origin(self, path: Key) -> str | None:
        """Return the source of a setting, as `file:line` or `env NAME`; None for a default."""
        return self._origins.get(path)

    def place(self, path: Key) -> str:
        """Return where a setting was set, as the beginning of a warning; "" for a default."""
        origin = self.origin(path)
        return f"{origin}: " if origin else ""

    @property
    def ignored_variables(self) -> tuple[str, ...]:
        """A warning for each variable that looks like a setting, and is none."""
        return self._ignored_variables

    def list_override_faults(self) -> Iterator[tuple[Key, str]]:
        """List each rule that `models` and `resources` break, with the path of the setting that
        breaks the rule."""
        return list_override_faults(self.memory, self.context, self._layers)

    @property
    def file(self) -> Path | None:
        """The file that the settings were loaded from."""
        return self._file

    def with_source(
        self,
        *,
        origins: Mapping[Key, str] | None = None,
        file: Path | None = None,
        ignored_variables: tuple[str, ...] | None = None,
    ) -> Self:
        """Return a copy that stores its file, the origin of each setting, and what was not read."""
        copy = self.model_copy()
        copy._ignored_variables = (
            self._ignored_variables if ignored_variables is None else ignored_variables
        )
        copy._origins = self._origins if origins is None else dict(origins)
        copy._file = file or self._file
        return copy

    # cached properties: pydantic's `==` ignores them, but would compare private attributes
    @cached_property
    def _effective_by_pair(
        self,
    ) -> BoundedCache[tuple[str | None, str | None, ApiName | None], Effective]:
        return BoundedCache(max_items=MAX_CACHED_PAIRS)

    @cached_property
    def _effective_by_layers(self) -> dict[tuple[tuple[Layer, ...], float], Effective]:
        return {}

    @cached_property
    def _retention_layers(self) -> tuple[Layer, ...]:
        return tuple(layer for layer in self._layers if layer.retention)

    def _find_cache_lifetime(self, model: str | None, api: ApiName | None = None) -> float:
        """Return the seconds that this model's provider keeps a prompt."""
        upstream = self.find_server(model, api)
        host = urlsplit(upstream.base_url).hostname if upstream else None
        return cache_lifetime(host or "", model or "")

    def _apply_layers(self, layers: tuple[Layer, ...], cache_lifetime_s: float) -> Effective:
        effective = self._effective_by_layers.get((layers, cache_lifetime_s))
        if effective is None:
            try:
                effective = apply_layers(
                    self.memory,
                    self.context,
                    layers,
                    cache_lifetime_s=cache_lifetime_s,
                    retention=self.retention,
                )
            except ValidationError as exc:
                globs = ", ".join(f"{layer.kind}.{layer.glob}" for layer in layers)
                raise ConfigError(f"{globs} contradict each other: {render_faults(exc)}") from None
            self._effective_by_layers[layers, cache_lifetime_s] = effective
        return effective
