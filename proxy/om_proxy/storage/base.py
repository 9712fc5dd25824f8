"""The Store protocol, all parts together. Its docstrings, and those of its parts, are the contract;
tests/storage/contract.py holds every backend to them."""

from __future__ import annotations

from typing import Protocol

from om_proxy.storage.contract.memories import MemoryRows, ThreadLists, ThreadRows, WorkQueue
from om_proxy.storage.contract.passage_index import PassageIndex
from om_proxy.storage.contract.records import EventLog, LedgerSums, RecordKeeping
from om_proxy.storage.contract.removal import MemoryMoving, StoredRemoval
from om_proxy.storage.contract.vector_index import VectorIndex
from om_proxy.storage.values.store_description import Promise, StoreTotals


class Store(
    MemoryRows,
    ThreadRows,
    EventLog,
    WorkQueue,
    ThreadLists,
    StoredRemoval,
    RecordKeeping,
    LedgerSums,
    MemoryMoving,
    PassageIndex,
    VectorIndex,
    Protocol,
):
    """The durable memories. Every method may raise `StorageError`; none blocks the event loop.

    Every row is keyed by the whole Key, tenant first: no method reaches another tenant's rows.
    """

    async def secret(self, proposed: bytes | None = None) -> bytes:
        """Return the 32 random bytes that tenants and fingerprints are keyed with. The bytes are
        made once (`proposed`, if given) and kept with the data. Every caller gets the same bytes,
        also when two processes ask first at the same time."""

    async def totals(self, now: float) -> StoreTotals:
        """Return sums over all threads, as of `now`. Each thread counts as last committed. The
        method reads in short steps, so the sums need not be those of one moment."""

    async def clock(self) -> float:
        """Return the unix seconds by which leases end: the clock that all processes on this storage
        have in common."""

    async def describe(self) -> Promise:
        """Return what this store promises."""

    async def check_schema(self) -> None:
        """Raise `StorageError` if this program is too old to write to the database: a newer one has
        changed its schema since it was opened."""

    async def ping(self) -> None:
        """Raise `StorageError` unless the store can be read and written."""

    async def close(self) -> None: ...
