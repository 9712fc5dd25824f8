"""Send up to four prompts for one request, one after another: rewritten, with less and less of what
memory adds to it, original, shortened.

What is taken back of the rewritten one, and after which statuses, is decided in
wire/apis/additions.py: the tool for look-ups, a system message with the block, the form of stored
messages. Where a status may as well be an outage, the only prompt that follows is the original, or
the rewritten one with nothing of all that. Below, all of them are called rewritten.

Each is sent only if the model server refused the one before
(docs/contributing/behaviour.md#refused-prompts):

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
from dataclasses import dataclass

from msgspec.structs import replace

from om_proxy.common.errors import OmError, UpstreamError
from om_proxy.common.reasons import Reason, Status
from om_proxy.edge.buffered_response import (
    Body,
    break_off,
    buffer_error,
    look_for_error,
    wait_for_first_word,
)
from om_proxy.edge.exchange import Exchange, describe_bypass
from om_proxy.edge.headers import read_client_headers
from om_proxy.edge.rounds.recall_offers import choose_layout, list_additions
from om_proxy.edge.rounds.round_requests import STATUS_OK
from om_proxy.engine.background.scheduler import Background
from om_proxy.engine.turns.engine import Engine
from om_proxy.engine.turns.prompt_builder import needs_shadow
from om_proxy.engine.turns.turn import PreparedTurn, can_stand_alone
from om_proxy.memory.prompt.tail import shows_everything
from om_proxy.memory.recall.offering import Offer
from om_proxy.observability.facts import Facts
from om_proxy.wire.apis import refusals
from om_proxy.wire.apis.additions import (
    NOTHING,
    REQUEST_FAULT_STATUSES,
    Addition,
    Trial,
    is_refusal,
)
from om_proxy.wire.apis.api import Unreadable, require_recall
from om_proxy.wire.server.headers import find_header
from om_proxy.wire.upstream import Upstream, UpstreamResponse, join_url
from om_proxy.wire.upstream.calls import is_broken_connection
from om_proxy.wire.upstream.transport import RawResponse

RETRY_WITH_ORIGINAL_STATUSES = REQUEST_FAULT_STATUSES
MIN_ERROR_STATUS = 400
# How long the store may take around the observation that shortens a prompt. The observation itself
# has `block_timeout`.
MAX_SHORTEN_STORE_S = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Attempts:
    """The sender of an exchange's prompts. It records in the exchange which one was answered."""

    engine: Engine
    background: Background
    upstream: Upstream
    facts: Facts

    async def send(self, exchange: Exchange) -> UpstreamResponse:
        """Send the prompts. Return the answer for the client. Raise OmError if the model server
        gives none."""
        turn, trial = exchange.turn, exchange.trial
        if turn is None or trial is None:
            return await self.send_body(exchange, exchange.body)
        additions = list_additions(turn, exchange.recall)
        trial.limit_to(additions)
        if additions is NOTHING:  # the client's own bytes: their acceptance teaches nothing
            answer = await self._send_looked_into(exchange, exchange.body)
            if answer.told_status < MIN_ERROR_STATUS:
                return answer
            return await self._send_after_refusal(exchange, trial, answer)
        if trial.sent is not additions:
            turn = exchange.turn = self._simplify(exchange, turn, trial)
        body = self._write_body(exchange, turn)
        try:
            answer = await self._send_looked_into(exchange, body)
        except UpstreamError as exc:
            # the server may have begun to work on it: a second request may be paid for twice, so
            # it is sent only without what the server never accepted
            if not trial.is_in_doubt or not is_broken_connection(exc):
                raise
            answer = await self._send_after_break(exchange, trial, exc)
        if answer.told_status >= MIN_ERROR_STATUS:
            answer = await self._send_after_refusal(exchange, trial, answer)
        trial.end(answer.told_status)
        return answer

    async def _send_after_break(
        self, exchange: Exchange, trial: Trial, error: UpstreamError
    ) -> UpstreamResponse:
        """Do as after a status that may be an outage. Raise the error where that takes nothing
        back."""
        refusal = UpstreamResponse(
            RawResponse(error.status, [], Body(break_off(error))), close_none
        )
        try:
            answer = await self._send_after_refusal(exchange, trial, refusal)
        except OmError:
            trial.end(error.status)
            raise
        if answer is refusal:
            raise error
        return answer

    async def _send_after_refusal(
        self, exchange: Exchange, trial: Trial, answer: UpstreamResponse
    ) -> UpstreamResponse:
        """Take back what the refusal may be about; then send the original, or a shorter prompt."""
        assert exchange.turn is not None  # there is something to take back
        opened, request = exchange.turn.opened, exchange.turn.opened.request
        is_whole = request.previous is not None or shows_everything(
            opened.reconciled.projected, opened.reconciled.sent
        )
        has_fallback = is_whole or can_stand_alone(opened)
        if not has_fallback:
            trial.sent &= ~Addition.HISTORY
        if is_refusal(answer.told_status) and request.api.has_pictures(
            exchange.turn.body or exchange.body
        ):
            trial.move_to_pictures()
        answer = await self._take_back(exchange, trial, answer)
        turn = exchange.turn
        if answer.told_status not in RETRY_WITH_ORIGINAL_STATUSES:
            return answer
        if turn.body is not None and is_whole:
            answer = await self._send_original(exchange, turn, answer)
        answer, is_answered = await self._shorten_if_too_long(exchange, answer)
        if is_answered or turn.body is None or is_whole:
            return answer
        if has_fallback:
            return await self._send_original(exchange, exchange.turn, answer)
        if exchange.reason is not Reason.CONTEXT_OVERFLOW:
            exchange.status, exchange.reason = Status.DEGRADED, Reason.UPSTREAM_REFUSED
        return answer

    async def _take_back(
        self, exchange: Exchange, trial: Trial, answer: UpstreamResponse
    ) -> UpstreamResponse:
        """Send the prompt with less and less of what memory adds, until the server accepts it, or
        nothing is left but the original."""
        while True:
            is_about_request = answer.told_status in RETRY_WITH_ORIGINAL_STATUSES
            is_too_long = False
            if is_about_request:
                answer, error = await buffer_error(answer)
                is_too_long = error is not None and refusals.is_prompt_too_long(
                    answer.told_status, error
                )
            retry_after = find_header(read_client_headers(answer), b"retry-after")
            taken = trial.take_back(
                answer.told_status,
                is_too_long=is_too_long,
                has_retry_after=retry_after is not None,
            )
            turn = exchange.turn
            assert turn is not None  # it is replaced by another
            # a prompt that is too long may be shortened before the original
            if not taken or (taken is Addition.HISTORY and is_about_request):
                return answer
            if Addition.HISTORY in taken:
                # without a body, so that it is not sent once more
                return await self._send_original(exchange, replace(turn, body=None), answer)
            body = await self._write_less(exchange, turn, trial, taken)
            if body is not None:
                await answer.aclose()
                answer = await self._send_looked_into(exchange, body)

    async def _write_less(
        self, exchange: Exchange, turn: PreparedTurn, trial: Trial, taken: Addition
    ) -> bytes | None:
        """Return the body with what is left of the additions; None, if it would be the same
        again."""
        started = time.perf_counter()
        recall, request = exchange.recall, turn.opened.request
        try:
            if Addition.TOOL in taken and recall is not None:
                recall.withdraw(Offer.REFUSED)
            if taken & (Addition.TOOL | Addition.SYSTEM):
                turn = await self.engine.rebuild(
                    turn,
                    recall_tool=recall.tool if recall is not None else None,
                    layout=choose_layout(turn.opened.context.layout, request, trial.sent),
                )
            rebuilt = turn
            turn = self._simplify(exchange, turn, trial)
            if turn is rebuilt and taken is Addition.FORM:
                return None
        # docs/contributing/behaviour.md#fail-open: the prompt at hand may be accepted
        except Exception as exc:
            self.facts.emit(describe_bypass(exchange, exc))
            if taken is not Addition.TOOL:
                return None
        finally:
            exchange.overhead_ms += (time.perf_counter() - started) * 1_000
        exchange.turn = turn
        return self._write_body(exchange, turn)

    def _simplify(self, exchange: Exchange, turn: PreparedTurn, trial: Trial) -> PreparedTurn:
        """Return the turn with plain messages, if the trial has taken back their form, and if that
        changes them."""
        if Addition.FORM in trial.sent or turn.body is None:
            return turn
        request = turn.opened.request
        try:
            plain = request.api.write_plain_body(request, turn.body)
        # docs/contributing/behaviour.md#fail-open: the prompt at hand may be accepted
        except Exception as exc:
            self.facts.emit(describe_bypass(exchange, exc))
            plain = None
        if plain is None:
            trial.acquit(Addition.FORM)
            return turn
        return replace(turn, body=plain)

    def _write_body(self, exchange: Exchange, turn: PreparedTurn) -> bytes:
        """Return the prompt as it is sent: the rewritten one, or the original if there is none, with
        the tool for look-ups if it is offered (docs/contributing/recall.md#offered)."""
        request, recall = turn.opened.request, exchange.recall
        body = turn.body if turn.body is not None else exchange.body
        if recall is None or not recall.tool:
            return body
        has_threads = turn.opened.look_up_scope == "resource"
        try:
            return require_recall(request).offer_tool(
                request, body, recall.tool, has_threads=has_threads
            )
        except Unreadable:
            exchange.recall = None
            return body

    async def _send_original(
        self, exchange: Exchange, turn: PreparedTurn, refusal: UpstreamResponse
    ) -> UpstreamResponse:
        """Send the original in place of the prompt that was refused."""
        await refusal.aclose()
        exchange.recall = None  # its prompt has no notes
        exchange.status, exchange.reason = Status.DEGRADED, Reason.UPSTREAM_REFUSED
        exchange.turn = count_original_as_sent(turn)
        return await self._send_looked_into(exchange, exchange.body)

    async def _shorten_if_too_long(
        self, exchange: Exchange, refusal: UpstreamResponse
    ) -> tuple[UpstreamResponse, bool]:
        """Return the answer to a shorter prompt, and True; if there is none, the refusal and
        False."""
        turn = exchange.turn
        if turn is None or refusal.told_status not in RETRY_WITH_ORIGINAL_STATUSES:
            return refusal, False
        refusal, error = await buffer_error(refusal)
        if error is None or not refusals.is_prompt_too_long(refusal.told_status, error):
            return refusal, False
        is_caller_verified = refusals.has_too_long_text(error)
        answer = await self._send_shortened(exchange, turn, is_caller_verified=is_caller_verified)
        return (refusal, False) if answer is None else (answer, True)

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
            if not self.engine.overflow_recovery.can_shorten(
                turn, is_caller_verified=is_caller_verified
            ):
                return turn
            exchange.status, exchange.reason = Status.DEGRADED, Reason.CONTEXT_OVERFLOW
            timeout_s = turn.opened.context.effective.limits.block_timeout_s + MAX_SHORTEN_STORE_S
            async with asyncio.timeout(timeout_s):
                return await self.engine.overflow_recovery.shorten(turn)
        # docs/contributing/behaviour.md#fail-open: the client gets the model server's refusal
        except Exception as exc:
            self.facts.emit(describe_bypass(exchange, exc))
            return turn

    async def _send_unless_refused(
        self, exchange: Exchange, body: bytes
    ) -> UpstreamResponse | None:
        try:
            answer = await self._send_looked_into(exchange, body)
        except OmError:
            return None
        if answer.told_status not in RETRY_WITH_ORIGINAL_STATUSES:
            return answer
        await answer.aclose()
        return None

    async def _send_looked_into(self, exchange: Exchange, body: bytes) -> UpstreamResponse:
        """Send one body. A stream of an API that tells failures in streams is held until its first
        word. A 200 that may be the first refusal of what memory adds is looked into: its
        `told_status` is that of an error inside it."""
        answer = await self.send_body(exchange, body)
        trial, request = exchange.trial, exchange.request
        if answer.status != STATUS_OK or trial is None or request is None:
            return answer
        if request.api.find_first_word is not None:
            answer = await wait_for_first_word(answer, request.api.find_first_word)
        is_looked_for = trial.is_in_doubt and answer.told_status == STATUS_OK
        return await look_for_error(answer) if is_looked_for else answer

    async def send_body(self, exchange: Exchange, body: bytes) -> UpstreamResponse:
        """Send one body to the exchange's model server. Raise OmError."""
        upstream = exchange.upstream
        scope = exchange.scope
        exchange.has_contacted_upstream = True
        turn = exchange.turn
        if turn is not None and exchange.shadow is None and needs_shadow(turn):
            # it runs once this request waits for its answer
            exchange.shadow = self.background.run_detached(
                self.engine.shadow_prompts.build(turn.opened)
            )
        exchange.first_byte_s = None
        started = time.perf_counter()
        answer = await self.upstream.send(
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


async def close_none(_response: RawResponse, _is_read: bool) -> None:
    """Close a response that never came."""


def count_original_as_sent(turn: PreparedTurn) -> PreparedTurn:
    """Return the turn with the receipt of a request whose original bytes went upstream."""
    received = turn.receipt["tokens-received"]
    mark = turn.mark and replace(turn.mark, sent=received, prefix=())
    return replace(turn, receipt={**turn.receipt, "tokens-sent": received}, mark=mark)
