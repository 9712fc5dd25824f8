"""`om-proxy store backup`: copy the SQLite file as it is now, while a server uses it."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from om_proxy.cli.answers import show_progress
from om_proxy.cli.doctor.report import find_database
from om_proxy.cli.exit_status import DONE
from om_proxy.common.errors import StorageError, UsageError
from om_proxy.settings.config import Settings, load
from om_proxy.storage.sqlite.backup import back_up_file
from om_proxy.storage.sqlite.key_store import SqliteKeyStore
from om_proxy.storage.sqlite.schema import require_own_database

LOCK_TIMEOUT_S = 5.0


def run(options: argparse.Namespace) -> int:
    settings = load(options.config)
    database = find_keys(settings) if options.keys else find_database(settings)
    if database is None:
        raise UsageError(
            f"storage.{'keys_url' if options.keys else 'url'} names a server, which has backups of "
            "its own: for PostgreSQL pg_dump or archived WAL, for Redis its AOF "
            "(docs/guides/moving.md#backups)"
        )
    check_content(database, is_keys=options.keys)
    target = Path(options.file)
    with show_progress(f"writing {target}"):
        back_up_file(database, target, is_compact=options.compact)
    print(f"backed up: {target}, {target.stat().st_size / 2**20:.1f} MiB")
    if settings.storage.keys_url is not None and not options.keys:
        print(
            "its keys are in storage.keys_url, which needs backups of its own "
            "(docs/guides/encryption.md#keep-the-keys-apart)"
        )
    return DONE


def check_content(database: Path, *, is_keys: bool) -> None:
    """Raise StorageError if the file is not what it is taken for: its copy would be no backup."""
    try:
        if not is_keys:
            require_own_database(database, LOCK_TIMEOUT_S)
        elif asyncio.run(SqliteKeyStore(database).identify()) is None:
            raise StorageError(f"{database} is empty, and no key store")
    except StorageError as exc:
        setting = "storage.keys_url" if is_keys else "storage.url"
        said = str(exc) if str(database) in str(exc) else f"{database}: {exc}"
        raise StorageError(f"{setting}: {said}; name the file that the server uses") from exc


def find_keys(settings: Settings) -> Path | None:
    """Find the file of the key store; None: it is on a server."""
    if settings.storage.keys_url is None:
        raise UsageError("storage.keys_url is not set: the keys are in the database itself")
    if settings.storage.keys_file is None:
        return None
    file = Path(settings.storage.keys_file)
    if not file.is_file():
        raise UsageError(f"storage.keys_url names {file}, which does not exist")
    return file
