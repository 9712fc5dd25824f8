"""Where wrapped data keys live apart from the data that they encrypt, and what destroys, moves and
rewraps the keys of a database.

A key store is backed up on its own, and never restored from an old copy: what was destroyed there
stays destroyed, so that copies of the data open only for what still exists.

A key is written before the data that needs it, and destroyed after the transaction that removes its
data: that transaction notes in the data which keys are *doomed*. So no crash leaves data without its
key. A key whose data was never written belongs to nothing: it goes after a week.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import structlog

from om_proxy.common.errors import KeysAway, StorageError, WrongKeyStore
from om_proxy.storage.encryption.row_cipher import WrappedKey
from om_proxy.storage.spooling.breaker import ProbingBreaker
from om_proxy.storage.values.records import ForgetResult

if TYPE_CHECKING:
    from om_proxy.storage.encryption.keyring import Keyring
    from om_proxy.storage.encryption.master_keys import MasterKeys

logger = structlog.get_logger("storage")

T = TypeVar("T")
FORMAT = 1
KEYS_PER_BATCH = 5_000
KEY_STORE_ID_BYTES = 8
NOT_A_KEY_STORE = "it is no key store of om-proxy"
KEYS_URL_SETTING = "storage.keys_url"
RETRY_INTERVAL_S = 1.0
# the transaction that writes the row of a key may be under way
MIN_SWEPT_AGE_S = 600.0
# Long enough for an operator who has restored an old copy of the data by mistake: no row of it names
# the newest keys.
ORPHAN_KEPT_S = 7 * 86_400.0


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


def check_key_store(stored: str | None, *, is_set: bool, offered: str | None = None) -> None:
    """Raise WrongKeyStore unless the database may be used. `stored`: the id of the key store that
    has the database's keys; None: they are beside the data. `is_set`: whether `storage.keys_url`
    is; `offered`: the id of what it names; None: there is no key store yet."""
    if stored is None and is_set:
        raise WrongKeyStore(
            "the keys of this database are beside its data, and storage.keys_url is set: stop the "
            "servers and run `om-proxy store rekey`, which moves them"
        )
    if stored is not None and not is_set:
        raise WrongKeyStore(
            f"the keys of this database are in the key store {stored}: set storage.keys_url"
        )
    if stored is not None and offered is None:
        raise WrongKeyStore(
            f"storage.keys_url names no key store; the keys of this database are in {stored}"
        )
    if stored != offered and stored is not None:
        raise WrongKeyStore(
            f"storage.keys_url names another key store, {offered}; the keys of this database are "
            f"in {stored}"
        )


class SeparateKeys:
    """The seam between a store and its key store."""

    def __init__(self, keys: KeyStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = keys
        self._clock = clock
        self._breaker = ProbingBreaker()

    async def _ask(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the answer of the key store. Raise KeysAway if there is none."""
        if not self._breaker.allows_attempt(self._clock()):
            raise KeysAway(f"{KEYS_URL_SETTING}: the key store does not answer at the moment")
        try:
            answer = await work()
        except StorageError as exc:
            if not self._breaker.has_failed:
                logger.error("keys.away", said=str(exc))
            self._breaker.record_failure()
            raise KeysAway(f"{KEYS_URL_SETTING}: {exc}") from exc
        if self._breaker.has_failed:
            logger.warning("keys.back")
        self._breaker.record_success()
        return answer

    # ── which key store it is ──

    async def admit(self, stored_id: str | None, *, binds: bool) -> str:
        """Return the id of the key store. `stored_id`: what the data says; None: its keys are beside
        it, or it has none. `binds`: then it begins to use this key store. Raise WrongKeyStore if it
        may not."""
        offered = await self._ask(self._keys.identify)
        if stored_id is None and binds:
            if offered is None:
                proposed = secrets.token_hex(KEY_STORE_ID_BYTES)
                offered = await self._ask(lambda: self._keys.create(proposed))
            self._keys.expect(offered)
            if await self._ask(self._keys.has_keys):
                raise WrongKeyStore(
                    f"{KEYS_URL_SETTING} is the key store of another database, {offered}"
                )
            return offered
        check_key_store(stored_id, is_set=True, offered=offered)
        assert offered is not None  # that was checked
        self._keys.expect(offered)
        return offered

    async def close(self) -> None:
        await self._keys.close()

    async def ping(self) -> None:
        await self._ask(self._keys.ping)

    # ── keys ──

    async def select(self, ids: Sequence[bytes]) -> list[WrappedKey]:
        return await self._ask(lambda: self._keys.select(ids))

    async def insert(self, keys: Sequence[WrappedKey]) -> None:
        """Write new keys, before the data that needs them."""
        await self._ask(lambda: self._keys.insert(keys))

    async def destroy(self, ids: Sequence[bytes]) -> None:
        await self._ask(lambda: self._keys.destroy(ids))

    async def select_unused(self, after: bytes, seconds: float) -> list[bytes]:
        return await self._ask(lambda: self._keys.select_unused(after, seconds, KEYS_PER_BATCH))

    async def mark_used(self, ids: Sequence[bytes]) -> None:
        await self._ask(lambda: self._keys.mark_used(ids))

    async def rewrap_batch(self, after: bytes, masters: MasterKeys) -> RewrappedBatch:
        return await self._ask(lambda: self._keys.rewrap_batch(after, masters))

    async def has_older(self, newest_master: str) -> bool:
        return await self._ask(lambda: self._keys.has_older(newest_master))


