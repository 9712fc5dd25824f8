"""Find the work that is due on a thread, and the context to do it with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from msgspec.structs import replace

from om_proxy.bounded_cache import BoundedCache
from om_proxy.memory.lifecycle import batches, decisions
from om_proxy.memory.lifecycle.batches import ActivateIdle, ObserveBatch
from om_proxy.memory.lifecycle.decisions import Decision
from om_proxy.memory.model import RESOURCE_THREAD, Key, Memory
from om_proxy.memory_cache import Memories
from om_proxy.off_loop import MANY_MESSAGES, run_off_loop
from om_proxy.policy import MemoryContext, PolicyInForce

# Threads whose newest context is remembered, for models that are inherited from it.
MAX_REMEMBERED_CONTEXTS = 10_000

Work: TypeAlias = Decision | ObserveBatch | ActivateIdle


class DueWork:
    """The search for due work, with the newest context of each thread."""

    def __init__(
        self, memories: Memories, policies: PolicyInForce, clock: Callable[[], float]
    ) -> None:
        self._memories = memories
        self._policies = policies
        self._clock = clock
        self._contexts: BoundedCache[Key, MemoryContext] = BoundedCache(
            max_items=MAX_REMEMBERED_CONTEXTS
        )
        # due threads whose work has no context; the search for due threads skips them
        self.without_context: set[Key] = set()

    def remember_context(self, key: Key, context: MemoryContext) -> None:
        """Keep the context for later work on this thread. A thread's own settings are left out,
        because they may be taken back: they are added at use."""
        self.without_context.discard(key)
        self._contexts.put(key, context.with_overrides(None))

    async def find(
        self, key: Key, waited_for: Decision | None = None
    ) -> tuple[Work, MemoryContext] | None:
        """Return what to do next on this thread, `waited_for` first, and the context for it.

        Return None if nothing is due, or if an inherited model has no credential since a restart:
        the next request brings it.
        """
        if self._memories.is_degraded(key):
            # No model is paid for notes that cannot be stored. The work is due again once the turns
            # are stored.
            return None
        memory = await self._memories.load(key)
        context = self._contexts.get(key) or self._policies.current.context_without_request(memory)
        if context is None:
            if len(self.without_context) < MAX_REMEMBERED_CONTEXTS:
                self.without_context.add(key)
            return None
        context = context.with_overrides(memory.overrides)
        if waited_for:
            return waited_for, context
        find = self._find_of_resource if key.thread == RESOURCE_THREAD else self._find_of_thread
        work = await find(memory, context)
        return (work, context) if work else None

    async def _find_of_thread(self, memory: Memory, context: MemoryContext) -> Work | None:
        message_count = len(memory.tail)
        decide = partial(self._decide, memory, context)
        if message_count <= MANY_MESSAGES:
            decision = decide()
        else:
            decision = await run_off_loop(message_count, decide)
        if decision:
            return decision
        if memory.due_at is not None and memory.due_at <= self._clock():
            # it was due by thresholds that have changed since; a commit computes the time again
            await self._memories.update(memory.key, lambda m: replace(m, due_at=None))
        return None

    def _decide(self, memory: Memory, context: MemoryContext) -> Decision | None:
        if memory.failures.suspended or self._clock() < memory.failures.retry_at:
            return None
        return decisions.decide_after_reply(memory, context.effective.limits, self._clock())

    async def _find_of_resource(self, shared_log: Memory, context: MemoryContext) -> Work | None:
        """Return what is due for the threads that share this log, or for the log itself."""
        backlog = await self._memories.store.resource_backlog(shared_log.key)
        limits, now = context.effective.limits, self._clock()
        max_tokens = context.effective.memory.observation.max_tokens_per_batch
        if decision := batches.decide_for_resource(
            backlog, limits, shared_log.log.tokens, max_tokens, now
        ):
            return decision
        pending_tokens = sum(thread.pending_tokens for thread in backlog)
        if reflection := decisions.reflection_due(
            shared_log,
            limits.for_memory(log_tokens=shared_log.log.tokens, pending_tokens=pending_tokens),
        ):
            return reflection
        await self._memories.store.set_due(
            shared_log.key, batches.next_look_at(backlog, limits, shared_log.log.tokens, now)
        )
        return None
