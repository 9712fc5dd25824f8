"""Send up to four prompts for one request, one after another: rewritten, plain, original, shortened.
The rewritten one may offer the tool for look-ups; if it is refused, it is sent once more without.
The plain one is the rewritten one with stored messages in their plainest form. It is left out where
that changes none, and where the rewritten one was too long; below, both are called rewritten.

Each is sent only if the model server refused the one before
(docs/spec/behaviour.md#refused-prompts):

    rewritten ── refused ──→ original ── refused as too long ──→ shortened
        │                        │                                   │ refused, or cannot be made
        └→ its answer            └→ its answer                       └→ the refusal of the original

A client that sends a part of its history wants the part that memory has. Its rewritten prompt is
shortened first, and its original is sent only if that holds the conversation:

    rewritten ── refused as too long ──→ shortened ── refused, or cannot be made ──→ original
        │ refused for another reason                                                    ↑
        └───────────────────────────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

import asyncio
import time

from msgspec.structs import replace

from om_proxy.apis import refusals
from om_proxy.apis.api import Unreadable
from om_proxy.background.scheduler import Background
from om_proxy.edge.buffered_response import buffer_body
from om_proxy.edge.exchange import Exchange, describe_bypass
from om_proxy.edge.recall_offers import RecallOffers, RecallRecord
from om_proxy.errors import OmError
from om_proxy.facts import Facts
from om_proxy.memory.prompt.original import holds_conversation, shows_everything
from om_proxy.memory.recall.offering import Offer
from om_proxy.reasons import Reason, Status
from om_proxy.turns.engine import Engine
from om_proxy.turns.shadow import needs_shadow
from om_proxy.turns.turn import PreparedTurn
from om_proxy.upstream import Upstream, UpstreamResponse, join_url

RETRY_WITH_ORIGINAL_STATUSES = (400, 413, 422)
REFUSES_TOOL_STATUSES = (400, 422)
STATUS_OK = 200
# How long the store may take around the observation that shortens a prompt. The observation itself
# has `block_timeout`.
MAX_SHORTEN_STORE_S = 1.0


class Attempts:
    """The sender of an exchange's prompts. It records in the exchange which one was answered."""

    def __init__(
        self,
        engine: Engine,
        background: Background,
        upstream: Upstream,
        facts: Facts,
        offers: RecallOffers,
    ) -> None:
        self._engine = engine
        self._background = background
        self._upstream = upstream
        self._facts = facts
        self._offers = offers

    async def send(self, exchange: Exchange) -> UpstreamResponse:
        """Send the prompts. Return the answer for the client. Raise OmError if the model server
        gives none."""
        answer = await self._send_prompt(exchange)
        turn = exchange.turn
        if turn is None or answer.status not in RETRY_WITH_ORIGINAL_STATUSES:
            return answer
        if turn.body is not None:
            answer = await self._send_plain(exchange, turn, turn.body, answer)
            turn = exchange.turn or turn
            if answer.status not in RETRY_WITH_ORIGINAL_STATUSES:
                return answer
        reconciled = turn.opened.reconciled
        is_whole = shows_everything(reconciled.projected, reconciled.sent)
        if turn.body is not None and is_whole:
            answer = await self._send_original(exchange, turn, answer)
        answer, is_answered = await self._shorten_if_too_long(exchange, answer)
        if is_answered or turn.body is None or is_whole:
            return answer
        if holds_conversation(reconciled.projected, reconciled.sent):
            return await self._send_original(exchange, exchange.turn or turn, answer)
        if exchange.reason is not Reason.CONTEXT_OVERFLOW:
            exchange.status, exchange.reason = Status.DEGRADED, Reason.UPSTREAM_REFUSED
        return answer

    async def _send_prompt(self, exchange: Exchange) -> UpstreamResponse:
        """Send the rewritten prompt, or the original if there is none."""
        turn = exchange.turn
        body = turn.body if turn is not None and turn.body is not None else exchange.body
        if turn is not None and exchange.recall is not None and exchange.recall.tool:
            return await self._send_with_tool(exchange, exchange.recall, turn, body)
        return await self.send_body(exchange, body)

    async def _send_plain(
        self, exchange: Exchange, turn: PreparedTurn, refused: bytes, refusal: UpstreamResponse
    ) -> UpstreamResponse:
        """Send the refused prompt in its plain form. Return the answer; the refusal, if there is no
        such form, or the prompt was too long."""
        refusal, error = await buffer_body(refusal, refusals.MAX_ERROR_BODY_BYTES)
        if error is not None and refusals.is_prompt_too_long(refusal.status, error):
            return refusal
        try:
            request = turn.opened.request
            plain = request.api.write_plain_body(request, refused)
        # docs/spec/behaviour.md#fail-open: the original may be accepted
        except Exception as exc:
            self._facts.emit(describe_bypass(exchange, exc))
            return refusal
        if plain is None:
            return refusal
        await refusal.aclose()
        exchange.turn = replace(turn, body=plain)
        return await self.send_body(exchange, plain)

    async def _send_original(
        self, exchange: Exchange, turn: PreparedTurn, refusal: UpstreamResponse
    ) -> UpstreamResponse:
        """Send the original in place of the prompt that was refused."""
        await refusal.aclose()
        exchange.recall = None  # its prompt has no notes
        exchange.status, exchange.reason = Status.DEGRADED, Reason.UPSTREAM_REFUSED
        exchange.turn = count_original_as_sent(turn)
        return await self.send_body(exchange, exchange.body)

    async def _shorten_if_too_long(
        self, exchange: Exchange, refusal: UpstreamResponse
    ) -> tuple[UpstreamResponse, bool]:
        """Return the answer to a shorter prompt, and True; if there is none, the refusal and
        False."""
        turn = exchange.turn
        if turn is None or refusal.status not in RETRY_WITH_ORIGINAL_STATUSES:
            return refusal, False
        refusal, error = await buffer_body(refusal, refusals.MAX_ERROR_BODY_BYTES)
        if error is None or not refusals.is_prompt_too_long(refusal.status, error):
            return refusal, False
        is_caller_verified = refusals.has_too_long_text(error)
        answer = await self._send_shortened(exchange, turn, is_caller_verified=is_caller_verified)
        return (refusal, False) if answer is None else (answer, True)

    async def _send_with_tool(
        self, exchange: Exchange, recall: RecallRecord, turn: PreparedTurn, body: bytes
    ) -> UpstreamResponse:
        """Send the prompt with the tool that looks up earlier messages. If the model server refuses
        it, send a prompt that has nothing of the tool (docs/spec/recall.md#offered)."""
        assert exchange.request is not None  # only a readable request has a turn
        assert recall.tool is not None  # it is sent
        who_asks_whom = (turn.opened.key.tenant, exchange.upstream.name, exchange.request.model)
        has_threads = turn.opened.look_up_scope == "resource"
        try:
            offering = exchange.request.api.offer_tool(
                exchange.request, body, recall.tool, has_threads=has_threads
            )
        except Unreadable:
            exchange.recall = None
            return await self.send_body(exchange, body)
        answer = await self.send_body(exchange, offering)
        if answer.status not in REFUSES_TOOL_STATUSES:
            if answer.status == STATUS_OK:
                self._offers.count_accepted(*who_asks_whom)
            return answer
        answer, error = await buffer_body(answer, refusals.MAX_ERROR_BODY_BYTES)
        await answer.aclose()
        is_too_long = error is not None and refusals.is_prompt_too_long(answer.status, error)
        recall.withdraw(Offer.REFUSED)
        exchange.turn = turn = await self._leave_out_tool(exchange, turn)
        answer = await self.send_body(exchange, turn.body or body)
        # a prompt that was too long says nothing of the tool
        if answer.status == STATUS_OK and not is_too_long:
            self._offers.count_refused(*who_asks_whom)
        return answer

    async def _leave_out_tool(self, exchange: Exchange, turn: PreparedTurn) -> PreparedTurn:
        """Return the turn with a prompt without the tool; as it is, if none can be built."""
        started = time.perf_counter()
        try:
            return await self._engine.build_without_tool(turn)
        # docs/spec/behaviour.md#fail-open: the prompt at hand may be accepted
        except Exception as exc:
            self._facts.emit(describe_bypass(exchange, exc))
            return turn
        finally:
            exchange.overhead_ms += (time.perf_counter() - started) * 1_000

    async def _send_shortened(
        self, exchange: Exchange, turn: PreparedTurn, *, is_caller_verified: bool
    ) -> UpstreamResponse | None:
        """Send a prompt that is shorter than the refused one. Return its answer; None: there is
        none, or it was refused too."""
        started = time.perf_counter()
        refused = turn
        exchange.turn = turn = await self._shorten(
            exchange, turn, is_caller_verified=is_caller_verified
        )
        exchange.overhead_ms += (time.perf_counter() - started) * 1_000
        if turn.body is not None:
            answer = await self._send_unless_refused(exchange, turn.body)
            if answer is not None:
                exchange.status = turn.status
                return answer
        exchange.turn = replace(turn, body=None, receipt=refused.receipt, mark=refused.mark)
        return None

    async def _shorten(
        self, exchange: Exchange, turn: PreparedTurn, *, is_caller_verified: bool
    ) -> PreparedTurn:
        """Return the turn with a shorter prompt, or without a body if there is none."""
        turn = replace(turn, body=None)  # it was refused
        try:
            if not self._engine.overflow_recovery.can_shorten(
                turn, is_caller_verified=is_caller_verified
            ):
                return turn
            exchange.status, exchange.reason = Status.DEGRADED, Reason.CONTEXT_OVERFLOW
            timeout_s = turn.opened.context.effective.limits.block_timeout_s + MAX_SHORTEN_STORE_S
            async with asyncio.timeout(timeout_s):
                return await self._engine.overflow_recovery.shorten(turn)
        # docs/spec/behaviour.md#fail-open: the client gets the model server's refusal
        except Exception as exc:
            self._facts.emit(describe_bypass(exchange, exc))
            return turn

    async def _send_unless_refused(
        self, exchange: Exchange, body: bytes
    ) -> UpstreamResponse | None:
        try:
            answer = await self.send_body(exchange, body)
        except OmError:
            return None
        if answer.status not in RETRY_WITH_ORIGINAL_STATUSES:
            return answer
        await answer.aclose()
        return None

    async def send_body(self, exchange: Exchange, body: bytes) -> UpstreamResponse:
        """Send one body to the exchange's model server. Raise OmError."""
        upstream = exchange.upstream
        scope = exchange.scope
        exchange.has_contacted_upstream = True
        turn = exchange.turn
        if turn is not None and exchange.shadow is None and needs_shadow(turn):
            # it runs once this request waits for its answer
            exchange.shadow = self._background.run_detached(self._engine.build_shadow(turn))
        exchange.first_byte_s = None
        started = time.perf_counter()
        answer = await self._upstream.send(
            scope["method"],
            join_url(upstream.base_url, scope["raw_path"].decode("latin-1"), scope["query_string"]),
            exchange.headers,
            body,
            connect_timeout_s=upstream.connect_timeout,
            read_timeout_s=upstream.read_timeout,
            path_in_settings=upstream.path_in_settings,
        )
        exchange.first_byte_s = time.perf_counter() - started
        return answer


def count_original_as_sent(turn: PreparedTurn) -> PreparedTurn:
    """Return the turn with the receipt of a request whose original bytes went upstream."""
    received = turn.receipt["tokens-received"]
    mark = turn.mark and replace(turn.mark, sent=received, prefix=())
    return replace(turn, receipt={**turn.receipt, "tokens-sent": received}, mark=mark)
