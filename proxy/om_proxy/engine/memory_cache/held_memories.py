"""Hold memories in this process, within a limit of bytes."""

from __future__ import annotations

from sys import getsizeof

from msgspec.structs import replace

from om_proxy.common.bounded_cache import BoundedCache
from om_proxy.memory.lifecycle import log_sharing
from om_proxy.memory.message_list import MessageList
from om_proxy.memory.model import (
    RESOURCE_THREAD,
    Key,
    Memory,
    Observation,
    Reflection,
    resource_key,
)

# As CPython objects: a thread with default settings takes 0.2 MB, and 0.9 MB with a full log.
DEFAULT_CACHE_BYTES = 64 * 2**20


class HeldMemories:
    """Threads and shared logs by key, each as it was last read or committed. The least recently
    used ones are evicted."""

    def __init__(self, max_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self._cached: BoundedCache[Key, Memory] = BoundedCache(
            max_bytes=max_bytes, min_items=1, on_evict=lambda key, _: self._drop_attached(key)
        )
        # by shared log, then by cached thread: the thread, the shared log, and the thread with the
        # log attached. They are dropped with the shared log, or they would hold its entries for ever.
        self._attached: dict[Key, dict[Key, tuple[Memory, Memory, Memory]]] = {}

    @property
    def held_bytes(self) -> int:
        return self._cached.held_bytes

    def list_keys(self) -> list[Key]:
        return list(self._cached)

    def find(self, key: Key) -> Memory | None:
        """Return what is held of a thread or of a shared log, without the log that a thread shares.
        It may have changed since."""
        return self._cached.get(key)

    def keep(self, held: Memory, newest: Memory) -> Memory:
        """Hold what the store returned for `held`, unless that is `held` itself. That nothing is
        stored has no version: it replaces no memory that came in while the store was asked."""
        if newest is held and held.version:
            return held
        memory = cache_sums(newest)
        cached = self._cached.get(memory.key)
        if memory.version or cached is None or cached is held:
            self.put(memory)
        return memory

    def put(self, memory: Memory) -> None:
        """Hold this memory, unless a later commit of it is held."""
        cached = self._cached.get(memory.key)
        if cached and cached.version > memory.version > 0:
            # it was read before a later commit; a memory that waits to be stored has a version
            # below 0
            return
        self.drop(memory.key)
        self._cached.put(memory.key, memory, _estimate_bytes(memory))

    def attach_log(self, thread: Memory, shared_log: Memory, label: str) -> Memory:
        """Return the thread with its resource's log: the same object for the same two. `label`: of
        the thread in that log."""
        attached = self._attached.get(shared_log.key, {}).get(thread.key)
        if attached and attached[0] is thread and attached[1] is shared_log:
            return attached[2]
        memory = log_sharing.attach_log(thread, shared_log, label)
        if thread.key in self._cached and shared_log.key in self._cached:
            self._attached.setdefault(shared_log.key, {})[thread.key] = (thread, shared_log, memory)
        return memory

    def is_current(self, memory: Memory) -> bool:
        """Return whether this process knows of no later commit."""
        cached = self._cached.get(memory.key)
        if memory.shared_log_ref is None:
            return cached is not None and cached is memory
        shared_log = self._cached.get(resource_key(memory.key))
        attached = self._attached.get(resource_key(memory.key), {}).get(memory.key)
        if cached is None or shared_log is None or attached is None:
            return False
        return attached[0] is cached and attached[1] is shared_log and attached[2] is memory

    def drop(self, key: Key) -> None:
        self._drop_attached(key)
        self._cached.pop(key)

    def drop_all(self) -> None:
        for key in self.list_keys():
            self.drop(key)

    def _drop_attached(self, key: Key) -> None:
        if key.thread == RESOURCE_THREAD:
            self._attached.pop(key, None)
        elif threads := self._attached.get(resource_key(key)):
            threads.pop(key, None)


def cache_sums(memory: Memory) -> Memory:
    """Return the memory with a tail that caches its sums, for all turns until it changes."""
    return (
        memory
        if isinstance(memory.tail, MessageList)
        else replace(memory, tail=MessageList(memory.tail))
    )


def _estimate_bytes(memory: Memory) -> int:
    """Estimate the bytes that a memory holds. The numbers are what CPython needs for a message, a
    mark, a view with its cells, and notes."""
    messages = MessageList.of(memory.tail).json_bytes + 500 * len(memory.tail)
    notes = sum(_notes_bytes(o) + 450 for o in memory.log.entries + memory.chunks)
    views = 350 * len(memory.views) + 200 * sum([len(view.cells) for view in memory.views])
    return (
        messages
        + getsizeof(memory.other_threads_text)
        + notes
        + views
        + (_notes_bytes(memory.log.reflection) if memory.log.reflection else 0)
        + 320 * len(memory.recent)
        + 1_500
    )


def _notes_bytes(notes: Observation | Reflection) -> int:
    """Return the bytes of notes, not their characters: in a text with one 🔴, each character takes
    four bytes."""
    return getsizeof(notes.text) + getsizeof(notes.task) + getsizeof(notes.suggestion)
