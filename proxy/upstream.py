"""The one seam to the model servers: a request goes out as it is, its answer comes back as raw bytes.

httpx speaks at the seam, so a `httpx.MockTransport` stands in for a model server in tests; aiohttp does the work, because
httpx's own pool wedges for good under cancelled calls (1 000 hang-ups: 0 of 5 later requests succeed) and costs 2.1 ms of
CPU a request at 16 at once against aiohttp's 0.12 ms. For the same reason a call runs in a task of its own: whoever waits
for it may be cancelled at any moment, the call is then ended by us and its place given back only when it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Coroutine, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import quote_from_bytes, urlsplit

import aiohttp
import httpx
from multidict import CIMultiDict
from yarl import URL

from proxy.errors import Overloaded, UpstreamError, UpstreamTimeout

CLOSE_WITHIN = 1.0  # seconds until an abandoned connection is gone; http.md, "Transparency"
KEEP_ALIVE = 15.0  # seconds an idle connection is kept; a server that closes earlier is noticed at once
HEADER_LIMIT = 65_536  # bytes of one response header line; aiohttp's 8 190 is less than some cookies and policies take
WHOLE = 1 << 20  # bytes up to which aiohttp takes a body in one piece without complaint
PIECE = 1 << 18  # bytes written at once of a larger one
ASCII = bytes(range(0x21, 0x7F))  # what may stand in a query as it is
STATUSES = range(200, 600)  # of a final answer
REFRAMED = (
    b"transfer-encoding",
    b"Transfer-Encoding",
)  # httpx announces it as well as aiohttp, which allows one of both

# What httpx raises, a transport of it by contract; ValueError: a header that cannot be written.
Foreign = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, ValueError)
# What aiohttp raises, and the system below it; RuntimeError: its session was closed meanwhile.
Below = (aiohttp.ClientError, OSError, RuntimeError)

Headers = Sequence[tuple[bytes, bytes]]


class Upstream:
    """Connections to the model servers, shared by all requests."""

    def __init__(self, *, connections: int = 1000, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._transport = transport or AiohttpTransport()
        self._places = asyncio.Semaphore(connections)  # calls wait here and not in the pool
        self._held: set[asyncio.Task[Any]] = set()

    async def send(
        self,
        method: str,
        url: str,
        headers: Headers,
        content: bytes | AsyncIterable[bytes],
        *,
        connect_timeout: float,
        read_timeout: float,
    ) -> Answer:
        """Send a request and wait for the head of its answer. Times in seconds; `read_timeout` is between two reads.

        Adds no headers but host and the body's framing, follows no redirect, repeats nothing. (On a kept connection that the
        server closes in that very moment, aiohttp sends an idempotent method once more, as RFC 9110 9.2.2 allows; no POST.)
        Raises UpstreamError, UpstreamTimeout, or Overloaded when no connection became free within `connect_timeout`.
        """
        request = _request(method, url, headers, content, connect_timeout, read_timeout)
        await self._take_place(connect_timeout)
        call = self._hold(self._transport.handle_async_request(request))
        try:
            await asyncio.wait((call,))
        except asyncio.CancelledError:
            self._hold(self._abandon(call))
            raise
        try:
            answer = Answer(call.result(), self._close)
        except Foreign as exc:
            self._places.release()
            raise _translated(exc, "could not be reached") from exc
        except BaseException:
            self._places.release()
            raise
        if answer.status not in STATUSES:
            await answer.aclose()
            raise UpstreamError(f"the model server answered with a status that is none ({answer.status})")
        return answer

    def as_transport(self) -> httpx.AsyncBaseTransport:
        """The same connections for calls of our own, the memory models'; their number is bounded elsewhere. Closed by us."""
        return self._transport

    async def aclose(self) -> None:
        """End what is still under way and close every connection."""
        for task in self._held:
            task.cancel()
        if self._held:
            await asyncio.wait(self._held)
        await self._transport.aclose()

    async def _take_place(self, seconds: float) -> None:
        if not self._places.locked():
            await self._places.acquire()
            return
        try:
            async with asyncio.timeout(seconds):
                await self._places.acquire()
        except TimeoutError as exc:
            raise Overloaded("all connections to the model server are in use; try again shortly") from exc

    def _hold(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task that lives on when its maker does not: the event loop itself keeps only weak references."""
        task = asyncio.create_task(work)
        self._held.add(task)
        task.add_done_callback(self._held.discard)
        return task

    async def _abandon(self, call: asyncio.Task[httpx.Response]) -> None:
        call.cancel()
        await asyncio.wait((call,))
        if call.cancelled() or call.exception() is not None:
            self._places.release()
        else:
            await self._end(call.result())

    def _close(self, response: httpx.Response) -> asyncio.Task[None]:
        return self._hold(self._end(response))

    async def _end(self, response: httpx.Response) -> None:
        try:
            async with asyncio.timeout(CLOSE_WITHIN):
                await response.aclose()
        except (TimeoutError, *Foreign):
            return  # it is gone either way, and nobody is left to tell
        finally:
            self._places.release()


class Answer:
    """A model server's answer, its body still to be read. Whoever holds it must `aclose` it."""

    __slots__ = ("_close", "_closing", "_response", "headers", "status")

    def __init__(self, response: httpx.Response, close: Callable[[httpx.Response], asyncio.Task[None]]) -> None:
        self.status = response.status_code
        self.headers: list[tuple[bytes, bytes]] = response.headers.raw  # order and duplicates kept
        self._response = response
        self._close = close
        self._closing: asyncio.Task[None] | None = None

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body as it arrives: raw, not decompressed. Raises UpstreamError when it breaks off, after all that did come."""
        stream = self._response.stream
        assert isinstance(stream, AsyncIterable)  # noqa: S101 - a transport that answered an async request
        try:
            async for chunk in stream:
                yield chunk
        except Foreign as exc:
            raise _translated(exc, "broke off its answer") from exc

    async def read(self) -> bytes:
        """The whole body, for short answers."""
        return b"".join([chunk async for chunk in self.chunks()])

    async def aclose(self) -> None:
        """Give the connection back, or cut it if the body was not read to its end. Repeatable, and done even if cancelled."""
        if self._closing is None:
            self._closing = self._close(self._response)
        await asyncio.wait((self._closing,))

    def __repr__(self) -> str:
        return f"<Answer {self.status}>"


class AiohttpTransport(httpx.AsyncBaseTransport):
    """httpx requests over an aiohttp session: no cookies, no proxies from the environment, no headers of its own."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._session is None:  # made here because it belongs to the running loop
            self._session = _session()
        timeout = request.extensions.get("timeout", {})
        try:
            response = await self._session.request(
                request.method,
                URL(request.extensions.get("as_given") or str(request.url), encoded=True),
                headers=_headers(request),
                data=_body(request),
                allow_redirects=False,
                timeout=_timeout(timeout.get("connect"), timeout.get("read")),
            )
        except Below as exc:
            raise _as_httpx(exc) from exc
        return httpx.Response(response.status, headers=response.raw_headers, stream=_Body(response), request=request)

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()


class _Body(httpx.AsyncByteStream):
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        content = self._response.content
        try:
            while chunk := await content.readany():
                yield chunk
        except Below as exc:
            # aiohttp raises ahead of what it still holds, but what came before the break belongs to the client. It has no
            # public way to ask for it; tests/test_upstream.py tells when this one goes.
            if rest := content._read_nowait(-1):
                yield rest
            raise _as_httpx(exc) from exc

    async def aclose(self) -> None:
        self._response.close()  # a no-op for a connection that went back to the pool at the body's end


def join(base_url: str, path: str, query: bytes) -> str:
    """Where a client's path leads: one leading `/v1` of it is dropped, for the base has its own (`/v1`, `/v1beta/openai`, …).

    A query in the base (Azure's `?api-version=…`) stays, before the client's own.
    """
    origin, fixed = _base(base_url)
    rest = path[3:] if path == "/v1" or path.startswith("/v1/") else path
    both = "&".join(filter(None, (fixed, quote_from_bytes(query, safe=ASCII))))
    return f"{origin}{rest}?{both}" if both else f"{origin}{rest}"


@lru_cache(maxsize=64)
def _base(base_url: str) -> tuple[str, str]:
    parts = urlsplit(base_url)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}", parts.query


