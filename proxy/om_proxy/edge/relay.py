"""Relay an answer to the client, byte for byte and without delay, while a copy of it is read.

A chunk goes to the client first and to the reader second. A fault in reading never affects the
client. The last bytes wait for `before_end`, so a client that has seen the end of a reply knows it
is stored. An answer that breaks off ends in a broken connection: SDKs take a clean end for success,
even if bytes are missing.

The last bytes are:

- in a stream, those that its API's `end_finder` finds (for chat those from `data: [DONE]` on);
- in a body with a known length, the chunk that completes it;
- in any other JSON body, the final chunk, so such a body is sent one chunk late;
- if none of these is found, the end itself: the empty chunk that ends an HTTP body.

Large pieces of work wait for a slot (wire/server/capacity/fair_queue.py): sending and reading a
large chunk, and reading a large reply as a whole. Small chunks never wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct
from starlette.types import Send

from om_proxy.common.errors import UpstreamError
from om_proxy.edge.headers import is_event_stream, read_client_headers
from om_proxy.wire.apis.api import EndFinder
from om_proxy.wire.apis.compression import NO_DECODER, create_decoder
from om_proxy.wire.server.capacity.fair_queue import LARGE_PIECE_BYTES, wait_slot
from om_proxy.wire.server.disconnect import run_unless_disconnected
from om_proxy.wire.server.headers import Header, find_header, parse_content_length
from om_proxy.wire.upstream import UpstreamResponse

# RFC 9110 6.4.1: no body follows, whatever their Content-Length says
STATUS_OK = 200
BODILESS_STATUSES = frozenset((204, 304))

Outcome = Literal["complete", "truncated", "disconnected"]
BeforeEnd = Callable[[], Coroutine[Any, Any, None]]


class Reader(Protocol):
    """The reader of the copy: edge/turn_closing.py."""

    def feed(self, data: bytes) -> None: ...


class RelayResult(Struct, frozen=True):
    """The end of a relayed reply. `truncated`: the upstream broke off, and the proxy closed the
    client's connection. `disconnected`: the client left."""

    outcome: Outcome
    bytes: int  # of the body, as sent
    # also true after `[DONE]` alone: SDKs stop there and ignore any later bytes
    is_end_sent: bool


async def relay(
    answer: UpstreamResponse,
    send: Send,
    *,
    receipt: Sequence[Header] = (),
    reader: Reader | None = None,
    before_end: BeforeEnd | None = None,
    end_finder: EndFinder | None = None,
    disconnected: asyncio.Future[None] | None = None,
    comments: bytes = b"",
    report_fault: Callable[[Exception], None] = lambda exc: None,
) -> RelayResult:
    """Send status, headers with the receipt, and body. Always close the answer.

    `before_end` is awaited once, when all bytes have come and the last ones are not sent yet. It
    must end in bounded time and not raise. It is cancelled when the client leaves, so another task
    must own the work it waits for. `disconnected` is done when the client has left
    (wire/server/disconnect.py); with None, the reply is relayed to its end even then. After
    `truncated` the ASGI call must return without sending more: uvicorn then cuts the connection.
    `comments` go out with the first bytes of a stream that can hold them. `report_fault`: called if
    the reply cannot be read.
    """
    try:
        reply_relay = _ReplyRelay(
            answer, answer.chunks(), send, reader, end_finder, comments, report_fault
        )
        # None: the client left
        is_complete = await run_unless_disconnected(
            disconnected, reply_relay.send_all(receipt, before_end)
        )
    finally:
        await answer.aclose()
    is_large = reply_relay.sent_bytes > LARGE_PIECE_BYTES
    if reader is not None and not is_complete and is_large:
        await wait_slot()  # the caller reads the incomplete reply
    outcome: Outcome
    if is_complete is None:
        outcome = "disconnected"
    else:
        outcome = "complete" if is_complete else "truncated"
    return RelayResult(outcome, reply_relay.sent_bytes, is_complete or reply_relay.is_end_sent)


