"""Carry a reply through its rounds: pass on what the client gets, and ask for each next round.

A stream passes on while its model calls no tool, as nearly all replies do. From the first call on,
its rounds are read event by event.

If a round after the first cannot be had, the round before it is asked once more without the tool.
A fault of the proxy before a byte of its round went out costs the look-ups, not the reply: the
round goes out without the proxy's calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import NamedTuple

import msgspec

from om_proxy.common.errors import OmError, UpstreamError
from om_proxy.edge.buffered_response import (
    Body,
    buffer_body,
    create_body_decoder,
    leave_out_body_headers,
)
from om_proxy.edge.exchange import Exchange
from om_proxy.edge.rounds.recall_offers import RecallRecord
from om_proxy.edge.rounds.round_requests import RoundLookUps, RoundLost, RoundRequests, report_fault
from om_proxy.memory.rounds import LookUpAnswer
from om_proxy.wire.apis.api import PlainRound, RoundEnd, Splice, require_recall
from om_proxy.wire.apis.refusals import MAX_ERROR_BODY_BYTES
from om_proxy.wire.server.capacity.budget import MemoryBudget
from om_proxy.wire.upstream import UpstreamResponse
from om_proxy.wire.upstream.calls import TRANSPORT_ERRORS
from om_proxy.wire.upstream.transport import RawResponse

MAX_WHOLE_BYTES = 8 << 20  # of a reply that is no stream; a larger one is passed on as it comes
# an event is held as it came, and joined with the others where a call is the proxy's
HELD_WEIGHT = 2
# How long the rest of a complete round is waited for. Then its connection is not used again.
MAX_DRAIN_S = 0.05


class BegunRound(NamedTuple):
    """The state of a stream's first round when its events have to be read."""

    piece: bytes = b""  # the client gets it next
    end: RoundEnd | None = None  # None: it goes on
    fault: Exception | None = None  # of the splice


class ClientStream(UpstreamResponse):
    """The stream that the client gets. Until a tool is called each chunk passes the splice and
    nothing else: nearly all replies call none. It is an iterator and not an asynchronous generator:
    each of those costs as much for an event as the whole way through this one."""

    __slots__ = ("_answer", "_chunks", "_decode", "_has_sent", "_reply")

    def __init__(
        self, answer: UpstreamResponse, decode: Callable[[bytes], bytes], reply: ReplyRounds
    ) -> None:
        headers = leave_out_body_headers(answer.headers)
        body = Body(answer.transport_chunks)
        super().__init__(RawResponse(answer.status, headers, body), reply.close)
        if answer.client_headers is not None:
            self.client_headers = leave_out_body_headers(answer.client_headers)
        self._answer = answer
        self._chunks = answer.chunks()  # for the first one, which was looked at
        self._decode = decode
        self._reply = reply
        self._has_sent = False

    async def __anext__(self) -> bytes:
        if self._put_back:
            return self._put_back.pop()
        reply = self._reply
        splice = reply.splice
        while reply.rest is None:
            try:
                chunk = await anext(self._chunks)
                self._chunks = self._body
            except StopAsyncIteration:
                if piece := await self._end():
                    return piece
                if reply.rest is None:
                    raise
                break
            except TRANSPORT_ERRORS as exc:
                raise self._answer.make_error(exc) from exc
            try:
                part = self._decode(chunk)
            except Exception as exc:  # any error of a decoder
                raise UpstreamError("a round of the reply cannot be decompressed") from exc
            try:
                piece = splice.feed(part) if self._has_sent else self._feed_unsent(part)
            except Exception as exc:
                self._read_rest(BegunRound(fault=exc))
                break
            if splice.is_reading:
                self._read_rest(BegunRound(piece))
            elif piece:
                return piece
        assert reply.rest is not None  # else the loop goes on
        return await anext(reply.rest)

    def _feed_unsent(self, part: bytes) -> bytes:
        """Feed the splice before the client has got a byte."""
        reply = self._reply
        reply.keep_unsent(part)
        piece = reply.splice.feed(part)
        if piece and not reply.splice.is_reading:
            self._has_sent = True
            reply.mark_sent()
        return piece

    async def _end(self) -> bytes:
        """Return the last piece of a round that called no tool."""
        await anext(self._answer.chunks(), None)  # it notes that its body is read
        splice = self._reply.splice
        try:
            piece, end = splice.end_round()
        except Exception as exc:
            self._read_rest(BegunRound(fault=exc))
            return b""
        if splice.is_reading:
            self._read_rest(BegunRound(piece, end))
            return b""
        return piece

    def _read_rest(self, begun: BegunRound) -> None:
        """Read every event of the stream from now on."""
        self._reply.rest = self._reply.run(self._answer, self._decode, begun)


