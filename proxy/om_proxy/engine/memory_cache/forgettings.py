"""Know which threads were forgotten while work on them was under way, and have every part of this
process drop what it keeps of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from om_proxy.common.bounded_cache import BoundedCache
from om_proxy.common.errors import OmError
from om_proxy.engine.memory_cache.held_memories import HeldMemories
from om_proxy.engine.memory_cache.loading import is_forgotten
from om_proxy.memory.model import RESOURCE_THREAD, Key, Memory, resource_key
from om_proxy.storage.spooling.forgotten_threads import (
    ForgettingStore,
    ForgottenThreads,
    stands_since_before,
)

# Threads; only a turn that has stored nothing yet depends on this.
MAX_REMEMBERED_FORGETS = 10_000
_ALL_RESOURCES = ""  # in the key of a forgotten tenant: no resource has this name


def create_scope_key(tenant: str, resource: str | None) -> Key:
    """Return the key that a forgotten resource is remembered under; None: a whole tenant."""
    return Key(tenant, resource or _ALL_RESOURCES, RESOURCE_THREAD)


class Forgettings:
    """The threads forgotten by this process and, as the store says, by any process."""

    def __init__(self, store: ForgettingStore, label: Callable[[Key], str]) -> None:
        """`label`: of a thread in the event that describes its forgetting."""
        self._store = store
        self._label = label
        self.count = 0  # of all forgettings that began in this process so far
        # by thread, resource or tenant: `count` at its last forgetting
        self._counts: BoundedCache[Key, int] = BoundedCache(max_items=MAX_REMEMBERED_FORGETS)
        self._stored = ForgottenThreads(store, label)

    @contextmanager
    def remember(self, scope: Key) -> Iterator[None]:
        """Remember that the thread, the resource or the tenant is forgotten. If that fails in the
        block, its turns under way stay, apart from those that an earlier forgetting has dropped."""
        earlier = self._counts.get(scope)
        self.count = own = self.count + 1
        self._counts.put(scope, own)
        try:
            yield
        except OmError:
            if self._counts.get(scope) == own:
                self._counts.pop(scope)
                if earlier is not None:
                    self._counts.put(scope, earlier)
            raise

    def is_forgotten_since(self, memory: Memory, row_id: int, count: int) -> bool:
        """Return whether the thread of a turn has been forgotten since the turn began. `row_id` and
        `count`: as they were then."""
        if is_forgotten(memory, row_id):
            return True
        if count == self.count:  # as for nearly every turn
            return False
        key = memory.key
        return any(
            (self._counts.get(scope) or 0) > count
            for scope in (key, resource_key(key), create_scope_key(key.tenant, None))
        )

    async def is_name_forgotten(self, memory: Memory, row_id: int, began_at: float) -> bool:
        """Return whether a turn that began on no row may not go on with the row that others have
        made meanwhile: any process has forgotten the thread, its resource or its tenant in between.
        If the row stands since before that, its removal failed. Asks the store, but only where
        there is such a row."""
        if row_id or memory.version <= 0:
            return False
        forgotten_at = await self._store.forgotten_at(memory.key)
        if forgotten_at is None or forgotten_at <= began_at:
            return False
        return not await stands_since_before(self._store, memory.key, forgotten_at)

    async def is_forgotten_in_store(self, key: Key, since: float) -> bool:
        """Return whether any process has forgotten the thread since this time, in unix seconds of
        the store. Asks the store: use it only for work whose thread could not be read before. The
        first call reads all events of the tenant, later ones what is new."""
        forgotten_at = await self._stored.find_time(key)
        return forgotten_at is not None and forgotten_at >= since

    async def list_labels_since(self, tenant: str, since: float) -> frozenset[str]:
        """Return the labels of the tenant's threads that any process has forgotten since this time,
        in unix seconds of the store. Asks the store, as `is_forgotten_in_store` does."""
        return await self._stored.list_labels_since(tenant, since)

    def read_store_anew(self) -> None:
        """Go by no event that was read: the store's ids of events may be given out again."""
        self._stored = ForgottenThreads(self._store, self._label)


class LocalTraces:
    """The state of threads that this process keeps beside the store. Other parts add what drops
    their own."""

    def __init__(self, held: HeldMemories) -> None:
        self._held = held
        # called with a forgotten thread, to remove its traces in this process
        self.on_forget: list[Callable[[Key], None]] = []
        # the same with a retired thread, apart from its turns that wait
        self.on_retire: list[Callable[[Key], None]] = []
        # called when words were erased, to drop the texts that this process keeps to be fast
        self.on_words_erased: list[Callable[[], None]] = []

    def drop_forgotten(self, key: Key) -> None:
        """Remove what this process holds of a forgotten thread."""
        for notify in self.on_forget:
            notify(key)
        # prompts of the resource's other threads may contain its text
        for held_key in [held for held in self._held.list_keys() if held[:2] == key[:2]]:
            self._held.drop(held_key)

    def drop_retired(self, keys: Sequence[Key]) -> None:
        """Remove what this process holds of retired threads, but not turns that wait."""
        resources = {key[:2] for key in keys}
        for key in keys:
            for notify in self.on_retire:
                notify(key)
        held = [held for held in self._held.list_keys() if held[:2] in resources]
        for held_key in held:
            self._held.drop(held_key)
        if held:  # mostly none: nobody has used them for long
            self.drop_texts()

    def drop_texts(self) -> None:
        """Drop the texts that this process keeps to be fast."""
        for drop in self.on_words_erased:
            drop()
