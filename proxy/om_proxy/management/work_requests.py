"""Begin memory work that a person asks for: observe, condense, make notes active, give a thread up
or take it up again (docs/contributing/seeing.md#asked-for-work)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from om_proxy.common.errors import (
    BadRequest,
    MemoryModelFailed,
    ModelError,
    StaleVersion,
    Unproductive,
)
from om_proxy.common.errors import Unusable as UnusableAnswer
from om_proxy.engine.background.scheduler import Background
from om_proxy.engine.background.thread_run import RequestedWork
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.memory_cache.memory_events import create_cycle_id
from om_proxy.engine.policy import MemoryContext
from om_proxy.management.thread_admin import check_version, find_log_place, load_writable
from om_proxy.memory.events.changes import Cause
from om_proxy.memory.events.parts import NotesChange
from om_proxy.memory.lifecycle import log_sharing, transitions
from om_proxy.memory.lifecycle.decisions import ObserveNow, ReflectNow, Wish, decide_wish
from om_proxy.memory.lifecycle.observable import answered_chunks
from om_proxy.memory.model import Key, Memory, Observation
from om_proxy.observability.facts import NotesChanged

# returns what an inherited model needs, as far as the person's own request brings it
FindContext = Callable[[Memory], MemoryContext | None]


@dataclass(frozen=True, slots=True)
class BegunWork:
    """Work that has begun. `memory`: the thread now. `made`: what the work has made, if it has
    ended."""

    cycle_id: str
    memory: Memory
    made: tuple[Observation, ...] = ()
    has_ended: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class WorkRequests:
    """Asks the background for work. Every method raises NotFound for a thread without a memory, and
    StaleVersion if the thread has changed since `expected_version`."""

    memories: Memories
    background: Background
    clock: Callable[[], float]

    async def observe(
        self,
        key: Key,
        find_context: FindContext,
        *,
        everything: bool,
        wait_s: float,
        expected_version: int | None = None,
    ) -> BegunWork:
        """Have observed what can be, below the thresholds too; with `everything`, all of it, one
        batch after the other."""
        memory = await load_writable(self.memories, key, expected_version)
        work = self._begin(memory, ObserveNow(everything), find_context)
        if not await _wait(work, wait_s):
            return BegunWork(work.cycle_id, memory)
        now = await self.memories.load_known(key)
        made = tuple(chunk for chunk in now.chunks if chunk.id >= memory.next_id)
        return BegunWork(work.cycle_id, now, made, has_ended=True)

    async def reflect(
        self,
        key: Key,
        find_context: FindContext,
        *,
        instruction: str | None,
        wait_s: float,
        expected_version: int | None = None,
    ) -> BegunWork:
        """Have the whole log condensed. The result takes its place if it is shorter."""
        memory = await load_writable(self.memories, key, expected_version)
        log = await self.memories.load(find_log_place(memory).key)
        work = self._begin(log, ReflectNow(instruction), find_context)
        if not await _wait(work, wait_s):
            return BegunWork(work.cycle_id, memory)
        now = await self.memories.load_known(key)
        first_id = log_sharing.next_entry_id(memory)
        made = tuple(
            entry
            for entry in now.log.entries
            if entry.kind == "reflection" and entry.id >= first_id
        )
        if not made:  # others have changed the notes meanwhile, so the result did not fit
            raise StaleVersion
        return BegunWork(work.cycle_id, now, made, has_ended=True)

    async def activate(self, key: Key, *, expected_version: int | None = None) -> BegunWork:
        """Make all chunks active that may be now."""
        memory = await load_writable(self.memories, key, expected_version)
        chunks = answered_chunks(memory)
        activate = partial(
            transitions.activate_chunks, ids=[chunk.id for chunk in chunks], now=self.clock()
        )
        await self._change(
            memory, activate, "activated", expected_version, self.memories.update_log
        )
        now = await self.memories.load_known(key)
        return BegunWork("", now, chunks, has_ended=True)

    async def park(self, key: Key, *, parked: bool, expected_version: int | None = None) -> Memory:
        """Give a thread up, so that nothing of it is observed by itself; or take it up again."""
        memory = await load_writable(self.memories, key, expected_version)
        change = transitions.park if parked else transitions.revive
        await self._change(memory, change, "parked" if parked else "revived", expected_version)
        if not parked:
            self.background.wake(key)
        return await self.memories.load_known(key)

    def _begin(self, memory: Memory, wish: Wish, find_context: FindContext) -> RequestedWork:
        """Put the work in the queue. `memory`: the one that the work is on."""
        context = self.background.find_context(memory, find_context(memory))
        if context is None:
            raise BadRequest(
                "the memory model is inherited, and no credential is at hand: send that of the model "
                "server with this request, or let the client send its next message first",
                "om_no_model",
            )
        if decide_wish(memory, wish, context.effective.limits) is None:
            if isinstance(wish, ReflectNow):
                raise Unproductive("the log has no notes that could be condensed")
            raise BadRequest(
                "every message that can be observed is observed", "om_nothing_to_observe"
            )
        return self.background.request_work(
            RequestedWork(memory.key, wish, create_cycle_id(), context)
        )

    async def _change(
        self,
        memory: Memory,
        change: Callable[[Memory], Memory],
        what: NotesChange,
        expected_version: int | None,
        update: Callable[..., Awaitable[Memory]] | None = None,
    ) -> None:
        def change_thread(now: Memory) -> Memory:
            check_version(now, expected_version)
            return change(now)

        await (update or self.memories.update)(
            memory.key,
            change_thread,
            row_id=memory.row_id,
            cause=Cause(action=what),
            must_exist=True,
        )
        self.memories.facts.emit(NotesChanged(memory.key, what))


async def _wait(work: RequestedWork, seconds: float) -> bool:
    """Wait for the work. Return whether it has ended in time. Raise an error of the API for a
    failure of the memory model."""
    try:
        return seconds > 0 and await work.wait(seconds)
    except UnusableAnswer as exc:
        if isinstance(work.wish, ReflectNow):
            raise Unproductive("the reflector gave no shorter text; the notes stay") from exc
        raise MemoryModelFailed(exc) from exc
    except ModelError as exc:
        raise MemoryModelFailed(exc) from exc
