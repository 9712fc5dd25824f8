"""Say what Redis promises as this program uses it. No driver is needed for that."""

from __future__ import annotations

from om_proxy.storage.values.store_description import Durability, Promise

SCHEMA_VERSION = 3  # of the keys and their values


def create_promise(
    durable: Durability = "second",
    schema_version: int = SCHEMA_VERSION,
    *,
    is_encrypted: bool = False,
    has_separate_keys: bool = False,
) -> Promise:
    """Return the promise of a server. `durable`: as it flushes its log."""
    return Promise(
        "redis", durable, "log", schema_version, is_encrypted, has_separate_keys, has_index=False
    )
