"""`om-proxy store rekey`: change the master key of an encrypted database, or move its keys to a key store."""

from __future__ import annotations

import argparse
import asyncio
from typing import Protocol, cast

from om_proxy.cli.exit_status import DONE
from om_proxy.cli.progress import show_progress
from om_proxy.cli.store_command import run_quietly
from om_proxy.doctor.report import find_database
from om_proxy.errors import UsageError
from om_proxy.settings import load
from om_proxy.storage.base import Store
from om_proxy.storage.encryption.key_rotation import EncryptedStore
from om_proxy.store_opening import open_store

# of a log that the server may have rewritten a moment ago, or refuses to rewrite
ERASURE_TIMEOUT_S = 300.0


class RekeyedStore(Store, EncryptedStore, Protocol):
    """Each backend is both."""


def run(options: argparse.Namespace) -> int:
    """Move every data key to the key store of the settings, if they name one, and wrap it under their
    first master key."""
    return run_quietly(open_and_rekey(options.config))


async def open_and_rekey(config: str | None) -> int:
    settings = load(config)
    if not settings.storage.key_sources:
        raise UsageError(
            "set storage.encryption_key first, to the list [new, old] of master keys; to encrypt a "
            "database, copy it with om-proxy store copy"
        )
    find_database(settings)
    store = await open_store(settings.storage, create=False, moves_keys=True)
    try:
        return await rekey(cast(RekeyedStore, store))
    finally:
        await store.close()


async def rekey(store: RekeyedStore) -> int:
    with show_progress("moving keys"):
        moved_count = await store.key_rotation.move_keys()
        is_erased = not moved_count or await wait_erased(store)
    if moved_count:
        print(
            f"moved to the key store: {moved_count} data keys; older backups hold them beside the data"
        )
    if not is_erased:
        print(
            "their bytes are still in the database: a reader holds them, or its tables or log must "
            "be rewritten (PostgreSQL: om-proxy store erase --rewrite; "
            "SQLite: om-proxy store erase; Redis: BGREWRITEAOF)"
        )
    with show_progress("wrapping keys"):
        count = await store.key_rotation.rewrap_keys()
    if count:
        print(
            f"wrapped anew: {count} data keys; the older master keys open nothing here any more: "
            "take them out of storage.encryption_key"
        )
    else:
        print(
            "the first master key of storage.encryption_key wraps all data keys; no other is needed"
        )
    return DONE


async def wait_erased(store: Store) -> bool:
    """Return whether the bytes of removed rows are gone from the database."""
    if (await store.describe()).erases == "rewrite":
        return False
    try:
        async with asyncio.timeout(ERASURE_TIMEOUT_S):
            await store.wait_erased()
    except TimeoutError:
        return False
    return True
