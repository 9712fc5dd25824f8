"""Change the master key of a database, and move its data keys to a key store, batch by batch. What is
done stays done: after an interruption the next run goes on. Servers with the key may run at the
same time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from om_proxy.storage.encryption.key_store import RewrappedBatch
    from om_proxy.storage.encryption.keyring import Keyring
    from om_proxy.storage.encryption.master_keys import MasterKeys
    from om_proxy.storage.encryption.separate_keys import KeyRows


class KeyRotation:
    """The data keys of one store. `rows`: what its data says of them."""

    def __init__(self, keys: Keyring, rows: KeyRows) -> None:
        self._keys = keys
        self._rows = rows

    async def move_keys(self) -> int:
        """Move all data keys to the key store, if there is one. Return how many these were."""
        count = 0
        while self._keys.separate and (moved := await self._keys.separate.move_batch(self._rows)):
            count += moved
        return count

    async def rewrap_keys(self) -> int:
        """Wrap all data keys under the newest master key, also those that others make meanwhile.
        Return how many these were."""
        count = 0
        while True:
            after: bytes | None = b""
            while after is not None:
                batch = await self.rewrap_batch(after)
                count, after = count + batch.keys, batch.last_id
            if await self.finish():
                return count

    async def rewrap_batch(self, after: bytes) -> RewrappedBatch:
        if self._keys.separate:
            return await self._keys.separate.rewrap_batch(after, self._require_masters())
        return await self._rows.rewrap_beside(after, self._require_masters())

    async def finish(self) -> bool:
        """Refuse the older master keys from now on. Return False, and change nothing, while one of
        them wraps any data key."""
        masters = self._require_masters()
        if self._keys.separate and await self._keys.separate.has_older(masters.newest_id):
            return False
        return await self._rows.finish_beside(masters)

    def _require_masters(self) -> MasterKeys:
        assert self._keys.masters is not None  # the command asks for a key
        return self._keys.masters


class EncryptedStore(Protocol):
    """Each backend is one."""

    @property
    def key_rotation(self) -> KeyRotation: ...
