"""The section `storage` of the configuration: where the memories are, what their address may be, and
what of it may be shown."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from typing import Annotated, Any, Literal, Self
from urllib.parse import parse_qsl, urlsplit

from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator

from om_proxy.settings.config.sections.quantities import Duration
from om_proxy.settings.config.sections.section import (
    Count,
    Section,
    convert_empty_to_none,
    raise_faults,
)
from om_proxy.settings.identity.encryption_keys import is_key_source, parse_master_key

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
MAX_ENCRYPTION_KEYS = 5
POSTGRES_PORT = 5432
REDIS_PORT = 6379

# what becomes of a request that needs a memory which cannot be read
OnDown = Literal["bypass", "503"]

# which original messages are indexed: those of threads with `memory.retrieval`, all, or none
SearchIndex = Literal["auto", "true", "false"]


def _write_bool(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _write_status(value: Any) -> Any:
    """Return a number as text: YAML reads 503 as one."""
    return str(value) if type(value) is int else value


def _is_postgres_url(url: str) -> bool:
    return _is_server_url(url, POSTGRES_SCHEMES)


def _is_redis_url(url: str) -> bool:
    is_server = _is_server_url(url, REDIS_SCHEMES)
    return is_server and re.fullmatch(r"/?[0-9]*", urlsplit(url).path) is not None


def _check_redis_options(url: str) -> None:
    """Raise ValueError for what is after the `?` of a Redis URL, unless it names a user or says
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


def _name_place(url: str) -> tuple[object, ...]:
    """Return the file, or the database on a server, that a URL names."""
    if url.startswith("sqlite:///"):
        return (os.path.realpath(url.removeprefix("sqlite:///")),)
    parts = urlsplit(url)
    if _is_redis_url(url):
        return parts.hostname, parts.port or REDIS_PORT, int(parts.path.strip("/") or 0)
    return parts.hostname, parts.port or POSTGRES_PORT, parts.path


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
    keys_url: Annotated[str | None, BeforeValidator(convert_empty_to_none)] = None
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
        """The place of the memories. Two addresses of one place are equal, except where a server
        has several names."""
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