def _request(
    method: str, url: str, headers: Headers, content: bytes | AsyncIterable[bytes], connect: float, read: float
) -> httpx.Request:
    framing = [(b"content-length", b"%d" % len(content))] if isinstance(content, bytes) and content else []
    # httpx normalises an address, so the text as given travels beside it.
    extensions = {"timeout": {"connect": connect, "read": read}, "as_given": url}
    try:
        address = _address(url)
        return httpx.Request(
            method, address, headers=[*headers, *framing], stream=_Given(content), extensions=extensions
        )
    except Foreign as exc:
        raise _translated(exc, "has an address that cannot be used") from exc


class _Given(httpx.AsyncByteStream):
    """A body as it was given: from `content=`, httpx would read it and write headers for it, at 20 µs a request."""

    def __init__(self, content: bytes | AsyncIterable[bytes]) -> None:
        self.content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if isinstance(self.content, bytes):
            for start in range(0, len(self.content), PIECE):
                yield self.content[start : start + PIECE]
        else:
            async for piece in self.content:
                yield piece


_address = lru_cache(maxsize=256)(httpx.URL)  # parsing one costs more than sending to it


@lru_cache(maxsize=64)
def _timeout(connect: float | None, read: float | None) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, connect=connect, sock_connect=connect, sock_read=read)


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE, ssl=httpx.create_ssl_context()),
        cookie_jar=aiohttp.DummyCookieJar(),  # one caller's cookie must never travel with another's request
        skip_auto_headers=("accept", "accept-encoding", "user-agent", "content-type"),
        auto_decompress=False,
        max_line_size=HEADER_LIMIT,
        max_field_size=HEADER_LIMIT,
    )


