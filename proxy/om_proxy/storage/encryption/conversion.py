"""Encrypt a database that holds memories, and change its master key, batch by batch. What is done
stays done: after an interruption the next run goes on. Servers with the key may run meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from om_proxy.storage.encryption.keyring import Keyring
    from om_proxy.storage.encryption.master_keys import MasterKeys
    from om_proxy.storage.encryption.separate_keys import KeyRows


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


class BackendConversion(Protocol):
    """What a backend does for it with its own rows. `StorageError` as with `Store`."""

    async def encrypt_batch(self, after: int) -> EncryptedBatch:
        """Encrypt some memories whose row ids are above `after` and that are not encrypted: each as a
        whole or not at all, with a new version."""

    async def rewrap_beside(self, after: bytes, masters: MasterKeys) -> RewrappedBatch:
        """Wrap data keys beside the data, with ids above `after`, under the newest master key, in one
        transaction. Raise UnopenedText if one needs a master key that is not there."""

    async def finish_beside(self, masters: MasterKeys) -> bool:
        """Seal the secret with the newest master key, and refuse from now on who has not got it.
        Return False, and change nothing, while an older one wraps any data key beside the data."""

    async def erase_replaced(self) -> bool:
        """Remove the bytes of rows that were replaced. Return False if some stay."""


class Conversion:
    """The conversion of one store. `rows`: what its data says of its keys."""

    def __init__(self, backend: BackendConversion, keys: Keyring, rows: KeyRows) -> None:
        self._backend = backend
        self._keys = keys
        self._rows = rows

    async def encrypt_batch(self, after: int) -> EncryptedBatch:
        return await self._backend.encrypt_batch(after)

    async def move_batch(self) -> MovedBatch:
        """Move data keys to the key store, if there is one: written there first, then removed
        beside the data."""
        if self._keys.separate is None:
            return MovedBatch(0, is_last=True)
        return await self._keys.separate.move_batch(self._rows)

    async def rewrap_batch(self, after: bytes) -> RewrappedBatch:
        if self._keys.separate:
            return await self._keys.separate.rewrap_batch(after, self._require_masters())
        return await self._backend.rewrap_beside(after, self._require_masters())

    async def finish_rekeying(self) -> bool:
        masters = self._require_masters()
        if self._keys.separate and await self._keys.separate.has_older(masters.newest_id):
            return False
        return await self._backend.finish_beside(masters)

    async def erase_replaced(self) -> bool:
        return await self._backend.erase_replaced()

    def _require_masters(self) -> MasterKeys:
        assert self._keys.masters is not None  # the command asks for a key
        return self._keys.masters


class ConvertibleStore(Protocol):
    """Each backend is one."""

    @property
    def conversion(self) -> Conversion: ...


async def encrypt_memories(store: ConvertibleStore) -> int:
    """Encrypt all memories that are not encrypted yet. Return how many these were."""
    count, after = 0, 0
    while True:
        batch = await store.conversion.encrypt_batch(after)
        count += batch.memories
        if batch.last_id is None:
            return count
        after = batch.last_id


async def move_keys(store: ConvertibleStore) -> int:
    """Move all data keys to the key store, if there is one. Return how many these were."""
    count = 0
    while True:
        batch = await store.conversion.move_batch()
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
            batch = await store.conversion.rewrap_batch(after)
            count, after = count + batch.keys, batch.last_id
        if await store.conversion.finish_rekeying():
            return count
