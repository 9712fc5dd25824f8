"""`om-proxy store encrypt`: encrypt a database that holds memories."""

from __future__ import annotations

import argparse

from om_proxy.cli.conversion import run_conversion
from om_proxy.cli.exit_status import DONE
from om_proxy.cli.progress import show_progress
from om_proxy.storage.encryption.conversion import ConvertibleStore, encrypt_memories


def run(options: argparse.Namespace) -> int:
    """Turn encryption on, and encrypt what is stored unless only the first was asked for."""
    return run_conversion(
        options.config,
        begin_only if options.begin else encrypt,
        advice="; make a key with: openssl rand -base64 32",
        begins_encryption=True,
    )


async def begin_only(store: ConvertibleStore) -> int:
    print(
        "memories that begin now are encrypted: restart each server with the key, "
        "then run om-proxy store encrypt"
    )
    return DONE


async def encrypt(store: ConvertibleStore) -> int:
    with show_progress("encrypting"):
        count = await encrypt_memories(store)
        is_erased = await store.conversion.erase_replaced()
    print(f"encrypted: {count} threads and shared logs; none is left unencrypted")
    if not is_erased:
        print(
            "the bytes of their former rows are still in the database: a reader holds them, "
            "or its tables or log must be rewritten (PostgreSQL: om-proxy store erase --rewrite; "
            "SQLite: om-proxy store erase; Redis: BGREWRITEAOF)"
        )
    print("older backups hold the texts as they were")
    return DONE