class HeldRounds:
    """The rounds that the splice of one reply holds, charged to the memory budget."""

    def __init__(self, budget: MemoryBudget | None) -> None:
        self._budget = budget
        self._charged_bytes = 0

    def reserve(self, size: int) -> bool:
        """Charge so many bytes more. Return False if there is no room: then nothing is held."""
        charge = HELD_WEIGHT * size
        if self._budget is not None and not self._budget.charge_copy(charge):
            self.release()
            return False
        self._charged_bytes += charge
        return True

    def add(self, size: int) -> None:
        """Charge what is held already."""
        if self._budget is not None:
            self._budget.change(HELD_WEIGHT * size)
            self._charged_bytes += HELD_WEIGHT * size

    def release(self) -> None:
        """Free it. A second call does nothing."""
        charged_bytes, self._charged_bytes = self._charged_bytes, 0
        if self._budget is not None and charged_bytes:
            self._budget.change(-charged_bytes)


class ReplyRounds:
    """One reply on its way through its rounds. `requests` asks for the later ones."""

    def __init__(
        self,
        exchange: Exchange,
        record: RecallRecord,
        splice: Splice,
        requests: RoundRequests,
        look_ups: RoundLookUps,
        held: HeldRounds,
    ) -> None:
        self.held = held
        assert exchange.request is not None  # only a readable request has memory
        assert record.tool is not None  # the request offers it
        self._exchange = exchange
        self._api = require_recall(exchange.request)
        self._record = record
        self._tool = record.tool
        self.requests = requests
        self._look_ups = look_ups
        self.splice = splice
        self._messages: list[bytes] = []  # behind the client's own, in the round under way
        self._is_open = True  # whether a call of the tool is still answered
        # the bytes of the round under way; None: some went out, or they are too many to keep
        self._unsent: bytearray | None = bytearray()
        self._is_first = True  # whether the first round is under way
        self._next: UpstreamResponse | None = None
        # what the client gets of a stream from its first tool call on; None: it called none yet
        self.rest: AsyncGenerator[bytes, None] | None = None

    async def close(self, _response: RawResponse, _is_read: bool) -> None:
        """End what is under way: the client has its reply, or has left."""
        self.held.release()
        if self.rest is not None:
            await self.rest.aclose()
        await self.requests.close()

    async def run(
        self,
        answer: UpstreamResponse,
        decode: Callable[[bytes], bytes] | None = None,
        begun: BegunRound | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """Yield what the client gets. Raise UpstreamError where its connection must break. `decode`,
        `begun`: of the first round, if it has begun."""
        try:
            async with aclosing(self._run_rounds(answer, decode, begun)) as pieces:
                async for piece in pieces:
                    if piece:
                        self.mark_sent()
                        yield piece
        except RoundLost as lost:
            if not self.requests.has_sent:
                raise
            yield await self._write_error(lost)
        except OmError:
            raise
        # docs/contributing/recall.md#faults-of-rounds: what went out stays, and is kept as
        # interrupted
        except Exception as exc:
            report_fault(self._exchange, exc)
            raise UpstreamError("a look-up failed in the middle of the reply") from exc

    async def _run_rounds(
        self,
        answer: UpstreamResponse,
        decode: Callable[[bytes], bytes] | None = None,
        begun: BegunRound | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """Yield what `run` does, and empty pieces."""
        current: UpstreamResponse | None = answer
        while current is not None:
            self.requests.newest, self._next = current, None
            async with aclosing(self._read_body(current, decode)) as parts:
                try:
                    async with aclosing(self._splice_round(parts, begun)) as pieces:
                        async for piece in pieces:
                            yield piece
                except (OmError, RoundLost):
                    raise
                except Exception as exc:
                    if self._unsent is None:
                        raise
                    report_fault(self._exchange, exc)
                    yield await self._pass_plainly(parts)
                    return
            current, decode, begun = self._next, None, None
            self._is_first, self._unsent = False, bytearray()

    async def _splice_round(
        self, parts: AsyncGenerator[bytes, None], begun: BegunRound | None
    ) -> AsyncGenerator[bytes, None]:
        """Yield what the client gets of a round, and ask for the next one."""
        if begun is None:
            begun = BegunRound()
            if not self._is_first:
                self.splice.begin_round()
                self._record.read_open_usage = self.splice.read_round_usage
        if begun.fault is not None:
            raise begun.fault
        yield begun.piece
        if begun.end is not None:
            end = begun.end
        else:
            if not self.splice.is_round_complete:
                async for part in parts:
                    self.keep_unsent(part)
                    yield self.splice.feed(part)
                    if self.splice.is_round_complete:
                        break
            with suppress(TimeoutError, UpstreamError):  # only the connection is lost
                async with asyncio.timeout(MAX_DRAIN_S):
                    async for _ in parts:
                        pass
            await self.requests.close()
            end_round = self.splice.end_round
            rest, end = (
                await asyncio.to_thread(end_round) if self.splice.is_end_long else end_round()
            )
            yield rest
        self._record.end_round(end.usage)
        self.requests.has_shown = self.requests.has_shown or end.is_visible
        answers = await self._look_ups.try_look_up(end) if self._can_look_up(end) else None
        if answers:
            for comment in self._look_ups.write_comments(answers):
                yield comment
        self._next = await self._ask_next(end, answers)
        if self._next is None:
            yield self.splice.finish()

    def mark_sent(self) -> None:
        """Note that the client gets a piece of the round."""
        self.requests.has_sent = True
        self._unsent = None

    def keep_unsent(self, part: bytes) -> None:
        """Keep bytes of the round, in case its splice fails before the client gets any."""
        if self._unsent is not None:
            self._unsent += part
            if len(self._unsent) > MAX_WHOLE_BYTES:
                self._unsent = None

    async def _pass_plainly(self, parts: AsyncGenerator[bytes, None]) -> bytes:
        """Return a round whose splice failed, without the proxy's calls. If it says nothing else,
        return the answer to a round without the tool."""
        async for part in parts:
            self.keep_unsent(part)
        plain = self._take_out_calls()
        if not plain.is_void or not self._is_open:
            return plain.data
        self._is_open, self._unsent = False, bytearray()
        answer = await self.requests.ask_without_tool(self._messages)
        async with aclosing(self._read_body(answer)) as parts_of_last:
            async for part in parts_of_last:
                self.keep_unsent(part)
        await answer.aclose()
        return self._take_out_calls().data

    def _take_out_calls(self) -> PlainRound:
        if self._unsent is None:
            raise UpstreamError("a round of the reply is too large")
        self._record.end_round(None)
        return self._api.take_out_calls(
            bytes(self._unsent),
            self._tool,
            self._record.use,
            is_stream=not self._record.is_whole,
            is_later=self.requests.has_sent,
        )

    def _can_look_up(self, end: RoundEnd) -> bool:
        has_steps = self._is_open and self._look_ups.has_steps
        return end.message is not None and end.is_finished and has_steps

    async def _read_body(
        self, answer: UpstreamResponse, decode: Callable[[bytes], bytes] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield a round's bytes, decompressed. `decode`: of a body that is read already."""
        decode = decode or create_body_decoder(answer)
        assert decode is not None  # else the answer is not read
        read_bytes = 0
        async for chunk in answer.chunks():
            try:
                data = decode(chunk)
            except Exception as exc:  # any error of a decoder
                raise UpstreamError("a round of the reply cannot be decompressed") from exc
            read_bytes += len(data)
            if self._record.is_whole and read_bytes > MAX_WHOLE_BYTES:
                raise UpstreamError("a round of the reply is too large")
            yield data

    async def _ask_next(
        self, end: RoundEnd, answers: Sequence[LookUpAnswer] | None
    ) -> UpstreamResponse | None:
        """Return the next round; None: the reply is complete."""
        if end.message is None or end.is_shared:
            return None
        if answers is None:
            is_void = not end.is_visible and end.is_finished
            if self._is_open and (is_void or self._look_ups.has_failed):
                return await self._ask_without_tool()
            return None
        before = self._messages
        look_ups = self._record.rounds[-1]
        self._messages = [*before, look_ups.assistant, *look_ups.results]
        answer = await self.requests.try_round(self._messages, may_call=self._look_ups.has_steps)
        if answer is None:
            self._messages = before
            self._record.rounds.pop()  # the reply was not made from it
            answer = await self._ask_without_tool()
        return answer

    async def _write_error(self, lost: RoundLost) -> bytes:
        """Return the end of a stream of which nothing that a client shows went out."""
        if lost.answer is None:
            cause = lost.__cause__
            assert isinstance(cause, OmError)  # see RoundRequests.ask_without_tool
            error = {"message": str(cause), "type": "om_error", "param": None, "code": cause.code}
            return self._api.write_error_event(msgspec.json.encode({"error": error}))
        answer, body = await buffer_body(lost.answer, MAX_ERROR_BODY_BYTES)
        await answer.aclose()
        return self._api.write_error_event(body or b"")

    async def _ask_without_tool(self) -> UpstreamResponse:
        self._is_open = False
        return await self.requests.ask_without_tool(self._messages)
