"""Say in sentences what a store promises, and what it does not. For each store that it may be told
of, a test of the same name shows each (tests/storage/test_promises.py finds it)."""

from __future__ import annotations

import asyncio

from om_proxy.common.errors import StorageError
from om_proxy.storage.base import Store
from om_proxy.storage.shared.newest_passages import NEWEST_MESSAGES
from om_proxy.storage.values.store_description import Durability, Erasure, Promise

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


async def try_describe(store: Store) -> Promise | None:
    """Return what the store promises; None if it cannot be asked now."""
    try:
        async with asyncio.timeout(DESCRIBE_TIMEOUT_S):
            return await store.describe()
    except (StorageError, TimeoutError):
        return None