def _headers(request: httpx.Request) -> CIMultiDict[str]:
    """In their order, duplicates kept; in lower case, for aiohttp keeps only the last of two that differ in case."""
    raw = ((name.lower(), value) for name, value in request.headers.raw)
    # httpx announces a streamed body as chunked, and so does aiohttp, which refuses to do it twice.
    return CIMultiDict((_text(name), _text(value)) for name, value in raw if name != b"transfer-encoding")


def _body(request: httpx.Request) -> bytes | AsyncIterable[bytes] | None:
    content = _content(request)
    if isinstance(content, bytes):
        return (content if len(content) <= WHOLE else _Given(content)) or None
    return content


def _content(request: httpx.Request) -> bytes | AsyncIterable[bytes]:
    if isinstance(request.stream, _Given):
        return request.stream.content
    try:
        return request.content
    except httpx.RequestNotRead:
        assert isinstance(request.stream, AsyncIterable)  # noqa: S101 - of an async client, not read: a stream
        return request.stream


def _text(header: bytes) -> str:
    """aiohttp writes headers as UTF-8; other bytes than that are read as Latin-1, as HTTP once had it."""
    try:
        return header.decode()
    except UnicodeDecodeError:
        return header.decode("latin-1")


def _as_httpx(exc: Exception) -> httpx.TransportError:
    match exc:
        case aiohttp.ConnectionTimeoutError():
            kind: type[httpx.TransportError] = httpx.ConnectTimeout
        case TimeoutError():
            kind = httpx.ReadTimeout
        case aiohttp.ClientConnectorError():
            kind = httpx.ConnectError
        case aiohttp.InvalidURL():
            kind = httpx.UnsupportedProtocol
        case aiohttp.ClientResponseError() | aiohttp.ClientPayloadError() | aiohttp.ServerDisconnectedError():
            kind = httpx.RemoteProtocolError
        case _:
            kind = httpx.NetworkError
    return kind(type(exc).__name__)


def _translated(exc: Exception, what: str) -> UpstreamError:
    """Ours, naming the class of the cause; its text may hold an address with a key in it."""
    kind = UpstreamTimeout if isinstance(exc, httpx.TimeoutException) else UpstreamError
    return kind(f"the model server {what} ({type(exc.__cause__ or exc).__name__})")
