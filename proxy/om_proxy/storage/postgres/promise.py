"""Say what PostgreSQL promises as this program uses it. No driver is needed for that."""

from __future__ import annotations

from om_proxy.storage.shared.migrate import list_migrations
from om_proxy.storage.values.store_description import Durability, Promise


def create_promise(
    *,
    flushes: bool = True,
    commits_wait: bool = True,
    schema_version: int | None = None,
    is_encrypted: bool = False,
    has_separate_keys: bool = False,
) -> Promise:
    """Return the promise of a server. `flushes`: it runs with `fsync`; `commits_wait`: with
    `synchronous_commit`. `schema_version`: of the database; None: as this program makes it."""
    durable: Durability = "none"
    if flushes:
        durable = "fsync" if commits_wait else "second"
    newest = list_migrations("postgres")[-1].number
    return Promise(
        "postgresql",
        durable,
        "rewrite",
        schema_version or newest,
        is_encrypted,
        has_separate_keys,
        has_index=not is_encrypted,
    )
