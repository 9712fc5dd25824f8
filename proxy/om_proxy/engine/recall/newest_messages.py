"""Search the newest messages of a resource where its index lacks more than they are: without
`retrieval`, nothing is indexed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from om_proxy.engine.recall.searching import PassageSource
from om_proxy.memory.model import Key
from om_proxy.memory.recall.found import MAX_MATCHES, Found, PassageFilter
from om_proxy.storage.base import Store
from om_proxy.storage.shared.newest_passages import NEWEST_MESSAGES, find_newest_passages


@dataclass(frozen=True, slots=True, eq=False)
class IndexedOrNewest:
    """A `PassageSource` that asks the index, and reads messages where that leaves fewer unread."""

    indexed: PassageSource
    store: Store
    uses_index: Callable[[], bool] = lambda: True

    async def find_passages(
        self, key: Key, words: Sequence[str], passage_filter: PassageFilter
    ) -> Found:
        """Return what either finds. Raise StorageError."""
        if not self.uses_index():
            return await find_newest_passages(self.store, key, words, passage_filter, MAX_MATCHES)
        found = await self.indexed.find_passages(key, words, passage_filter)
        if not found.unread or found.messages >= NEWEST_MESSAGES:
            return found  # the newest would be no more
        newest = await find_newest_passages(self.store, key, words, passage_filter, MAX_MATCHES)
        return newest if newest.unread < found.unread else found
