"""Say what each kind of store promises as this program uses it, as a value and in sentences.

No driver is needed for that. For each store that a sentence may be told of, a test of the same name
shows it (tests/storage/test_promises.py finds it)."""

from __future__ import annotations

import asyncio

from om_proxy.common.errors import StorageError
from om_proxy.storage.contract.status import Durability, Erasure, Promise, StoreStatus
from om_proxy.storage.shared.migrate import list_migrations
from om_proxy.storage.shared.newest_passages import NEWEST_MESSAGES

REDIS_SCHEMA_VERSION = 3  # of its keys and their values
# for a page that a load balancer or a person waits for
DESCRIBE_TIMEOUT_S = 2.0

DURABILITY_SENTENCES: dict[Durability, str] = {
    "fsync": "a power cut loses no turn whose reply has ended",
    "second": "a power cut may lose the turns of the last second",
    "none": "a power cut may lose everything",
    "process": "all memories end with the process",
}
ERASURE_SENTENCES: dict[Erasure, str] = {
    "now": "forgotten bytes are overwritten once no reader holds them",
    "rewrite": "forgotten rows are gone at once and their bytes once the tables are rewritten",
    "log": "forgotten bytes leave memory at once and the log once it is rewritten",
}
LOG_SENTENCES: dict[Erasure, str] = {
    "rewrite": "the server's log keeps forgotten bytes until it is used again",
}
# by kind: what a server's copies lack when one of them takes its place
FAILOVER_SENTENCES = {"redis": "a failover may lose turns that were not replicated"}
# of every store
ENCRYPTED = "text is encrypted, and titles cannot be searched"
NOT_ENCRYPTED = "text is not encrypted"
INDEXED = "search: index"
NOT_INDEXED = f"search: newest {NEWEST_MESSAGES}"
NOT_PROMISED = ("backups keep what was forgotten since",)
# where the keys are apart from the data, in place of that
SEPARATE_KEYS = "no key opens forgotten text in backups of the data"


def create_sqlite_promise(
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


def create_postgres_promise(
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


def create_redis_promise(
    durable: Durability = "second",
    schema_version: int = REDIS_SCHEMA_VERSION,
    *,
    is_encrypted: bool = False,
    has_separate_keys: bool = False,
) -> Promise:
    """Return the promise of a server. `durable`: as it flushes its log."""
    return Promise(
        "redis", durable, "log", schema_version, is_encrypted, has_separate_keys, has_index=False
    )


def list_promises(promise: Promise) -> tuple[str, ...]:
    """Return the sentences about a store, what it does not promise last."""
    return (
        DURABILITY_SENTENCES[promise.durable],
        *([FAILOVER_SENTENCES[promise.kind]] if promise.kind in FAILOVER_SENTENCES else ()),
        ERASURE_SENTENCES[promise.erases],
        *([LOG_SENTENCES[promise.erases]] if promise.erases in LOG_SENTENCES else ()),
        ENCRYPTED if promise.encrypted else NOT_ENCRYPTED,
        INDEXED if promise.has_index else NOT_INDEXED,
        *((SEPARATE_KEYS,) if promise.separate_keys else NOT_PROMISED),
    )


def limit_search(promise: Promise, search: str) -> Promise:
    """Return the promise with the setting `storage.search`: without an index, none is searched."""
    return promise._replace(has_index=promise.has_index and search != "false")


async def try_describe(store: StoreStatus) -> Promise | None:
    """Return what the store promises; None if it cannot be asked now."""
    try:
        async with asyncio.timeout(DESCRIBE_TIMEOUT_S):
            return await store.describe()
    except (StorageError, TimeoutError):
        return None
