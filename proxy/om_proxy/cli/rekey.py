"""`om-proxy store rekey`: change the master key of an encrypted database, or move its keys to a key store."""

from __future__ import annotations

import argparse

from om_proxy.cli.conversion import run_conversion
from om_proxy.cli.exit_status import DONE
from om_proxy.cli.progress import show_progress
from om_proxy.storage.encryption.conversion import ConvertibleStore, move_keys, rewrap_keys


def run(options: argparse.Namespace) -> int:
    """Move every data key to the key store of the settings, if they name one, and wrap it under their
    first master key."""
    return run_conversion(
        options.config,
        rekey,
        advice=", to the list [new, old] of master keys; to encrypt a database, run om-proxy store encrypt",
        moves_keys=True,
    )


async def rekey(store: ConvertibleStore) -> int:
    with show_progress("moving keys"):
        moved_count = await move_keys(store)
        is_erased = not moved_count or await store.conversion.erase_replaced()
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
        count = await rewrap_keys(store)
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
