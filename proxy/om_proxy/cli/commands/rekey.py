"""`om-proxy store rekey`: change the master key of an encrypted database, or move its keys to a key store."""

from __future__ import annotations

import argparse
from typing import cast

from om_proxy.cli.answers import show_progress
from om_proxy.cli.exit_status import DONE
from om_proxy.cli.store_command import is_erased_within, run_with_store
from om_proxy.common.errors import UsageError
from om_proxy.settings.config import Settings, load
from om_proxy.storage.contract.status import StoreStatus
from om_proxy.storage.encryption.key_store import EncryptedStore

# of a log that the server may have rewritten a moment ago, or refuses to rewrite
ERASURE_TIMEOUT_S = 300.0


def run(options: argparse.Namespace) -> int:
    """Move every data key to the key store of the settings, if they name one, and wrap it under their
    first master key."""
    if not load(options.config).storage.key_sources:
        raise UsageError(
            "set storage.encryption_key first, to the list [new, old] of master keys; to encrypt a "
            "database, copy it with om-proxy store copy"
        )
    return run_with_store(options, rekey, moves_keys=True)


async def rekey(options: argparse.Namespace, settings: Settings, store: StoreStatus) -> int:
    rotation = cast(EncryptedStore, store).key_rotation  # each backend has one
    with show_progress("moving keys"):
        moved_count = await rotation.move_keys()
        is_erased = not moved_count or (
            (await store.describe()).erases != "rewrite"
            and await is_erased_within(store, ERASURE_TIMEOUT_S)
        )
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
        count = await rotation.rewrap_keys()
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
