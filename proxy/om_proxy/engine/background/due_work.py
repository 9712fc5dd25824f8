"""Find the work that is due on a thread, and the context to do it with. Report each decision as a
fact, where `telemetry.debug_events` asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias, assert_never

from msgspec.structs import replace

from om_proxy.common.bounded_cache import BoundedCache
from om_proxy.common.off_loop import run_off_loop
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.policy import MemoryContext, PolicyInForce
from om_proxy.memory.lifecycle import batches, decisions
from om_proxy.memory.lifecycle.batches import ActivateIdle, ObserveBatch
from om_proxy.memory.lifecycle.decisions import Activate, Decision, Observe, Reflect, Swap
from om_proxy.memory.model import RESOURCE_THREAD, Key, Memory
from om_proxy.observability.facts import Decided, DecisionPlace, Facts
from om_proxy.storage.values.stored_rows import Backlog

Work: TypeAlias = Decision | ObserveBatch | ActivateIdle

# Threads whose newest context is remembered, for models that are inherited from it.
MAX_REMEMBERED_CONTEXTS = 10_000
WORDS: Mapping[type[Work], str] = {
    Activate: "activate",
    ActivateIdle: "activate",
    Swap: "swap",
    Observe: "observe",
    ObserveBatch: "observe",
    Reflect: "reflect",
}


class DueWork:
    """The search for due work, with the newest context of each thread."""

    def __init__(
        self,
        memories: Memories,
        policies: PolicyInForce,
        clock: Callable[[], float],
        is_external: Callable[[], bool],
    ) -> None:
        """`is_external`: whether other processes do the due work that needs no caller."""
        self.is_external = is_external
        self._memories = memories
        self._policies = policies
        self._clock = clock
        # by thread whose context is remembered and whose work needs that caller: when it is due.
        # Nobody else looks for it.
        self._due_with_caller: dict[Key, float] = {}
        self._contexts: BoundedCache[Key, MemoryContext] = BoundedCache(
            max_items=MAX_REMEMBERED_CONTEXTS,
            on_evict=lambda key, _: self._forget_due(key),
        )
        # due threads whose work has no context; the search for due threads skips them
        self.without_context: set[Key] = set()

    def remember_context(self, key: Key, context: MemoryContext) -> None:
        """Keep the context for later work on this thread. A thread's own settings are left out,
        because they may be taken back: they are added at use."""
        if context.lacks_observer:
            return
        self.without_context.discard(key)
        self._due_with_caller[key] = 0.0  # until `find` has read when
        self._contexts.put(key, context.with_overrides(None))

    @property
    def claims_callers(self) -> bool:
        """Whether this process may claim threads whose work needed a caller when it was stored: by
        the settings in force, no work does."""
        return not self._policies.current.may_need_caller

    def list_due_with_caller(self) -> list[Key]:
        """Return the threads whose work is due and needs the call that this process holds, the
        longest due first."""
        now = self._clock()
        due = [(due_at, key) for key, due_at in self._due_with_caller.items() if due_at <= now]
        return [key for _, key in sorted(due)]

    def is_left_to_others(self, memory: Memory) -> bool:
        """Return whether other processes do the due work on this memory. Work that needs a caller
        stays here: they leave it out."""
        return self.is_external() and (self.claims_callers or not memory.needs_caller)

    def leave_to_others(self, memory: Memory | None) -> bool:
        """Look no more for the due work on this memory, if others do it. Return whether they do;
        False for None: that is unknown."""
        if memory is None or not self.is_left_to_others(memory):
            return False
        self._forget_due(memory.key)
        return True

    def _note_due(self, memory: Memory, due_at: float | None) -> None:
        """Keep when the work on this memory is due, if it needs the call that is remembered."""
        if memory.needs_caller and due_at is not None and memory.key in self._contexts:
            self._due_with_caller[memory.key] = due_at
        else:
            self._forget_due(memory.key)

    def _forget_due(self, key: Key) -> None:
        self._due_with_caller.pop(key, None)

    def is_known_idle(self, key: Key) -> bool:
        """Return whether nothing is due on this thread as this process holds it: its commit found
        out when something will be. The store is not asked. What another process has made due since,
        it does itself or a claim finds. False of a shared log or a thread in one: their commits do
        not know."""
        held = self._memories.held.find(key)
        if (
            held is None
            or held.scope == "resource"
            or key.thread == RESOURCE_THREAD
            or (held.due_at is not None and held.due_at <= self._clock())
        ):
            return False
        self._note_due(held, held.due_at)
        report_decision(self._memories.facts, key, "background", None)
        return True

    def find_context(
        self, memory: Memory, requested: MemoryContext | None = None
    ) -> MemoryContext | None:
        """Return the context for work on this memory: `requested`, that of its newest request, or
        one that needs no request; None: an inherited model has no credential."""
        if requested and requested.lacks_observer:
            requested = None
        context = (
            requested
            or self._contexts.get(memory.key)
            or self._policies.current.context_without_request(memory)
        )
        return context and context.with_overrides(memory.overrides)

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
        if waited_for is None and self.leave_to_others(memory):
            return None
        self._note_due(memory, memory.due_at)
        context = self.find_context(memory)
        if context is None:
            if len(self.without_context) < MAX_REMEMBERED_CONTEXTS:
                self.without_context.add(key)
            return None
        if waited_for:
            return waited_for, context
        find = self._find_of_resource if key.thread == RESOURCE_THREAD else self._find_of_thread
        work = await find(memory, context)
        report_decision(self._memories.facts, key, "background", work)
        return (work, context) if work else None

    async def _find_of_thread(self, memory: Memory, context: MemoryContext) -> Work | None:
        decision = await run_off_loop(len(memory.tail), partial(self._decide, memory, context))
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
        store = self._memories.store
        backlog = await store.resource_backlog(shared_log.key)
        while True:
            now = self._clock()
            if work := _decide_for_resource(shared_log, backlog, context, now):
                return work
            limits = context.effective.limits
            due_at = batches.next_look_at(backlog, limits, shared_log.log.tokens, now)
            # A turn since that read may have made the log due: its time must not be replaced.
            if await store.set_due(shared_log.key, due_at, backlog):
                self._note_due(shared_log, due_at)
                return None
            backlog = await store.resource_backlog(shared_log.key)


def _decide_for_resource(
    shared_log: Memory, backlog: Backlog, context: MemoryContext, now: float
) -> Work | None:
    limits, log_tokens = context.effective.limits, shared_log.log.tokens
    max_tokens = context.effective.memory.observation.max_tokens_per_batch
    if decision := batches.decide_for_resource(backlog, limits, log_tokens, max_tokens, now):
        return decision
    pending_tokens = sum(thread.pending_tokens for thread in backlog)
    return decisions.reflection_due(
        shared_log, limits.for_memory(log_tokens=log_tokens, pending_tokens=pending_tokens)
    )


def report_decision(facts: Facts, key: Key, place: DecisionPlace, decision: Work | None) -> None:
    """Emit Decided. Every request passes here, so nothing is made of the decision while nobody
    asks for it."""
    if facts.tells_decisions:
        facts.emit(describe_decision(key, place, decision))


def describe_decision(key: Key, place: DecisionPlace, decision: Work | None) -> Decided:
    if decision is None:
        return Decided(key, place, "nothing", {})
    return Decided(key, place, WORDS[type(decision)], _list_numbers(decision))


def _list_numbers(decision: Work) -> Mapping[str, int | str]:
    """List the decision's own numbers and words. A person's instruction is left out: it is text."""
    match decision:
        case Swap():
            return {}
        case ObserveBatch(batches=batches):
            return {"calls": len(batches), "threads": sum(map(len, batches))}
        case ActivateIdle(keys=keys, why=why):
            return {"threads": len(keys), "why": why}
        case Activate(count=count, why=why):
            return {"count": count, "why": why}
        case Observe(after=after, last=last, tokens=tokens, wait=wait):
            return {"after": after, "last": last, "tokens": tokens, "wait": wait}
        case Reflect(entries=entries, accept_below=accept_below, wait=wait):
            return {"entries": entries, "accept_below": accept_below, "wait": wait}
        case _:
            assert_never(decision)
