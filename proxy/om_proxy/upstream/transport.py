"""httpx requests over aiohttp's connections.

httpx's own pool wedges for good under cancelled calls (1 000 hang-ups: 0 of 5 later requests succeed) and costs 2.1 ms of CPU
a request at 16 at once, against 0.12 ms here.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple, TypeGuard

import aiohttp
import httpx
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict
from yarl import URL

from om_proxy.upstream import whole
from om_proxy.upstream.connection import Connection

KEEP_ALIVE = 15.0  # seconds an idle connection is kept; a server that closes earlier is noticed at once
WHOLE = 1 << 20  # bytes up to which a body is written at once, and joined to its head for that
PIECE = 1 << 18  # bytes written at once of a larger one

# What aiohttp raises, and the system below it; RuntimeError: its session was closed meanwhile.
Below = (aiohttp.ClientError, HttpProcessingError, OSError, RuntimeError)


class Answered(NamedTuple):
    """The head of an answer, its body still to be read."""

    status: int
    headers: list[tuple[bytes, bytes]]  # order and duplicates kept
    body: httpx.AsyncByteStream


class AiohttpTransport(httpx.AsyncBaseTransport):
    """httpx requests over an aiohttp session: no cookies, no proxies from the environment, no headers of its own.

    A request in one piece takes the session's connections without the session (whole.py). What is larger or comes in pieces goes by
    the session, which writes headers as text: there, bytes that are no UTF-8 are read as Latin-1 and arrive as UTF-8.
    """

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._roads = whole.Roads()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        timeout = request.extensions.get("timeout", {})
        answered = await self.ask(
            request.method,
            str(request.url),
            # what httpx says of the host and of a streamed body is said below it, and would be said twice
            [item for item in request.headers.raw if item[0].lower() not in (b"host", b"transfer-encoding")],
            _content(request),
            timeout.get("connect"),
            timeout.get("read"),
        )
        return httpx.Response(answered.status, headers=answered.headers, stream=answered.body, request=request)

    async def ask(
        self,
        method: str,
        url: str,
        headers: Sequence[tuple[bytes, bytes]],
        content: bytes | AsyncIterable[bytes],
        connect: float | None,
        read: float | None,
    ) -> Answered:
        """The same without httpx's objects, which cost 50 µs a request; `url` goes out as it is given. Raises httpx's errors."""
        if self._session is None:  # made here because it belongs to the running loop
            self._session = _session()
        if in_one_piece(content):
            return await self._ask_whole(self._session, method, url, headers, content, _timeout(connect, read))
        try:
            response = await self._session.request(
                method,
                _address(url),
                headers=_headers(headers),
                data=_body(content),
                allow_redirects=False,
                timeout=_timeout(connect, read),
                ssl=whole.trust(url),
            )
        except Below as exc:
            raise _as_httpx(exc) from exc
        return Answered(response.status, list(response.raw_headers), _Body(response.content, response.close))

    async def _ask_whole(
        self,
        session: aiohttp.ClientSession,
        method: str,
        url: str,
        headers: Sequence[tuple[bytes, bytes]],
        content: bytes,
        within: aiohttp.ClientTimeout,
    ) -> Answered:
        if session.closed or session.connector is None:
            raise httpx.NetworkError("RuntimeError")
        try:
            answer = await whole.ask(session.connector, self._roads.to(method, url), headers, content, within)
        except Below as exc:
            raise _as_httpx(exc) from exc
        except ValueError as exc:
            raise httpx.LocalProtocolError(str(exc)) from exc
        return Answered(answer.status, answer.headers, _Body(answer.content, answer.close))

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()


def in_one_piece(content: bytes | AsyncIterable[bytes]) -> TypeGuard[bytes]:
    """Whether such a request needs no session (whole.py)."""
    return isinstance(content, bytes) and len(content) <= WHOLE


class _Body(httpx.AsyncByteStream):
    """`close` ends the connection; a no-op for one that went back to the pool at the body's end.

    An iterator of its own: the loop keeps a list of asynchronous generators, which costs more than a chunk does.
    """

    def __init__(self, content: aiohttp.StreamReader, close: Callable[[], None]) -> None:
        self._content = content
        self._close = close
        self._broken: httpx.TransportError | None = None  # after what came before

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._broken is not None:
            raise self._broken
        content = self._content
        if not content.at_eof() and not content._buffer:
            content._protocol.begin_wait()  # type: ignore[attr-defined] # a Connection of ours
        try:
            chunk = await content.readany()
        except Below as exc:
            chunk = self._rest(exc)
        if not chunk:
            raise StopAsyncIteration
        return chunk

    def _rest(self, exc: Exception) -> bytes:
        """aiohttp raises ahead of what it still holds, but what came before the break belongs to the client. It has no public way
        to ask for it; tests/test_upstream.py tells when this one goes."""
        self._broken = _as_httpx(exc)
        self._broken.__cause__ = exc
        if rest := self._content._read_nowait(-1):
            return rest
        raise self._broken

    async def aclose(self) -> None:
        self._close()


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), PIECE):
        yield content[start : start + PIECE]


@lru_cache(maxsize=256)  # parsing an address costs more than sending to it
def _address(url: str) -> URL:
    return URL(url, encoded=True)


@lru_cache(maxsize=64)
def _timeout(connect: float | None, read: float | None) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, connect=connect, sock_connect=connect, sock_read=read)


def _session() -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE)
    connector._factory = partial(Connection, connector._loop)  # type: ignore[assignment]  # a partial of the narrower class
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),  # one caller's cookie must never travel with another's request
        skip_auto_headers=("accept", "accept-encoding", "user-agent", "content-type"),
        **whole.READING,
    )


def _headers(headers: Sequence[tuple[bytes, bytes]]) -> CIMultiDict[str]:
    """In their order, duplicates kept; in lower case, for aiohttp keeps only the last of two that differ in case."""
    try:
        return CIMultiDict([(name.decode().lower(), value.decode()) for name, value in headers])
    except UnicodeDecodeError:
        return CIMultiDict([(_text(name.lower()), _text(value)) for name, value in headers])


def _body(content: bytes | AsyncIterable[bytes]) -> AsyncIterable[bytes]:
    if isinstance(content, bytes):
        return _pieces(content)  # longer than what needs no session
    return content


def _content(request: httpx.Request) -> bytes | AsyncIterable[bytes]:
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
        case (
            aiohttp.ClientResponseError()
            | HttpProcessingError()
            | aiohttp.ClientPayloadError()
            | aiohttp.ServerDisconnectedError()
        ):
            kind = httpx.RemoteProtocolError
        case _:
            kind = httpx.NetworkError
    return kind(type(exc).__name__)
