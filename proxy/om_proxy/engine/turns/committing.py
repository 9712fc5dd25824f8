"""Commit turns: the reply is added to what was computed before forwarding, on top of the turns that
were committed while it waited."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from om_proxy.agents.models import TokenCounter
from om_proxy.common.errors import Conflict, ForgottenName
from om_proxy.common.off_loop import MANY_MESSAGES, run_off_loop
from om_proxy.engine.memory_cache.memories import Memories, retry_on_conflict
from om_proxy.engine.turns.accounting import NOTHING_ACCOUNTED, AccountedTurn, UnstoredEntries
from om_proxy.engine.turns.reconciling import Reconciler, count_messages
from om_proxy.engine.turns.turn import (
    NOTHING_COMMITTED,
    CommittedTurn,
    OpenedTurn,
    ReconciledTurn,
    find_recorded_reply,
    number_interrupted_reply,
)
from om_proxy.memory.ledger import (
    NO_MEMORY_COSTS,
    Account,
    ThreadLedger,
    TurnEntry,
    add_turn,
    join_ledgers,
)
from om_proxy.memory.model import (
    MESSAGE_FRAMING_TOKENS,
    RESOURCE_THREAD,
    Item,
    Key,
    Memory,
    Message,
)
from om_proxy.memory.recall.kept_look_ups import list_named_labels, quotes_thread
from om_proxy.memory.rounds import LookedUp
from om_proxy.memory.transcript.apply_turn import EndedReply, end_turn, mark_choices
from om_proxy.memory.transcript.unstored import merge_unstored
from om_proxy.memory.transcript.verdict import takes_back_later_request
from om_proxy.wire.apis.api import Reply

# The time of a retry this soon after the turn is not stored: the provider's prompt cache lives for
# minutes, so it is warm anyway.
WARM_CACHE_S = 60.0


# Two processes measure the store's clock apart. A thread that was forgotten so long before the
# request came, and is here again, only costs its quotes.
CLOCK_MARGIN_S = 60.0


class TurnEnd(Struct, frozen=True):
    """What became of a request."""

    ended_at: float  # when the reply ended, in unix seconds
    reply: Item | None = None  # the complete one
    interrupted: Item | None = None  # what came of a reply that broke off
    # what the turn adds to the thread's ledger, once, whichever attempt succeeds
    accounted: AccountedTurn = NOTHING_ACCOUNTED
    # the client has not seen the end of the reply, and may have asked again since
    is_end_unseen: bool = False
    look_ups: LookedUp | None = None  # of the complete reply; the commit counts their tokens
    has_choices: bool = False  # the reply is the first of several


def accept_any(_: Memory) -> None:
    """Let a turn be committed on any state of its thread."""


@dataclass(frozen=True, slots=True, eq=False)
class Committer:
    """Writes turns to the store. No other class does."""

    memories: Memories
    reconciler: Reconciler
    token_counter: TokenCounter
    clock: Callable[[], float]
    unstored: UnstoredEntries = field(default_factory=UnstoredEntries)

    async def commit(
        self,
        turn: OpenedTurn,
        end: TurnEnd | None = None,
        check: Callable[[Memory], None] = accept_any,
    ) -> CommittedTurn:
        """Commit the turn. If another commit came first, compute the turn again. `end`: None: it has
        no reply, and ends now. `check`: raises an error unless the turn may be committed on this
        state of the thread. No other commit comes between."""
        facts = self.memories.facts
        if end is None:
            end = TurnEnd(self.clock())
        if end.look_ups is not None:
            model = turn.request.model or ""
            counted = await facts.await_extra(
                "look_up_tokens", turn.key, None, self._count_look_ups, end.look_ups, model
            )
            end = replace(end, look_ups=counted)
        attempt = partial(self._try_commit, turn, end, check)
        async with self.memories.lock(turn.key):
            committed = await retry_on_conflict(attempt)
        if committed.memory is None or end.look_ups is None:
            return committed
        check_stored, memory = self._check_stored_look_ups, committed.memory
        stored = await facts.await_extra(
            "quotes", turn.key, memory, check_stored, turn, memory, end.look_ups
        )
        return replace(committed, memory=stored)

    async def commit_missed(
        self, turn: OpenedTurn, end: TurnEnd, *, is_delivered: bool
    ) -> CommittedTurn:
        """Commit a turn whose memory could not be read when its request came. After others that
        ended when it had come already, it is stored as what it would have come to at its time
        (docs/contributing/storage.md#turns-that-waited). `is_delivered`: its reply went out to its
        last byte."""
        attempt = partial(self._try_commit_missed, turn, end, is_delivered=is_delivered)
        async with self.memories.lock(turn.key):
            return await retry_on_conflict(attempt)

    async def _try_commit_missed(
        self, turn: OpenedTurn, end: TurnEnd, *, is_delivered: bool
    ) -> CommittedTurn:
        """Ask at each attempt whether others were first: the one before may have failed by them."""
        compared = await self.reconciler.refresh(turn)
        if is_overtaken(turn, compared):
            return await self._try_commit_late(turn, end, is_delivered=is_delivered)

        def check(memory: Memory) -> None:
            if memory.version != compared.memory.version:
                raise Conflict("another turn of the thread was stored; compare with it, too")

        return await self._try_commit(turn, end, check)

    async def _try_commit_late(
        self, turn: OpenedTurn, end: TurnEnd, *, is_delivered: bool
    ) -> CommittedTurn:
        then, newest = await self.reconciler.reconcile_in_time(turn)
        if self.reconciler.is_forgotten(turn, newest) or await self.reconciler.is_name_forgotten(
            turn, newest
        ):
            return self._leave_forgotten(turn)
        if then.verdict.forks and end.reply is None:
            return NOTHING_COMMITTED
        # nothing is accounted for, and nothing was looked up
        spooled, _ = await self._end_turn(turn, then, replace(end, interrupted=None))
        request = turn.request
        spooled = replace(spooled, model=request.model, offers_tools=request.offers_tools)
        merged = merge_unstored(
            newest, then.memory, spooled, delivered_seq=spooled.end if is_delivered else 0
        )
        after, not_live = merged.after, list(merged.not_live)
        if end.interrupted is not None and after is not newest:
            tokens, encoding = await self._count_reply(turn, end.interrupted)
            after, message = number_interrupted_reply(
                after, end.interrupted, tokens, end.ended_at, encoding
            )
            not_live.append(message)
        if after is newest:
            return NOTHING_COMMITTED
        committed = await self._write(newest, after, None, not_live, turn.asked_at)
        reply_seq = merged.new_seqs.get(spooled.end, 0) if end.reply is not None else 0
        return CommittedTurn(committed, reply_seq)

    async def store_unanswered(self, turn: OpenedTurn) -> OpenedTurn:
        """Store the new messages of the request before it has a reply.

        Do not call this for a fork: the messages that a fork supersedes stay live until its reply
        has come.
        """
        if turn.reconciled.projected == turn.reconciled.memory:
            return turn
        stored = (await self.commit(turn)).memory
        if stored is not None:
            turn = replace(turn, row_id=turn.row_id or stored.row_id)
        return await self.reconciler.refresh_until_stable(turn)

    def find_stored_reply_seq(self, turn: OpenedTurn, reply: Reply) -> int:
        """Return the seq of this reply if it is stored already, else 0. A retry that was answered
        with the stored reply has nothing to commit."""
        reconciled = turn.reconciled
        if not reply.complete or not self.memories.held.is_current(reconciled.memory):
            return 0
        recorded = find_recorded_reply(reconciled)
        is_stored = (
            recorded is not None
            and recorded.raw == reply.message
            and self.reconciler.is_named_as(turn, recorded, reply)
            and self._is_retry_recorded(turn, reconciled.memory)
        )
        return reconciled.memory.end if is_stored else 0

    async def _try_commit(
        self, turn: OpenedTurn, end: TurnEnd, check: Callable[[Memory], None]
    ) -> CommittedTurn:
        reply, accounted = end.reply, end.accounted
        reconciled = await self.reconciler.refresh(turn)
        check(reconciled.memory)
        if self.reconciler.is_forgotten(
            turn, reconciled.memory
        ) or await self.reconciler.is_name_forgotten(turn, reconciled.memory):
            return self._leave_forgotten(turn)
        is_overtaken = reconciled.memory.end != turn.reconciled.memory.end
        # Another attempt's reply stays: only a reply that the client has seen to its end supersedes
        # messages.
        keeps_other_reply = reply is None or (end.is_end_unseen and is_overtaken)
        # The client has gone on since, from an earlier message: that stays taken back.
        is_taken_back = is_overtaken and takes_back_later_request(
            reconciled.verdict, reconciled.memory.views, turn.asked_at
        )
        if is_taken_back or (reconciled.verdict.forks and keeps_other_reply):
            self.add_unstored(turn, accounted.entry)
            return NOTHING_COMMITTED
        recorded = find_recorded_reply(reconciled)
        if reply is not None and recorded is not None and is_same_reply(recorded, reply):
            await self._store_retry_time(turn, reconciled.memory, accounted.entry)
            return CommittedTurn(reply_seq=reconciled.memory.end)
        if end.look_ups is not None:
            # if it cannot be known whether they quote a thread that is gone, none are kept
            choose = self._choose_kept_look_ups
            kept = await self.memories.facts.await_extra(
                "look_ups", turn.key, None, choose, turn, end.look_ups
            )
            end = replace(end, look_ups=kept)
        after, interrupted_messages = await self._end_turn(turn, reconciled, end)
        if end.has_choices:
            after = mark_choices(after)
        is_stored = replace(after, turn_at=reconciled.memory.turn_at) == reconciled.memory
        if is_stored and not interrupted_messages:  # a retry
            self.add_unstored(turn, accounted.entry)
            return NOTHING_COMMITTED
        after = replace(
            self._copy_rendered_values(turn, after),
            model=turn.request.model,
            offers_tools=turn.request.offers_tools,
        )
        try:
            committed = await self._write(
                reconciled.memory, after, accounted.entry, interrupted_messages, turn.asked_at
            )
        except ForgottenName:
            if await self.memories.store.version(turn.key):
                raise  # others have made the row: the next attempt asks whether that was forgotten
            return self._leave_forgotten(turn)
        is_reply_last = (
            reply is not None and bool(after.tail) and after.tail[-1].item.fp == reply.fp
        )
        return CommittedTurn(committed, after.end if is_reply_last else 0)

    def _leave_forgotten(self, turn: OpenedTurn) -> CommittedTurn:
        self.memories.emit_forgotten(turn.key)
        return NOTHING_COMMITTED

    async def _end_turn(
        self, turn: OpenedTurn, reconciled: ReconciledTurn, end: TurnEnd
    ) -> tuple[Memory, list[Message]]:
        """Return the memory with the turn in it, and the interrupted reply, if there is one, with its
        seq."""
        reply, interrupted, ended_at = end.reply, end.interrupted, end.ended_at
        item, tokens, encoding = reply or interrupted, end.accounted.reply_tokens, ""
        if item is not None and tokens is None:
            tokens, encoding = await self._count_reply(turn, item)
        elif item is not None:
            model, read = turn.request.model or "", self.token_counter.encoding
            encoding = self.memories.facts.try_extra("tokens", turn.key, "", read, model)
        ended = (
            EndedReply(reply, tokens or 0, encoding, end.look_ups) if reply is not None else None
        )
        base, asked, verdict = reconciled.base, reconciled.asked, reconciled.verdict
        apply = partial(end_turn, base, asked, verdict, turn.asked_at, ended_at, ended)
        new_count = asked.next_seq - base.next_seq
        after = apply() if new_count <= MANY_MESSAGES else await run_off_loop(new_count, apply)
        now = self.clock()
        if after.turn_at is not None and after.turn_at > now:  # by a clock that was ahead
            after = replace(after, turn_at=now)
        if not interrupted:
            return after, []
        after, message = number_interrupted_reply(
            after, interrupted, tokens or 0, ended_at, encoding
        )
        return after, [message]

    async def _count_reply(self, turn: OpenedTurn, item: Item) -> tuple[int, str]:
        """Return the payload tokens of a reply, and the name of the encoding."""
        counts, encoding = await count_messages(
            self.token_counter,
            self.memories.facts,
            turn.key,
            {0: item.raw},
            turn.request.model or "",
            item.api,
        )
        return counts[0], encoding

    async def _count_look_ups(self, look_ups: LookedUp, model: str) -> LookedUp:
        beside = [look_ups.beside] if look_ups.beside else []
        rounds = (*look_ups.rounds, *beside)
        messages = [raw for one in rounds for raw in (one.assistant, *one.results)]
        counts = await self.token_counter.count(dict(enumerate(messages)), model, "chat")
        tokens = sum(counts.values()) + MESSAGE_FRAMING_TOKENS * len(messages)
        return look_ups._replace(tokens=tokens)

    # ── look-ups that quote a thread which was forgotten while they were made ─────────────────────
    #
    # Forgetting takes what is stored by then. So the events of forgettings are read before the turn is
    # stored; what is forgotten between that and the commit makes the commit conflict (`Store.commit`).

    async def _choose_kept_look_ups(self, turn: OpenedTurn, look_ups: LookedUp) -> LookedUp | None:
        """Return the look-ups; None if they quote a thread that was forgotten since the request
        came."""
        if not list_named_labels(look_ups):
            return look_ups
        since = turn.asked_at - CLOCK_MARGIN_S
        gone = await self.memories.forgettings.list_labels_since(turn.key.tenant, since)
        return None if any(quotes_thread(look_ups, label) for label in gone) else look_ups

    async def _check_stored_look_ups(
        self, turn: OpenedTurn, memory: Memory, look_ups: LookedUp
    ) -> Memory:
        """Take look-ups that quote others out of a turn that waits for the store: a forgetting
        would not find them. Return the memory as it is then."""
        if memory.version > 0 or not list_named_labels(look_ups):
            return memory

        def drop(stored: Memory) -> Memory:
            tail = tuple(
                replace(m, look_ups=None) if m.look_ups == look_ups else m for m in stored.tail
            )
            return replace(stored, tail=tail) if tail != tuple(stored.tail) else stored

        return await self.memories.update(turn.key, drop, turn.scope, row_id=memory.row_id)

    def _is_retry_recorded(self, turn: OpenedTurn, memory: Memory) -> bool:
        """Return whether storing the time of this retry would change nothing: the last turn is
        recent, and its prompt had the same date."""
        is_recent = memory.turn_at is not None and self.clock() - memory.turn_at <= WARM_CACHE_S
        rendered = self._copy_rendered_values(turn, memory)
        return is_recent and rendered.render_date == memory.render_date

    async def _store_retry_time(
        self, turn: OpenedTurn, memory: Memory, entry: TurnEntry | None
    ) -> None:
        """Store the time of a retry and the values that its prompt was built with, unless that would
        change nothing."""
        if self._is_retry_recorded(turn, memory):
            self.add_unstored(turn, entry)
        else:
            after = replace(self._copy_rendered_values(turn, memory), turn_at=self.clock())
            await self._write(memory, after, entry)

    def _copy_rendered_values(self, turn: OpenedTurn, memory: Memory) -> Memory:
        return self.memories.facts.try_extra(
            "prompt_values", turn.key, memory, copy_rendered_values, turn, memory
        )

    def add_unstored(self, turn: OpenedTurn, entry: TurnEntry | None) -> None:
        """Keep what a turn that stores nothing adds to the ledger. The thread's next commit writes
        it."""
        if entry is not None:
            self.unstored.add(turn.key, entry)

    def add_query_costs(self, key: Key, account: Account) -> None:
        """Keep what the vector of a query cost. The next commit of the thread that asked writes it.
        A search of a whole resource is no thread's."""
        if key.thread == RESOURCE_THREAD:
            return
        memory = self.memories.held.find(key) or Memory(key=key)
        self.unstored.add_memory_calls(key, NO_MEMORY_COSTS.add(account, memory.history))

    async def _write(
        self,
        before: Memory,
        after: Memory,
        entry: TurnEntry | None,
        interrupted: Sequence[Message] = (),
        began_at: float | None = None,
    ) -> Memory:
        """Try once to commit the memory, with its ledger. Raise Conflict. `began_at`: as in
        `Memories.commit`."""
        unstored = self.unstored.take(before.key)

        def add_up() -> ThreadLedger:
            ledger = join_ledgers(before.ledger, unstored) if unstored else before.ledger
            return ledger if entry is None else add_turn(ledger, entry)

        ledger = self.memories.facts.try_extra("ledger", before.key, before.ledger, add_up)
        try:
            return await self.memories.commit(
                before, replace(after, ledger=ledger), interrupted, began_at=began_at
            )
        except BaseException:
            if unstored:
                self.unstored.put_back(before.key, unstored)
            raise


def is_overtaken(turn: OpenedTurn, compared: ReconciledTurn) -> bool:
    """Return whether others ended turns after this one's request came, so that they may have
    answered what it shows, or gone on from it. A lone message that forks nothing follows them if
    its client sends no others, and so does the rest of a turn that is stored in part. `compared`:
    the turn on the newest state of its thread."""
    memory, verdict = compared.memory, compared.verdict
    turn_at, own = memory.turn_at, verdict.repeats
    is_own = own is not None and own.asked_at == turn.asked_at
    is_late = turn_at is not None and turn_at > turn.asked_at
    may_repeat = verdict.forks or compared.sent.count > 1 or memory.style != "thin"
    return is_late and not is_own and may_repeat


def is_same_reply(recorded: Item, reply: Item) -> bool:
    """Return whether a stored reply says the same, and is named by the same id."""
    return recorded.fp == reply.fp and recorded.origin == reply.origin


def copy_rendered_values(turn: OpenedTurn, memory: Memory) -> Memory:
    """Return the memory with the values that the prompt was built with: the render date, the time
    zone, the text about other threads, and which look-ups have left. If the prompt had no notes, or
    the log has changed since, set only the time zone and the look-ups."""
    built = turn.reconciled.projected
    if built.look_ups_log_state != memory.look_ups_log_state:
        memory = replace(
            memory,
            look_ups_after=built.look_ups_after,
            look_ups_log_state=built.look_ups_log_state,
        )
    # Compare `shared_log` too: one of the other threads may have been forgotten since, and their
    # text with it.
    is_log_unchanged = (
        memory.log.entries == built.log.entries
        and memory.log.pins == built.log.pins
        and memory.shared_log_ref == built.shared_log_ref
    )
    has_notes = built.log.entries or built.log.pins or built.shared_log_ref
    if not is_log_unchanged or not has_notes:
        timezone = turn.timezone or memory.timezone
        return memory if timezone == memory.timezone else replace(memory, timezone=timezone)
    if memory.shared_log_ref:
        memory = replace(
            memory,
            other_threads_text=built.other_threads_text,
            shown_log_state=built.shown_log_state,
            shown_pins_version=built.shown_pins_version,
        )
    return replace(memory, render_date=built.render_date, timezone=built.timezone)
