"""Pass each decision to its performer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from om_proxy.agents.observer import Observer
from om_proxy.agents.reflector import Reflector
from om_proxy.background.due_work import Work
from om_proxy.background.performers.activation import activate_ready_notes
from om_proxy.background.performers.observe import ObservePerformer
from om_proxy.background.performers.observe_batch import CallProgress, ObserveBatchPerformer
from om_proxy.background.performers.reflect import ReflectPerformer
from om_proxy.background.performers.work_guard import WorkGuard
from om_proxy.memory.lifecycle.batches import ActivateIdle, ObserveBatch
from om_proxy.memory.lifecycle.decisions import Decision, Observe, Reflect
from om_proxy.memory.model import Key, Memory
from om_proxy.memory_cache import Memories
from om_proxy.policy import MemoryContext, PolicyInForce


class MemoryWorker:
    """The performers of memory work. `perform` never raises for a model's failure: it records the
    failure with the thread."""

    def __init__(
        self,
        memories: Memories,
        observer: Observer,
        reflector: Reflector,
        count_tokens: Callable[[str], int],
        policies: PolicyInForce,
        guard: WorkGuard,
        clock: Callable[[], float] = time.time,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`environ` may hold the keys of providers."""
        environ = environ or {}
        self._memories = memories
        self._clock = clock
        self._guard = guard
        self._observe = ObservePerformer(memories, observer, count_tokens, clock, environ)
        self._reflect = ReflectPerformer(memories, reflector, count_tokens, clock, environ)
        self._observe_batch = ObserveBatchPerformer(
            memories, observer, count_tokens, policies, environ, self._observe, guard
        )

    async def perform(
        self,
        key: Key,
        decision: Work,
        context: MemoryContext,
        progress: CallProgress | None = None,
    ) -> bool:
        """Perform the work. Return whether it succeeded, so that more work may follow."""
        if isinstance(decision, ObserveBatch):
            return await self._observe_batch.perform(decision, context, progress)
        if isinstance(decision, ActivateIdle):
            return await activate_ready_notes(self._memories, decision.keys, self._clock())
        memory = await self._memories.load(key)
        return await self._guard.run(memory, decision, self._perform(memory, decision, context))

    async def _perform(self, memory: Memory, decision: Decision, context: MemoryContext) -> None:
        if isinstance(decision, Observe):
            await self._observe.perform(memory, decision, context)
        elif isinstance(decision, Reflect):
            await self._reflect.perform(memory, decision, context)
