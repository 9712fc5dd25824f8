"""Perform the memory work that a person has asked for."""

from __future__ import annotations

from om_proxy.common.errors import OmError, Overloaded, StorageError
from om_proxy.engine.background.due_work import DueWork
from om_proxy.engine.background.requested_work import STOPPING_MESSAGE, RequestedWork
from om_proxy.engine.background.thread_run import ThreadRun
from om_proxy.engine.background.worker import MemoryWorker
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.memory.lifecycle.decisions import ObserveNow, decide_wish


class WishPerformer:
    """The performer of requested work, one call of a memory model at a time."""

    def __init__(self, memories: Memories, worker: MemoryWorker, due: DueWork) -> None:
        self._memories = memories
        self._worker = worker
        self._due = due

    async def perform(self, work: RequestedWork, run: ThreadRun) -> bool:
        """Perform the next step of the work. Return whether more of it is left; otherwise the
        person hears of the end, whatever it is."""
        has_more = False
        try:
            has_more = await self._perform_step(work, run)
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

    async def _perform_step(self, work: RequestedWork, run: ThreadRun) -> bool:
        memory = await self._memories.load(work.key)
        context = self._due.find_context(memory, work.context)
        if context is None or self._memories.is_degraded(work.key):
            # notes that cannot be stored are not paid for
            raise StorageError("the store cannot be written at the moment; try again")
        decision = decide_wish(memory, work.wish, context.effective.limits)
        if decision is None:
            return False
        run.step = decision
        await self._worker.perform_requested(memory, decision, context, work.cycle_id)
        if not isinstance(work.wish, ObserveNow) or not work.wish.all:
            return False
        now = await self._memories.load(work.key)
        return now.chunked_to > memory.chunked_to  # else the next step would be the same
