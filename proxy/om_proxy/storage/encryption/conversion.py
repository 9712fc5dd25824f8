"""Encrypt a database that holds memories, and change its master key, batch by batch. What is done
stays done: after an interruption the next run goes on. Servers with the key may run meanwhile."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class EncryptedBatch(NamedTuple):
    """Memories that were encrypted in one step."""

    memories: int
    last_id: int | None  # of the last row that was looked at; None: nothing is left


class RewrappedBatch(NamedTuple):
    """Data keys that the newest master key wraps now."""

    keys: int
    last_id: bytes | None  # of the last key that was looked at; None: there are no more


class MovedBatch(NamedTuple):
    """Data keys that went from beside the data to the key store."""

    keys: int
    is_last: bool


class ConvertibleStore(Protocol):
    """What a backend does for it. `StorageError` as with `Store`."""

    async def encrypt_batch(self, after: int) -> EncryptedBatch:
        """Encrypt some memories whose row ids are above `after` and that are not encrypted: each as a
        whole or not at all, with a new version."""

    async def move_batch(self) -> MovedBatch:
        """Move data keys to the key store, if there is one: written there first, then removed
        beside the data."""

    async def rewrap_batch(self, after: bytes) -> RewrappedBatch:
        """Wrap data keys with ids above `after` under the newest master key, in one transaction.
        Raise UnopenedText if one needs a master key that is not there."""

    async def finish_rekeying(self) -> bool:
        """Seal the secret with the newest master key, and refuse from now on who has not got it.
        Return False, and change nothing, while an older one wraps any data key."""

    async def erase_replaced(self) -> bool:
        """Remove the bytes of rows that were replaced. Return False if some stay."""


async def encrypt_memories(store: ConvertibleStore) -> int:
    """Encrypt all memories that are not encrypted yet. Return how many these were."""
    count, after = 0, 0
    while True:
        batch = await store.encrypt_batch(after)
        count += batch.memories
        if batch.last_id is None:
            return count
        after = batch.last_id


async def move_keys(store: ConvertibleStore) -> int:
    """Move all data keys to the key store, if there is one. Return how many these were."""
    count = 0
    while True:
        batch = await store.move_batch()
        count += batch.keys
        if batch.is_last:
            return count


async def rewrap_keys(store: ConvertibleStore) -> int:
    """Wrap all data keys under the newest master key, also those that others make meanwhile. Return
    how many these were."""
    count = 0
    while True:
        after: bytes | None = b""
        while after is not None:
            batch = await store.rewrap_batch(after)
            count, after = count + batch.keys, batch.last_id
        if await store.finish_rekeying():
            return count
