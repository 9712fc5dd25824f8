"""Answer the calls of the proxy's tool that a round of a reply makes, and ask the model server for the
rounds after the first one. A round that cannot be had gives way to the round before it, asked once
more without the tool."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence

import structlog

from om_proxy.common.errors import OmError, UpstreamError, raise_site
from om_proxy.common.reasons import Reason, Status
from om_proxy.edge.buffered_response import create_body_decoder, peek
from om_proxy.edge.exchange import Exchange
from om_proxy.edge.headers import (
    is_event_stream,
    read_client_headers,
    select_response_headers,
)
from om_proxy.edge.rounds.recall_offers import RecallRecord
from om_proxy.engine.event_feed.inline import write_comment, write_part
from om_proxy.memory.rounds import LookUpAnswer, LookUpCall, LookUps, Round
from om_proxy.observability.facts import Facts, LookUpsMade
from om_proxy.wire.apis.additions import REQUEST_FAULT_STATUSES, is_refusal
from om_proxy.wire.apis.api import RoundEnd, Unreadable, require_recall
from om_proxy.wire.server.headers import Header, find_header
from om_proxy.wire.upstream import UpstreamResponse

logger = structlog.get_logger("recall")

STATUS_OK = 200

SendBody = Callable[[Exchange, bytes], Awaitable[UpstreamResponse]]


class RoundLost(Exception):
    """A later round cannot be had, before anything that the client shows. `answer`: the model server's
    error, as it came; None: there is none, and the cause is an OmError."""

    def __init__(self, answer: UpstreamResponse | None) -> None:
        super().__init__("a later round cannot be had")
        self.answer = answer


class RoundRequests:
    """The requests for later rounds of one reply. `body`: the first round's, without the tool."""

    def __init__(
        self,
        exchange: Exchange,
        record: RecallRecord,
        body: bytes,
        send: SendBody,
        *,
        has_threads: bool,
    ) -> None:
        assert exchange.request is not None  # only a readable request has memory
        self._exchange = exchange
        self._api = require_recall(exchange.request)
        self._record = record
        self._body = body
        self._send = send
        self._has_threads = has_threads
        # whether what is behind the client's own is sent in its plain form
        self._is_plain = exchange.trial is not None and exchange.trial.has_plain_rounds
        self._newest_body = b""  # sent last
        self._is_refused = False  # whether the newest round with the tool was
        self.has_sent = False  # whether the client got a byte
        self.has_shown = False  # whether a round said something that a client shows
        self.newest: UpstreamResponse | None = None  # the answer under way

    async def close(self) -> None:
        if self.newest is not None:
            await self.newest.aclose()

    async def try_round(
        self, messages: Sequence[bytes], *, may_call: bool
    ) -> UpstreamResponse | None:
        """Return the answer to a round with the tool; None: it was refused, also in its plain form,
        or failed before its first byte. `messages`: after the client's own."""
        begins_plain = self._is_plain
        try:
            answer = await self._send_round(self._record.tool, messages, may_call=may_call)
            if answer.status in REQUEST_FAULT_STATUSES and not self._is_plain:
                self._is_plain = True
                answer = await self._send_round(
                    self._record.tool, messages, may_call=may_call, refusal=answer
                )
        except (OmError, Unreadable):
            return None
        retry_after = find_header(read_client_headers(answer), b"retry-after")
        self._is_refused = is_refusal(answer.status, has_retry_after=retry_after is not None)
        if answer.status == STATUS_OK and (begun := await self._begin_answer(answer)) is not None:
            self._count_round(is_accepted=True)
            if self._exchange.trial is not None and not begins_plain:
                self._exchange.trial.count_form(is_accepted=not self._is_plain)
            return begun
        await answer.aclose()
        return None

    async def ask_without_tool(self, messages: Sequence[bytes]) -> UpstreamResponse:
        """Return the answer to a round without the tool. Raise RoundLost or UpstreamError."""
        try:
            answer = await self._send_round(None, messages)
        except OmError as exc:
            if not (self.has_sent and self.has_shown):
                raise RoundLost(None) from exc
            raise UpstreamError("a later round of the reply failed") from exc
        if answer.status == STATUS_OK and (begun := await self._begin_answer(answer)) is not None:
            if self._is_refused:
                self._count_round(is_accepted=False)
            return begun
        if answer.status != STATUS_OK and not (self.has_sent and self.has_shown):
            raise RoundLost(answer)
        await answer.aclose()
        raise UpstreamError(f"a later round of the reply was answered with {answer.status}")

    def _count_round(self, *, is_accepted: bool) -> None:
        """Note whether the server accepted a round with the tool: without it, it does."""
        if self._exchange.trial is not None:
            self._exchange.trial.count_round(is_accepted=is_accepted)

    async def _send_round(
        self,
        tool: str | None,
        messages: Sequence[bytes],
        *,
        may_call: bool = True,
        refusal: UpstreamResponse | None = None,
    ) -> UpstreamResponse:
        """Send a round. `refusal`: the answer to the same round in another form; it stays the answer
        if the body would be the same again."""
        try:
            body = self._write_round(tool, messages, may_call=may_call)
        except Unreadable:
            raise
        except Exception as exc:
            report_fault(self._exchange, exc)
            raise UpstreamError("a later round of the reply cannot be asked for") from exc
        if refusal is not None:
            if body == self._newest_body:
                return refusal
            await refusal.aclose()
        self._newest_body = body
        first_byte_s = self._exchange.first_byte_s
        try:
            self.newest = answer = await self._send(self._exchange, body)
            return answer
        finally:
            self._exchange.first_byte_s = (
                first_byte_s  # the first round's: the client waited for it
            )

    def _write_round(self, tool: str | None, messages: Sequence[bytes], *, may_call: bool) -> bytes:
        body, request = self._body, self._exchange.request
        if self._is_plain and request is not None:
            body = self._api.write_round(body, None, messages, has_threads=self._has_threads)
            body, messages = request.api.write_plain_body(request, body) or body, ()
        return self._api.write_round(
            body, tool, messages, has_threads=self._has_threads, may_call=may_call
        )

    async def _begin_answer(self, answer: UpstreamResponse) -> UpstreamResponse | None:
        """Wait for the round's first byte. None: it broke off before, or is of another kind than
        the rounds before it."""
        try:
            first = await peek(answer)
        except UpstreamError:
            return None
        if create_body_decoder(answer) is None:
            return None
        headers = select_response_headers(answer.headers)
        is_same_kind = is_whole_reply(self._exchange, headers, first) is self._record.is_whole
        return answer if is_same_kind else None


