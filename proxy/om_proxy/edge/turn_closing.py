"""Close a turn while its answer is relayed. The reply is stored before the client sees its end.

The copy of a reply that is read for memory is charged to the memory budget until it is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace
from starlette.types import Send

from om_proxy.common.errors import raise_site
from om_proxy.common.off_loop import MANY_BYTES, run_off_loop
from om_proxy.common.reasons import Reason, Status
from om_proxy.common.running_time import wait_running_time
from om_proxy.edge.exchange import NO_MEMORY_RECEIPT, Delivery, Exchange, build_receipt, read_hints
from om_proxy.edge.passthrough import CLIENT_LEFT
from om_proxy.edge.relay import Outcome, relay
from om_proxy.edge.rounds.recall_offers import RecallRecord
from om_proxy.engine.background.scheduler import Background
from om_proxy.engine.turns.accounting import NOTHING_ACCOUNTED, AccountedTurn
from om_proxy.engine.turns.engine import Engine
from om_proxy.engine.turns.prompt_builder import ShadowPrompt, find_ready
from om_proxy.engine.turns.turn import MissedTurn, PreparedTurn
from om_proxy.memory.ledger import UNTIMED, TurnService
from om_proxy.memory.model import Key
from om_proxy.memory.rounds import keep_rounds
from om_proxy.observability.facts import Facts, Uncommitted
from om_proxy.settings.identity.callers import identify
from om_proxy.wire.apis.api import MAX_REMEMBERED_REPLY_BYTES, Reply, ReplyReader
from om_proxy.wire.server.capacity.budget import COPY_WEIGHT, FREE_COPY_BYTES, MemoryBudget
from om_proxy.wire.server.capacity.fair_queue import LARGE_PIECE_BYTES
from om_proxy.wire.upstream import UpstreamResponse

# How many large replies are stored at a time. A small reply waits in the store for those before it.
MAX_LARGE_REPLIES_AT_ONCE = 1
# Of a copy, collected until they are charged and read: 80 events, a tenth of a millisecond.
MAX_UNREAD_BYTES = 1 << 14
# How long the end of a reply may wait for the commit. The commit continues afterwards.
MAX_COMMIT_WAIT_S = 5.0
# After one of these answers, nothing of the request is stored.
UNVERIFIED_STATUSES = (400, 401, 403, 404, 413, 422)
# Nothing is read or written for such a request, so nothing of it is counted.
SWITCHED_OFF_REASONS = (Reason.MODE_OFF, Reason.DISABLED)
# The client left before the upstream answered.
NO_ANSWER_STATUS = CLIENT_LEFT.status


@dataclass(slots=True, eq=False)
class TurnClosing:
    """The end of each turn: its answer is relayed, and the turn is stored in a task that outlives
    the request."""

    engine: Engine
    background: Background
    budget: MemoryBudget
    facts: Facts
    _large_reply_slots: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(MAX_LARGE_REPLIES_AT_ONCE)
    )

    async def relay(
        self,
        exchange: Exchange,
        answer: UpstreamResponse,
        send: Send,
        disconnected: asyncio.Future[None] | None,
    ) -> Outcome:
        """Relay an answer, and close its turn before the last bytes are sent. `disconnected` is done
        when the client has left; None: relay to the end even then."""
        turn, delivery, key = exchange.turn, exchange.delivery, exchange.caller.key
        should_store = turn is not None or exchange.missed_at is not None
        reader = end_finder = None
        if exchange.request and (should_store or is_counted_only(exchange, answer.status)):
            api = exchange.request.api
            reader = ReplyCopy(api.create_reply_reader(exchange.request.stream), self.budget)
            end_finder = api.create_end_finder() if should_store else None
        is_settled = False
        closing: asyncio.Task[None] | None = None

        async def before_end() -> None:
            nonlocal is_settled, closing
            assert reader is not None  # passed to `relay` only with a reader
            # the client may leave meanwhile: then the turn is settled below
            reply = await self._read_reply(exchange, reader)
            is_settled = True
            try:
                if turn is not None:
                    delivery.reply_seq = self.engine.close_repeated(
                        turn, reply, read_service(exchange)
                    )
                if delivery.reply_seq:
                    reader.release()
                    return
                closing = self.start(exchange, reply, answer.status)
            # docs/contributing/behaviour.md#fail-open: the client gets the end of its answer
            except Exception as exc:
                self._report_uncommitted(exchange, exc)
                return
            closing.add_done_callback(reader.release)
            await wait_running_time(closing, MAX_COMMIT_WAIT_S)

        comments = exchange.comments.read() if exchange.comments else b""
        try:
            relayed = await relay(
                answer,
                send,
                receipt=self.facts.try_extra(
                    "receipt", key, [*NO_MEMORY_RECEIPT], build_receipt, exchange
                ),
                reader=reader,
                before_end=before_end if reader and should_store else None,
                end_finder=end_finder,
                disconnected=disconnected,
                comments=comments,
                report_fault=partial(self.facts.report_extra, "reply_copy", key),
            )
            delivery.is_end_sent = relayed.is_end_sent
            if reader is not None and not should_store:
                reply = await self._read_reply(exchange, reader)
                self._count_passed(exchange, reply)
                if exchange.asks_for_title and key is not None and exchange.caller.mode != "read":
                    keep = self.engine.keep_title
                    kept = self.facts.await_extra(
                        "title", key, None, keep, key, exchange.api, reply
                    )
                    self.background.run_detached(kept)
            elif reader is not None and not is_settled:
                reply = await self._read_reply(exchange, reader)
                # The client saw the reply break off. Store it as interrupted, even if it looks
                # complete.
                if relayed.outcome == "truncated":
                    reply = replace(reply, complete=False)
                closing = self.start(exchange, reply, answer.status, is_end_unseen=True)
                closing.add_done_callback(reader.release)
        # on any exception: budget that is not released is lost until the process ends
        finally:
            if reader is not None and closing is None:
                reader.release()
        if should_store and reader is not None and reader.is_given_up:
            # only for the log: the receipt was sent before the reply
            exchange.reason = Reason.REPLY_TOO_LARGE
        if turn is not None:
            self._record_delivery(turn, delivery)
        return relayed.outcome

    async def _read_reply(self, exchange: Exchange, reader: ReplyCopy) -> Reply:
        """Read the copy of a reply, with its look-ups. Return an empty Reply if it cannot be read."""
        key = exchange.caller.key
        reply = await self.facts.await_extra("reply_copy", key, Reply(), reader.finish)
        recall = exchange.recall
        # a reply has a second round also if a look-up failed
        if recall is None or not (recall.steps or recall.list_usages()[1:]):
            exchange.usage = reply.usage
            return reply
        return self.facts.try_extra("rounds", key, reply, take_rounds, exchange, recall, reply)

    async def close_without_reply(self, exchange: Exchange, status: int) -> None:
        """Store the turn of a request without an answer. Wait for that up to 5 s."""
        await wait_running_time(self.start(exchange, None, status), MAX_COMMIT_WAIT_S)

    def start(
        self, exchange: Exchange, reply: Reply | None, status: int, *, is_end_unseen: bool = False
    ) -> asyncio.Task[None]:
        """Store the turn in a task that outlives the request. `is_end_unseen`: the client has not
        seen the end of the reply."""
        commit = self._choose_commit(exchange, reply, status, is_end_unseen=is_end_unseen)
        return self.background.run_detached(self._close_or_defer(exchange, reply, commit))

    async def _close_or_defer(
        self, exchange: Exchange, reply: Reply | None, commit: Callable[[], Awaitable[None]] | None
    ) -> None:
        key = exchange.caller.key
        if key is None or commit is None:
            return
        held_bytes = len(exchange.body) + len((reply and reply.message) or b"")
        try:
            # the receipt has told the client about a missed turn, so the reply need not wait
            if exchange.turn is None:
                await commit()
            else:
                await self.engine.commit_or_defer(key, commit, held_bytes)
        except Exception as exc:  # the client has its answer
            self._report_uncommitted(exchange, exc)

    def _report_uncommitted(self, exchange: Exchange, exc: Exception) -> None:
        """Report a lost turn to the operator, with its cause."""
        error = type(exc).__name__
        self.facts.emit(Uncommitted(exchange.caller.key, error, at=raise_site(exc)))

    def _choose_commit(
        self, exchange: Exchange, reply: Reply | None, status: int, *, is_end_unseen: bool
    ) -> Callable[[], Awaitable[None]] | None:
        """Return the call that stores the turn, or defers one whose memory could not be read; None:
        nothing of it is stored."""
        turn = exchange.turn
        ended_at = self.engine.now()  # the turn may be stored much later
        is_success = 200 <= status < 300
        if turn is None:
            if exchange.missed_at is None or not is_success:
                return None
            self._count_passed(exchange, reply)
            return partial(self._defer_missed, exchange, reply, ended_at)
        if is_success:
            return partial(
                self._commit_turn,
                turn,
                reply,
                exchange.delivery,
                exchange.shadow,
                exchange.recall,
                exchange.caller.key,
                read_service(exchange),
                is_end_unseen=is_end_unseen,
                ended_at=ended_at,
            )
        if status in UNVERIFIED_STATUSES:
            return None
        # in an earlier turn the upstream has accepted this caller
        has_earlier_turn = turn.opened.reconciled.memory.turns > 0
        if status == NO_ANSWER_STATUS and not has_earlier_turn:
            return None
        return partial(self.engine.store_unanswered, turn, ended_at)

    async def _defer_missed(self, exchange: Exchange, reply: Reply | None, ended_at: float) -> None:
        assert exchange.request is not None  # an unreadable request is not stored
        assert exchange.context is not None  # see `_mark_missed`
        assert exchange.missed_at is not None  # see `_mark_missed`
        delivery, came_at = exchange.delivery, exchange.missed_at
        rules = exchange.rules
        headers = rules.select_identity_headers(exchange.scope["headers"])
        missed = MissedTurn(
            exchange.caller,
            lambda secret: identify(headers, rules, secret, came_at),
            replace(exchange.request, body=b"", frame=b"", readable=b""),
            exchange.context,
            read_hints(exchange),
            came_at,
            reply,
            ended_at,
            was_delivered=lambda: delivery.is_end_sent is not False,
        )
        self.engine.defer_missed(missed)

    async def _commit_turn(
        self,
        turn: PreparedTurn,
        reply: Reply | None,
        delivery: Delivery,
        shadow_task: asyncio.Task[ShadowPrompt | None] | None = None,
        recall: RecallRecord | None = None,
        key: Key | None = None,
        service: TurnService = UNTIMED,
        *,
        is_end_unseen: bool,
        ended_at: float,
    ) -> None:
        is_large = reply is not None and len(reply.message or b"") > LARGE_PIECE_BYTES
        async with self._large_reply_slots if is_large else nullcontext():
            shadow = self.facts.try_extra("shadow", key, None, find_ready, shadow_task)
            if delivery.accounted is None:  # a deferred commit is tried again
                accountant = self.engine.accountant
                later_rounds = recall.list_usages()[1:] if recall is not None else ()
                tool = recall.tool if recall is not None else None
                account = accountant.account
                delivery.accounted = accounted = await self.facts.await_extra(
                    "ledger",
                    key,
                    NOTHING_ACCOUNTED,
                    account,
                    turn,
                    reply,
                    shadow,
                    later_rounds,
                    tool,
                    service,
                )
                if shadow is None and shadow_task is not None and reply is not None:
                    add_late = partial(self._add_late_shadow, turn, reply, accounted)
                    shadow_task.add_done_callback(add_late)
            if shadow is not None:
                # stored with the render date, as the turn of a live prompt is
                turn = replace(turn, opened=shadow.opened)
            committed = await self.engine.close_turn(
                turn,
                reply,
                delivery.accounted,
                is_end_unseen=is_end_unseen,
                ended_at=ended_at,
            )
        delivery.reply_seq = committed.reply_seq
        self._record_delivery(turn, delivery)

    def _add_late_shadow(
        self,
        turn: PreparedTurn,
        reply: Reply,
        accounted: AccountedTurn,
        shadow_task: asyncio.Task[ShadowPrompt | None],
    ) -> None:
        key = turn.opened.key
        if shadow := self.facts.try_extra("shadow", key, None, find_ready, shadow_task):
            add = self.engine.add_late_shadow
            self.facts.try_extra("ledger", key, None, add, turn, reply, accounted, shadow)

    def _count_passed(self, exchange: Exchange, reply: Reply | None) -> None:
        """Account for a request whose memory had no part in its prompt."""
        key, request = exchange.caller.key, exchange.request
        if key is not None and request is not None and reply is not None:
            account = self.engine.accountant.account_passed
            self.facts.try_extra(
                "ledger",
                key,
                None,
                account,
                key,
                request.model,
                len(exchange.body),
                reply,
                read_service(exchange),
            )

    def _record_delivery(self, turn: PreparedTurn, delivery: Delivery) -> None:
        """Record a reply that is both stored and sent to its end. This is called when either is
        done."""
        if delivery.reply_seq and delivery.is_end_sent:
            self.engine.record_delivery(turn.opened, delivery.reply_seq)


def is_counted_only(exchange: Exchange, status: int) -> bool:
    """Return whether the reply is read for the ledger alone: the request names a thread and memory
    has no part in it, though nobody has switched memory off for it."""
    return (
        exchange.caller.key is not None
        and 200 <= status < 300
        and exchange.reason not in SWITCHED_OFF_REASONS
    )


def read_service(exchange: Exchange) -> TurnService:
    """Return how a turn whose answer has come was served."""
    overhead_us = round(exchange.overhead_ms * 1_000)
    return TurnService(overhead_us, exchange.status is Status.DEGRADED)


def take_rounds(exchange: Exchange, recall: RecallRecord, reply: Reply) -> Reply:
    """Give the exchange the usage of all rounds. Return the reply with the look-ups made for it,
    and with the first round's usage: the ledger counts the others as a cost of memory."""
    usages = recall.list_usages()
    reported = [usage for usage in usages if usage is not None]
    exchange.usage = sum(reported[1:], reported[0]) if reported else None
    look_ups = keep_rounds(recall.rounds, recall.beside)
    return replace(reply, usage=usages[0], look_ups=look_ups)


