"""The sections of the configuration other than memory and storage: address, limits, upstreams, keys,
telemetry."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    SecretStr,
    field_validator,
    model_validator,
)

from om_proxy.common.apis import API_NAMES, ApiName
from om_proxy.memory.events.parts import EVENT_TYPES
from om_proxy.settings.config.sections.quantities import Duration, Size, normalize_off, render_size
from om_proxy.settings.config.sections.section import (
    Count,
    HeaderKey,
    Layout,
    Secret,
    Section,
    Text,
    Url,
    WebhookSecret,
    WebhookUrl,
    raise_faults,
)
from om_proxy.settings.identity.identity_rules import GATEWAY_KEY_HEADERS
from om_proxy.settings.identity.user_token import MIN_SECRET_BYTES, is_usable_secret

# limits.memory must be at least this many times limits.body
# (proxy/om_proxy/wire/server/capacity/budget.py)
MIN_MEMORY_PER_BODY = 4

LogFormat = Literal["auto", "json", "console", "off"]
# who may use the admin API: callers for their own tenant, the admin token alone, or nobody
AdminApiAccess = Literal["own", "admin", "off"]


class ServerSettings(Section):
    """The section `server`."""

    host: Text = "127.0.0.1"
    port: int = Field(default=8400, ge=0, le=65_535)
    workers: Count = 1
    admin_token: HeaderKey = None
    api: Annotated[AdminApiAccess, BeforeValidator(normalize_off)] = "own"
    admin_reads: bool = True

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def local_host(self) -> str:
        """The host by which programs of this machine reach the server; no address stands for all."""
        return {"0.0.0.0": "127.0.0.1", "::": "[::1]", "[::]": "[::1]"}.get(self.host, self.host)  # noqa: S104 - compared

    @model_validator(mode="after")
    def _check_host(self) -> Self:
        if "/" in self.host or self.host.count(":") == 1 or "]:" in self.host:
            raise_faults([("host", "must be a name or an address alone: server.port is its own")])
        if not self.is_loopback and self.admin_token is None:
            rule = (
                "an address other than loopback needs server.admin_token: set OM_PROXY_ADMIN_TOKEN"
            )
            raise_faults([("host", rule)])
        return self


class McpSettings(Section):
    """The section `mcp`."""

    enabled: bool = True


class LimitSettings(Section):
    """The section `limits`: sizes in bytes, times in seconds."""

    body: Size = 64 * 2**20
    headers: Size = 32 * 2**10
    header_timeout: Duration = 10.0
    body_timeout: Duration = 30.0
    write_timeout: Duration = 60.0
    keep_alive: Duration = 75.0
    memory: Size = 512 * 2**20
    in_flight: Count = 1_000

    @model_validator(mode="after")
    def _check_memory(self) -> Self:
        minimum = MIN_MEMORY_PER_BODY * self.body
        if self.memory < minimum:
            rule = (
                f"must be at least {MIN_MEMORY_PER_BODY} x limits.body ({render_size(minimum)}):"
                " a body and the values made of it must fit"
            )
            raise_faults([("memory", rule)])
        return self


class UpstreamSettings(Section):
    """An item of `upstream`: one model server."""

    name: Text = "upstream"
    apis: tuple[ApiName, ...] = Field(default=API_NAMES, min_length=1)
    match: tuple[Text, ...] = Field(default=("*",), min_length=1)
    # without a default: if the address is forgotten, prompts must not go to another server
    base_url: Url
    api_key: HeaderKey = None
    api_key_header: Literal["auto", "bearer", "x-api-key"] = "auto"
    layout: Layout = "auto"
    connect_timeout: Duration = 5.0
    read_timeout: Duration = 600.0
    on_disconnect: Literal["close", "drain"] = "close"

    _path_in_settings: str = PrivateAttr(default="upstream")

    @cached_property
    def path_in_settings(self) -> str:
        """The upstream's path in the settings, as error messages name it: `upstream[0]`. It is
        cached because every request needs it, and pydantic takes 3 µs to find a private
        attribute."""
        return self._path_in_settings

    def build_key_header(self, api: ApiName) -> tuple[str, str] | None:
        """Return the header that carries `api_key` in a request of this API; None: there is no
        key."""
        if self.api_key is None:
            return None
        key, kind = self.api_key.get_secret_value(), self.api_key_header
        if kind == "x-api-key" or (kind == "auto" and api == "messages"):
            return "x-api-key", key
        return "authorization", f"Bearer {key}"

    def with_index(self, index: int) -> Self:
        """Return a copy whose path is that of item `index` of the list, counted from 0."""
        copy = self.model_copy()
        copy.__dict__.pop("path_in_settings", None)
        copy._path_in_settings = f"upstream[{index}]"
        return copy


class TenantKey(Section):
    """An item of `auth.keys`."""

    tenant: str = Field(pattern=r"^[A-Za-z0-9._:@/+=-]{1,256}$")
    key: SecretStr = Field(min_length=1)


class AuthSettings(Section):
    """The section `auth`."""

    keys: tuple[TenantKey, ...] = ()
    token_secret: Secret = None
    token_audience: Text | None = None
    token_required: bool = False

    @model_validator(mode="after")
    def _check_keys_and_token(self) -> Self:
        faults = []
        distinct_keys = {item.key.get_secret_value() for item in self.keys}
        if len(distinct_keys) < len(self.keys):
            faults.append(("keys", "each key must belong to one tenant only"))
        secret = self.token_secret.get_secret_value().encode() if self.token_secret else None
        if secret is not None and not is_usable_secret(secret):
            rule = (
                f"must have at least {MIN_SECRET_BYTES} bytes"
                if len(secret) < MIN_SECRET_BYTES
                else "must not be a key in PEM, SSH or JWK form"
            )
            faults.append(("token_secret", f"{rule}; `openssl rand -hex 32` makes one"))
        if self.token_required and self.token_secret is None:
            faults.append(
                ("token_required", "needs auth.token_secret: without it, no token is valid")
            )
        raise_faults(faults)
        return self


Header = Annotated[
    str, Field(pattern=r"^[a-z0-9!#$%&'*+.^_`|~-]+$"), BeforeValidator(lambda v: str(v).lower())
]


CREDENTIAL_HEADERS = (
    "authorization",
    "proxy-authorization",
    "x-api-key",
    "api-key",
    "cookie",
    *GATEWAY_KEY_HEADERS,
    "x-om-admin",
    "x-om-token",
)


# the keys of CLIENT_SESSIONS in settings/identity/identity_rules.py; a test compares them
SessionProgram = Literal["opencode", "litellm", "helicone"]


class IdentitySettings(Section):
    """The section `identity`: the headers that name threads and resources."""

    thread_headers: tuple[Header, ...] = ("x-om-thread", "x-thread-id", "x-openwebui-chat-id")
    resource_headers: tuple[Header, ...] = ("x-om-resource", "x-resource-id", "x-openwebui-user-id")
    sessions: tuple[SessionProgram, ...] = ("opencode", "litellm", "helicone")
    scope_override: bool = False
    apis: tuple[ApiName, ...] = API_NAMES  # that have memory

    @model_validator(mode="after")
    def _check_headers(self) -> Self:
        """Refuse headers that carry a credential: names are stored, listed and sent in receipts,
        and the header would not reach the model server."""
        headers_by_setting = {
            "thread_headers": self.thread_headers,
            "resource_headers": self.resource_headers,
        }
        rule = (
            "must not contain {}: it carries a credential, and names are stored and shown;"
            " use another header"
        )
        raise_faults(
            [
                (name, rule.format(header))
                for name, headers in headers_by_setting.items()
                for header in headers
                if header in CREDENTIAL_HEADERS
            ]
        )
        return self


class SideRequestSettings(Section):
    """The section `side_requests`: how to recognise a client's own requests, as for a title."""

    models: tuple[Text, ...] = ()
    prompts: tuple[Text, ...] = (
        "^### Task:",  # Open WebUI
        "^You are a title generator[.,]",  # opencode
        "^Analyze this conversation and provide:",  # LibreChat
        "^Provide a concise, 5-word-or-less title",  # LibreChat, by completion
    )

    @field_validator("prompts")
    @classmethod
    def _check_prompts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for prompt in value:
            try:
                re.compile(prompt)
            except re.error as exc:
                raise ValueError(
                    f"must be regular expressions; {prompt!r} is not one: {exc}"
                ) from exc
        return value


