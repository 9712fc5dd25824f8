"""The key store of one database, as a process works with it.

A key is written before the data that needs it, and destroyed after the transaction that removes its
data: that transaction notes in the data which keys are *doomed*. So no crash leaves data without its
key. A key whose data was never written belongs to nothing: it goes after a week.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import structlog

from om_proxy.common.errors import KeysAway, StorageError, WrongKeyStore
from om_proxy.storage.encryption.admission import check_key_store
from om_proxy.storage.encryption.key_store import KEYS_PER_BATCH, KeyStore, RewrappedBatch
from om_proxy.storage.encryption.row_cipher import WrappedKey
from om_proxy.storage.spooling.breaker import ProbingBreaker

if TYPE_CHECKING:
    from om_proxy.storage.encryption.master_keys import MasterKeys

logger = structlog.get_logger("storage")

T = TypeVar("T")
KEY_STORE_ID_BYTES = 8
SETTING = "storage.keys_url"
RETRY_INTERVAL_S = 1.0
# the transaction that writes the row of a key may be under way
MIN_SWEPT_AGE_S = 600.0
# Long enough for an operator who has restored an old copy of the data by mistake: no row of it names
# the newest keys.
ORPHAN_KEPT_S = 7 * 86_400.0


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


class SeparateKeys:
    """The seam between a store and its key store."""

    def __init__(self, keys: KeyStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = keys
        self._clock = clock
        self._breaker = ProbingBreaker()

    async def _ask(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the answer of the key store. Raise KeysAway if there is none."""
        if not self._breaker.allows_attempt(self._clock()):
            raise KeysAway(f"{SETTING}: the key store does not answer at the moment")
        try:
            answer = await work()
        except StorageError as exc:
            if not self._breaker.has_failed:
                logger.error("keys.away", said=str(exc))
            self._breaker.record_failure()
            raise KeysAway(f"{SETTING}: {exc}") from exc
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
                raise WrongKeyStore(f"{SETTING} is the key store of another database, {offered}")
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

    async def destroy_doomed(self, rows: KeyRows) -> bool:
        """Destroy the keys that the data says are doomed. Return False if that fails: they stay
        doomed, and the next process that looks for work tries again."""
        try:
            while ids := await rows.list_doomed_keys():
                await self.destroy(ids)
                await rows.clear_doomed(ids)
        except StorageError as exc:
            logger.warning("keys.doomed", error=type(exc).__name__)
            return False
        return True

    async def wait_destroyed(self, rows: KeyRows) -> None:
        """Return once no key is doomed."""
        while True:
            if await self.destroy_doomed(rows):
                return
            await asyncio.sleep(RETRY_INTERVAL_S)

    async def move_batch(self, rows: KeyRows) -> int:
        """Move some of the keys that are beside the data: written to the key store first, then
        removed there. Return how many these were; 0: none is left."""
        keys = await rows.select_beside()
        if keys:
            await self.insert(keys)
            await rows.clear_beside([key.id for key in keys])
        return len(keys)

    async def sweep(self, rows: KeyRows) -> int:
        """Destroy old keys that no row names, and return how many these were. A key that was found
        to be named once stays, whatever becomes of the data: it may be an old copy."""
        select_named = rows.select_named
        after, count = b"", 0
        while ids := await self._select_unused(after, MIN_SWEPT_AGE_S):
            after = ids[-1]
            if named := await select_named(ids):
                await self._ask(partial(self._keys.mark_used, named))
        after = b""
        while ids := await self._select_unused(after, ORPHAN_KEPT_S):
            after = ids[-1]
            named_now = set(await select_named(ids))
            if orphans := [id_ for id_ in ids if id_ not in named_now]:
                await self.destroy(orphans)
                count += len(orphans)
        return count

    async def _select_unused(self, after: bytes, seconds: float) -> list[bytes]:
        return await self._ask(lambda: self._keys.select_unused(after, seconds, KEYS_PER_BATCH))

    # ── a new master key ──

    async def rewrap_batch(self, after: bytes, masters: MasterKeys) -> RewrappedBatch:
        return await self._ask(lambda: self._keys.rewrap_batch(after, masters))

    async def has_older(self, newest_master: str) -> bool:
        return await self._ask(lambda: self._keys.has_older(newest_master))