class ReplyCopy:
    """A reader of a reply within the budget. The copy is given up when the budget has no room for
    more of it, or above `MAX_REMEMBERED_REPLY_BYTES`: its memory is freed at once, and its turn is
    stored with an interrupted reply. The client's bytes are not affected."""

    __slots__ = (
        "_budget",
        "_bytes",
        "_charged_bytes",
        "_finishing",
        "_read_at_bytes",
        "_reader",
        "_unread",
        "is_given_up",
    )

    def __init__(self, reader: ReplyReader, budget: MemoryBudget) -> None:
        self._budget = budget
        self._reader: ReplyReader | None = reader
        self._unread: list[bytes] = []
        self._bytes = self._charged_bytes = 0
        self._read_at_bytes = MAX_UNREAD_BYTES
        self._finishing: asyncio.Task[Reply] | None = None
        self.is_given_up = False

    def feed(self, data: bytes) -> None:
        """Collect pieces, and charge and read many together: of one event, either alone costs as
        much as relaying it."""
        if self._reader is None:
            return
        self._unread.append(data)
        self._bytes += len(data)
        if self._bytes >= self._read_at_bytes:
            self._read_unread(self._reader)

    def _read_unread(self, reader: ReplyReader) -> None:
        if self._bytes > FREE_COPY_BYTES and not self._charge(COPY_WEIGHT * self._bytes):
            self.is_given_up = True
            self.release()
            return
        unread, self._unread = self._unread, []
        self._read_at_bytes = self._bytes + MAX_UNREAD_BYTES
        reader.feed(b"".join(unread))

    async def finish(self) -> Reply:
        """Read the reply, off the event loop if it is large, and drop the reader. A cancelled
        caller may call again. The reply stays charged until `release`."""
        if self._finishing is None:
            if self._reader is not None:
                self._read_unread(self._reader)
            reader, self._reader = self._reader, None
            if reader is None:
                return Reply()
            if self._bytes <= MANY_BYTES:
                return reader.finish()
            self._finishing = asyncio.create_task(
                run_off_loop(self._bytes, reader.finish, MANY_BYTES)
            )
        return await asyncio.shield(self._finishing)

    def release(self, _: object = None) -> None:
        """Free the copy: the reply is stored or given up. A second call does nothing."""
        self._reader = self._finishing = None
        self._unread = []
        if self._charged_bytes:
            self._budget.change(-self._charged_bytes)
            self._charged_bytes = 0

    def _charge(self, total_bytes: int) -> bool:
        """Charge the budget up to this total. Return False if there is no room for it."""
        if self._bytes > MAX_REMEMBERED_REPLY_BYTES:
            return False
        if not self._budget.charge_copy(total_bytes - self._charged_bytes):
            return False
        self._charged_bytes = total_bytes
        return True
