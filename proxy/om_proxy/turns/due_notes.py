"""Performs what is due before a request goes upstream: activates notes, or waits for an
observation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from om_proxy.background.performers.activation import activate_ready_notes
from om_proxy.background.scheduler import Background
from om_proxy.memory.lifecycle import batches, decisions, transitions
from om_proxy.memory.lifecycle.decisions import Activate, Observe, Reflect, RequestState, Swap
from om_proxy.memory.lifecycle.observable import last_observable_seq
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.memory.model import resource_key
from om_proxy.memory.prompt import missing_notes
from om_proxy.memory_cache import Memories
from om_proxy.off_loop import run_off_loop
from om_proxy.reasons import Reason
from om_proxy.server.deadline import Deadline
from om_proxy.turns.committing import Committer
from om_proxy.turns.reconciling import Reconciler
from om_proxy.turns.turn import OpenedTurn, is_stored_through

# Threads whose notes one request may activate, with one commit each. The background does the rest.
MAX_ACTIVATED_BY_REQUEST = 32


@dataclass(frozen=True, slots=True, eq=False)
class DueNotes:
    """Performs for an opened turn what memory/lifecycle/ decides to be due."""

    memories: Memories
    background: Background
    reconciler: Reconciler
    committer: Committer
    clock: Callable[[], float]

    async def apply(self, turn: OpenedTurn, deadline: Deadline | None) -> OpenedTurn:
        """Perform the work that is due. The turn then says why expected notes are missing.
        `deadline` is extended while the request waits for an observation."""
        if turn.can_rewrite and turn.reconciled.projected.shared_log_ref:
            turn = await self._activate_cold_notes(turn)
        if self._is_nothing_due(turn):
            return await self._explain_missing_notes(turn)
        return await self._perform_due(turn, deadline)

    async def _activate_cold_notes(self, turn: OpenedTurn) -> OpenedTurn:
        """Activate the resource's ready notes where no other thread loses its prompt cache by that.
        This happens before a thread's first prompt, and after a pause that outlasts its prompt
        cache (docs/spec/behaviour.md#scopes). Mostly the background has done it already."""
        memory, limits, now = turn.reconciled.memory, turn.context.effective.limits, self.clock()
        if memory.turn_at is not None and now < memory.turn_at + limits.cache_lifetime_s:
            return turn
        waiting = await self.memories.store.resource_backlog(resource_key(turn.key))
        ready = batches.cold_threads_with_notes(waiting, limits, now)
        # a fork may take back the messages that its own notes are about
        keys = [key for key in ready if key != turn.key or not turn.reconciled.verdict.forks]
        if await activate_ready_notes(self.memories, keys[:MAX_ACTIVATED_BY_REQUEST], now):
            return await self.reconciler.refresh_until_stable(turn)
        return turn

    async def _perform_due(self, turn: OpenedTurn, deadline: Deadline | None) -> OpenedTurn:
        """Perform decisions until nothing is due: mostly no model call, at most one wait."""
        limits = turn.context.effective.limits
        waited = False
        while decision := await self._decide(turn, limits, waited=waited):
            before = turn.reconciled
            match decision:
                case Activate(count=count):
                    ids = tuple(c.id for c in turn.reconciled.projected.chunks[:count])
                    activated = partial(transitions.activate_chunks, ids=ids, now=self.clock())
                    await self.memories.update(turn.key, activated, turn.scope, row_id=turn.row_id)
                case Swap():
                    # In the shared log itself: a new thread gets no row before the upstream
                    # accepts its credential.
                    shared_log = turn.reconciled.projected.shared_log_ref
                    where, row_id = (
                        (resource_key(turn.key), shared_log.row_id)
                        if shared_log
                        else (turn.key, turn.row_id)
                    )
                    await self.memories.update(
                        where,
                        partial(transitions.swap_reflection, now=self.clock()),
                        row_id=row_id,
                    )
                case Observe() | Reflect():
                    if self.memories.is_degraded(turn.key):
                        break  # the notes could not be stored, so no model is paid for them
                    waited = True
                    turn = await self._wait_for(turn, decision, deadline)
            turn = await self.reconciler.refresh_until_stable(turn)
            if turn.reconciled is before and not isinstance(decision, Observe | Reflect):
                break  # it changed nothing: the same decision would follow for ever
        return await self._explain_missing_notes(turn, waited=waited)

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
        """Whether certainly nothing is due, as for most requests."""
        idle, changed = self._prompt_cache_state(turn)
        return decisions.is_nothing_due(
            turn.reconciled.projected,
            turn.context.effective.limits,
            idle=idle,
            provider_changed=changed,
        )

    async def _explain_missing_notes(self, turn: OpenedTurn, *, waited: bool = False) -> OpenedTurn:
        """Set the reason why expected notes are missing."""
        projected, limits = turn.reconciled.projected, turn.context.effective.limits
        if projected.failures.count:
            state = self._request_state(turn)
            reason = await run_off_loop(
                len(projected.tail),
                lambda: missing_notes.explain_failure(projected, limits, state, waited=waited),
            )
            return replace(turn, reason=reason)
        if decisions.waits_to_pay_back(projected, limits):
            return replace(turn, reason=Reason.ECONOMY)
        return turn

    def _prompt_cache_state(self, turn: OpenedTurn) -> tuple[float, bool]:
        """The state in which the request found its prompt cache."""
        return decisions.prompt_cache_state(
            turn.reconciled.memory, turn.request.model, self.clock()
        )

    def _request_state(self, turn: OpenedTurn) -> RequestState:
        idle, changed = self._prompt_cache_state(turn)
        return RequestState(
            last_observable_seq(turn.reconciled.projected),
            idle,
            provider_changed=changed,
            now=self.clock(),
        )

    async def _wait_for(
        self, turn: OpenedTurn, decision: Observe | Reflect, deadline: Deadline | None
    ) -> OpenedTurn:
        """Have the decision performed within `block_timeout`.

        Only stored messages can be observed, so new ones are stored first. A fork's new messages
        are not stored before its reply has come. Messages before the fork can be observed.
        """
        reconciled = turn.reconciled
        if not reconciled.memory.turns:
            # the upstream has not accepted this credential yet: nothing is stored or asked for it
            return turn
        if (
            isinstance(decision, Observe)
            and reconciled.verdict.forks
            and not is_stored_through(reconciled, decision.last)
        ):
            return replace(turn, reason=Reason.FORK_NOT_WAITED)
        is_shared = isinstance(decision, Reflect) and reconciled.memory.shared_log_ref
        where = resource_key(turn.key) if is_shared else turn.key
        timeout = turn.context.effective.limits.block_timeout_s
        if not (seconds_left := self.background.remaining_wait(where, timeout)):
            # another request has waited for this very call: none waits for it twice
            return replace(turn, reason=Reason.OBSERVER_LATE)
        if isinstance(decision, Observe) and not reconciled.verdict.forks:
            turn = await self.committer.store_unanswered(turn)
        if deadline is not None:
            deadline.extend(seconds_left)
        if await self.background.wait_for_work(where, decision, turn.work_context, timeout):
            return turn
        return replace(turn, reason=Reason.OBSERVER_LATE)
