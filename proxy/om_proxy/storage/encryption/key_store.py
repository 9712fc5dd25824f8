"""The contract of a key store: where wrapped data keys live apart from the data that they encrypt,
and what destroys the keys of removed data.

It is backed up on its own, and never restored from an old copy: what was destroyed there stays
destroyed, so that copies of the data open only for what still exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

from om_proxy.common.errors import KeysAway
from om_proxy.storage.encryption.row_cipher import WrappedKey
from om_proxy.storage.values.records import ForgetResult

if TYPE_CHECKING:
    from om_proxy.storage.encryption.master_keys import MasterKeys
    from om_proxy.storage.encryption.separate_keys import KeyRows, SeparateKeys


FORMAT = 1
KEYS_PER_BATCH = 5_000
NOT_A_KEY_STORE = "it is no key store of om-proxy"


class RewrappedBatch(NamedTuple):
    """Data keys that the newest master key wraps now."""

    keys: int
    last_id: bytes | None  # of the last key that was looked at; None: there are no more


class KeyStore(Protocol):
    """A store of wrapped keys. Each method raises `StorageError` if it cannot be done, and
    `WrongKeyStore` if the store is no longer the one with the id that `expect` named."""

    async def identify(self) -> str | None:
        """Return the id of the key store; None if there is none yet. Nothing is created."""

    async def create(self, id_: str) -> str:
        """Make a key store with this id, unless there is one. Return the id that it has."""

    def expect(self, id_: str) -> None:
        """Work with the key store of this id alone, and with no other that takes its place."""

    async def has_keys(self) -> bool: ...

    async def select(self, ids: Sequence[bytes]) -> list[WrappedKey]:
        """Return the keys with these ids, as far as they exist."""

    async def insert(self, keys: Sequence[WrappedKey]) -> None:
        """Keep keys, durably. One that is there already stays as it is."""

    async def destroy(self, ids: Sequence[bytes]) -> None:
        """Remove keys, durably."""

    async def select_unused(self, after: bytes, seconds: float, limit: int) -> list[bytes]:
        """Return ids above `after` of keys that are as old as this, and that `mark_used` did not
        name."""

    async def mark_used(self, ids: Sequence[bytes]) -> None:
        """Note that rows name these keys."""

    async def rewrap_batch(self, after: bytes, masters: MasterKeys) -> RewrappedBatch:
        """Wrap keys with ids above `after` under the newest master key, in one transaction. Raise
        UnopenedText if one needs a master key that is not there."""

    async def has_older(self, newest_master: str) -> bool:
        """Return whether another master key wraps any key."""

    async def ping(self) -> None:
        """Raise `StorageError` unless the store can be read and written."""

    async def close(self) -> None: ...


class DoomedKeys:
    """The keys that the data says are to be destroyed. `separate`: None: keys are beside the data,
    and went with it."""

    def __init__(self, separate: SeparateKeys | None, rows: KeyRows) -> None:
        self._separate = separate
        self._rows = rows

    async def destroy(self) -> bool:
        """Destroy them. Return False if any is left."""
        return self._separate is None or await self._separate.destroy_doomed(self._rows)

    async def settle(self, removed: ForgetResult) -> ForgetResult:
        """Destroy them. Return the result with what is true of the removed bytes then."""
        return removed.settle_keys(is_destroyed=await self.destroy())

    async def wait_destroyed(self) -> None:
        """Return once there is none."""
        if self._separate:
            await self._separate.wait_destroyed(self._rows)

    async def sweep(self) -> None:
        """Destroy old keys that belong to nothing."""
        if self._separate:
            with suppress(KeysAway):  # the next hour will do
                await self._separate.sweep(self._rows)
