"""Settings: one frozen snapshot of the whole configuration, and what it answers."""

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

from om_proxy.bounded_cache import BoundedCache
from om_proxy.errors import ConfigError
from om_proxy.memory.lifecycle.prompt_cache import cache_lifetime
from om_proxy.settings.effective import Effective, Layer, apply_layers
from om_proxy.settings.memory import ContextSettings, MemorySettings, expand_short_forms
from om_proxy.settings.override_checks import list_override_faults
from om_proxy.settings.section import Section, raise_broken_rules
from om_proxy.settings.service import (
    AuthSettings,
    BackgroundSettings,
    IdentitySettings,
    LimitSettings,
    RetentionSettings,
    ServerSettings,
    SideRequestSettings,
    StorageSettings,
    TelemetrySettings,
    UpstreamSettings,
)
from om_proxy.settings.source import DEFAULT_UPSTREAM, Key
from om_proxy.settings.validation_messages import list_faults

# (model, resource) pairs remembered; a resource is named by the caller, so their number must be
# bounded
MAX_CACHED_PAIRS = 4_096

Override = Annotated[dict[str, Any], BeforeValidator(expand_short_forms)]


class Settings(Section):
    """Swapped whole on reload, never changed. `Settings()` is the built-in defaults; files come
    through `load`."""

    server: ServerSettings = ServerSettings()
    limits: LimitSettings = LimitSettings()
    upstream: tuple[UpstreamSettings, ...] = Field(
        default=(UpstreamSettings.model_validate(DEFAULT_UPSTREAM).placed(0),), min_length=1
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
    telemetry: TelemetrySettings = TelemetrySettings()

    @field_validator("upstream")
    @classmethod
    def _place_upstreams(
        cls, upstreams: tuple[UpstreamSettings, ...]
    ) -> tuple[UpstreamSettings, ...]:
        return tuple(upstream.placed(index) for index, upstream in enumerate(upstreams))

    _origins: Mapping[Key, str] = PrivateAttr(default_factory=dict)
    _file: Path | None = PrivateAttr(default=None)
    _layers: tuple[Layer, ...] = PrivateAttr(default=())

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [u.name for u in self.upstream]
        broken = [
            (f"upstream.{i}.name", "is already the name of an earlier upstream")
            for i, n in enumerate(names)
            if n in names[:i]
        ]
        if self.server.workers > 1 and self.storage.file is None:
            broken.append(
                (
                    "server.workers",
                    "above 1 needs a file in storage.url, because processes cannot share a store in memory",
                )
            )
        raise_broken_rules(broken)
        return self

    def model_post_init(self, context: Any, /) -> None:
        written = [
            Layer(kind, glob, values)
            for kind in ("models", "resources")
            for glob, values in getattr(self, kind).items()
        ]
        self._layers = tuple(
            sorted(written, key=lambda layer: layer.rank)
        )  # equals: the later in the file wins

    def upstream_for(self, model: str | None) -> UpstreamSettings | None:
        """The first whose `match` fits; None when none does. A request without a model is met by
        `*` only."""
        return next(
            (
                u
                for u in self.upstream
                if any(fnmatch.fnmatchcase(model or "", glob) for glob in u.match)
            ),
            None,
        )

    def effective(self, model: str | None, resource: str | None = None) -> Effective:
        """What holds for this pair. Raises ConfigError where overrides that could not be checked
        together contradict each other."""
        pair = (model, resource)
        if found := self._pairs.get(pair):
            return found
        names = {"models": model, "resources": resource}
        fitting = tuple(
            layer
            for layer in self._layers
            if (name := names[layer.kind]) is not None and layer.fits(name)
        )
        effective = self._layered(fitting, self._cache_lives(model))
        self._pairs.put(pair, effective)
        return effective

    def origin(self, path: Key) -> str | None:
        """Where a setting was written, as `file:line` or `env NAME`; None for a default."""
        return self._origins.get(path)

    def override_faults(self) -> Iterator[tuple[Key, str]]:
        """Each rule that `models` and `resources` break, with the path of the key that breaks
        it."""
        return list_override_faults(self.memory, self.context, self._layers)

    @property
    def file(self) -> Path | None:
        """The file it was loaded from."""
        return self._file

    def placed(self, *, origins: Mapping[Key, str] | None = None, file: Path | None = None) -> Self:
        """The same, knowing where it was written."""
        copy = self.model_copy()
        copy._origins = self._origins if origins is None else dict(origins)
        copy._file = file or self._file
        return copy

    # pydantic compares private attributes, but not cached properties: a cache does not make two
    # settings differ
    @cached_property
    def _pairs(self) -> BoundedCache[tuple[str | None, str | None], Effective]:
        return BoundedCache(max_items=MAX_CACHED_PAIRS)

    @cached_property
    def _merged(self) -> dict[tuple[tuple[Layer, ...], float], Effective]:
        return {}

    def _cache_lives(self, model: str | None) -> float:
        """Seconds that this model's provider keeps a prompt."""
        upstream = self.upstream_for(model)
        host = urlsplit(upstream.base_url).hostname if upstream else None
        return cache_lifetime(host or "", model or "")

    def _layered(self, layers: tuple[Layer, ...], cache_lives: float) -> Effective:
        found = self._merged.get((layers, cache_lives))
        if found is None:
            try:
                found = apply_layers(self.memory, self.context, layers, cache_lives=cache_lives)
            except ValidationError as exc:
                globs = ", ".join(f"{layer.kind}.{layer.glob}" for layer in layers)
                broken = "; ".join(
                    f"{'.'.join(map(str, path))} {rule}" for path, rule in list_faults(exc)
                )
                raise ConfigError(f"{globs} contradict each other: {broken}") from None
            self._merged[layers, cache_lives] = found
        return found
