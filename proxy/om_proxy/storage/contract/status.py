"""The part of the Store protocol in which a store says how it is. Its docstrings are the contract."""

from __future__ import annotations

from typing import Protocol

from om_proxy.storage.values.store_description import Promise, StoreTotals


class StoreStatus(Protocol):
    """How a store is, and what it promises."""

    async def describe(self) -> Promise:
        """Return what this store promises."""

    async def totals(self, now: float) -> StoreTotals:
        """Return sums over all threads, as of `now`. Each thread counts as last committed. The
        method reads in short steps, so the sums need not be those of one moment."""

    async def wait_erased(self) -> None:
        """Return once no forgotten bytes are `pending`."""

    async def check_schema(self) -> None:
        """Raise `StorageError` if this program is too old to write to the database: a newer one has
        changed its schema since it was opened."""

    async def ping(self) -> None:
        """Raise `StorageError` unless the store can be read and written."""