# ── beside the data ──


class KeyRows(Protocol):
    """The rows about keys in the data itself."""

    async def list_doomed_keys(self) -> list[bytes]:
        """Return some of the keys that are to be destroyed."""

    async def clear_doomed(self, ids: Sequence[bytes]) -> None:
        """Note that these are destroyed."""

    async def select_named(self, ids: Sequence[bytes]) -> list[bytes]:
        """Return which of these keys any row names."""

    async def select_beside(self) -> list[WrappedKey]:
        """Return some of the keys that are beside the data."""

    async def clear_beside(self, ids: Sequence[bytes]) -> None:
        """Remove these keys beside the data."""

    async def rewrap_beside(self, after: bytes, masters: MasterKeys) -> RewrappedBatch:
        """As `KeyStore.rewrap_batch`, of the keys beside the data."""

    async def finish_beside(self, masters: MasterKeys) -> bool:
        """Seal the secret with the newest master key, and refuse from now on who has not got it.
        Return False, and change nothing, while an older one wraps any key beside the data."""


class DoomedKeys:
    """The keys that the data says are to be destroyed. `separate`: None: keys are beside the data,
    and went with it."""

    def __init__(self, separate: SeparateKeys | None, rows: KeyRows) -> None:
        self._separate = separate
        self._rows = rows

    async def destroy(self) -> bool:
        """Destroy them. Return False if that fails: they stay doomed, and the next process that
        looks for work tries again."""
        if self._separate is None:
            return True
        try:
            while ids := await self._rows.list_doomed_keys():
                await self._separate.destroy(ids)
                await self._rows.clear_doomed(ids)
        except StorageError as exc:
            logger.warning("keys.doomed", error=type(exc).__name__)
            return False
        return True

    async def settle(self, removed: ForgetResult) -> ForgetResult:
        """Destroy them. Return the result with what is true of the removed bytes then."""
        return removed.settle_keys(is_destroyed=await self.destroy())

    async def wait_destroyed(self) -> None:
        """Return once there is none."""
        while True:
            if await self.destroy():
                return
            await asyncio.sleep(RETRY_INTERVAL_S)

    async def sweep(self) -> None:
        """Destroy old keys that no row names. A key that was found to be named once stays, whatever
        becomes of the data: it may be an old copy."""
        if self._separate:
            with suppress(KeysAway):  # the next hour will do
                await self._mark_used(self._separate)
                await self._destroy_orphans(self._separate)

    async def _mark_used(self, separate: SeparateKeys) -> None:
        after = b""
        while ids := await separate.select_unused(after, MIN_SWEPT_AGE_S):
            after = ids[-1]
            if named := await self._rows.select_named(ids):
                await separate.mark_used(named)

    async def _destroy_orphans(self, separate: SeparateKeys) -> None:
        after = b""
        while ids := await separate.select_unused(after, ORPHAN_KEPT_S):
            after = ids[-1]
            named = set(await self._rows.select_named(ids))
            if orphans := [id_ for id_ in ids if id_ not in named]:
                await separate.destroy(orphans)


class KeyRotation:
    """A new master key for the data keys of one store, or a key store, batch by batch. What is done
    stays done: after an interruption the next run goes on. Servers with the key may run at the same
    time. `rows`: what its data says of the keys."""

    def __init__(self, keys: Keyring, rows: KeyRows) -> None:
        self._keys = keys
        self._rows = rows

    async def move_keys(self) -> int:
        """Move all data keys to the key store, if there is one: written there first, then removed
        beside the data. Return how many these were."""
        count = 0
        while self._keys.separate and (keys := await self._rows.select_beside()):
            await self._keys.separate.insert(keys)
            await self._rows.clear_beside([key.id for key in keys])
            count += len(keys)
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
