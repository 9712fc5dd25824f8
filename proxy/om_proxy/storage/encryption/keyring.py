"""The data keys that a process holds. They are unwrapped when their memories are first read, kept
while they are used, and dropped when their memories are forgotten."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from om_proxy.common.bounded_cache import BoundedCache
from om_proxy.common.errors import UnopenedText
from om_proxy.memory.model import Memory
from om_proxy.storage.encoding import find_stored_others
from om_proxy.storage.encryption.row_cipher import (
    KEY_DESTROYED,
    NO_MASTER_KEY,
    PLAIN,
    PLAIN_CIPHERS,
    HeldKeys,
    RowCipher,
    ThreadCiphers,
    WrappedKey,
)
from om_proxy.storage.values.records import ErasureState

if TYPE_CHECKING:
    from om_proxy.storage.encryption.key_store import SeparateKeys
    from om_proxy.storage.encryption.master_keys import MasterKeys, NewKey

# some 3 MB; one that is not held costs a point read and 4 µs
MAX_HELD_KEYS = 10_000
# What another process forgets is found gone when its memory is next read here. Its key leaves this
# process by then at the latest, whether it is read or not.
KEY_HELD_S = 600.0
SWEEP_INTERVAL_S = 30.0
# longer than any read takes that began before a key was dropped
DROPPED_NOTED_S = 120.0
# of a log whose threads are forgotten one after the other
MAX_RETRIES = 2

T = TypeVar("T")

# Returns the wrapped keys with these ids, on a connection of the backend's own kind.
SelectWrapped = Callable[[Any, Sequence[bytes]], Awaitable[Sequence[WrappedKey]]]


class CommitKeys(NamedTuple):
    """The ciphers that a commit writes with, and the keys that it makes."""

    ciphers: ThreadCiphers = PLAIN_CIPHERS
    new_keys: tuple[WrappedKey, ...] = ()

    @property
    def key_id(self) -> bytes | None:
        """The id of the memory's key; None: it is not encrypted."""
        return self.ciphers.row.key_id


NO_COMMIT_KEYS = CommitKeys()


