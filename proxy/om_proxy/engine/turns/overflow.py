"""Shorten a prompt that the upstream refused as too long, while the request waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from om_proxy.engine.background.thread_run import loop_time
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.turns.committing import Committer
from om_proxy.engine.turns.due_notes import MemoryWork
from om_proxy.engine.turns.prompt_builder import PromptBuilder
from om_proxy.engine.turns.reconciling import Reconciler
from om_proxy.engine.turns.turn import OpenedTurn, PreparedTurn
from om_proxy.memory.lifecycle import transitions
from om_proxy.memory.lifecycle.decisions import Observe
from om_proxy.memory.lifecycle.observable import last_observable_seq, ready_chunks
from om_proxy.memory.prompt import prompt_cost


@dataclass(frozen=True, slots=True, eq=False)
class OverflowRecovery:
    """The way to a shorter prompt: more messages are observed, or ready notes become active; then the prompt is built again."""

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
