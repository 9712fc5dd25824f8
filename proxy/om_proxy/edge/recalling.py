"""Follow the look-ups of a reply: answer the calls of the proxy's tool, and ask the model server
again, until the model answers the client.

`follow` takes the upstream's answer and returns one whose body is the reply as the client sees it.
So the relay, the reply's reader and the commit know nothing of rounds. What goes out is decided by
the API's splice. The client may leave at any moment: its request is cancelled, and with it the
round or the look-up under way (docs/spec/recall.md#rounds).

If a round after the first cannot be had, the round before it is asked once more without the tool.
A fault of the proxy before a byte of its round went out costs the look-ups, not the reply: the
round goes out without the proxy's calls.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from functools import partial

from om_proxy.apis.api import PlainRound, RoundEnd, Splice
from om_proxy.apis.compression import create_decoder
from om_proxy.edge.buffered_response import break_off, buffer_body
from om_proxy.edge.changed_response import (
    create_body_decoder,
    iterate_body,
    peek,
    replace_body,
)
from om_proxy.edge.client_stream import BegunRound, ClientStream
from om_proxy.edge.exchange import Exchange
from om_proxy.edge.headers import read_client_headers
from om_proxy.edge.recall_offers import RecallRecord
from om_proxy.edge.round_requests import (
    STATUS_OK,
    RoundLost,
    RoundRequests,
    SendBody,
    is_whole_reply,
    report_fault,
)
from om_proxy.errors import OmError, UpstreamError
from om_proxy.event_feed.inline import write_comment, write_part
from om_proxy.facts import Facts, LookUpsMade
from om_proxy.memory.recall.look_ups import LookUpAnswer, LookUpCall, LookUps
from om_proxy.memory.rounds import Round
from om_proxy.server.headers import find_header
from om_proxy.turns.turn import PreparedTurn
from om_proxy.upstream import UpstreamResponse
from om_proxy.upstream.transport import RawResponse

MAX_WHOLE_BYTES = 8 << 20  # of a reply that is no stream; a larger one is passed on as it comes
# How long the rest of a complete round is waited for. Then its connection is not used again.
MAX_DRAIN_S = 0.05

CreateLookUps = Callable[[PreparedTurn], LookUps]


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
        if answer.status != STATUS_OK or record is None or turn is None:
            return answer
        assert exchange.request is not None  # only a readable request has memory
        headers = read_client_headers(answer)
        decode = create_decoder(find_header(headers, b"content-encoding"))
        is_whole = is_whole_reply(exchange, headers, b"")  # else its first byte decides
        try:
            if not is_whole:
                is_whole = is_whole_reply(exchange, headers, await peek(answer))
        except UpstreamError as exc:
            return replace_body(answer, break_off(exc), answer.aclose)
        except BaseException:
            await answer.aclose()
            raise
        if decode is None:
            return answer  # nothing here can read it
        body: bytes | None = None
        if is_whole:
            record.is_whole = True
            answer, body = await buffer_body(
                answer, MAX_WHOLE_BYTES, is_compressed=decode is not bytes
            )
            if body is None or not exchange.request.api.may_call_tools(body):
                return answer
        reply = _RecallingReply(
            exchange,
            record,
            turn.body or exchange.body,
            partial(self._create_look_ups, turn),
            self._send,
            self._facts,
        )
        if body is not None:
            return await reply.read_whole(answer, body)
        return await reply.stream(answer, decode)


class _RecallingReply:
    """One reply on its way through its rounds."""

    def __init__(
        self,
        exchange: Exchange,
        record: RecallRecord,
        body: bytes,
        create_look_ups: Callable[[], LookUps],
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
        self._usage_rule = retrieval.usage
        self._requests = RoundRequests(
            exchange, record.tool, body, send, has_threads=retrieval.scope == "resource"
        )
        self._create_look_ups = create_look_ups
        self._look_ups: LookUps | None = None  # None: nothing was looked up yet
        self._facts = facts
        self.splice: Splice
        self._messages: list[bytes] = []  # behind the client's own, in the round under way
        self._is_open = True  # whether a call of the tool is still answered
        # the bytes of the round under way; None: some went out, or they are too many to keep
        self.unsent: bytearray | None = bytearray()
        self._is_first = True  # whether the first round is under way
        self._next: UpstreamResponse | None = None
        # what the client gets of a stream from its first tool call on; None: it called none yet
        self.rest: AsyncGenerator[bytes, None] | None = None
        self._has_failed = False  # whether look-ups failed by a fault of the proxy

    # ── the two ways out ──────────────────────────────────────────────────────────────────────────

    async def stream(
        self, answer: UpstreamResponse, decode: Callable[[bytes], bytes]
    ) -> UpstreamResponse:
        """Return the answer with the client's stream. Its head goes out with its first bytes: until
        then an error of a later round can still be told as it came. `decode`: of its body."""
        self.splice = self._api.create_stream_splice(self._tool, self._usage_rule)
        self._requests.newest = answer
        client_stream = ClientStream(answer, decode, self)
        try:
            if first := await anext(client_stream, b""):
                client_stream.put_back([first])
        except RoundLost as lost:
            return await self._take_error(lost)
        except UpstreamError as exc:
            return replace_body(answer, break_off(exc), self._requests.close)
        except BaseException:
            await self._requests.close()
            raise
        return client_stream

    async def close(self, _response: RawResponse, _is_read: bool) -> None:
        if self.rest is not None:
            await self.rest.aclose()
        await self._requests.close()

    async def read_whole(self, answer: UpstreamResponse, body: bytes) -> UpstreamResponse:
        """Return the answer with the client's JSON; the bytes as they came if nothing was looked
        up. `body`: as it was read."""
        self.splice = self._api.create_whole_splice(self._tool, self._usage_rule)
        self._requests.is_whole = True
        original = answer
        try:
            plain = replace_body(answer, iterate_body(body), answer.aclose)
            data = b"".join([piece async for piece in self._run(self._run_rounds(plain))])
        except RoundLost as lost:
            return await self._take_error(lost)
        except UpstreamError as exc:
            return replace_body(original, break_off(exc), self._requests.close)
        except BaseException:
            await self._requests.close()
            raise
        await self._requests.close()
        if data == body:
            return original
        return replace_body(original, iterate_body(data), original.aclose, length=len(data))

    async def _take_error(self, lost: RoundLost) -> UpstreamResponse:
        await self._requests.close()
        if lost.answer is not None:
            return lost.answer
        assert isinstance(lost.__cause__, OmError)  # see `_ask_without_tool`
        raise lost.__cause__

    # ── the rounds ────────────────────────────────────────────────────────────────────────────────

    def read_rest(
        self, answer: UpstreamResponse, decode: Callable[[bytes], bytes], begun: BegunRound
    ) -> None:
        """Read every event of the stream from now on."""
        self.rest = self._run(self._run_rounds(answer, decode, begun))

    async def _run(
        self, pieces_of_rounds: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[bytes, None]:
        """Yield what the client gets. Raise UpstreamError where its connection must break."""
        try:
            async with aclosing(pieces_of_rounds) as pieces:
                async for piece in pieces:
                    if piece:
                        self.mark_sent()
                        yield piece
        except (OmError, RoundLost):
            raise
        # docs/spec/recall.md#faults-of-rounds: what went out stays, and is kept as interrupted
        except Exception as exc:
            report_fault(self._exchange, exc)
            raise UpstreamError("a look-up failed in the middle of the reply") from exc

    async def _run_rounds(
        self,
        answer: UpstreamResponse,
        decode: Callable[[bytes], bytes] | None = None,
        begun: BegunRound | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """Yield what the client gets of all rounds. `decode`, `begun`: of the first one, if it has
        begun."""
        current: UpstreamResponse | None = answer
        while current is not None:
            self._requests.newest, self._next = current, None
            async with aclosing(self._read_body(current, decode)) as parts:
                try:
                    async with aclosing(self._splice_round(parts, begun)) as pieces:
                        async for piece in pieces:
                            yield piece
                except (OmError, RoundLost):
                    raise
                except Exception as exc:
                    if self.unsent is None:
                        raise
                    report_fault(self._exchange, exc)
                    yield await self._pass_plainly(parts)
                    return
            current, decode, begun = self._next, None, None
            self._is_first, self.unsent = False, bytearray()

    async def _splice_round(
        self, parts: AsyncGenerator[bytes, None], begun: BegunRound | None
    ) -> AsyncGenerator[bytes, None]:
        """Yield what the client gets of a round, and ask for the next one."""
        if begun is None:
            begun = BegunRound()
            if not self._is_first:
                self.splice.begin_round()
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
            await self._requests.close()
            end_round = self.splice.end_round
            rest, end = (
                await asyncio.to_thread(end_round) if self.splice.is_end_long else end_round()
            )
            yield rest
        self._record.usages.append(end.usage)
        answers = await self._try_look_up(end) if self._can_look_up(end) else None
        if answers:
            for comment in self._write_comments(answers):
                yield comment
        self._next = await self._ask_next(end, answers)
        if self._next is None:
            yield self.splice.finish()

    def mark_sent(self) -> None:
        """The client gets a piece of the round."""
        self._requests.has_sent = True
        self.unsent = None

    def keep_unsent(self, part: bytes) -> None:
        if self.unsent is not None:
            self.unsent += part
            if len(self.unsent) > MAX_WHOLE_BYTES:
                self.unsent = None

    async def _pass_plainly(self, parts: AsyncGenerator[bytes, None]) -> bytes:
        """Return a round whose splice failed, without the proxy's calls. If it says nothing else,
        return the answer to a round without the tool."""
        async for part in parts:
            self.keep_unsent(part)
        plain = self._take_out_calls()
        if not plain.is_void or not self._is_open:
            return plain.data
        self._is_open, self.unsent = False, bytearray()
        answer = await self._requests.ask_without_tool(self._messages)
        async with aclosing(self._read_body(answer)) as parts_of_last:
            async for part in parts_of_last:
                self.keep_unsent(part)
        await answer.aclose()
        return self._take_out_calls().data

    def _take_out_calls(self) -> PlainRound:
        if self.unsent is None:
            raise UpstreamError("a round of the reply is too large")
        self._record.usages.append(None)
        return self._api.take_out_calls(
            bytes(self.unsent),
            self._tool,
            is_stream=not self._record.is_whole,
            is_later=self._requests.has_sent,
        )

    def _can_look_up(self, end: RoundEnd) -> bool:
        has_steps = self._is_open and self._record.steps < self._record.max_steps
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

    async def _try_look_up(self, end: RoundEnd) -> list[LookUpAnswer] | None:
        """Answer the calls of a round. None: a fault of the proxy; then it is as if the next round
        were lost."""
        try:
            return await self._look_up(end)
        except Exception as exc:
            report_fault(self._exchange, exc)
            self._has_failed = True
            return None

    async def _look_up(self, end: RoundEnd) -> list[LookUpAnswer]:
        """Answer the calls of a round: one step."""
        started = time.perf_counter()
        if self._look_ups is None:
            self._look_ups = self._create_look_ups()
        answers = await self._look_ups.answer([LookUpCall(*call) for call in end.calls])
        seconds = time.perf_counter() - started
        assert self._exchange.caller.key is not None  # only a request with a thread has memory
        figures = tuple((answer.mode, answer.outcome) for answer in answers)
        self._facts.emit(LookUpsMade(self._exchange.caller.key, figures, seconds))
        assert end.message is not None  # see `_can_look_up`
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
        if end.message is None or end.is_shared:
            return None
        if answers is None:
            is_void = not end.is_visible and end.is_finished
            if self._is_open and (is_void or self._has_failed):
                return await self._ask_without_tool()
            return None
        before = self._messages
        look_ups = self._record.rounds[-1]
        self._messages = [*before, look_ups.assistant, *look_ups.results]
        may_call = self._record.steps < self._record.max_steps
        answer = await self._requests.try_round(self._messages, may_call=may_call)
        if answer is None:
            self._messages = before
            self._record.rounds.pop()  # the reply was not made from it
            answer = await self._ask_without_tool()
        return answer

    async def _ask_without_tool(self) -> UpstreamResponse:
        self._is_open = False
        return await self._requests.ask_without_tool(self._messages)
