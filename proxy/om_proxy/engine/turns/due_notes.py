"""Have notes ready while a request waits: activate those that are due before it goes upstream, or wait
for an observation; and shorten a prompt that the upstream refused as too long."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from msgspec.structs import replace

from om_proxy.common.off_loop import run_off_loop
from om_proxy.common.reasons import Reason
from om_proxy.common.running_time import Deadline
from om_proxy.engine.background.due_work import report_decision
from om_proxy.engine.background.thread_run import loop_time
from om_proxy.engine.background.worker import activate_ready_notes
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.policy import MemoryContext
from om_proxy.engine.turns.committing import Committer
from om_proxy.engine.turns.prompt_builder import PromptBuilder
from om_proxy.engine.turns.reconciling import Reconciler
from om_proxy.engine.turns.turn import OpenedTurn, PreparedTurn, is_before_fork
from om_proxy.memory.events.changes import Cause, Trigger, describe_trigger
from om_proxy.memory.events.parts import TriggeredBy
from om_proxy.memory.lifecycle import batches, decisions, transitions
from om_proxy.memory.lifecycle.decisions import (
    Activate,
    Decision,
    Observe,
    Reflect,
    RequestState,
    Swap,
)
from om_proxy.memory.lifecycle.hints import has_user_spoken
from om_proxy.memory.lifecycle.observable import last_observable_seq, ready_chunks
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.memory.model import Key, resource_key
from om_proxy.memory.prompt import prompt_cost

# Threads whose notes one request may activate, with one commit each. The background activates the
# others.
MAX_ACTIVATED_BY_REQUEST = 32
# how events name the reasons of `Activate`
TRIGGERS: Mapping[str, TriggeredBy] = {
    "threshold": "threshold",
    "idle": "ttl",
    "provider": "provider_change",
}
SWAP_CAUSE = Cause(trigger=Trigger("threshold"))


class MemoryWork(Protocol):
    """See engine/background/scheduler.py for each method."""

    def last_seq_being_read(self, key: Key) -> int: ...

    def remaining_wait(self, key: Key, seconds: float) -> float: ...

    async def wait_for_work(
        self, key: Key, decision: Decision, context: MemoryContext, seconds: float
    ) -> bool: ...

    def wake(self, key: Key, context: MemoryContext | None = None) -> None: ...

    def run_detached(self, work: Coroutine[Any, Any, Any]) -> object: ...


@dataclass(frozen=True, slots=True, eq=False)
class DueNotes:
    """The work that memory/lifecycle/ decides to be due for an opened turn."""

    memories: Memories
    background: MemoryWork
    reconciler: Reconciler
    committer: Committer
    clock: Callable[[], float]
    on_decision: Callable[[Decision], None] = lambda decision: None

    async def apply(self, turn: OpenedTurn, deadline: Deadline | None) -> OpenedTurn:
        """Perform the work that is due. Return the turn with the reason why expected notes are
        missing. `deadline` is extended while the request waits for an observation."""
        if turn.reconciled.projected.shared_log_ref:
            turn = await self._activate_cold_notes(turn)
        if self._is_nothing_due(turn):
            report_decision(self.memories.facts, turn.key, "request", None)
            return await self._explain_missing_notes(turn)
        return await self._perform_due(turn, deadline)

    async def _activate_cold_notes(self, turn: OpenedTurn) -> OpenedTurn:
        """Activate the resource's ready notes if no other thread loses its prompt cache by that.

        This happens before a thread's first prompt, and after a pause that outlasts its prompt
        cache (docs/contributing/behaviour.md#scopes). In most cases the background has already done
        it.
        """
        memory = turn.reconciled.memory
        limits = turn.context.effective.limits
        now = self.clock()
        if memory.turn_at is not None and now < memory.turn_at + limits.cache_lifetime_s:
            return turn
        backlog = await self.memories.store.resource_backlog(resource_key(turn.key))
        ready = batches.cold_threads_with_notes(backlog, limits, now)
        # a fork may take back the messages that its own notes are about
        keys = [key for key in ready if key != turn.key or not turn.reconciled.verdict.forks]
        if await activate_ready_notes(self.memories, keys[:MAX_ACTIVATED_BY_REQUEST], now, "ttl"):
            return await self.reconciler.refresh_until_stable(turn)
        return turn

    async def _perform_due(self, turn: OpenedTurn, deadline: Deadline | None) -> OpenedTurn:
        """Perform decisions until nothing is due: in most cases without a model call, and with at
        most one wait."""
        limits = turn.context.effective.limits
        # a request whose prompt stays as it is gains nothing by waiting
        waited = not turn.can_rewrite
        while decision := await self._decide(turn, limits, waited=waited):
            self.on_decision(decision)
            report_decision(self.memories.facts, turn.key, "request", decision)
            before = turn.reconciled
            match decision:
                case Activate():
                    await self._activate_chunks(turn, decision)
                case Swap():
                    await self._swap_reflection(turn)
                case Observe() | Reflect():
                    if self.memories.is_degraded(turn.key):
                        break  # the notes could not be stored, so no model is paid for them
                    waited = True
                    turn = await self._wait_for(turn, decision, deadline)
            turn = await self.reconciler.refresh_until_stable(turn)
            if turn.reconciled is before and not isinstance(decision, Observe | Reflect):
                break  # nothing changed: the same decision would follow for ever
        return await self._explain_missing_notes(turn, waited=waited)

    async def _activate_chunks(self, turn: OpenedTurn, decision: Activate) -> None:
        now = self.clock()
        projected = turn.reconciled.projected
        chunks = projected.chunks[: decision.count]
        activate = partial(
            transitions.activate_chunks,
            ids=tuple(chunk.id for chunk in chunks),
            now=now,
            user_speaks=has_user_spoken(projected, chunks[-1].last),
        )
        trigger = describe_trigger(
            turn.reconciled.memory, TRIGGERS[decision.why], now, turn.request.model
        )
        await self.memories.update_log(
            turn.key, activate, turn.scope, row_id=turn.row_id, cause=Cause(trigger=trigger)
        )

    async def _swap_reflection(self, turn: OpenedTurn) -> None:
        swap = partial(transitions.swap_reflection, now=self.clock())
        shared_log = turn.reconciled.projected.shared_log_ref
        if shared_log is None:
            await self.memories.update_log(turn.key, swap, row_id=turn.row_id, cause=SWAP_CAUSE)
        else:
            # in the shared log itself: a new thread gets no row before the upstream accepts its
            # credential
            await self.memories.update_log(
                resource_key(turn.key), swap, row_id=shared_log.row_id, cause=SWAP_CAUSE
            )

    async def _decide(
        self, turn: OpenedTurn, limits: Limits, *, waited: bool
    ) -> Activate | Swap | Observe | Reflect | None:
        projected = turn.reconciled.projected
        return await run_off_loop(
            len(projected.tail),
            lambda: decisions.decide_before_forwarding(
                projected, limits, self._request_state(turn), waited=waited
            ),
        )

    def _is_nothing_due(self, turn: OpenedTurn) -> bool:
        """Return whether certainly nothing is due, as for most requests."""
        idle_s, has_changed = self._prompt_cache_state(turn)
        return decisions.is_nothing_due(
            turn.reconciled.projected,
            turn.context.effective.limits,
            idle_s=idle_s,
            has_provider_changed=has_changed,
        )

    async def _explain_missing_notes(self, turn: OpenedTurn, *, waited: bool = False) -> OpenedTurn:
        """Return the turn with the reason why expected notes are missing."""
        projected, limits = turn.reconciled.projected, turn.context.effective.limits
        if projected.failures.count:
            state = self._request_state(turn)
            reason = await run_off_loop(
                len(projected.tail),
                lambda: decisions.explain_failure(projected, limits, state, waited=waited),
            )
            return replace(turn, reason=reason)
        if decisions.waits_to_pay_back(projected, limits):
            return replace(turn, reason=Reason.ECONOMY)
        return turn

    def _prompt_cache_state(self, turn: OpenedTurn) -> tuple[float, bool]:
        """Return the state in which the request found its prompt cache: idle seconds, and whether
        the provider changed."""
        return decisions.prompt_cache_state(
            turn.reconciled.memory, turn.request.model, self.clock()
        )

    def _request_state(self, turn: OpenedTurn) -> RequestState:
        idle_s, has_changed = self._prompt_cache_state(turn)
        return RequestState(
            last_observable_seq(turn.reconciled.projected),
            idle_s,
            has_provider_changed=has_changed,
            now=self.clock(),
        )

    async def _wait_for(
        self, turn: OpenedTurn, decision: Observe | Reflect, deadline: Deadline | None
    ) -> OpenedTurn:
        """Have the decision performed within `block_timeout_s`.

        Only stored messages can be observed, so new ones are stored first. The new messages of a
        fork are not stored before the reply has come, but the messages before the fork can be
        observed.
        """
        reconciled = turn.reconciled
        if not reconciled.memory.turns:
            # the upstream has not accepted this credential yet: nothing is stored or asked for it
            return turn
        if isinstance(decision, Observe) and not is_before_fork(reconciled, decision.last):
            return replace(turn, reason=Reason.FORK_NOT_WAITED)
        is_shared = isinstance(decision, Reflect) and reconciled.memory.shared_log_ref
        key = resource_key(turn.key) if is_shared else turn.key
        timeout_s = turn.context.effective.limits.block_timeout_s
        seconds_left = self.background.remaining_wait(key, timeout_s)
        if not seconds_left:
            # another request has waited for the same call: no request waits for it again
            return replace(turn, reason=Reason.OBSERVER_LATE)
        if isinstance(decision, Observe) and not reconciled.verdict.forks:
            turn = await self.committer.store_unanswered(turn)
        if deadline is not None:
            deadline.extend(seconds_left)
        if await self.background.wait_for_work(key, decision, turn.work_context, timeout_s):
            return turn
        return replace(turn, reason=Reason.OBSERVER_LATE)


@dataclass(frozen=True, slots=True, eq=False)
class OverflowRecovery:
    """The way to a shorter prompt: more messages are observed, or ready notes become active; then the
    prompt is built again."""

    memories: Memories
    background: MemoryWork
    reconciler: Reconciler
    committer: Committer
    builder: PromptBuilder
    clock: Callable[[], float]

    def can_shorten(self, turn: PreparedTurn, *, is_caller_verified: bool) -> bool:
        """Return whether memory can make the prompt shorter that was refused: the client's own, or
        for a client that sends a part of its history the rewritten one.

        `is_caller_verified`: the refusal shows that the upstream knows the caller. Then the first
        request of a thread may be stored and observed too.
        """
        opened = turn.opened
        reconciled = opened.reconciled
        may_store = is_caller_verified or reconciled.memory.turns > 0
        if not (may_store and opened.should_store and opened.can_rewrite):
            return False
        projected = reconciled.projected
        last_leaving_seq = self._last_leaving_seq(opened)
        if not ready_chunks(projected, last_leaving_seq) and not self._find_next_batch(opened):
            return False
        instructions = turn.receipt["tokens-received"] - prompt_cost.received_tokens(
            projected, reconciled.sent
        )
        refused_tokens = turn.receipt["tokens-sent"] - instructions
        return prompt_cost.can_shrink(projected, refused_tokens, last_leaving_seq)

    async def shorten(self, turn: PreparedTurn) -> PreparedTurn:
        """Observe the messages that may leave the prompt, activate their notes, and build the
        prompt again. The turn has no body if the new prompt is not shorter than the refused one.

        This waits at most `block_timeout_s` for the observation. After that, the observation
        continues in the background. Its messages are stored, so a later request finds the notes.
        The new messages of a fork cannot be observed before the reply has come, but the messages
        before the fork can.
        """
        coverage_before = turn.opened.reconciled.projected.coverage
        opened = await self._observe_overflow(turn.opened)
        chunks = ready_chunks(opened.reconciled.projected, self._last_leaving_seq(opened))
        if chunks:
            ids = [chunk.id for chunk in chunks]
            activated = partial(transitions.activate_chunks, ids=ids, now=self.clock())
            await self.memories.update_log(opened.key, activated, row_id=opened.row_id)
            opened = await self.reconciler.refresh_until_stable(opened)
        if opened.reconciled.projected.coverage <= coverage_before:
            return replace(turn, opened=opened, body=None)
        shortened = await self.builder.build(opened)
        if shortened.receipt["tokens-sent"] < turn.receipt["tokens-sent"]:
            return shortened
        return replace(shortened, body=None)

    async def _observe_overflow(self, turn: OpenedTurn) -> OpenedTurn:
        """Have the messages observed that may leave the prompt, batch by batch, until the deadline
        (in the event loop's time)."""
        deadline = loop_time() + turn.context.effective.limits.block_timeout_s
        batch = self._find_next_batch(turn)
        # the messages of a fork are stored only with its reply
        if batch and not turn.reconciled.verdict.forks:
            turn = await self.committer.store_unanswered(turn)
        while batch:
            seconds_left = deadline - loop_time()
            if seconds_left <= 0 or not await self.background.wait_for_work(
                turn.key, batch, turn.work_context, seconds_left
            ):
                return turn
            turn = await self.reconciler.refresh_until_stable(turn)
            next_batch = self._find_next_batch(turn)
            if next_batch is None or next_batch.after <= batch.after:
                return turn  # nothing is left, or the last batch made no progress
            batch = next_batch
        return turn

    def _find_next_batch(self, turn: OpenedTurn) -> Observe | None:
        max_tokens = turn.context.effective.limits.observe_from_tokens
        return prompt_cost.next_batch(
            turn.reconciled.projected, self._last_leaving_seq(turn), max_tokens, self.clock()
        )

    def _last_leaving_seq(self, turn: OpenedTurn) -> int:
        """Return the seq of the newest message that may be observed now and leave this prompt; 0:
        none may."""
        reconciled = turn.reconciled
        if reconciled.forks_before_coverage:
            return 0  # nothing of the request is stored until its reply comes
        last = last_observable_seq(reconciled.projected)
        cut_seq = reconciled.verdict.cut_seq
        return last if cut_seq is None else min(last, cut_seq)
