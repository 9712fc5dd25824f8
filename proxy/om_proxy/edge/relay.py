"""Relay an answer to the client, byte for byte and without delay, while a copy of it is read.

A chunk goes to the client first and to the reader second; the reader's errors never affect the
client. The last bytes wait for `before_end`, so a client that has seen the end of a reply knows it
is stored. An answer that breaks off ends in a broken connection: SDKs take a clean end for success,
even if bytes are missing.

The last bytes are:

- in a stream, those that its API's `end_finder` finds (for chat those from `data: [DONE]` on);
- in a body with a known length, the chunk that completes it;
- in any other JSON body, the final chunk, so such a body is sent one chunk late;
- if none of these is found, the end itself: the empty chunk that ends an HTTP body.

Large pieces of work take turns (server/fair_queue.py): sending and reading a large chunk, and
reading a large reply as a whole. Small chunks never wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Literal, Protocol

import structlog
from msgspec import Struct
from starlette.types import Send

from om_proxy.apis.api import EndFinder
from om_proxy.apis.compression import create_decoder
from om_proxy.edge.headers import is_event_stream, response_headers
from om_proxy.errors import UpstreamError
from om_proxy.server.disconnect import run_unless_disconnected
from om_proxy.server.fair_queue import LARGE_PIECE_BYTES, wait_slot
from om_proxy.server.headers import Header, find_header, parse_content_length
from om_proxy.upstream import UpstreamResponse

# RFC 9110 6.4.1; their Content-Length does not describe the bytes that follow
BODILESS_STATUSES = frozenset((204, 304))

Outcome = Literal["complete", "truncated", "disconnected"]
BeforeEnd = Callable[[], Coroutine[Any, Any, None]]

log = structlog.get_logger()


class Reader(Protocol):
    """A reader of the copy: edge/reply_copy.py."""

    def feed(self, data: bytes) -> None: ...


class RelayResult(Struct, frozen=True):
    """The end of a relayed reply. `truncated`: the upstream broke off, and the proxy closed the
    client's connection. `disconnected`: the client left."""

    outcome: Outcome
    bytes: int  # of the body, as sent
    # True also for `[DONE]` alone: SDKs leave there and ignore any bytes after it
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
) -> RelayResult:
    """Send status, headers with the receipt, and body; always close the answer.

    `before_end` is awaited once, when all bytes have come and the last ones are not sent yet. It
    must be bounded and not raise. It is cancelled when the client leaves, so another task must own
    the work it waits for. `disconnected` is done when the client has left (server/disconnect.py);
    None relays to the end regardless. After `truncated` the ASGI call must return without sending
    more: uvicorn then cuts the connection.
    """
    try:
        copying = _ReplyRelay(answer, answer.chunks(), send, reader, end_finder)
        whole = await run_unless_disconnected(disconnected, copying.copy_all(receipt, before_end))
    finally:
        await answer.aclose()
    if reader is not None and not whole and copying.sent > LARGE_PIECE_BYTES:
        await wait_slot()  # the caller reads the incomplete reply
    outcome: Outcome = "disconnected" if whole is None else "complete" if whole else "truncated"
    return RelayResult(outcome, copying.sent, whole or copying.is_end_sent)


class _ReplyRelay:
    def __init__(
        self,
        answer: UpstreamResponse,
        chunks: AsyncIterator[bytes],
        send: Send,
        reader: Reader | None,
        end_finder: EndFinder | None,
    ) -> None:
        self._status = answer.status
        self._headers = response_headers(answer.headers)
        self._chunks = chunks
        self._send = send
        self._reader = reader
        self._decode = create_decoder(find_header(self._headers, b"content-encoding"))
        self._streaming = is_event_stream(self._headers)
        self._end_finder = end_finder if self._streaming else None
        self._remaining_bytes = parse_content_length(self._headers)
        self._held_bytes = b""
        self.sent = 0
        self.is_end_sent = False

    async def copy_all(self, receipt: Sequence[Header], before_end: BeforeEnd | None) -> bool:
        """Send head and body; False if the answer broke off before its end."""
        headers = self._headers
        if self._status in BODILESS_STATUSES:
            headers = [item for item in headers if item[0] != b"content-length"]
        await self._send(
            {"type": "http.response.start", "status": self._status, "headers": [*headers, *receipt]}
        )
        if before_end is not None:
            if not await self._send_until_last():
                return False
            if self.sent + len(self._held_bytes) > LARGE_PIECE_BYTES:
                await wait_slot()
            await before_end()
        return await self._send_rest()

    async def _send_rest(self) -> bool:
        """Send the held bytes and any after them. A complete body ends with the held bytes, in one
        message; a stream may go on after its `[DONE]`."""
        last = b"" if self._streaming else self._held_bytes
        try:
            await self._send_chunk(self._held_bytes[len(last) :])
            self.is_end_sent = self._streaming and bool(self._held_bytes)
            async for chunk in self._chunks:
                await self._send_chunk(last + chunk)
                self._feed_reader(self._decompress(chunk))
                last = b""
        except UpstreamError:
            await self._send_chunk(last)
            return False
        await self._send({"type": "http.response.body", "body": last, "more_body": False})
        self.sent += len(last)
        return True

    async def _send_until_last(self) -> bool:
        is_one_chunk_late = self._remaining_bytes is None and not self._streaming
        try:
            async for chunk in self._chunks:
                plain = self._decompress(chunk)
                if is_one_chunk_late:
                    await self._send_chunk(self._held_bytes)
                    self._held_bytes = chunk
                elif (last := self._find_last_bytes(chunk, plain)) is not None:
                    await self._send_chunk(chunk[:last])
                    self._held_bytes = chunk[last:]
                else:
                    await self._send_chunk(chunk)
                self._feed_reader(plain)
                if self._held_bytes and not is_one_chunk_late:
                    break
        except UpstreamError:
            await self._send_chunk(self._held_bytes)
            return False
        return True

    def _find_last_bytes(self, chunk: bytes, plain: bytes) -> int | None:
        """Return the offset in this chunk where the body's last bytes begin, or None. In a
        compressed chunk the offset is 0."""
        if self._remaining_bytes is not None:
            self._remaining_bytes -= len(chunk)
        found = self._end_finder.feed(plain) if self._end_finder else None
        if found is not None:
            return found if plain is chunk else 0
        return 0 if self._remaining_bytes == 0 else None

    async def _send_chunk(self, chunk: bytes) -> None:
        if len(chunk) > LARGE_PIECE_BYTES:
            await wait_slot()
        if chunk:
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
            self.sent += len(chunk)

    def _decompress(self, chunk: bytes) -> bytes:
        """Decompress the chunk; empty bytes where that fails."""
        if self._decode is None:
            return b""
        try:
            return self._decode(chunk)
        except Exception as exc:  # the client's bytes are not affected
            log.warning("reply.unread", cause=type(exc).__name__)
            self._decode = self._reader = None
            return b""

    def _feed_reader(self, plain: bytes) -> None:
        if self._reader is None:
            return
        try:
            self._reader.feed(plain)
        except Exception as exc:  # the client's bytes are not affected
            log.warning("reply.unread", cause=type(exc).__name__)
            self._reader = None
