"""The Store protocol, all parts together. Its docstrings, and those of its parts, are the contract;
tests/storage/contract.py holds every backend to them. A reader takes the parts that it calls."""

from __future__ import annotations

from typing import Protocol

from om_proxy.storage.contract.memories import MemoryCommits, WorkQueue
from om_proxy.storage.contract.passage_index import PassageIndex, VectorIndex
from om_proxy.storage.contract.records import EventLog, LedgerSums, RecordKeeping
from om_proxy.storage.contract.removal import MemoryMoving, StoredRemoval
from om_proxy.storage.contract.status import StoreStatus


class Store(
    MemoryMoving,
    MemoryCommits,
    WorkQueue,
    EventLog,
    StoredRemoval,
    RecordKeeping,
    LedgerSums,
    PassageIndex,
    VectorIndex,
    StoreStatus,
    Protocol,
):
    """The durable memories. Every method may raise `StorageError`; none blocks the event loop.

    Every row is keyed by the whole Key, tenant first: no method reaches another tenant's rows.
    """

    async def close(self) -> None: ...
