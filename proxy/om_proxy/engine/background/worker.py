"""Pass each decision to its performer, whether a threshold or a person has asked for the work."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

from om_proxy.agents.observer import Observer
from om_proxy.agents.reflector import Reflector
from om_proxy.common.errors import OmError, Overloaded, StorageError
from om_proxy.engine.background.due_work import Work
from om_proxy.engine.background.performers.observe import ObservePerformer
from om_proxy.engine.background.performers.reflect import ReflectPerformer
from om_proxy.engine.background.performers.work_guard import CycleReport, WorkGuard
from om_proxy.engine.background.thread_run import STOPPING_MESSAGE, RequestedWork, ThreadRun
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.policy import MemoryContext
from om_proxy.memory.events.changes import Cause, describe_trigger
from om_proxy.memory.lifecycle import transitions
from om_proxy.memory.lifecycle.batches import ActivateIdle, ObserveBatch
from om_proxy.memory.lifecycle.decisions import Decision, Observe, ObserveNow, Reflect, decide_wish
from om_proxy.memory.lifecycle.observable import answered_chunks
from om_proxy.memory.model import Key, Memory, Reflection

# returns the context for work on a memory, or None (`DueWork.find_context`)
FindContext = Callable[[Memory, MemoryContext | None], MemoryContext | None]


class MemoryWorker:
    """The performers of memory work. `perform` never raises for a model's failure: it records the
    failure with the thread."""

    def __init__(
        self,
        memories: Memories,
        observer: Observer,
        reflector: Reflector,
        count_tokens: Callable[[str], int],
        guard: WorkGuard,
        clock: Callable[[], float] = time.time,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`environ` may hold the keys of providers."""
        environ = environ or {}
        self._memories = memories
        self._clock = clock
        self._guard = guard
        self._observe = ObservePerformer(memories, observer, count_tokens, clock, environ, guard)
        self._reflect = ReflectPerformer(memories, reflector, count_tokens, clock, environ)

    async def perform(
        self, key: Key, decision: Work, context: MemoryContext, run: ThreadRun | None = None
    ) -> bool:
        """Perform the work. Return whether it succeeded, so that more work may follow. `run`: is
        told of each call of an ObserveBatch."""
        if isinstance(decision, ObserveBatch):
            return await self._observe.perform_batch(decision, context, run)
        if isinstance(decision, ActivateIdle):
            return await activate_ready_notes(
                self._memories, decision.keys, self._clock(), decision.why
            )
        memory = await self._memories.load(key)
        work = partial(self._perform, memory, decision, context)
        return await self._guard.run(memory, decision, work)

    async def perform_requested(
        self, work: RequestedWork, run: ThreadRun, find_context: FindContext
    ) -> bool:
        """Perform the next step of work that a person has asked for, one call of a memory model.
        Return whether more of it is left; otherwise the person hears of the end, whatever it is."""
        has_more = False
        try:
            has_more = await self._perform_step(work, run, find_context)
        except OmError as exc:
            work.finish(exc)
        except BaseException:  # the task is cancelled, or a bug: nobody may wait for it
            work.finish(Overloaded(STOPPING_MESSAGE))
            raise
        finally:
            run.end_step()
        if not has_more:
            work.finish()
        return has_more

    async def _perform_step(
        self, work: RequestedWork, run: ThreadRun, find_context: FindContext
    ) -> bool:
        """Perform the step. A reflection takes the place of its notes at once. Raise the ModelError
        of its model, after it has been recorded."""
        memory = await self._memories.load(work.key)
        context = find_context(memory, work.context)
        if context is None or self._memories.is_degraded(work.key):
            # notes that cannot be stored are not paid for
            raise StorageError("the store cannot be written at the moment; try again")
        decision = decide_wish(memory, work.wish, context.effective.limits)
        if decision is None:
            return False
        run.step = decision
        perform = partial(self._perform, memory, decision, context)
        await self._guard.run(memory, decision, perform, raise_failure=True, cycle_id=work.cycle_id)
        if isinstance(decision, Reflect):
            await self._memories.update_log(
                memory.key,
                partial(self._swap_new_reflection, memory.log.reflection),
                row_id=memory.row_id,
            )
        if not isinstance(work.wish, ObserveNow) or not work.wish.all:
            return False
        now = await self._memories.load(work.key)
        return now.chunked_to > memory.chunked_to  # else the next step would be the same

    def _swap_new_reflection(self, earlier: Reflection | None, now: Memory) -> Memory:
        """Swap the reflection in, unless it is an earlier one: then the new one did not fit."""
        if now.log.reflection == earlier:
            return now
        return transitions.swap_reflection(now, self._clock())

    async def _perform(
        self, memory: Memory, decision: Decision, context: MemoryContext, cycle: CycleReport
    ) -> None:
        if isinstance(decision, Observe):
            await self._observe.perform(memory, decision, context, cycle)
        elif isinstance(decision, Reflect):
            await self._reflect.perform(memory, decision, context, cycle)


async def activate_ready_notes(
    memories: Memories, keys: Sequence[Key], now: float, why: Literal["ttl", "threshold"]
) -> bool:
    """Make the buffered notes of these threads part of the log. Return whether there were any.
    `why`: their prompt cache is cold, or the tails of all threads have reached the threshold."""
    activated = False
    for key in keys:
        memory = await memories.load(key)
        ids = tuple(c.id for c in answered_chunks(memory))
        if ids:
            await memories.update_log(
                key,
                partial(transitions.activate_chunks, ids=ids, now=now),
                row_id=memory.row_id,
                cause=Cause(trigger=describe_trigger(memory, why, now)),
            )
            activated = True
    return activated