def is_whole_reply(exchange: Exchange, headers: Sequence[Header], first: bytes) -> bool:
    """Return whether the reply is one JSON object, whatever was asked for. `headers`: of its
    answer, as `select_response_headers` gives them. `first`: its first bytes."""
    if first.lstrip().startswith(b"{"):
        return True
    wants_stream = exchange.request is not None and exchange.request.stream
    return not (wants_stream or is_event_stream(headers))


def report_fault(exchange: Exchange, exc: Exception) -> None:
    """Log a fault of the proxy in the rounds of a reply; the receipt says it where it still can."""
    logger.error("recall.failed", error=type(exc).__name__, at=raise_site(exc))
    exchange.status, exchange.reason = Status.DEGRADED, Reason.MEMORY_ERROR


class RoundLookUps:
    """The look-ups of one reply, as its record tells them."""

    def __init__(
        self,
        exchange: Exchange,
        record: RecallRecord,
        create_look_ups: Callable[[], Awaitable[LookUps]],
        facts: Facts,
    ) -> None:
        assert exchange.request is not None  # only a readable request has memory
        self._exchange = exchange
        self._api = require_recall(exchange.request)
        self._record = record
        self._create_look_ups = create_look_ups
        self._look_ups: LookUps | None = None  # None: nothing was looked up yet
        self._facts = facts
        self.has_failed = False  # whether look-ups failed by a fault of the proxy

    @property
    def has_steps(self) -> bool:
        """Whether the model may call the tool once more."""
        return self._record.steps < self._record.max_steps

    async def try_look_up(self, end: RoundEnd) -> list[LookUpAnswer] | None:
        """Answer the calls of a round. None: a fault of the proxy; then it is as if the next round
        were lost."""
        try:
            return await self._look_up(end)
        except Exception as exc:
            report_fault(self._exchange, exc)
            self.has_failed = True
            return None

    async def _look_up(self, end: RoundEnd) -> list[LookUpAnswer]:
        """Answer the calls of a round: one step."""
        started = time.perf_counter()
        if self._look_ups is None:
            self._look_ups = await self._create_look_ups()
        answers = await self._look_ups.answer([LookUpCall(*call) for call in end.calls])
        seconds = time.perf_counter() - started
        assert self._exchange.caller.key is not None  # only a request with a thread has memory
        figures = tuple((answer.mode, answer.outcome) for answer in answers)
        self._facts.emit(LookUpsMade(self._exchange.caller.key, figures, seconds))
        assert end.message is not None  # else nothing can be looked up
        results = [
            self._api.write_answer(call, answer.text)
            for call, answer in zip(end.calls, answers, strict=True)
        ]
        self._record.steps += 1
        self._record.seconds = seconds
        look_ups = Round(end.message, tuple(results))
        if end.is_shared:
            self._record.beside = look_ups
        else:
            self._record.rounds.append(look_ups)
        return answers

    def write_comments(self, answers: Sequence[LookUpAnswer]) -> Iterator[bytes]:
        """Write a comment for each look-up, where the client asked for them."""
        if self._exchange.comments is None or self._record.is_whole:
            return
        shared = {"step": self._record.steps, "ms": round(self._record.seconds * 1_000)}
        for answer in answers:
            data = {**shared, "mode": answer.mode, "found": answer.found}
            yield write_comment(write_part("data-om-recall", json.dumps(data)))