class BackgroundSettings(Section):
    """The section `background`."""

    observer_interval: Duration = 10.0
    concurrency: Count = 8
    call_timeout: Duration = 120.0
    external: bool = False

    @model_validator(mode="before")
    @classmethod
    def _refuse_removed_keys(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and "reflector_interval" in value:
            rule = "is no longer a setting and never had an effect: remove it"
            raise_faults([("reflector_interval", rule)])
        return value


DEFAULT_GENERATIONS = 20
MIN_TTL_DAYS = 1 / 24
SECONDS_PER_DAY = 86_400.0


class RetentionSettings(Section):
    """The section `retention`."""

    ttl_days: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max_observations: Count | None = None
    max_reflections: Count | None = None
    generations: Count = DEFAULT_GENERATIONS

    @field_validator("ttl_days")
    @classmethod
    def _check_ttl(cls, value: float | None) -> float | None:
        # shorter than what takes a while: a reply, a lease of a process that was killed
        if value is not None and value < MIN_TTL_DAYS:
            raise ValueError("must be an hour (0.042) or more; null keeps every thread")
        return value

    @property
    def lifetime_s(self) -> float | None:
        """The seconds after its last turn that a thread is kept; None: for ever."""
        return None if self.ttl_days is None else self.ttl_days * SECONDS_PER_DAY


class ResourceRetention(Section):
    """The keys that an override of `resources:` may set besides `memory` and `context`."""

    retention: RetentionSettings = RetentionSettings()

    @field_validator("retention", mode="before")
    @classmethod
    def _refuse_generations(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and "generations" in value:
            raise_faults([("generations", "is one number for all resources: set it in retention")])
        return value


class WebhookSettings(Section):
    """An item of `telemetry.webhooks`: one receiver of events."""

    url: WebhookUrl
    # without a default: a receiver must be able to tell our events from anybody's
    secret: WebhookSecret
    events: tuple[Text, ...] = ()
    text: bool = False

    @field_validator("events")
    @classmethod
    def _check_events(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not {*EVENT_TYPES}.issuperset(value):  # a typo would send nothing
            raise ValueError(f"an event has one of the types {', '.join(EVENT_TYPES)}")
        return value


class TelemetrySettings(Section):
    """The section `telemetry`."""

    log: Annotated[LogFormat, BeforeValidator(normalize_off)] = "auto"
    metrics: bool = True
    metrics_token: HeaderKey = None
    otel: bool = False
    resource_labels: bool = False
    thread_labels: bool = False
    debug_events: bool = False
    webhooks: tuple[WebhookSettings, ...] = ()

    @model_validator(mode="after")
    def _check_webhooks(self) -> Self:
        """Refuse a URL twice: both would share one place and one lease, and each lose events."""
        if len({hook.url for hook in self.webhooks}) < len(self.webhooks):
            raise_faults([("webhooks", "each url must stand once: list all its events in one")])
        return self
