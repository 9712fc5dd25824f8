"""The sections of the configuration other than memory: address, limits, upstreams, keys, storage,
telemetry."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self
from urllib.parse import parse_qsl, urlsplit

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    SecretStr,
    field_validator,
    model_validator,
)

from om_proxy.identity.encryption_keys import is_key_source, parse_master_key
from om_proxy.identity.identity_rules import GATEWAY_KEY_HEADERS
from om_proxy.identity.user_token import MIN_SECRET_BYTES, is_usable_secret
from om_proxy.memory.events.parts import EVENT_TYPES
from om_proxy.settings.quantities import Duration, Size, normalize_off, render_size
from om_proxy.settings.section import (
    Count,
    Layout,
    Secret,
    Section,
    Text,
    Url,
    WebhookUrl,
    raise_faults,
)

# limits.memory must be at least this many times limits.body (proxy/om_proxy/server/budget.py)
MIN_MEMORY_PER_BODY = 4

POSTGRES_SCHEMES = ("postgresql", "postgres")
REDIS_SCHEMES = ("redis", "rediss")
# by name, what the value must match
REDIS_OPTIONS = {"username": ".+", "password": ".+"}
REDIS_TLS_OPTIONS = {
    "ssl_ca_certs": ".+",
    "ssl_certfile": ".+",
    "ssl_keyfile": ".+",
    "ssl_cert_reqs": "none|optional|required",
    "ssl_check_hostname": "true|false",
}

IN_MEMORY = ":memory:"

LogFormat = Literal["auto", "json", "console", "off"]
# who may use the admin API: callers for their own tenant, the admin token alone, or nobody
AdminApiAccess = Literal["own", "admin", "off"]
# what becomes of a request that needs a memory which cannot be read
OnDown = Literal["bypass", "503"]

# which original messages are indexed: those of threads with `memory.retrieval`, all, or none
SearchIndex = Literal["auto", "true", "false"]


def _write_bool(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _write_status(value: Any) -> Any:
    """Return a number as text: YAML reads 503 as one."""
    return str(value) if type(value) is int else value


class ServerSettings(Section):
    """The section `server`."""

    host: Text = "127.0.0.1"
    port: int = Field(default=8400, ge=0, le=65_535)
    workers: Count = 1
    admin_token: Secret = None
    api: Annotated[AdminApiAccess, BeforeValidator(normalize_off)] = "own"
    admin_reads: bool = True

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return self.host == "localhost"

    @model_validator(mode="after")
    def _check_admin_token(self) -> Self:
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
    match: tuple[Text, ...] = Field(default=("*",), min_length=1)
    # without a default: if the address is forgotten, prompts must not go to another server
    base_url: Url
    api_key: Secret = None
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


# the keys of CLIENT_SESSIONS in identity/sessions.py; a test compares them
SessionProgram = Literal["opencode", "litellm", "helicone"]


class IdentitySettings(Section):
    """The section `identity`: the headers that name threads and resources."""

    thread_headers: tuple[Header, ...] = ("x-om-thread", "x-thread-id", "x-openwebui-chat-id")
    resource_headers: tuple[Header, ...] = ("x-om-resource", "x-resource-id", "x-openwebui-user-id")
    sessions: tuple[SessionProgram, ...] = ("opencode", "litellm", "helicone")
    scope_override: bool = False

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


def _is_postgres_url(url: str) -> bool:
    return _is_server_url(url, POSTGRES_SCHEMES)


def _is_redis_url(url: str) -> bool:
    is_server = _is_server_url(url, REDIS_SCHEMES)
    return is_server and re.fullmatch(r"/?[0-9]*", urlsplit(url).path) is not None


def _check_redis_options(url: str) -> None:
    """Raise ValueError for what stands behind the `?` of a Redis URL, unless it names a user or says
    how TLS is to be checked. The driver would take other names as settings of its own, which om-proxy relies on."""
    parts = urlsplit(url)
    is_tls = parts.scheme == "rediss"
    rules = {**REDIS_OPTIONS, **REDIS_TLS_OPTIONS} if is_tls else REDIS_OPTIONS
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        rule = rules.get(name)
        if rule is None:
            # its name is not shown: it may be the rest of a password with an unescaped `?`
            raise ValueError(
                "must have no options behind a ? but username, password and, with rediss://, "
                + ", ".join(REDIS_TLS_OPTIONS)
            )
        if not re.fullmatch(rule, value):
            named = "empty" if rule == ".+" else f"other than {rule.replace('|', ', ')}"
            raise ValueError(f"must have no option {name} that is {named}")


def _is_server_url(url: str, schemes: Collection[str]) -> bool:
    try:
        parts = urlsplit(url)
        # reading the port finds a password with an unescaped slash
        return parts.scheme in schemes and parts.port != 0 and not parts.fragment
    except ValueError:
        return False


def hide_password(url: str) -> str:
    """Return the address of a server without its password and its options, which may hold one."""
    if not _is_server_url(url, (*POSTGRES_SCHEMES, *REDIS_SCHEMES)):
        return url
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    user = user.partition(":")[0]
    return f"{parts.scheme}://{user}{'@' if user else ''}{host}{parts.path}"


def _read_empty_as_none(value: Any) -> Any:
    return None if value == "" else value


def _name_place(url: str) -> tuple[object, ...]:
    """Return the file, or the database on a server, that a URL names."""
    if url.startswith("sqlite:///"):
        return (os.path.realpath(url.removeprefix("sqlite:///")),)
    parts = urlsplit(url)
    if _is_redis_url(url):
        return parts.hostname, parts.port or REDIS_PORT, int(parts.path.strip("/") or 0)
    return parts.hostname, parts.port or POSTGRES_PORT, parts.path


MAX_ENCRYPTION_KEYS = 5
POSTGRES_PORT = 5432
REDIS_PORT = 6379


def _list_encryption_keys(value: Any) -> Any:
    """Convert one key to a list of it, and "" to None."""
    if isinstance(value, str):
        return [value] if value else None
    return value


class StorageSettings(Section):
    """The section `storage`."""

    url: str = "sqlite:///om-proxy.db"
    required: bool = False
    prefix: str = Field(default="om", pattern=r"^[a-z_][a-z0-9_]{0,39}$")
    connections: Annotated[Count, Field(le=1_000)] = 10
    prepared: bool = True
    timeout: Annotated[Duration, Field(gt=0)] = 1.0
    on_down: Annotated[OnDown, BeforeValidator(_write_status)] = "bypass"
    durable: bool = True
    encryption_key: Annotated[
        tuple[SecretStr, ...] | None, BeforeValidator(_list_encryption_keys)
    ] = None
    keys_url: Annotated[str | None, BeforeValidator(_read_empty_as_none)] = None
    search: Annotated[SearchIndex, BeforeValidator(_write_bool)] = "auto"

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        is_file = re.match(r"sqlite:///.", value) is not None
        if is_file or _is_postgres_url(value):
            return value
        if _is_redis_url(value):
            _check_redis_options(value)
            return value
        raise ValueError(
            "must be sqlite:///<file> or postgresql://<user>:<password>@<host>:<port>/<database> "
            "or redis://<user>:<password>@<host>:<port>/<number>, with the characters :/?#@% of a password written as %3A, %2F and so on"
        )

    @field_validator("keys_url")
    @classmethod
    def _check_keys_url(cls, value: str | None) -> str | None:
        is_file = value is not None and re.match(r"sqlite:///.", value) is not None
        if value is None or _is_postgres_url(value) or (is_file and not value.endswith(IN_MEMORY)):
            return value
        raise ValueError(
            "must be sqlite:///<file> or postgresql://<user>:<password>@<host>:<port>/<database>: "
            "a key store is a file or a PostgreSQL database"
        )

    @field_validator("prefix")
    @classmethod
    def _check_prefix(cls, value: str) -> str:
        if value.startswith("pg_"):
            raise ValueError("must not begin with pg_: PostgreSQL keeps such names for itself")
        return value

    @field_validator("encryption_key")
    @classmethod
    def _check_encryption_key(
        cls, value: tuple[SecretStr, ...] | None
    ) -> tuple[SecretStr, ...] | None:
        sources = [secret.get_secret_value() for secret in value or ()]
        if value is not None and not 0 < len(sources) <= MAX_ENCRYPTION_KEYS:
            raise ValueError(f"must be one key, or a list of at most {MAX_ENCRYPTION_KEYS}")
        for source in sources:
            if not is_key_source(source):
                parse_master_key(source)
        if len(set(sources)) < len(sources):
            raise ValueError("must name each key once")
        return value

    @model_validator(mode="after")
    def _check_search(self) -> Self:
        if self.search != "true":
            return self
        if self.encryption_key:
            rule = "must be auto or false with storage.encryption_key: the index would tell the words of encrypted texts"
            raise_faults([("search", rule)])
        if self.is_redis:
            raise_faults([("search", "must be auto or false with Redis, which keeps no index")])
        return self

    @model_validator(mode="after")
    def _check_key_store(self) -> Self:
        if self.keys_url is None:
            return self
        faults = []
        if not self.encryption_key:
            faults.append("needs storage.encryption_key: without it there are no data keys")
        elif not self.is_shared:
            faults.append(
                "needs a file or a server in storage.url: a store in memory has no copies"
            )
        elif not self.is_redis and _name_place(self.url) == _name_place(self.keys_url):
            faults.append(
                "must name another file or database than storage.url: a copy of the data would "
                "hold the keys"
            )
        raise_faults([("keys_url", fault) for fault in faults])
        return self

    @property
    def key_sources(self) -> tuple[str, ...]:
        """The master keys, or where they are, the newest first."""
        return tuple(secret.get_secret_value() for secret in self.encryption_key or ())

    @property
    def is_postgres(self) -> bool:
        return _is_postgres_url(self.url)

    @property
    def is_redis(self) -> bool:
        return _is_redis_url(self.url)

    @property
    def is_server(self) -> bool:
        """Whether the store is on a server of its own, and not this process's file or memory."""
        return self.is_postgres or self.is_redis

    @property
    def file(self) -> str | None:
        """The path of the database's file; None for a database in memory, or on a server."""
        path = self.url.removeprefix("sqlite:///")
        return None if path == IN_MEMORY or self.is_server else path

    @property
    def place(self) -> tuple[object, ...]:
        """Where the memories are. Two addresses of one place are equal, except where a server has
        several names."""
        return (*_name_place(self.url), self.prefix) if self.is_server else _name_place(self.url)

    @property
    def is_shared(self) -> bool:
        """Whether several processes can open the store."""
        return self.is_server or self.file is not None

    @property
    def keys_file(self) -> str | None:
        """The path of the key store's file; None: there is none, or it is on a server."""
        is_file = self.keys_url is not None and self.keys_url.startswith("sqlite:///")
        return self.keys_url.removeprefix("sqlite:///") if self.keys_url and is_file else None

    @property
    def keys_schema(self) -> str:
        """The schema of a key store on a server."""
        return f"{self.prefix}_keys"

    @property
    def shown_url(self) -> str:
        """The address as it may be shown: without a password."""
        return hide_password(self.url)

    @property
    def shown_keys_url(self) -> str:
        """The address of the key store as it may be shown."""
        return hide_password(self.keys_url or "")


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
    """What an override of `resources:` may set besides `memory` and `context`."""

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
    secret: SecretStr = Field(min_length=16)
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
    metrics_token: Secret = None
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
