"""Load memories: from this process, as long as the store has nothing newer."""

from __future__ import annotations

from collections.abc import Callable

import structlog
from msgspec.structs import replace

from om_proxy.common.bounded_cache import BoundedCache
from om_proxy.common.errors import ConfigError, Conflict, NotFound
from om_proxy.engine.memory_cache.held_memories import DEFAULT_CACHE_BYTES, HeldMemories
from om_proxy.memory.lifecycle import log_sharing
from om_proxy.memory.model import RESOURCE_THREAD, Key, Memory, Scope, resource_key
from om_proxy.settings.config import parse_thread_overrides
from om_proxy.storage.base import Store

MAX_REPORTED_THREADS = 4_096
UNKNOWN_THREAD_MESSAGE = "there is no memory of this thread"

logger = structlog.get_logger("memory")


class MemoryLoader:
    """Reads the threads' memories. A held memory is valid as long as the store has its version.
    `label` names a thread in a log that it shares (memory/lifecycle/log_sharing.py)."""

    def __init__(
        self,
        store: Store,
        label: Callable[[Key], str] = str,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        self.store = store
        self.label = label
        self.held = HeldMemories(cache_bytes)
        self._reported: BoundedCache[Key, bool] = BoundedCache(max_items=MAX_REPORTED_THREADS)

    async def load(self, key: Key, scope: Scope | None = None) -> Memory:
        """Return the memory as committed, from this process if no other one has committed since.

        A thread that shares its resource's log comes with that log. For a new thread, `scope` says
        whether it shares one.
        """
        held = self.held.find(key) or Memory(key=key)
        if not shares_log(held, scope):
            newest = await self.store.refresh(held)
            if newest is held and held.version:  # as for nearly every request
                return held
            held = self._keep(held, newest)
            if not shares_log(held, scope):
                return held
        return await self._refresh_shared(held, scope)

    async def load_known(self, key: Key) -> Memory:
        """Return the memory of a thread that has one. Raise NotFound for any other name, and for
        that of a shared log."""
        memory = await self.load(key) if key.thread else None
        if memory is None or not memory.version:
            raise NotFound(UNKNOWN_THREAD_MESSAGE)
        return memory

    async def _refresh_shared(self, held: Memory, scope: Scope | None) -> Memory:
        """Return the newest state of a thread that shares its resource's log, with that log."""
        log_key = resource_key(held.key)
        held_log = self.held.find(log_key) or Memory(key=log_key)
        thread, shared_log = await self.store.refresh_shared(held, held_log)
        thread = self._keep(held, thread)
        if not shares_log(thread, scope):  # it has left the log since
            return thread
        attached = self._attach_log(thread, self._keep(held_log, shared_log))
        # the store has both of one snapshot, but only one of them may have turns that wait
        if attached.revision < 0 and not log_sharing.is_consistent(attached):
            raise Conflict("the shared log has changed since this thread's turns began to wait")
        return attached

    async def latest(self, key: Key, scope: Scope | None = None) -> Memory:
        """Return the memory as this process knows it, without asking the store. Use it only for
        changes that end in a commit, because the commit asks."""
        memory = await self._latest_alone(key)
        if not shares_log(memory, scope):
            return memory
        attached = self._attach_log(memory, await self._latest_alone(resource_key(key)))
        return attached if log_sharing.is_consistent(attached) else await self.load(key, scope)

    async def latest_of_row(self, key: Key, scope: Scope | None, row_id: int) -> Memory:
        """Return `latest`; but where that says that the row is gone, what the store says. `row_id`:
        of the memory that the work began on."""
        memory = await self.latest(key, scope)
        return await self.load(key, scope) if is_forgotten(memory, row_id) else memory

    async def _latest_alone(self, key: Key) -> Memory:
        """Return what `latest` does, without the log that a thread shares."""
        held = self.held.find(key)
        if held is not None:
            return held
        nothing = Memory(key=key)
        return self._keep(nothing, await self.store.refresh(nothing))

    def _keep(self, held: Memory, newest: Memory) -> Memory:
        """Hold what the store returned for `held`, without what it must not make this process do."""
        return self.held.keep(held, newest if newest is held else self._put_aside(newest))

    def _put_aside(self, memory: Memory) -> Memory:
        """Return the memory without settings of its own that the admin API would refuse, and log
        what of its row is put aside. That came by another way, such as another program.
        `om-proxy store verify` names it too."""
        put_aside = memory.put_aside
        try:
            if memory.overrides is not None:
                parse_thread_overrides(memory.overrides)
        except ConfigError:  # its text may quote the row
            put_aside += ("overrides",)
            memory = replace(memory, overrides=None)
        if put_aside and memory.key not in self._reported:
            self._reported.put(memory.key, True)
            logger.warning(
                "memory.put_aside",
                thread=self.label(memory.key),
                fields=",".join(put_aside),
                cure="om-proxy store verify --repair",
            )
        return memory

    def _attach_log(self, thread: Memory, shared_log: Memory) -> Memory:
        return self.held.attach_log(thread, shared_log, self.label(thread.key))


def is_forgotten(memory: Memory, row_id: int) -> bool:
    """Return whether the row that work began on is gone, or another row has its place. Work that
    began on no row loses none."""
    return bool(row_id) and memory.row_id != row_id


def shares_log(memory: Memory, scope: Scope | None = None) -> bool:
    """Return whether the memory is a thread that shares its resource's log. `scope`: whether a new
    thread will."""
    if memory.key.thread == RESOURCE_THREAD:
        return False
    return memory.scope == "resource" or (memory.version == 0 and scope == "resource")
