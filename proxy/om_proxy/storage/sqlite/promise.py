"""Say what SQLite promises as this program uses it."""

from __future__ import annotations

from om_proxy.storage.shared.migrate import list_migrations
from om_proxy.storage.values.store_description import Durability, Promise


def create_promise(
    *,
    is_in_memory: bool,
    schema_version: int | None = None,
    is_encrypted: bool = False,
    has_separate_keys: bool = False,
) -> Promise:
    """Return the promise of a file, or of a database in memory. `schema_version`: of the database;
    None: as this program makes it."""
    newest = list_migrations("sqlite")[-1].number
    durable: Durability = "process" if is_in_memory else "fsync"
    return Promise(
        "sqlite",
        durable,
        "now",
        schema_version or newest,
        is_encrypted,
        has_separate_keys,
        has_index=not is_encrypted,
    )
