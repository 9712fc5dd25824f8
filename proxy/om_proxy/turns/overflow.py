"""Shortens a prompt that the upstream refused as too long, while the request waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from om_proxy.background.scheduler import Background
from om_proxy.memory.lifecycle import transitions
from om_proxy.memory.lifecycle.decisions import Observe
from om_proxy.memory.lifecycle.observable import last_observable_seq
from om_proxy.memory.prompt import overflow, prompt_cost
from om_proxy.memory_cache import Memories
from om_proxy.turns.committing import Committer
from om_proxy.turns.prompt_builder import PromptBuilder
from om_proxy.turns.reconciling import Reconciler
from om_proxy.turns.turn import OpenedTurn, PreparedTurn


@dataclass(frozen=True, slots=True, eq=False)
class OverflowRecovery:
    """Observes messages that may leave the prompt, and builds the prompt anew."""

    memories: Memories
    background: Background
    reconciler: Reconciler
    committer: Committer
    builder: PromptBuilder
    clock: Callable[[], float]

    def can_shorten(self, turn: PreparedTurn, *, accepted: bool) -> bool:
        """Whether memory might make the client's own prompt shorter.

        `accepted`: the refusal shows that the upstream knows the caller. Then also a thread's first
        request may be stored and observed.
        """
        opened, reconciled = turn.opened, turn.opened.reconciled
        virtual, through = reconciled.virtual, self._last_leaving_seq(opened)
        if not (
            opened.should_store and opened.can_rewrite and (accepted or reconciled.memory.turns)
        ):
            return False
        if not (overflow.ready_chunks(virtual, through) or self._find_next_batch(opened)):
            return False
        return overflow.can_shrink(
            virtual, prompt_cost.received_tokens(virtual, reconciled.sent), through
        )

    async def shorten(self, turn: PreparedTurn) -> PreparedTurn:
        """Have messages observed that may leave the prompt, activate the notes, and build the
        prompt anew. The turn has no body if the new prompt is not shorter than the client's.

        Observing takes `block_timeout` at most. It goes on in the background: its messages are
        stored, so a later request finds the notes. A fork's new messages cannot be observed before
        its reply has come, messages before the fork can.
        """
        before = turn.opened.reconciled.virtual.coverage
        opened = await self._observe_overflow(turn.opened)
        if ids := overflow.ready_chunks(opened.reconciled.virtual, self._last_leaving_seq(opened)):
            activated = partial(transitions.activate_chunks, ids=ids, now=self.clock())
            await self.memories.update(opened.key, activated, row_id=opened.row_id)
            opened = await self.reconciler.refresh_until_stable(opened)
        if opened.reconciled.virtual.coverage <= before:
            return replace(turn, opened=opened, body=None)
        shortened = await self.builder.build(opened)
        if shortened.receipt["tokens-sent"] < shortened.receipt["tokens-received"]:
            return shortened
        return replace(shortened, body=None)

    async def _observe_overflow(self, turn: OpenedTurn) -> OpenedTurn:
        ends = asyncio.get_running_loop().time() + turn.context.effective.limits.block_timeout_s
        due = self._find_next_batch(turn)
        if due and turn.reconciled.verdict.cut is None:
            turn = await self.committer.store_unanswered(turn)
        while due and (seconds_left := ends - asyncio.get_running_loop().time()) > 0:
            if not await self.background.wait_for_work(
                turn.key, due, turn.work_context, seconds_left
            ):
                return turn
            turn = await self.reconciler.refresh_until_stable(turn)
            next_due = self._find_next_batch(turn)
            due = next_due if next_due and next_due.after > due.after else None
        return turn

    def _find_next_batch(self, turn: OpenedTurn) -> Observe | None:
        max_tokens = turn.context.effective.limits.observe_from_tokens
        return overflow.next_batch(
            turn.reconciled.virtual, self._last_leaving_seq(turn), max_tokens, self.clock()
        )

    def _last_leaving_seq(self, turn: OpenedTurn) -> int:
        """The seq through which messages may be observed now and leave this prompt."""
        reconciled = turn.reconciled
        if reconciled.base is not reconciled.memory:
            return 0  # a fork behind coverage is written with its reply
        last = last_observable_seq(reconciled.virtual)
        return last if reconciled.verdict.cut is None else min(last, reconciled.verdict.cut)
