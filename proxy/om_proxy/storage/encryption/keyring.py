"""The data keys that a process holds. They are unwrapped when their memories are first read, kept
while they are used, and dropped when their memories are forgotten."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from om_proxy.bounded_cache import BoundedCache
from om_proxy.errors import UnopenedText
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

if TYPE_CHECKING:
    from om_proxy.storage.encryption.master_keys import MasterKeys, NewKey

# some 3 MB; one that is not held costs a point read and 4 µs
MAX_HELD_KEYS = 10_000

# Returns the wrapped keys with these ids, on a connection of the backend's own kind.
SelectWrapped = Callable[[Any, Sequence[bytes]], Awaitable[Sequence[WrappedKey]]]


class CommitKeys(NamedTuple):
    """The ciphers that a commit writes with, and the keys that it makes."""

    ciphers: ThreadCiphers = PLAIN_CIPHERS
    new_keys: tuple[WrappedKey, ...] = ()

    @property
    def key_id(self) -> bytes | None:
        """Of the memory; None: it is not encrypted."""
        return self.ciphers.row.key_id


NO_COMMIT_KEYS = CommitKeys()


class Keyring:
    """The keys of one store. `masters`: None: the store is not encrypted."""

    def __init__(
        self,
        select_wrapped: SelectWrapped,
        masters: MasterKeys | None = None,
        max_keys: int = MAX_HELD_KEYS,
    ) -> None:
        self._select_wrapped = select_wrapped
        self.masters = masters
        self._held: BoundedCache[bytes, RowCipher] = BoundedCache(max_items=max_keys)
        # by the id of a memory's row: a version of it, and the key id that it has with this version
        self._rows: BoundedCache[int, tuple[int, bytes | None]] = BoundedCache(max_items=max_keys)

    def __len__(self) -> int:
        return len(self._held)

    async def hold_row(self, connection: Any, key_id: bytes | None) -> HeldKeys:
        """Return the key of the memory that has this one."""
        held = await self.hold(connection, [key_id])
        return held if key_id is None else held.of_row(key_id)

    async def hold(self, connection: Any, key_ids: Iterable[bytes | None]) -> HeldKeys:
        """Return the ciphers of these keys. Keys that are not held yet are read on the connection.
        A key that is not stored, or does not open, is told when it is used."""
        wanted = {key_id for key_id in key_ids if key_id is not None}
        if not wanted:
            return NO_HELD_KEYS
        if self.masters is None:
            return HeldKeys({}, NO_MASTER_KEY)
        held = {key_id: key for key_id in wanted if (key := self._held.get(key_id))}
        if missing := wanted - held.keys():
            for stored in await self._select_wrapped(connection, tuple(missing)):
                try:
                    held[stored.id] = self._keep(self.masters.unwrap(stored))
                except UnopenedText:
                    continue
        return HeldKeys(held, KEY_DESTROYED)

    def note_row(self, row_id: int, version: int, key_id: bytes | None) -> None:
        """Note which key a memory has with this version. A memory that gets another key gets another
        version too."""
        if self.masters is not None:
            self._rows.put(row_id, (version, key_id))

    def forget_row(self, row_id: int) -> None:
        """Ask the store next time which key this memory has."""
        self._rows.pop(row_id)

    def find_row(self, memory: Memory) -> HeldKeys | None:
        """Return the key of a memory as it is stored with its version, without a round trip; None:
        the store must be asked."""
        if self.masters is None or not memory.version:
            return NO_HELD_KEYS
        version, key_id = self._rows.get(memory.row_id) or (0, None)
        if version != memory.version:
            return None
        if key_id is None:
            return NO_HELD_KEYS
        key = self._held.get(key_id)
        return HeldKeys({key_id: key}, KEY_DESTROYED, key_id) if key else None

    def _keep(self, key: RowCipher) -> RowCipher:
        assert key.key_id is not None
        self._held.put(key.key_id, key)
        return key

    def drop(self, key_ids: Iterable[bytes | None]) -> None:
        """Hold these keys no longer: their memories are forgotten."""
        for key_id in key_ids:
            if key_id is not None:
                self._held.pop(key_id)

    def create_key(self) -> NewKey | None:
        """Return a new data key; None: the store is not encrypted."""
        if self.masters is None:
            return None
        new = self.masters.create_key()
        self._keep(new.key)
        return new

    def plan_restoration(self, memory: Memory) -> CommitKeys:
        """Return what a memory is written with that comes from another store."""
        return self.plan_commit(Memory(key=memory.key), memory, NO_HELD_KEYS)

    def plan_commit(self, before: Memory, after: Memory, held: HeldKeys) -> CommitKeys:
        """Return what the commit writes with. `held`: the key of `before`. A memory that is not
        encrypted stays so: `om-proxy encrypt` encrypts it as a whole."""
        new_keys = []
        if held.row_key_id is not None:
            row = held.find(held.row_key_id)
        elif before.version == 0 and (new := self.create_key()):
            row = new.key
            new_keys.append(new.stored)
        else:
            return NO_COMMIT_KEYS
        others: RowCipher = PLAIN
        if changes_others(before, after) and find_stored_others(after):
            new = self.create_key()
            assert new is not None  # else the memory has no key either
            others = new.key
            new_keys.append(new.stored)
        return CommitKeys(ThreadCiphers(row, others), tuple(new_keys))


NO_HELD_KEYS = HeldKeys({}, KEY_DESTROYED)


def changes_others(before: Memory, after: Memory) -> bool:
    """Return whether the commit writes the column `others`."""
    return before.version == 0 or find_stored_others(before) != find_stored_others(after)
