"""Pass a stream on while its model calls no tool, as nearly all replies do. From the first call on,
the reply's rounds are read event by event (edge/rounds/reply_rounds.py).

The class is an iterator and not an asynchronous generator: each of those costs as much for an event
as the whole way through this one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple, Protocol

from om_proxy.common.errors import UpstreamError
from om_proxy.edge.replies.buffered_response import Body, leave_out_body_headers
from om_proxy.wire.apis.api import RoundEnd, Splice
from om_proxy.wire.upstream import UpstreamResponse
from om_proxy.wire.upstream.calls import TRANSPORT_ERRORS
from om_proxy.wire.upstream.transport import RawResponse


class BegunRound(NamedTuple):
    """The state of a stream's first round when its events have to be read."""

    piece: bytes = b""  # the client gets it next
    end: RoundEnd | None = None  # None: it goes on
    fault: Exception | None = None  # of the splice


class StreamedReply(Protocol):
    """The knowledge of a reply about its stream (edge/rounds/reply_rounds.py)."""

    splice: Splice
    rest: AsyncGenerator[bytes, None] | None

    def read_rest(
        self, answer: UpstreamResponse, decode: Callable[[bytes], bytes], begun: BegunRound
    ) -> None: ...

    def keep_unsent(self, part: bytes) -> None: ...

    def mark_sent(self) -> None: ...

    async def close(self, _response: RawResponse, _is_read: bool) -> None: ...


class ClientStream(UpstreamResponse):
    """The stream that the client gets. Until a tool is called each chunk passes the splice and
    nothing else: nearly all replies call none."""

    __slots__ = ("_answer", "_chunks", "_decode", "_has_sent", "_reply")

    def __init__(
        self, answer: UpstreamResponse, decode: Callable[[bytes], bytes], reply: StreamedReply
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
        self._reply.read_rest(self._answer, self._decode, begun)