class _ReplyRelay:
    """One reply on its way to the client and to the reader."""

    def __init__(
        self,
        answer: UpstreamResponse,
        chunks: AsyncIterator[bytes],
        send: Send,
        reader: Reader | None,
        end_finder: EndFinder | None,
        comments: bytes,
        report_fault: Callable[[Exception], None],
    ) -> None:
        self._report_fault = report_fault
        self._status = answer.status
        self._headers = read_client_headers(answer)
        self._chunks = chunks
        self._send = send
        self._reader = reader
        self._decode = create_decoder(find_header(self._headers, b"content-encoding"))
        self._is_plain = self._decode is NO_DECODER
        self._is_stream = is_event_stream(self._headers)
        self._end_finder = end_finder if self._is_stream else None
        self._remaining_bytes = parse_content_length(self._headers)
        self._held_bytes = b""
        self._comments = comments if comments and self._can_hold_comments() else b""
        self.sent_bytes = 0
        self.is_end_sent = False

    def _can_hold_comments(self) -> bool:
        """Return whether bytes may be added to the body: to a plain stream of unknown length."""
        return (
            self._is_stream
            and self._status == STATUS_OK
            and self._remaining_bytes is None
            and self._is_plain
        )

    async def send_all(self, receipt: Sequence[Header], before_end: BeforeEnd | None) -> bool:
        """Send head and body. Return False if the answer broke off before its end."""
        headers = self._headers
        if self._status in BODILESS_STATUSES:
            headers = [header for header in headers if header[0] != b"content-length"]
        await self._send(
            {"type": "http.response.start", "status": self._status, "headers": [*headers, *receipt]}
        )
        if before_end is not None:
            if not await self._send_until_end():
                return False
            if self.sent_bytes + len(self._held_bytes) > LARGE_PIECE_BYTES:
                await wait_slot()
            await before_end()
        return await self._send_end()

    async def _send_end(self) -> bool:
        """Send the held bytes and any after them. Return False if the answer broke off.

        A complete body ends with the held bytes, in one message. A stream may continue after its
        `[DONE]`.
        """
        last_bytes = b"" if self._is_stream else self._held_bytes
        try:
            await self._send_chunk(self._held_bytes[len(last_bytes) :])
            self.is_end_sent = self._is_stream and bool(self._held_bytes)
            async for chunk in self._chunks:
                await self._send_chunk(last_bytes + chunk)
                self._feed_reader(self._decompress(chunk))
                last_bytes = b""
        except UpstreamError:
            await self._send_chunk(last_bytes)
            return False
        await self._send({"type": "http.response.body", "body": last_bytes, "more_body": False})
        self.sent_bytes += len(last_bytes)
        return True

    async def _send_until_end(self) -> bool:
        """Send all but the last bytes, and hold those. Return False if the answer broke off."""
        is_one_chunk_late = self._remaining_bytes is None and not self._is_stream
        try:
            async for chunk in self._chunks:
                plain = chunk if self._is_plain else self._decompress(chunk)
                if is_one_chunk_late:
                    await self._send_chunk(self._held_bytes)
                    self._held_bytes = chunk
                elif (end_offset := self._find_end(chunk, plain)) is not None:
                    await self._send_chunk(chunk[:end_offset])
                    self._held_bytes = chunk[end_offset:]
                else:
                    await self._send_chunk(chunk)
                self._feed_reader(plain)
                if self._held_bytes and not is_one_chunk_late:
                    break
        except UpstreamError:
            await self._send_chunk(self._held_bytes)
            return False
        return True

    def _find_end(self, chunk: bytes, plain: bytes) -> int | None:
        """Return the offset in this chunk where the body's last bytes begin, or None. In a
        compressed chunk the offset is 0."""
        if self._remaining_bytes is not None:
            self._remaining_bytes -= len(chunk)
        end_offset = None
        if self._end_finder is not None:
            try:
                end_offset = self._end_finder.feed(plain)
            except Exception as exc:  # the turn is then stored at the end itself
                self._report_fault(exc)
                self._end_finder = None
        if end_offset is not None:
            return end_offset if plain is chunk else 0
        return 0 if self._remaining_bytes == 0 else None

    async def _send_chunk(self, chunk: bytes) -> None:
        if not chunk:
            return
        if len(chunk) > LARGE_PIECE_BYTES:
            await wait_slot()
        if self._comments:
            chunk, self._comments = self._comments + chunk, b""
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        self.sent_bytes += len(chunk)

    def _decompress(self, chunk: bytes) -> bytes:
        """Decompress the chunk. Return empty bytes if that fails."""
        if self._decode is None:
            return b""
        try:
            return self._decode(chunk)
        except Exception as exc:  # the client's bytes are not affected
            self._report_fault(exc)
            self._decode = self._reader = None
            return b""

    def _feed_reader(self, plain: bytes) -> None:
        if self._reader is None:
            return
        try:
            self._reader.feed(plain)
        except Exception as exc:  # the client's bytes are not affected
            self._report_fault(exc)
            self._reader = None
