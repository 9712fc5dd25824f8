"""Open a turn before the request goes upstream, and close it when the reply has come.

`open_turn` compares the request with the thread's memory, performs due work and builds the prompt.
`close_turn` commits the turn. Until then, a fork and new messages exist only in a *projected*
memory. So a turn that fails leaves no trace except the messages that the client really sent.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import structlog
from msgspec.structs import replace

from om_proxy.agents.models import TokenCounter
from om_proxy.common.apis import ApiName
from om_proxy.common.errors import NotFound, OmError, StorageError, Unwritable, raise_site
from om_proxy.common.reasons import Reason, Status
from om_proxy.common.running_time import Deadline, limit_running_time
from om_proxy.engine.background.recounting import Recounter
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.policy import MemoryContext
from om_proxy.engine.turns.accounting import NOTHING_ACCOUNTED, Accountant, AccountedTurn
from om_proxy.engine.turns.block_renderer import BlockRenderer
from om_proxy.engine.turns.committing import Committer, TurnEnd
from om_proxy.engine.turns.deferred import DeferredTurns
from om_proxy.engine.turns.deliveries import Deliveries
from om_proxy.engine.turns.due_notes import DueNotes, MemoryWork, OverflowRecovery
from om_proxy.engine.turns.prompt_builder import PromptBuilder, ShadowPrompt, ShadowPrompts
from om_proxy.engine.turns.reconciling import Reconciler
from om_proxy.engine.turns.turn import (
    NOTHING_COMMITTED,
    CommittedTurn,
    MissedTurn,
    OpenedTurn,
    PreparedTurn,
    TakenForSideRequest,
)
from om_proxy.memory.ledger import UNTIMED, TurnService
from om_proxy.memory.lifecycle.decisions import Decision
from om_proxy.memory.lifecycle.retention import is_near_expiry
from om_proxy.memory.model import Item, Key, Memory, resource_key
from om_proxy.memory.notes.redaction import redact_secrets
from om_proxy.memory.prompt.context import Layout
from om_proxy.memory.transcript.reconcile import Hints
from om_proxy.observability.facts import Uncommitted
from om_proxy.settings.identity.callers import Caller
from om_proxy.wire.apis.api import Reply, Request
from om_proxy.wire.apis.titles import read_replied_title

logger = structlog.get_logger("memory")

# How long the end of a reply waits for a turn whose commit is retried.
MAX_HELD_REPLY_END_S = 5.0


class Engine:
    """The entry to turns. It holds no state of its own, but for the engine that comes after it:
    engine/background/scheduler.py uses the same parts."""

    def __init__(
        self,
        memories: Memories,
        background: MemoryWork,
        renderer: BlockRenderer,
        token_counter: TokenCounter,
        secret: bytes,
        clock: Callable[[], float] = time.time,
        deferred: DeferredTurns | None = None,
        deliveries: Deliveries | None = None,
        on_decision: Callable[[Decision], None] = lambda decision: None,
    ) -> None:
        self._memories = memories
        self._deferred = DeferredTurns() if deferred is None else deferred
        self._background = background
        self._clock = clock
        self._secret = secret
        self._successor: tuple[Engine, float] | None = None
        self.deliveries = deliveries or Deliveries(memories.store, clock, memories.is_degraded)
        self.accountant = Accountant(token_counter, memories.facts)
        self._reconciler = reconciler = Reconciler(
            memories, token_counter, secret, clock, background.last_seq_being_read, self.deliveries
        )
        self.committer = committer = Committer(memories, reconciler, token_counter, clock)
        memories.traces.on_retire += [self.deliveries.drop, committer.unstored.drop]
        memories.traces.on_forget += [*memories.traces.on_retire, self._deferred.forget]
        memories.traces.on_words_erased.append(renderer.drop_blocks)
        self._due_notes = DueNotes(memories, background, reconciler, committer, clock, on_decision)
        self.prompt_builder = builder = PromptBuilder(memories, renderer, token_counter, clock)
        self.shadow_prompts = ShadowPrompts(builder)
        self.overflow_recovery = OverflowRecovery(
            memories, background, reconciler, committer, builder, clock
        )
        self._recounting = Recounter(memories, token_counter)

    # ── opening ───────────────────────────────────────────────────────────────────────────────────

    async def open_turn(
        self,
        caller: Caller,
        request: Request,
        context: MemoryContext,
        hints: Hints,
        deadline: Deadline | None = None,
        recall_tool: str | None = None,
        came_at: float | None = None,
    ) -> PreparedTurn:
        """Prepare the prompt of this request. `caller.key` must be set. `deadline` is extended
        while the request waits for an observation. `recall_tool`: the name under which the request
        offers the tool that looks up earlier messages; None: it does not. `came_at`: when it came;
        None: now.

        Raise OmError; the original request then goes upstream. It also does so on
        TakenForSideRequest, which is no error.
        """
        if self._successor is not None:  # the caller was identified by another store's secret
            raise StorageError("another store was opened since the request came")
        if caller.key and self._deferred.is_waiting(caller.key):
            await self._deferred.commit_waiting(caller.key)
        turn = await self._reconciler.reconcile(caller, request, context, hints, came_at)
        if recall_tool:
            turn = replace(turn, recall_tool=recall_tool)
        if caller.mode == "read":
            return await self.prompt_builder.build(turn)
        turn = await self._due_notes.apply(turn, deadline)
        if self._may_expire(turn) and not await self._keep_thread(turn):
            return await self.open_turn(
                caller, request, context, hints, deadline, recall_tool, came_at
            )
        if turn.can_rewrite:
            prepared = await self.prompt_builder.build(turn)
        else:
            prepared = await self.prompt_builder.keep_original(turn, turn.kept_reason)
        if self._memories.is_degraded(turn.key):
            return replace(prepared, status=Status.DEGRADED, reason=Reason.STORAGE)
        return prepared

    def _may_expire(self, turn: OpenedTurn) -> bool:
        """Return whether retention may forget the thread before this turn has ended."""
        memory = turn.reconciled.memory
        lifetime_s = turn.context.effective.retention.lifetime_s
        return bool(turn.row_id) and is_near_expiry(memory.turn_at, lifetime_s, self._clock())

    async def _keep_thread(self, turn: OpenedTurn) -> bool:
        """Store that the thread is in use. Return False if it is gone: the request starts a new
        one."""
        keep = partial(replace, turn_at=self._clock())
        try:
            await self._memories.update(
                turn.key, keep, turn.scope, row_id=turn.row_id, must_exist=True
            )
        except NotFound:
            return False
        except StorageError:
            pass  # retention cannot reach the store either
        return True

    async def rebuild(
        self, turn: PreparedTurn, *, recall_tool: str | None, layout: Layout
    ) -> PreparedTurn:
        """Return the turn with the prompt of a request that offers this tool for look-ups, and has
        the block there. Without a tool there is not a word about it, and no earlier look-up."""
        context = turn.opened.context.with_layout(layout)
        opened = replace(turn.opened, recall_tool=recall_tool, context=context)
        built = await self.prompt_builder.build(opened)
        return replace(built, status=turn.status, reason=turn.reason)

    # ── closing ───────────────────────────────────────────────────────────────────────────────────

    async def close_turn(
        self,
        turn: PreparedTurn,
        reply: Reply | None,
        accounted: AccountedTurn = NOTHING_ACCOUNTED,
        *,
        is_end_unseen: bool = False,
        ended_at: float | None = None,
    ) -> CommittedTurn:
        """Commit a turn that the upstream answered with 2xx.

        `reply`: None if nothing usable came. `accounted`: by `accountant`. `is_end_unseen`: the
        client has not seen the end of the reply, and may have asked again since. `ended_at`: when
        the reply ended, in unix seconds; None: now. Its messages have this time, however late they
        are stored.

        A failed request that forks leaves no trace. The new messages of any other failed request
        are stored as unanswered.
        """
        opened = turn.opened
        if not opened.should_store:
            return NOTHING_COMMITTED
        complete, interrupted = await self._read_reply(opened, reply)
        if complete is None and opened.reconciled.verdict.forks:
            self.committer.add_unstored(opened, accounted.entry)
            return NOTHING_COMMITTED
        end = TurnEnd(
            self._clock() if ended_at is None else ended_at,
            complete,
            interrupted,
            accounted,
            is_end_unseen,
            reply.look_ups if complete is not None and reply is not None else None,
            bool(reply and reply.others),
        )
        committed = await self.committer.commit(opened, end)
        self._start_due_work(opened, committed)
        return committed

    async def _read_reply(
        self, turn: OpenedTurn, reply: Reply | None
    ) -> tuple[Item | None, Item | None]:
        """Return the reply as it is stored: a complete one, or what came of one that broke off."""
        read = self._reconciler.read_reply_item
        item = await self._memories.facts.await_extra(
            "reply_item", turn.key, None, read, turn, reply
        )
        return (item, None) if reply is not None and reply.complete else (None, item)

    def _start_due_work(self, turn: OpenedTurn, committed: CommittedTurn) -> None:
        if committed.memory is None:
            return
        facts = self._memories.facts
        facts.try_extra("wake", turn.key, None, self._wake, turn)
        facts.try_extra("recount", turn.key, None, self._recount, turn, committed.memory)

    async def keep_title(self, key: Key, api: ApiName, reply: Reply) -> None:
        """Give a stored thread the title that its client asked a model for, without secrets, unless a
        person pinned one."""
        title = (
            redact_secrets(read_replied_title(reply.message, api) or "") if reply.complete else ""
        )
        row_id = (await self._memories.store.load(key)).row_id if title else 0

        def change(memory: Memory) -> Memory:
            return memory if memory.title_pinned else replace(memory, title=title)

        if row_id:
            await self._memories.update(key, change, row_id=row_id)

    def _wake(self, turn: OpenedTurn) -> None:
        key = turn.key if turn.scope == "thread" else resource_key(turn.key)
        self._background.wake(key, turn.work_context)

    def _recount(self, turn: OpenedTurn, memory: Memory) -> None:
        """Count the tail again in the background, if another model's encoding counted it."""
        if self._recounting.is_due(memory):
            self._background.run_detached(
                self._recounting.recount(memory, then=partial(self._wake, turn))
            )

    async def close_missed(self, missed: MissedTurn) -> None:
        """Commit the turn of a request whose memory could not be read when it came, so that its
        original bytes went upstream. Its message may be stored already: it was to wait for an
        observation, or an earlier commit of the turn was cut.

        If other turns ended since it came, the request could not contain their messages: it is
        compared with what was before them (docs/contributing/storage.md#turns-that-waited). If its
        reply went out to its last byte, the same message sent again is a new message.

        If the thread was forgotten since the request came, nothing is stored.
        """
        caller, reply, is_delivered = missed.caller, missed.reply, missed.was_delivered()
        # another store may get the turn meanwhile, with times by its own clock (`hand_over`)
        came_at, ended_at = missed.came_at, missed.ended_at
        assert caller.key is not None  # a request without a thread has no memory to miss
        try:
            turn = await self._reconciler.reconcile(
                caller, missed.request, missed.context, missed.hints, came_at, missed
            )
        except TakenForSideRequest:
            return
        # Asked after the memory was read. A row that is forgotten later is missed at the commit,
        # and one that was gone by then has left its event.
        if await self._memories.forgettings.is_forgotten_in_store(caller.key, came_at):
            self._memories.emit_forgotten(caller.key)
            return
        missed.is_commit_begun = True
        if not turn.should_store:
            return
        complete, interrupted = await self._read_reply(turn, reply)
        end = TurnEnd(ended_at, complete, interrupted, has_choices=bool(reply and reply.others))
        committed = await self.committer.commit_missed(turn, end, is_delivered=is_delivered)
        self._start_due_work(turn, committed)
        if is_delivered:
            self.record_delivery(turn, committed.reply_seq)

    async def commit_or_defer(
        self, key: Key, commit: Callable[[], Awaitable[None]], held_bytes: int
    ) -> None:
        """Commit, and wait until the turn is stored. If it cannot be stored, defer it, and wait a
        few seconds at most."""
        if not self._deferred.is_waiting(key):
            try:
                await commit()
            except Unwritable:
                raise
            except Exception as exc:  # the client has its answer: the turn is tried again
                if not isinstance(exc, StorageError):
                    error, at = type(exc).__name__, raise_site(exc)
                    logger.warning("turn.commit_failed", error=error, at=at)
            else:
                await self._memories.wait_until_stored(key)
                return
        turn = self._deferred.defer(key, commit, held_bytes)
        with suppress(TimeoutError):
            async with limit_running_time(MAX_HELD_REPLY_END_S):
                await turn.released.wait()
                await self._memories.wait_until_stored(key)

    def now(self) -> float:
        return self._clock()

    def hand_over(self, successor: Engine, clock_step_s: float) -> None:
        """Give the turns whose memory was not read to the engine of a store that was opened, and
        those under way once they end. `clock_step_s`: by how much its clock is ahead of the one
        that came_at of these turns is by."""
        self._successor = successor, clock_step_s
        for turn in self._deferred.take_missed():
            turn.ended_at += clock_step_s  # those under way end by the new clock
            key = turn.caller.key
            try:
                self.defer_missed(turn)
            except OmError as exc:  # such as a token that has expired since
                self._memories.facts.emit(Uncommitted(key, type(exc).__name__))

    def defer_missed(self, turn: MissedTurn) -> None:
        """Keep a turn whose memory could not be read. Store it once it can be read."""
        if self._successor is not None:
            successor, clock_step_s = self._successor
            turn.move(successor._secret, clock_step_s)
            successor.defer_missed(turn)
            return
        key = turn.caller.key
        assert key is not None  # a request without a thread has no memory to miss
        turn.is_sent_again = self._is_sent_again(key, turn)
        self._deferred.defer(key, partial(self.close_missed, turn), turn.held_bytes, turn)

    def _is_sent_again(self, key: Key, turn: MissedTurn) -> bool:
        """Return whether the client is known for its whole history, and sends some now."""
        memory = self._memories.held.find(key)
        is_full = turn.hints.history == "full" or (memory is not None and memory.style == "full")
        return is_full and turn.request.api.has_replies(turn.request)

    def add_late_shadow(
        self, turn: PreparedTurn, reply: Reply, accounted: AccountedTurn, shadow: ShadowPrompt
    ) -> None:
        """Add the figure of a prompt that was built after its turn was closed."""
        entry = self.accountant.account_shadow(turn, reply, accounted, shadow)
        self.committer.add_unstored(turn.opened, entry)

    def close_repeated(
        self, turn: PreparedTurn, reply: Reply, service: TurnService = UNTIMED
    ) -> int:
        """Close the turn if this very reply is stored already: a retry that got the stored reply
        needs no commit. Return the seq of the reply, or 0 if the turn is not closed."""
        facts, key = self._memories.facts, turn.opened.key
        find = self.committer.find_stored_reply_seq
        reply_seq = facts.try_extra("repeat", key, 0, find, turn.opened, reply)
        if reply_seq:
            account = self.accountant.account_repeated
            entry = facts.try_extra("ledger", key, None, account, turn, reply, service)
            self.committer.add_unstored(turn.opened, entry)
        return reply_seq

    def record_delivery(self, turn: OpenedTurn, reply_seq: int) -> None:
        """Remember that the reply went out to its last byte. This matters only after a lone
        message: any other request that comes again is a retry."""
        if reply_seq and turn.reconciled.sent.count == 1:
            record = self.deliveries.record
            self._memories.facts.try_extra("delivery", turn.key, None, record, turn.key, reply_seq)

    async def store_unanswered(self, turn: PreparedTurn, ended_at: float | None = None) -> None:
        """Store the new messages of a request that the upstream could not answer, unless it forks.
        `ended_at`: as in `close_turn`."""
        opened = turn.opened
        if opened.should_store and not opened.reconciled.verdict.forks:
            end = None if ended_at is None else TurnEnd(ended_at)
            await self.committer.commit(opened, end)
