"""Serve one request of an API with memory: the intercepted routes, and the one place that fails open.

If memory fails, the client's original bytes go upstream and the receipt says so. If the upstream
fails, the client gets its answer unchanged. Only an ambiguous request (two credentials, a bad
header) is refused, and with `storage.on_down: 503` one that needs a memory which cannot be read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog
from starlette.types import Receive, Scope, Send

from om_proxy.common.errors import BadRequest, Conflict, MemoryAway, OmError, StorageError
from om_proxy.common.reasons import Reason, Status
from om_proxy.common.running_time import Deadline
from om_proxy.edge.attempts import Attempts
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.edge.exchange import (
    MIN_REPORTED_BODY_BYTES,
    NO_MEMORY_RECEIPT,
    Exchange,
    apply_kind,
    build_memory_context,
    build_receipt,
    describe_bypass,
    find_off_reason,
    read_hints,
    require_resource,
)
from om_proxy.edge.headers import OWN_HEADER_PREFIX, ask_uncompressed
from om_proxy.edge.rounds.recall_offers import RecallOffers, offer_additions
from om_proxy.edge.rounds.recalling import CreateLookUps, Recalling
from om_proxy.edge.routing import choose_upstream
from om_proxy.edge.turn_closing import NO_ANSWER_STATUS, TurnClosing
from om_proxy.engine.background.scheduler import Background
from om_proxy.engine.event_feed.inline import InlineComments, InlineEvents, parse_inline_choice
from om_proxy.engine.policy import MemoryContext
from om_proxy.engine.turns.engine import Engine
from om_proxy.engine.turns.turn import OpenedTurn, PreparedTurn, TakenForSideRequest
from om_proxy.observability.facts import Facts, RequestRefused, TurnEnded
from om_proxy.settings.identity.callers import Caller, identify
from om_proxy.settings.identity.client_names import name_client
from om_proxy.settings.identity.identity_rules import EVENTS_HEADER, find_unknown_header
from om_proxy.settings.identity.keyed_hashes import hash_seed
from om_proxy.wire.apis.api import TURN, Api, Request, Unreadable
from om_proxy.wire.apis.registry import drop_texts
from om_proxy.wire.apis.split import Splits
from om_proxy.wire.server import responses
from om_proxy.wire.server.capacity.budget import MemoryBudget
from om_proxy.wire.server.capacity.fair_queue import wait_slot
from om_proxy.wire.server.disconnect import (
    ClientDisconnected,
    DisconnectWatch,
    read_body,
    run_unless_disconnected,
)
from om_proxy.wire.server.headers import find_header
from om_proxy.wire.upstream import Upstream, UpstreamResponse

if TYPE_CHECKING:
    from om_proxy.observability.spans import ChatTracer

logger = structlog.get_logger("memory")

NO_OBSERVER_ADVICE = (
    "a client's credential belongs to a subscription, and no call of memory uses it: set memory.model "
    "to a model with a key of its own"
)
_EVENTS_HEADER = EVENTS_HEADER.encode()
# How long memory may take before the original goes upstream. Waiting for an observation is not
# counted.
MAX_OPEN_S = 5.0
# How many times as long, for a request without a reply of its conversation: its original holds
# nothing but the newest message.
NEWEST_ONLY_OPEN_FACTOR = 3
# Reading a request of this size takes a millisecond or more, so it waits for a slot on the event
# loop.
LARGE_BODY_BYTES = 1 << 18
MAX_TOLD_HEADERS = 20  # unknown ones, per process: clients name headers as they like


class TurnRoute:
    """The routes with memory, such as `POST /v1/chat/completions`, as a raw ASGI endpoint."""

    def __init__(
        self,
        engine: Engine,
        background: Background,
        upstream: Upstream,
        secret: bytes,
        budget: MemoryBudget,
        facts: Facts,
        inline: InlineEvents,
        tracer: ChatTracer | None = None,
        create_look_ups: CreateLookUps | None = None,
        offers: RecallOffers | None = None,
    ) -> None:
        self._inline = inline
        self._engine = engine
        self._offers = RecallOffers() if offers is None else offers
        self._attempts = Attempts(engine, background, upstream, facts)
        self._recalling = (
            Recalling(self._attempts.send_body, create_look_ups, facts, budget)
            if create_look_ups
            else None
        )
        self._closing = TurnClosing(engine, background, budget, facts)
        self._secret = secret
        self._facts = facts
        self._tracer = tracer
        self._splits = Splits()
        self._seed = hash_seed(secret)
        self._has_warned_of_no_observer = False
        self._told_headers: set[str] = set()  # unknown ones

    def hand_over(self, successor: TurnRoute, clock_step_s: float) -> None:
        """Give the turns whose memory was not read to the route of a store that was opened:
        `Engine.hand_over`."""
        self._engine.hand_over(successor._engine, clock_step_s)

    def drop_texts(self) -> None:
        """Drop what is kept of prompts to be fast: people may have forgotten their words."""
        self._splits.clear()
        self._offers.drop_threads()
        drop_texts()

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        config: EdgeConfig,
        api: Api,
        report_copies: Callable[[int], None] = lambda copies: None,
    ) -> None:
        """Serve one request. `report_copies` is told how many copies of the request's body are
        held, once that is known (wire/server/capacity/admission.py)."""
        try:
            exchange = await self._accept(scope, receive, config, api)
            exchange.report_copies = report_copies
            exchange.comments = self._prepare_comments(exchange)
            try:
                await self._open_memory(exchange, config)
                if exchange.reason is Reason.SIDE_REQUEST and exchange.request is not None:
                    exchange.asks_for_title = config.asks_for_title(exchange.request)
            except BaseException:
                if exchange.comments:
                    exchange.comments.close()
                raise
        except OmError as exc:
            await responses.send_error(send, exc, NO_MEMORY_RECEIPT, api.name)
            client = name_client(scope["headers"])
            self._facts.emit(RequestRefused(exc.status, exc.code, api.name, client))
            self._facts.emit_refusal(exc)
            return
        except ClientDisconnected:
            return
        exchange.overhead_ms = (time.perf_counter() - exchange.started) * 1_000
        if len(exchange.body) > MIN_REPORTED_BODY_BYTES:
            exchange.report_copies_before_sending()
        try:
            if self._tracer is None:
                await self._send_upstream(exchange, receive, send)
            else:
                await self._send_traced(exchange, receive, send, self._tracer)
        finally:
            if exchange.comments:
                exchange.comments.close()

    async def _send_traced(
        self, exchange: Exchange, receive: Receive, send: Send, tracer: ChatTracer
    ) -> None:
        """Send the request upstream within a span. The span's own parent is the client's."""
        caller, request, upstream = exchange.caller, exchange.request, exchange.upstream
        model = request.model if request else None
        span = tracer.begin_chat(exchange.headers, model, caller.key, upstream.name)
        exchange.span = span
        exchange.headers = span.replace_context(exchange.headers)
        try:
            await self._send_upstream(exchange, receive, send)
        finally:
            span.abandon()

    def _prepare_comments(self, exchange: Exchange) -> InlineComments | None:
        """Return the comments that the client asked for; None: it did not, or gets no stream."""
        key = exchange.caller.key
        if key is None or exchange.request is None or not exchange.request.stream:
            return None
        with_text = parse_inline_choice(find_header(exchange.scope["headers"], _EVENTS_HEADER))
        if with_text is None:
            return None
        return InlineComments(self._inline, self._facts, key, with_text=with_text)

    async def _accept(
        self, scope: Scope, receive: Receive, config: EdgeConfig, api: Api
    ) -> Exchange:
        """Read the request, and choose its upstream. Raise OmError to refuse it."""
        caller = identify(scope["headers"], config.identity, self._secret, time.time())
        if agent := api.find_sub_agent(scope["headers"]):
            caller = caller.name_sub_agent(agent)
        body = await read_body(receive, config.settings.limits.body)
        started = time.perf_counter()  # the time that the client takes to send does not count
        if len(body) > LARGE_BODY_BYTES:
            await wait_slot()
        request = self._parse_request(body, caller, config, api)
        upstream = (
            config.require_upstream(request.model, api.name)
            if request
            else choose_upstream(scope, config, body, api.name)
        )
        headers = config.select_upstream_headers(scope["headers"], upstream, caller, api.name)
        kind = api.classify(request, scope["headers"]) if request else TURN
        return Exchange(
            scope,
            body,
            request,
            apply_kind(caller, kind),
            upstream,
            started,
            rules=config.identity,
            headers=headers,
            api=api.name,
            kind=kind,
        )

    def _parse_request(
        self, body: bytes, caller: Caller, config: EdgeConfig, api: Api
    ) -> Request | None:
        """Parse the body. Return None if it is no request of this API, or if nothing needs its
        content."""
        if caller.reason and api.name in config.apis_without_choice:
            return None
        try:
            return api.parse_request(body, self._splits.get((api.name, caller.key)))
        except Unreadable:
            return None

    # ── memory, failing open ──────────────────────────────────────────────────────────────────────

    async def _open_memory(self, exchange: Exchange, config: EdgeConfig) -> None:
        """Open the turn, and set the exchange's status and reason. Raise only BadRequest, and
        MemoryAway where settings ask for it: on any other error the request goes upstream without
        memory."""
        try:
            exchange.reason = find_off_reason(exchange, config)
            if exchange.reason is Reason.NO_THREAD:
                self._tell_unknown_header(exchange)
            if exchange.reason or exchange.request is None:
                return
            context = build_memory_context(exchange, config)
            if not context.effective.memory.enabled:
                exchange.reason = Reason.DISABLED
                return
            require_resource(exchange.caller, context)
            exchange.came_at = self._engine.now()
            exchange.recall, exchange.trial, exchange.context = offer_additions(
                self._offers,
                exchange.request,
                exchange.caller.key.tenant if exchange.caller.key else "",
                exchange.upstream.name,
                context,
                can_look_up=self._recalling is not None,
            )
            context = exchange.context
            exchange.turn = await self._open_turn(exchange, exchange.request, context)
            if exchange.recall is not None and not await self._offers.can_look_up(exchange.turn):
                exchange.recall = None
        except BadRequest:
            raise  # an ambiguous request is refused, not guessed at
        except TakenForSideRequest as exc:
            exchange.reason, exchange.recall = exc.reason, None
            return
        # docs/contributing/behaviour.md#fail-open: on any fault of the proxy the original goes
        # upstream
        except Exception as exc:
            if config.settings.storage.on_down == "503" and self._needs_memory(exchange, exc):
                raise MemoryAway(
                    "the memory of this conversation cannot be read at the moment; try again"
                ) from exc
            exchange.recall = None
            exchange.status, exchange.reason = Status.DEGRADED, choose_bypass_reason(exc)
            self._facts.emit(describe_bypass(exchange, exc))
            self._mark_missed(exchange, exc)
            return
        self._keep_split(exchange.turn.opened)
        if exchange.comments:
            opened = exchange.turn.opened
            exchange.comments.begin(opened.reconciled.projected, opened.context.effective.limits)
        exchange.headers = ask_uncompressed(exchange.headers)  # memory reads the reply
        exchange.status, exchange.reason = exchange.turn.status, exchange.turn.reason
        if context.lacks_observer:
            self._tell_no_observer(exchange)
        if exchange.reason is Reason.WRITE_ONLY:
            exchange.reason = exchange.kind.reason or exchange.reason

    def _tell_unknown_header(self, exchange: Exchange) -> None:
        """Say once in the log that a header means nothing: a misspelt one names no thread."""
        headers, told = exchange.scope["headers"], self._told_headers
        if OWN_HEADER_PREFIX not in b" ".join(dict(headers)) or len(told) >= MAX_TOLD_HEADERS:
            return
        if found := find_unknown_header(headers, exchange.rules, told):
            header, meant = found
            told.add(header)
            logger.warning("memory.unknown_header", header=header, meant=meant or None)

    def _tell_no_observer(self, exchange: Exchange) -> None:
        """Say in the receipt, and once in the log, that no notes are made for this credential."""
        if exchange.reason in (None, Reason.WRITE_ONLY, Reason.OBSERVER_LATE):
            exchange.reason = Reason.NO_OBSERVER
        if not self._has_warned_of_no_observer:
            self._has_warned_of_no_observer = True
            logger.warning("memory.no_observer", advice=NO_OBSERVER_ADVICE)

    def _mark_missed(self, exchange: Exchange, exc: Exception) -> None:
        """Mark a turn whose memory could not be read, so that it is stored later. What its client
        sends next does not have to show it: a window moves on."""
        if exchange.context is None or exchange.caller.mode == "read":
            return
        if isinstance(exc, Unreadable | UnicodeDecodeError):
            return  # it could not be read later either
        exchange.missed_at = exchange.came_at
        exchange.headers = ask_uncompressed(exchange.headers)

    def _needs_memory(self, exchange: Exchange, exc: Exception) -> bool:
        """Return whether the memory could not be read, and the client sends only its newest
        message: its request holds no reply. The first request of a conversation holds none either;
        without the store they look the same."""
        request = exchange.request
        if request is None or exchange.context is None:
            return False
        is_unread = isinstance(exc, StorageError | TimeoutError)
        return is_unread and not request.api.has_replies(request)

    def _keep_split(self, turn: OpenedTurn) -> None:
        """Keep the split for the thread's next request. If the client sends a window, keep none:
        its next request begins elsewhere. A fault here costs only time."""
        split = None
        if turn.reconciled.verdict.style != "window":
            sent = turn.reconciled.sent
            build = turn.request.api.build_split
            split = self._facts.try_extra(
                "split", turn.key, None, build, turn.request, sent.digests, self._seed
            )
        self._splits.keep((turn.request.api.name, turn.key), split)

    async def _open_turn(
        self, exchange: Exchange, request: Request, context: MemoryContext
    ) -> PreparedTurn:
        factor = 1 if request.api.has_replies(request) else NEWEST_ONLY_OPEN_FACTOR
        deadline = Deadline(MAX_OPEN_S * factor)
        return await deadline.run(
            self._engine.open_turn(
                exchange.caller,
                request,
                context,
                read_hints(exchange),
                deadline,
                exchange.recall.tool if exchange.recall is not None else None,
                exchange.came_at,
            )
        )

    # ── the upstream ──────────────────────────────────────────────────────────────────────────────

    async def _send_upstream(self, exchange: Exchange, receive: Receive, send: Send) -> None:
        """Send the request upstream, relay the answer, and report the end."""
        async with DisconnectWatch(exchange.scope, receive) as client_left:
            disconnected = None if exchange.upstream.on_disconnect == "drain" else client_left
            try:
                answer = await run_unless_disconnected(disconnected, self._ask(exchange))
            except OmError as exc:
                await self._closing.close_without_reply(exchange, exc.status)
                await responses.send_error(send, exc, build_receipt(exchange), exchange.api)
                self._report_end(exchange, exc.status, exc.code)
                return
            if answer is None:
                # If the model server never saw the request, nothing is stored: since then the
                # client may have sent it again and got an answer.
                if exchange.has_contacted_upstream:
                    self._closing.start(exchange, None, NO_ANSWER_STATUS)
                self._report_end(exchange, NO_ANSWER_STATUS, "disconnected")
                return
            if len(exchange.body) > MIN_REPORTED_BODY_BYTES:
                exchange.report_copies_after_answer()
            outcome = await self._closing.relay(exchange, answer, send, disconnected)
            self._report_end(exchange, answer.status, outcome)

    async def _ask(self, exchange: Exchange) -> UpstreamResponse:
        """Return the answer as the client shall see it. Raise OmError if there is none."""
        answer = await self._attempts.send(exchange)
        if exchange.recall is None or exchange.recall.tool is None or self._recalling is None:
            return answer
        return await self._recalling.follow(exchange, answer)

    def _report_end(self, exchange: Exchange, status: int, end: str) -> None:
        turn = exchange.turn
        receipt = turn.receipt if turn else {}
        recall = exchange.recall
        ended = TurnEnded(
            key=exchange.caller.key,
            status=status,
            memory=exchange.status,
            reason=exchange.reason,
            model=exchange.request.model if exchange.request else None,
            tokens_received=receipt.get("tokens-received"),
            tokens_sent=receipt.get("tokens-sent"),
            case=turn.opened.case if turn else None,
            end=end,
            overhead_ms=exchange.overhead_ms,
            total_ms=(time.perf_counter() - exchange.started) * 1_000,
            upstream=exchange.upstream.name,
            first_byte_s=exchange.first_byte_s,
            usage=exchange.usage,
            recall=recall.word if recall else None,
            recall_steps=recall.steps if recall else 0,
            later_rounds=len(recall.list_usages()[1:]) if recall else 0,
            observer=turn.opened.context.observer_name if turn else None,
            api=exchange.api,
            client=name_client(exchange.scope["headers"]) if exchange.status is Status.OFF else "",
        )
        self._facts.emit(ended)
        if exchange.span is not None:
            self._facts.try_extra("facts", ended.key, None, exchange.span.end, ended)


def choose_bypass_reason(exc: Exception) -> Reason:
    if isinstance(exc, TimeoutError):
        return Reason.MEMORY_SLOW
    if isinstance(exc, Unreadable | UnicodeDecodeError):
        return Reason.UNREADABLE
    if isinstance(exc, Conflict):
        return Reason.CONFLICT
    return Reason.STORAGE if isinstance(exc, StorageError) else Reason.MEMORY_ERROR
