"""Know of which threads a prompt without notes is offered the tool for look-ups
(`retrieval.offer: always`): the resource has another conversation to look into."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from om_proxy.common.bounded_cache import BoundedCache
from om_proxy.memory.model import Key
from om_proxy.storage.contract.memories import ThreadLists

MAX_REMEMBERED_THREADS = 20_000  # about 300 bytes each
# how long "no other conversation" is believed
NOTHING_FOUND_FOR_S = 10.0
MAX_READ_S = 0.5  # a request waits for it


class OfferedThreads:
    """The threads of one process whose resource has another thread. Once one is found it is known,
    so the tool is offered in every later request of the thread. `clock`: seconds that only grow."""

    def __init__(self, store: ThreadLists, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        # until when the answer is believed; inf: there is another thread
        self._known: BoundedCache[Key, float] = BoundedCache(max_items=MAX_REMEMBERED_THREADS)

    async def has_others(self, key: Key) -> bool:
        """Return whether the key's resource has another thread with a message. One bounded read of
        an index, or none. Raise StorageError or TimeoutError."""
        now = self._clock()
        known_until = self._known.get(key)
        if known_until is not None and now < known_until:
            return known_until == float("inf")
        async with asyncio.timeout(MAX_READ_S):
            # two of any resource: one of them is another
            threads = await self._store.threads(key.tenant, key.resource, limit=2)
        has_others = any(info.key != key and info.messages for info in threads)
        self._known.put(key, float("inf") if has_others else now + NOTHING_FOUND_FOR_S)
        return has_others

    def clear(self) -> None:
        """Forget what is known: threads were forgotten."""
        self._known.clear()
