"""Relay an answer to the client, byte for byte and without delay, while a copy of it is read.

A chunk goes to the client first and to the reader second; what the reader thinks of it touches nothing. The last bytes wait
for `before_end`, so that a client which has seen the end of a reply knows it is kept. And an answer that breaks off ends in a
broken connection: SDKs take a clean end for success, whatever is missing.

Which bytes are the last? Of a stream, those from `data: [DONE]` on. Of a body with a known length, the chunk that completes
it. Of any other JSON body, the chunk with none behind it, which is why such a body is sent one chunk late. Where none of
these is to be seen, the end itself: the empty chunk that tells an HTTP client there is no more.

What is large takes turns with what else is (edge/turnstile.py): a chunk that goes out and is read, and what is made of the whole.
Small chunks wait for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import structlog
from starlette.types import Send

from om_proxy.edge.disconnect import while_there
from om_proxy.edge.headers import Header, content_length, header, is_event_stream, response_headers
from om_proxy.edge.turnstile import LARGE, turn
from om_proxy.errors import UpstreamError
from om_proxy.upstream import Answer
from om_proxy.wire.encoding import decoder
from om_proxy.wire.sse import DoneFinder

BODILESS = frozenset((204, 304))  # RFC 9110 6.4.1; a length announced with them is not that of what follows

Outcome = Literal["complete", "truncated", "disconnected"]
BeforeEnd = Callable[[], Coroutine[Any, Any, None]]

log = structlog.get_logger()


class Reader(Protocol):
    """What reads the copy: wire/reply.py."""

    def feed(self, data: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class Relayed:
    """How it went: `truncated`, the upstream broke off, and the client's connection with it; `disconnected`, the client left."""

    outcome: Outcome
    bytes: int  # of the body, as sent
    is_end_sent: bool  # all that tells the client something was sent: SDKs leave at `[DONE]`, whatever comes behind it


async def relay(
    answer: Answer,
    send: Send,
    *,
    receipt: Sequence[Header] = (),
    reader: Reader | None = None,
    before_end: BeforeEnd | None = None,
    disconnected: asyncio.Future[None] | None = None,
) -> Relayed:
    """Send status, headers with the receipt, and body; close the answer, however it ends.

    `before_end` is awaited once, when all bytes have come and the last ones are not sent yet. It must be bounded and not raise;
    when the client leaves meanwhile it is cancelled, so what it waits for must be held by someone else. `disconnected` is done
    when the client has left (edge/disconnect.py); None means to go on to the end regardless. After `truncated` the ASGI call
    must return without sending more: uvicorn then cuts the connection.
    """
    try:
        copying = _Copying(answer, answer.chunks(), send, reader)
        whole = await while_there(disconnected, copying.all(receipt, before_end))
    finally:
        await answer.aclose()
    if reader is not None and not whole and copying.sent > LARGE:
        await turn()  # the caller makes of it what it can
    outcome: Outcome = "disconnected" if whole is None else "complete" if whole else "truncated"
    return Relayed(outcome, copying.sent, whole or copying.is_end_sent)


class _Copying:
    def __init__(self, answer: Answer, chunks: AsyncIterator[bytes], send: Send, reader: Reader | None) -> None:
        self._status = answer.status
        self._headers = response_headers(answer.headers)
        self._chunks = chunks
        self._send = send
        self._reader = reader
        self._decode = decoder(header(self._headers, b"content-encoding"))
        self._streaming = is_event_stream(self._headers)
        self._finder = DoneFinder()
        self._missing = content_length(self._headers)
        self._held = b""
        self.sent = 0
        self.is_end_sent = False

    async def all(self, receipt: Sequence[Header], before_end: BeforeEnd | None) -> bool:
        """Send head and body; False if the answer broke off before its end."""
        headers = [item for item in self._headers if item[0] != b"content-length" or self._status not in BODILESS]
        await self._send({"type": "http.response.start", "status": self._status, "headers": [*headers, *receipt]})
        if before_end is not None:
            if not await self._until_last():
                return False
            if self.sent + len(self._held) > LARGE:
                await turn()
            await before_end()
        return await self._rest()

    async def _rest(self) -> bool:
        """What is held of a body that has come whole ends it, in one message; a stream may go on behind its own end."""
        last = b"" if self._streaming else self._held
        try:
            await self._forward(self._held[len(last) :])
            self.is_end_sent = self._streaming and bool(self._held)
            async for chunk in self._chunks:
                await self._forward(last + chunk)
                self._read(self._plain(chunk))
                last = b""
        except UpstreamError:
            await self._forward(last)
            return False
        await self._send({"type": "http.response.body", "body": last, "more_body": False})
        self.sent += len(last)
        return True

    async def _until_last(self) -> bool:
        one_late = self._missing is None and not self._streaming
        try:
            async for chunk in self._chunks:
                plain = self._plain(chunk)
                if one_late:
                    await self._forward(self._held)
                    self._held = chunk
                elif (last := self._last_in(chunk, plain)) is not None:
                    await self._forward(chunk[:last])
                    self._held = chunk[last:]
                else:
                    await self._forward(chunk)
                self._read(plain)
                if self._held and not one_late:
                    break
        except UpstreamError:
            await self._forward(self._held)
            return False
        return True

    def _last_in(self, chunk: bytes, plain: bytes) -> int | None:
        """Where the body's last bytes begin, if they do in this chunk; of a compressed chunk that is its beginning."""
        if self._missing is not None:
            self._missing -= len(chunk)
        found = self._finder.feed(plain) if self._streaming else None
        if found is not None:
            return found if plain is chunk else 0
        return 0 if self._missing == 0 else None

    async def _forward(self, chunk: bytes) -> None:
        if len(chunk) > LARGE:
            await turn()
        if chunk:
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
            self.sent += len(chunk)

    def _plain(self, chunk: bytes) -> bytes:
        """The chunk uncompressed; nothing where we cannot."""
        if self._decode is None:
            return b""
        try:
            return self._decode(chunk)
        except Exception as exc:  # the copy's failure touches nothing
            log.warning("reply.unread", cause=type(exc).__name__)
            self._decode = self._reader = None
            return b""

    def _read(self, plain: bytes) -> None:
        if self._reader is None:
            return
        try:
            self._reader.feed(plain)
        except Exception as exc:  # the copy's failure touches nothing
            log.warning("reply.unread", cause=type(exc).__name__)
            self._reader = None
