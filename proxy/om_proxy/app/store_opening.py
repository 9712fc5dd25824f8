"""Open the store and the key store that the settings name. No other module of the server meets
concrete stores; a driver is imported only for the store that needs it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import structlog

from om_proxy.common.errors import (
    ConfigError,
    KeysAway,
    StorageError,
    WrongKeyStore,
    WrongMasterKey,
    render_install_command,
)
from om_proxy.settings.config import StorageSettings
from om_proxy.storage.base import Store
from om_proxy.storage.encryption.admission import load_master_keys
from om_proxy.storage.encryption.key_store import SeparateKeys
from om_proxy.storage.reopening_store import ReopeningStore
from om_proxy.storage.sqlite.key_store import SqliteKeyStore
from om_proxy.storage.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from om_proxy.storage.encryption.master_keys import MasterKeys

logger = structlog.get_logger("storage")

BY_ANOTHER_NAME = (
    "by another name: a copy of the data would hold the keys; name another one, on a server that the "
    "backups of the data do not hold"
)


def create_reopening_store(
    settings: StorageSettings,
    generations: int | None,
    clock: Callable[[], float],
    on_connection_lost: Callable[[], None],
) -> ReopeningStore:
    file = Path(settings.file) if settings.file else None
    return ReopeningStore(
        lambda: open_store(
            settings, generations, clock=clock, on_connection_lost=on_connection_lost
        ),
        file,
    )


async def open_store(
    settings: StorageSettings,
    generations: int | None = None,
    *,
    create: bool = True,
    clock: Callable[[], float] = time.time,
    on_connection_lost: Callable[[], None] = lambda: None,
    moves_keys: bool = False,
) -> Store:
    """Open the store of these settings. Raise ConfigError if a package that it needs is not
    installed, or a master key cannot be read. `generations`, `create`, `clock`: see
    SqliteStore.open; `on_connection_lost`: PostgresStore and RedisStore. `moves_keys`: keys beside
    the data may be moved to the key store."""
    masters = await asyncio.to_thread(load_master_keys, settings.key_sources)
    try:
        await check_keys_are_apart(settings)
    except StorageError as exc:
        logger.warning("keys.not_compared", said=str(exc))
    separate = await open_key_store(settings)
    try:
        opening = Opening(generations, create, masters, separate, moves_keys)
        return await _open_backend(settings, opening, clock, on_connection_lost)
    except BaseException:
        if separate:
            await separate.close()
        raise


class Opening(NamedTuple):
    """What every backend is opened with: the generations that it keeps, its encryption, and the
    changes that opening may make."""

    generations: int | None
    create: bool
    masters: MasterKeys | None
    separate: SeparateKeys | None
    moves_keys: bool


async def open_key_store(settings: StorageSettings) -> SeparateKeys | None:
    """Open what `storage.keys_url` names; None: the keys are beside the data. No file is read yet."""
    if settings.keys_url is None:
        return None
    if settings.keys_file is not None:
        return SeparateKeys(SqliteKeyStore(settings.keys_file))
    with _require_driver("storage.keys_url", "PostgreSQL", "asyncpg", "postgres"):
        from om_proxy.storage.postgres.key_store import PostgresKeyStore  # noqa: PLC0415 - the driver is an extra
    try:
        return SeparateKeys(
            await PostgresKeyStore.open(
                settings.keys_url,
                settings.keys_schema,
                timeout_s=settings.timeout,
                uses_prepared=settings.prepared,
                must_be_durable=settings.durable,
            )
        )
    except ConfigError as exc:
        raise ConfigError(str(exc).replace("storage.url", "storage.keys_url")) from exc
    except StorageError as exc:
        said = str(exc).replace("storage.url", "storage.keys_url")
        raise KeysAway(f"storage.keys_url: {settings.shown_keys_url}: {said}") from exc


async def check_keys_are_apart(settings: StorageSettings) -> None:
    """Raise ConfigError if `storage.keys_url` is the file or the database of `storage.url` by another
    name, and StorageError if a server refuses to tell. What does not exist or cannot be reached is
    nothing to compare."""
    if are_one_file(settings.file, settings.keys_file):
        raise ConfigError(f"storage.keys_url: it is the file of storage.url {BY_ANOTHER_NAME}")
    if not settings.is_postgres or settings.keys_url is None or settings.keys_file is not None:
        return
    with _require_driver("storage.url", "PostgreSQL", "asyncpg", "postgres"):
        from om_proxy.storage.postgres.key_store import are_one_database  # noqa: PLC0415 - the driver is an extra
    if await are_one_database(settings.url, settings.keys_url):
        raise ConfigError(f"storage.keys_url: it is the database of storage.url {BY_ANOTHER_NAME}")


def check_drivers(settings: StorageSettings) -> None:
    """Import what opening the stores imports. Raise ConfigError, as opening does, if a driver is not
    installed."""
    if settings.is_postgres:
        with _require_driver("storage.url", "PostgreSQL", "asyncpg", "postgres"):
            import_module("om_proxy.storage.postgres.store")
    if settings.is_redis:
        with _require_driver("storage.url", "Redis", "redis", "redis"):
            import_module("om_proxy.storage.redis.store")
    if settings.keys_url is not None and settings.keys_file is None:
        with _require_driver("storage.keys_url", "PostgreSQL", "asyncpg", "postgres"):
            import_module("om_proxy.storage.postgres.key_store")


@contextmanager
def _require_driver(setting: str, database: str, package: str, extra: str) -> Iterator[None]:
    """Raise ConfigError where an import fails because the package is not installed."""
    try:
        yield
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] != package:
            raise
        raise ConfigError(
            f"{setting}: {database} needs its driver: {render_install_command(extra)}"
        ) from exc


def are_one_file(one: str | None, other: str | None) -> bool:
    """Return whether two names are of one file, also by a link. None: what is no file."""
    try:
        return one is not None and other is not None and os.path.samefile(one, other)
    except OSError:  # one of them is to be made
        return False


async def _open_backend(
    settings: StorageSettings,
    opening: Opening,
    clock: Callable[[], float],
    on_connection_lost: Callable[[], None],
) -> Store:
    try:
        if settings.is_postgres:
            return await _open_postgres(settings, opening, on_connection_lost)
        if settings.is_redis:
            return await _open_redis(settings, opening, on_connection_lost)
        path = settings.url.removeprefix("sqlite:///")
        return await SqliteStore.open(path, clock=clock, **opening._asdict())
    except (KeysAway, WrongKeyStore) as exc:
        if str(exc).startswith("storage.keys_url"):
            raise
        raise type(exc)(f"storage.keys_url: {exc}") from exc
    except StorageError as exc:
        if settings.is_server or isinstance(exc, WrongMasterKey):
            message = f"storage.url: {settings.shown_url}: {exc}"
        else:
            named = str(exc)
            if settings.file and settings.file not in named:
                named = f"{settings.file}: {named}"
            advice = (
                "name a database of om-proxy or a new file, where this process may write"
                if opening.create
                else "name the one that a server of om-proxy uses"
            )
            message = f"storage.url: {named}; {advice}"
        raise StorageError(message) from exc


async def _open_postgres(
    settings: StorageSettings, opening: Opening, on_connection_lost: Callable[[], None]
) -> Store:
    with _require_driver("storage.url", "PostgreSQL", "asyncpg", "postgres"):
        from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore  # noqa: PLC0415 - the driver is an extra
    options = PostgresOptions(
        settings.prefix,
        settings.connections,
        settings.prepared,
        settings.timeout,
        settings.durable,
    )
    return await PostgresStore.open(
        settings.url, options, on_connection_lost=on_connection_lost, **opening._asdict()
    )


async def _open_redis(
    settings: StorageSettings, opening: Opening, on_connection_lost: Callable[[], None]
) -> Store:
    with _require_driver("storage.url", "Redis", "redis", "redis"):
        from om_proxy.storage.redis.store import RedisOptions, RedisStore  # noqa: PLC0415 - the driver is an extra
    options = RedisOptions(
        settings.prefix, settings.connections, settings.timeout, settings.durable
    )
    return await RedisStore.open(
        settings.url, options, on_connection_lost=on_connection_lost, **opening._asdict()
    )
