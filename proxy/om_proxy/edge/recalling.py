"""Follow the look-ups of a reply: answer the calls of the proxy's tool, and ask the model server
again, until the model answers the client.

`follow` takes the upstream's answer and returns one whose body is the reply as the client sees it.
So the relay, the reply's reader and the commit know nothing of rounds. What goes out is decided by
the API's splice. The client may leave at any moment: its request is cancelled, and with it the
round or the look-up under way (docs/spec/recall.md#rounds).

If a round after the first cannot be had, the round before it is asked once more without the tool.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, suppress

import structlog

from om_proxy.apis.api import RoundEnd, Splice, Unreadable
from om_proxy.edge.buffered_response import break_off, buffer_body
from om_proxy.edge.changed_response import (
    create_body_decoder,
    iterate_body,
    peek,
    replace_body,
)
from om_proxy.edge.exchange import Exchange
from om_proxy.edge.headers import is_event_stream, select_response_headers
from om_proxy.edge.recall_offers import RecallRecord
from om_proxy.errors import OmError, UpstreamError, raise_site
from om_proxy.event_feed.inline import write_comment, write_part
from om_proxy.facts import Facts, LookUpsMade
from om_proxy.memory.recall.look_ups import LookUpAnswer, LookUpCall, LookUps
from om_proxy.memory.rounds import Round
from om_proxy.reasons import Reason, Status
from om_proxy.turns.turn import PreparedTurn
from om_proxy.upstream import UpstreamResponse

logger = structlog.get_logger("recall")

MAX_WHOLE_BYTES = 8 << 20  # of a reply that is no stream; a larger one is passed on as it comes
# How long the rest of a complete round is waited for. Then its connection is not used again.
MAX_DRAIN_S = 0.05
STATUS_OK = 200

CreateLookUps = Callable[[PreparedTurn], LookUps]
SendBody = Callable[[Exchange, bytes], Awaitable[UpstreamResponse]]


class _RoundLost(Exception):
    """A later round cannot be had, before any byte for the client. `answer`: the model server's
    error, as it came; None: there is none."""

    def __init__(self, answer: UpstreamResponse | None) -> None:
        super().__init__("a later round cannot be had")
        self.answer = answer


class Recalling:
    """The performer of look-ups between the upstream's answers and the client's."""

    def __init__(self, send: SendBody, create_look_ups: CreateLookUps, facts: Facts) -> None:
        self._send = send
        self._create_look_ups = create_look_ups
        self._facts = facts

    async def follow(self, exchange: Exchange, answer: UpstreamResponse) -> UpstreamResponse:
        """Return the client's answer. `answer`: to a request that offers the tool. Raise OmError if
        a later round fails before any byte for the client."""
        record, turn = exchange.recall, exchange.turn
        if answer.status != STATUS_OK or record is None or turn is None or turn.body is None:
            return answer
        try:
            answer, first = await peek(answer)
        except UpstreamError as exc:
            return replace_body(answer, break_off(exc), answer.aclose)
        except BaseException:
            await answer.aclose()
            raise
        if create_body_decoder(answer) is None:
            return answer  # nothing here can read it
        reply = _RecallingReply(
            exchange, record, turn.body, self._create_look_ups(turn), self._send, self._facts
        )
        if _is_whole(exchange, answer, first):
            record.is_whole = True
            return await reply.read_whole(answer)
        return await reply.stream(answer)


class _RecallingReply:
    """One reply on its way through its rounds."""

    def __init__(
        self,
        exchange: Exchange,
        record: RecallRecord,
        body: bytes,
        look_ups: LookUps,
        send: SendBody,
        facts: Facts,
    ) -> None:
        assert exchange.request is not None  # only a readable request has memory
        assert exchange.context is not None  # the same
        assert record.tool is not None  # the request offers it
        retrieval = exchange.context.effective.memory.retrieval
        self._exchange = exchange
        self._api = exchange.request.api
        self._record = record
        self._tool = record.tool
        self._has_threads = retrieval.scope == "resource"
        self._usage_rule = retrieval.usage
        self._body = body  # the first round's, without the tool
        self._look_ups = look_ups
        self._send = send
        self._facts = facts
        self._splice: Splice
        self._messages: list[bytes] = []  # behind the client's own, in the round under way
        self._is_open = True  # whether a call of the tool is still answered
        self._answer: UpstreamResponse | None = None  # of the round under way
        self._has_sent = False  # whether the client got a byte

    # ── the two ways out ──────────────────────────────────────────────────────────────────────────

    async def stream(self, answer: UpstreamResponse) -> UpstreamResponse:
        """Return the answer with the client's stream. Its head goes out with its first bytes: until
        then an error of a later round can still be told as it came."""
        self._splice = self._api.create_stream_splice(self._tool, self._usage_rule)
        self._answer = answer
        pieces = self._run(answer)
        try:
            first = await anext(pieces, b"")
        except _RoundLost as lost:
            return await self._take_error(lost)
        except UpstreamError as exc:
            return replace_body(answer, break_off(exc), self._close)
        except BaseException:
            await self._close()
            raise

        async def close() -> None:
            await pieces.aclose()
            await self._close()

        return replace_body(answer, iterate_body(first, pieces), close)

    async def read_whole(self, answer: UpstreamResponse) -> UpstreamResponse:
        """Return the answer with the client's JSON; the bytes as they came if nothing was looked
        up."""
        answer, body = await buffer_body(answer, MAX_WHOLE_BYTES)
        if body is None:
            return answer
        self._splice = self._api.create_whole_splice(self._tool, self._usage_rule)
        original = answer
        try:
            plain = replace_body(answer, iterate_body(body), answer.aclose)
            data = b"".join([piece async for piece in self._run(plain)])
        except _RoundLost as lost:
            return await self._take_error(lost)
        except UpstreamError as exc:
            return replace_body(original, break_off(exc), self._close)
        except BaseException:
            await self._close()
            raise
        await self._close()
        if data == body:
            return original
        return replace_body(original, iterate_body(data), original.aclose, length=len(data))

    async def _take_error(self, lost: _RoundLost) -> UpstreamResponse:
        await self._close()
        if lost.answer is not None:
            return lost.answer
        assert isinstance(lost.__cause__, OmError)  # see `_ask_without_tool`
        raise lost.__cause__

    async def _close(self) -> None:
        if self._answer is not None:
            await self._answer.aclose()

    # ── the rounds ────────────────────────────────────────────────────────────────────────────────

    async def _run(self, answer: UpstreamResponse) -> AsyncGenerator[bytes, None]:
        """Yield what the client gets. Raise UpstreamError where its connection must break."""
        try:
            async with aclosing(self._run_rounds(answer)) as pieces:
                async for piece in pieces:
                    if piece:
                        self._has_sent = True
                        yield piece
        except (OmError, _RoundLost):
            raise
        # docs/spec/recall.md#faults-of-rounds: what went out stays, and is kept as interrupted
        except Exception as exc:
            logger.error("recall.failed", error=type(exc).__name__, at=raise_site(exc))
            self._exchange.status, self._exchange.reason = Status.DEGRADED, Reason.MEMORY_ERROR
            raise UpstreamError("a look-up failed in the middle of the reply") from exc

    async def _run_rounds(self, answer: UpstreamResponse) -> AsyncGenerator[bytes, None]:
        current: UpstreamResponse | None = answer
        while current is not None:
            self._answer = current
            async with aclosing(self._read_round(current)) as data:
                async for part in data:
                    yield self._splice.feed(part)
            end_round = self._splice.end_round
            rest, end = (
                await asyncio.to_thread(end_round) if self._splice.is_end_long else end_round()
            )
            yield rest
            self._record.usages.append(end.usage)
            answers = await self._look_up(end) if self._can_look_up(end) else None
            if answers:
                for comment in self._write_comments(answers):
                    yield comment
            current = await self._ask_next(end, answers)
            if current is not None:
                self._splice.begin_round()
        yield self._splice.finish()

    def _can_look_up(self, end: RoundEnd) -> bool:
        has_steps = self._is_open and self._record.steps < self._record.max_steps
        return end.message is not None and end.is_finished and has_steps

    async def _read_round(self, answer: UpstreamResponse) -> AsyncGenerator[bytes, None]:
        """Yield the round's bytes, decompressed."""
        decode = create_body_decoder(answer)
        assert decode is not None  # else the answer is not read
        read_bytes = 0
        async for chunk in answer.chunks():
            data = decode(chunk)
            read_bytes += len(data)
            if self._record.is_whole and read_bytes > MAX_WHOLE_BYTES:
                raise UpstreamError("a round of the reply is too large")
            yield data
            if self._splice.is_round_complete:
                break
        with suppress(TimeoutError, UpstreamError):  # only the connection is lost
            async with asyncio.timeout(MAX_DRAIN_S):
                async for _ in answer.chunks():
                    pass
        await answer.aclose()

    async def _look_up(self, end: RoundEnd) -> list[LookUpAnswer]:
        """Answer the calls of a round: one step."""
        started = time.perf_counter()
        answers = await self._look_ups.answer([LookUpCall(*call) for call in end.calls])
        seconds = time.perf_counter() - started
        self._record.steps += 1
        self._record.seconds = seconds
        assert self._exchange.caller.key is not None  # only a request with a thread has memory
        figures = tuple((answer.mode, answer.outcome) for answer in answers)
        self._facts.emit(LookUpsMade(self._exchange.caller.key, figures, seconds))
        assert end.message is not None  # see `_can_look_up`
        results = [
            self._api.write_answer(call, answer.text)
            for call, answer in zip(end.calls, answers, strict=True)
        ]
        look_ups = Round(end.message, tuple(results))
        if end.is_shared:
            self._record.beside = look_ups
        else:
            self._record.rounds.append(look_ups)
        return answers

    def _write_comments(self, answers: Sequence[LookUpAnswer]) -> Iterator[bytes]:
        """Write a comment for each look-up, where the client asked for them."""
        if self._exchange.comments is None or self._record.is_whole:
            return
        shared = {"step": self._record.steps, "ms": round(self._record.seconds * 1_000)}
        for answer in answers:
            data = {**shared, "mode": answer.mode, "found": answer.found}
            yield write_comment(write_part("data-om-recall", json.dumps(data)))

    async def _ask_next(
        self, end: RoundEnd, answers: Sequence[LookUpAnswer] | None
    ) -> UpstreamResponse | None:
        """Return the next round; None: the reply is complete."""
        if answers is not None and not end.is_shared:
            before = self._messages
            look_ups = self._record.rounds[-1]
            self._messages = [*before, look_ups.assistant, *look_ups.results]
            may_call = self._record.steps < self._record.max_steps
            answer = await self._try_round(may_call=may_call)
            if answer is None:
                self._messages = before
                self._record.rounds.pop()  # the reply was not made from it
                answer = await self._ask_without_tool()
            return answer
        is_void = answers is None and end.message is not None and not end.is_visible
        if is_void and self._is_open and end.is_finished and not end.is_shared:
            return await self._ask_without_tool()
        return None

    async def _try_round(self, *, may_call: bool) -> UpstreamResponse | None:
        """Return the answer to a round with the tool; None: it was refused, or failed before its
        first byte."""
        try:
            answer = await self._send_round(self._tool, may_call=may_call)
        except (OmError, Unreadable):
            return None
        if answer.status == STATUS_OK and (begun := await self._begin_answer(answer)) is not None:
            return begun
        await answer.aclose()
        return None

    async def _ask_without_tool(self) -> UpstreamResponse:
        """Return the answer to a round without the tool. Raise _RoundLost or UpstreamError."""
        self._is_open = False
        try:
            answer = await self._send_round(None)
        except OmError as exc:
            if not self._has_sent:
                raise _RoundLost(None) from exc
            raise UpstreamError("a later round of the reply failed") from exc
        if answer.status == STATUS_OK and (begun := await self._begin_answer(answer)) is not None:
            return begun
        if not self._has_sent and answer.status != STATUS_OK:
            raise _RoundLost(answer)
        await answer.aclose()
        raise UpstreamError(f"a later round of the reply was answered with {answer.status}")

    async def _send_round(self, tool: str | None, *, may_call: bool = True) -> UpstreamResponse:
        body = self._api.write_round(
            self._body, tool, self._messages, has_threads=self._has_threads, may_call=may_call
        )
        first_byte_s = self._exchange.first_byte_s
        try:
            self._answer = answer = await self._send(self._exchange, body)
            return answer
        finally:
            self._exchange.first_byte_s = (
                first_byte_s  # the first round's: the client waited for it
            )

    async def _begin_answer(self, answer: UpstreamResponse) -> UpstreamResponse | None:
        """Wait for the round's first byte. None: it broke off before, or is of another kind than
        the rounds before it."""
        try:
            answer, first = await peek(answer)
        except UpstreamError:
            return None
        if create_body_decoder(answer) is None:
            return None
        is_same_kind = _is_whole(self._exchange, answer, first) is self._record.is_whole
        return answer if is_same_kind else None


def _is_whole(exchange: Exchange, answer: UpstreamResponse, first: bytes) -> bool:
    """Return whether the reply is one JSON object, whatever was asked for."""
    if first.lstrip().startswith(b"{"):
        return True
    wants_stream = exchange.request is not None and exchange.request.stream
    return not (wants_stream or is_event_stream(select_response_headers(answer.headers)))
