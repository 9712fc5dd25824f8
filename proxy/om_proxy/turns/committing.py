"""Commits turns: each on top of whatever was committed while its reply was awaited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from om_proxy.apis.api import Reply
from om_proxy.memory.model import Item, Memory, Message
from om_proxy.memory.transcript.apply_turn import apply_turn
from om_proxy.memory_cache import Memories, retry_on_conflict
from om_proxy.models import TokenCounter
from om_proxy.off_loop import MANY_MESSAGES, run_off_loop
from om_proxy.turns.reconciling import Reconciler
from om_proxy.turns.turn import (
    NOTHING_COMMITTED,
    CommittedTurn,
    OpenedTurn,
    ReconciledTurn,
    find_recorded_reply,
    number_interrupted_reply,
)

# Seconds after a turn in which a retry tells nothing new about the provider's prompt cache. The
# cache lives for minutes.
WARM_CACHE_S = 60.0


@dataclass(frozen=True, slots=True, eq=False)
class Committer:
    """The only place that writes a turn."""

    memories: Memories
    reconciler: Reconciler
    token_counter: TokenCounter
    clock: Callable[[], float]

    async def commit(
        self,
        turn: OpenedTurn,
        reply: Item | None = None,
        interrupted: Item | None = None,
        *,
        broke_off: bool = False,
    ) -> CommittedTurn:
        """Commit the turn. The turn is computed again each time another commit came first.

        `reply`: the complete reply; `interrupted`: the part of one that came. `broke_off`: see
        Engine.close_turn.
        """
        attempt = partial(self._try_commit, turn, reply, interrupted, broke_off=broke_off)
        async with self.memories.lock(turn.key):
            return await retry_on_conflict(attempt)

    async def store_unanswered(self, turn: OpenedTurn) -> OpenedTurn:
        """Store the new messages of the request before it has a reply. Not for a fork: what it
        supersedes stands until its reply has come."""
        if turn.reconciled.virtual == turn.reconciled.memory:
            return turn
        stored = (await self.commit(turn)).memory
        if stored is not None:
            turn = replace(turn, row_id=turn.row_id or stored.row_id)
        return await self.reconciler.refresh_until_stable(turn)

    def find_stored_reply(self, turn: OpenedTurn, reply: Reply) -> int:
        """Return the seq of this reply if it is stored already, else 0. A retry that was answered
        with the stored reply has nothing to commit."""
        reconciled = turn.reconciled
        if not reply.complete or not self.memories.is_current(reconciled.memory):
            return 0
        recorded = find_recorded_reply(reconciled)
        is_stored = (
            recorded is not None
            and recorded.raw == reply.message
            and self._is_warm(turn, reconciled.memory)
        )
        return reconciled.memory.end if is_stored else 0

    async def _try_commit(
        self, turn: OpenedTurn, reply: Item | None, interrupted: Item | None, *, broke_off: bool
    ) -> CommittedTurn:
        reconciled = await self.reconciler.refresh(turn)
        if self.reconciler.is_forgotten(turn, reconciled.memory):
            self.memories.emit_forgotten(turn.key)
            return NOTHING_COMMITTED
        overtaken = reconciled.memory.end != turn.reconciled.memory.end
        if reconciled.verdict.cut is not None and (reply is None or (broke_off and overtaken)):
            # Another attempt's reply stands. Only a reply that the client has seen to its end
            # supersedes messages.
            return NOTHING_COMMITTED
        recorded = find_recorded_reply(reconciled)
        if reply is not None and recorded is not None and recorded.fp == reply.fp:
            await self._note_retry(turn, reconciled.memory)
            return CommittedTurn(reply_seq=reconciled.memory.end)
        after, numbered = await self._apply_turn(turn, reconciled, reply, interrupted)
        if not numbered and replace(after, turn_at=reconciled.memory.turn_at) == reconciled.memory:
            return NOTHING_COMMITTED  # a retry: all of it is stored
        after = replace(
            copy_rendered_values(turn, after),
            model=turn.request.model,
            offers_tools=turn.request.offers_tools,
        )
        committed = await self.memories.commit(reconciled.memory, after, numbered)
        is_reply_last = (
            reply is not None and bool(after.tail) and after.tail[-1].item.fp == reply.fp
        )
        return CommittedTurn(committed, after.end if is_reply_last else 0)

    async def _apply_turn(
        self,
        turn: OpenedTurn,
        reconciled: ReconciledTurn,
        reply: Item | None,
        interrupted: Item | None,
    ) -> tuple[Memory, list[Message]]:
        """Return the memory with the turn in it, and the interrupted reply, numbered."""
        item, now, model = reply or interrupted, self.clock(), turn.request.model or ""
        counted = await self.token_counter.count({0: item.raw} if item else {}, model)
        encoding = self.token_counter.encoding(model) if counted or reconciled.tokens else ""
        verdict = reconciled.verdict
        changed_count = len(verdict.new) + len(verdict.swaps)
        apply = partial(
            apply_turn,
            reconciled.base,
            verdict,
            reconciled.sent,
            reconciled.tokens,
            now,
            revived=reconciled.revived,
            reply=reply,
            reply_tokens=counted.get(0, 0),
            encoding=encoding,
        )
        after = (
            apply() if changed_count <= MANY_MESSAGES else await run_off_loop(changed_count, apply)
        )
        if not interrupted:
            return after, []
        after, message = number_interrupted_reply(after, interrupted, counted[0], now, encoding)
        return after, [message]

    def _is_warm(self, turn: OpenedTurn, memory: Memory) -> bool:
        """Whether the memory says already that the provider's prompt cache is warm, and which day
        the prompt told."""
        is_recent = memory.turn_at is not None and self.clock() - memory.turn_at <= WARM_CACHE_S
        return is_recent and copy_rendered_values(turn, memory).render_date == memory.render_date

    async def _note_retry(self, turn: OpenedTurn, memory: Memory) -> None:
        """Store the time of a retry, unless the memory says as much already. A retry has nothing
        else to add."""
        if not self._is_warm(turn, memory):
            await self.memories.commit(
                memory, replace(copy_rendered_values(turn, memory), turn_at=self.clock())
            )


def copy_rendered_values(turn: OpenedTurn, after: Memory) -> Memory:
    """Copy into the memory what the prompt was built with: the render date, the zone, and the text
    about other threads. Not if the prompt had no notes, or its prefix has changed since."""
    built = turn.reconciled.virtual
    # An equal log is not enough for the text about other threads: one of them may have been
    # forgotten since.
    is_same = after.log.entries == built.log.entries and after.shared_log == built.shared_log
    if not is_same or not (built.log.entries or built.shared_log):
        return replace(after, timezone=turn.timezone or after.timezone)
    if after.shared_log:
        after = replace(
            after,
            other_threads_text=built.other_threads_text,
            shown_log_state=built.shown_log_state,
        )
    return replace(after, render_date=built.render_date, timezone=built.timezone)