class Keyring:
    """The keys of one store. `masters`: None: the store is not encrypted. `select_wrapped` reads the
    keys beside the data. `separate`: where the others are, set once the store may use it."""

    def __init__(
        self,
        select_wrapped: SelectWrapped,
        masters: MasterKeys | None = None,
        max_keys: int = MAX_HELD_KEYS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._select_wrapped = select_wrapped
        self.masters = masters
        self.separate: SeparateKeys | None = None
        self._clock = clock
        # each with the time until which it is held
        self._held: BoundedCache[bytes, tuple[RowCipher, float]] = BoundedCache(max_items=max_keys)
        # keys that are not held again, each with the time until which that is noted
        self._dropped: BoundedCache[bytes, float] = BoundedCache(max_items=max_keys)
        self._sweep: asyncio.TimerHandle | None = None
        # by the id of a memory's row: a version of it, and the key id that it has with this version
        self._rows: BoundedCache[int, tuple[int, bytes | None]] = BoundedCache(max_items=max_keys)

    def __len__(self) -> int:
        return len(self._held)

    async def retry_unopened(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of work that writes nothing before it has its keys. Between its look for
        a row and that for the key, another process may have forgotten the memory, or given it another
        key: then the work is done again."""
        for _ in range(MAX_RETRIES if self.masters else 0):
            with suppress(UnopenedText):
                return await work()
        return await work()

    async def hold_row(self, connection: Any, key_id: bytes | None) -> HeldKeys:
        """Return the key of the memory that has this one."""
        return (await self.hold(connection, [key_id])).of_row(key_id)

    async def hold(self, connection: Any, key_ids: Iterable[bytes | None]) -> HeldKeys:
        """Return the ciphers of these keys. Keys that are not held yet are read on the connection.
        A key that is not stored, or does not open, is told when it is used."""
        if self.masters is None:
            return NO_HELD_KEYS
        wanted = {key_id for key_id in key_ids if key_id is not None}
        held: dict[bytes | None, RowCipher] = {
            key_id: key for key_id in wanted if (key := self._find_held(key_id))
        }
        if missing := wanted - held.keys():
            for stored in await self._read_wrapped(connection, missing):
                try:
                    held[stored.id] = self._keep(self.masters.unwrap(stored))
                except UnopenedText:
                    continue
        return HeldKeys(held, KEY_DESTROYED)

    async def _read_wrapped(self, connection: Any, ids: set[bytes]) -> Sequence[WrappedKey]:
        if self.separate is None:
            return await self._select_wrapped(connection, tuple(ids))
        found = await self.separate.select(tuple(ids))
        if missing := ids - {key.id for key in found}:  # not moved yet
            found += await self._select_wrapped(connection, tuple(missing))
        return found

    async def is_destroyed(self, connection: Any, key_id: bytes | None) -> bool:
        """Return whether the key store has no such key: the data is an old copy, and what it
        encrypts was forgotten since."""
        if self.separate is None or key_id is None or self._find_held(key_id):
            return False
        return not await self._read_wrapped(connection, {key_id})

    def _find_held(self, key_id: bytes) -> RowCipher | None:
        held = self._held.get(key_id)
        if held is None:
            return None
        key, until = held
        if self._clock() < until:
            return key
        self._held.pop(key_id)
        return None

    def note_row(self, row_id: int, version: int, key_id: bytes | None) -> None:
        """Note which key a memory has with this version. A memory that gets another key gets another
        version too."""
        if self.masters is not None:
            _, earlier = self._rows.get(row_id) or (0, key_id)
            if earlier != key_id:
                self.drop([earlier])
            self._rows.put(row_id, (version, key_id))

    def forget_row(self, row_id: int) -> None:
        """Ask the store next time which key this memory has."""
        self._rows.pop(row_id)

    def drop_row(self, row_id: int) -> None:
        """Hold the key of this memory no longer: its row is gone."""
        if row := self._rows.get(row_id):
            self.drop([row[1]])
            self.forget_row(row_id)

    def find_row(self, memory: Memory) -> HeldKeys | None:
        """Return the key of a memory as it is stored with its version, without a round trip; None:
        the store must be asked."""
        if self.masters is None or not memory.version:
            return NO_HELD_KEYS
        version, key_id = self._rows.get(memory.row_id) or (0, None)
        if version != memory.version or key_id is None:
            return None
        key = self._find_held(key_id)
        return HeldKeys({key_id: key}, KEY_DESTROYED, key_id) if key else None

    def _keep(self, key: RowCipher) -> RowCipher:
        assert key.key_id is not None
        now = self._clock()
        if now < (self._dropped.get(key.key_id) or 0.0):
            return key  # for the work that has read it, and no longer
        self._held.put(key.key_id, (key, now + KEY_HELD_S))
        self._plan_sweep()
        return key

    def _plan_sweep(self) -> None:
        if self._sweep is None:
            loop = asyncio.get_running_loop()
            self._sweep = loop.call_later(SWEEP_INTERVAL_S, self._sweep_held)

    def _sweep_held(self) -> None:
        """Drop the keys whose time ends before the next look."""
        self._sweep = None
        ends = self._clock() + SWEEP_INTERVAL_S
        for key_id, (_, until) in list(self._held.items()):
            if until < ends:
                self._held.pop(key_id)
        if len(self._held):
            self._plan_sweep()

    def close(self) -> None:
        """Hold no key any more: the store is closed."""
        self._held.clear()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    def drop(self, key_ids: Iterable[bytes | None]) -> None:
        """Hold these keys no longer: their memories are forgotten. A read that is under way does not
        bring them back."""
        until = self._clock() + DROPPED_NOTED_S
        for key_id in key_ids:
            if key_id is not None:
                self._held.pop(key_id)
                self._dropped.put(key_id, until)

    def say_of_copies(self, key_id: bytes | None) -> ErasureState:
        """Return what becomes of copies of a memory that is forgotten and had this key: they open
        until the key store has destroyed it."""
        is_doomed = self.separate is not None and key_id is not None
        return "pending" if is_doomed else "not_covered"

    def create_key(self) -> NewKey | None:
        """Return a new data key; None: the store is not encrypted."""
        return None if self.masters is None else self._create_key(self.masters)

    def _create_key(self, masters: MasterKeys) -> NewKey:
        new = masters.create_key()
        self._keep(new.key)
        return new

    async def write_new(self, keys: CommitKeys) -> CommitKeys:
        """Write the new keys to the key store, before the data that needs them. Return what is left
        for the data's own transaction to write: without a key store, all of it."""
        if self.separate is None or not keys.new_keys:
            return keys
        await self.separate.insert(keys.new_keys)
        return keys._replace(new_keys=())

    async def write_key(self, key: WrappedKey) -> tuple[WrappedKey, ...]:
        """As `write_new`, of one key."""
        return (await self.write_new(CommitKeys(new_keys=(key,)))).new_keys

    async def prepare_commit(
        self, before: Memory, after: Memory, hold_key: Callable[[], Awaitable[HeldKeys]]
    ) -> CommitKeys:
        """Return what a commit writes with. `hold_key` asks the store for the key of `before`, and
        raises Conflict if that is no longer stored."""
        held = self.find_row(before)
        if held is None:
            held = await self.retry_unopened(hold_key)
        return await self.write_new(self.plan_commit(before, after, held))

    def plan_restoration(self, memory: Memory) -> CommitKeys:
        """Return what a memory is written with that comes from another store."""
        return self.plan_commit(Memory(key=memory.key), memory, NO_HELD_KEYS)

    def plan_commit(self, before: Memory, after: Memory, held: HeldKeys) -> CommitKeys:
        """Return what the commit writes with. `held`: the key of `before`."""
        if self.masters is None:
            return NO_COMMIT_KEYS
        row, others = held.row, PLAIN
        new_keys = []
        if before.version == 0:
            row, stored = self._create_key(self.masters)
            new_keys.append(stored)
        assert row.key_id is not None  # no row of an encrypted store is written as it is
        if changes_others(before, after) and find_stored_others(after):
            others, stored = self._create_key(self.masters)
            new_keys.append(stored)
        return CommitKeys(ThreadCiphers(row, others), tuple(new_keys))


# what a process without a master key reads with, and what nothing is read with
NO_HELD_KEYS = HeldKeys({None: PLAIN}, NO_MASTER_KEY)


def changes_others(before: Memory, after: Memory) -> bool:
    """Return whether the commit writes the column `others`."""
    return before.version == 0 or find_stored_others(before) != find_stored_others(after)
