"""Send httpx requests over aiohttp's connections.

httpx's own pool stops working for good under cancelled calls (after 1 000 hang-ups, 0 of 5 later
requests succeed). With 16 requests at once, it costs 2.1 ms of CPU a request, against 0.12 ms here.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeGuard

import aiohttp
import httpx
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict
from yarl import URL

from om_proxy.common.running_time import limit_running_time
from om_proxy.wire.upstream import single_write
from om_proxy.wire.upstream.connection import Connection

MAX_SINGLE_WRITE_BYTES = 1 << 20  # of a body that is joined to its head and written at once
BODY_PIECE_BYTES = 1 << 18  # of a larger body
MAX_CACHED_ROUTES = 256  # bounded, because each query of a client makes a new one
MAX_CACHED_URL_CHARS = 2_048

# the errors of aiohttp and of the system; RuntimeError: the session was closed meanwhile
AIOHTTP_ERRORS = (aiohttp.ClientError, HttpProcessingError, OSError, RuntimeError)


class RawResponse(NamedTuple):
    """The head of a response, with the unread body."""

    status: int
    headers: list[tuple[bytes, bytes]]  # in the order received, with duplicates
    body: httpx.AsyncByteStream


class AiohttpTransport(httpx.AsyncBaseTransport):
    """The transport that sends httpx requests over an aiohttp session, without cookies, proxies
    from the environment or headers of its own.

    A request in one piece uses the session's connections without the session (single_write.py). A
    larger request, or one in pieces, uses the session, which writes headers as text: bytes that are
    not UTF-8 are read as Latin-1 and arrive as UTF-8.
    """

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._make_cached_route = lru_cache(MAX_CACHED_ROUTES)(single_write.make_route)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        timeout = request.extensions.get("timeout", {})
        raw = await self.send(
            request.method,
            str(request.url),
            # the transport writes the host and a streamed body's framing itself
            [
                header
                for header in request.headers.raw
                if header[0].lower() not in (b"host", b"transfer-encoding")
            ],
            _read_content(request),
            timeout.get("connect"),
            timeout.get("read"),
        )
        return httpx.Response(raw.status, headers=raw.headers, stream=raw.body, request=request)

    async def send(
        self,
        method: str,
        url: str,
        headers: Sequence[tuple[bytes, bytes]],
        content: bytes | AsyncIterable[bytes],
        connect_timeout_s: float | None,
        read_timeout_s: float | None,
    ) -> RawResponse:
        """Send a request without httpx's objects, which cost 50 µs a request. `url` is sent
        unchanged. Raises httpx's errors."""
        if self._session is None:  # opened here because it belongs to the running loop
            self._session = _open_session()
        timeouts = _make_timeouts(connect_timeout_s, read_timeout_s)
        if is_single_write(content):
            return await self._send_in_one_piece(
                self._session, method, url, headers, content, timeouts
            )
        try:
            response = await self._session.request(
                method,
                _parse_url(url),
                headers=_encode_headers(headers),
                data=_stream_body(content),
                allow_redirects=False,
                timeout=timeouts,
                ssl=single_write.get_tls_context(url),
            )
        except AIOHTTP_ERRORS as exc:
            raise _convert_error(exc) from exc
        return RawResponse(
            response.status,
            list(response.raw_headers),
            _ResponseBody(response.content, response.close),
        )

    async def _send_in_one_piece(
        self,
        session: aiohttp.ClientSession,
        method: str,
        url: str,
        headers: Sequence[tuple[bytes, bytes]],
        content: bytes,
        timeouts: aiohttp.ClientTimeout,
    ) -> RawResponse:
        if session.closed or session.connector is None:
            raise httpx.NetworkError("RuntimeError")
        try:
            response = await single_write.send_request(
                session.connector, self._find_route(method, url), headers, content, timeouts
            )
        except AIOHTTP_ERRORS as exc:
            raise _convert_error(exc) from exc
        except ValueError as exc:
            raise httpx.LocalProtocolError(str(exc)) from exc
        return RawResponse(
            response.status, response.headers, _ResponseBody(response.content, response.close)
        )

    def _find_route(self, method: str, url: str) -> single_write.Route:
        is_cached = len(url) <= MAX_CACHED_URL_CHARS
        make_route = self._make_cached_route if is_cached else single_write.make_route
        return make_route(method, url)

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()


def is_single_write(content: bytes | AsyncIterable[bytes]) -> TypeGuard[bytes]:
    """Return whether a request with this body needs no session (single_write.py)."""
    return isinstance(content, bytes) and len(content) <= MAX_SINGLE_WRITE_BYTES


class _ResponseBody(httpx.AsyncByteStream):
    """The body of a response. `close` closes the connection, or does nothing if the connection
    returned to the pool at the end of the body.

    The class is an iterator and not an asynchronous generator: the loop keeps a list of those,
    which costs more than a chunk does.
    """

    def __init__(self, content: aiohttp.StreamReader, close: Callable[[], None]) -> None:
        self._content = content
        self._close = close
        self._error: httpx.TransportError | None = None  # raised after the received bytes

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._error is not None:
            raise self._error
        content = self._content
        if not content.at_eof() and not content._buffer:
            content._protocol.begin_wait()  # type: ignore[attr-defined] # our own Connection
        try:
            chunk = await content.readany()
        except AIOHTTP_ERRORS as exc:
            chunk = self._take_received(exc)
        if not chunk:
            raise StopAsyncIteration
        return chunk

    def _take_received(self, exc: Exception) -> bytes:
        """Return the bytes that came before the error: aiohttp raises before it returns them, but
        they belong to the client. aiohttp has no public way to get them;
        tests/wire/test_upstream.py fails if this way stops working."""
        self._error = _convert_error(exc)
        self._error.__cause__ = exc
        if received := self._content._read_nowait(-1):
            return received
        raise self._error

    async def aclose(self) -> None:
        self._close()


async def _split_body(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), BODY_PIECE_BYTES):
        yield content[start : start + BODY_PIECE_BYTES]


@lru_cache(maxsize=256)  # parsing an address costs more than sending to it
def _parse_url(url: str) -> URL:
    return URL(url, encoded=True)


@lru_cache(maxsize=64)
def _make_timeouts(
    connect_timeout_s: float | None, read_timeout_s: float | None
) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(
        total=None,
        sock_connect=connect_timeout_s,
        sock_read=read_timeout_s,
    )


def _open_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=Connector(),
        # one caller's cookie must never travel with another's request
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("accept", "accept-encoding", "user-agent", "content-type"),
        **single_write.READ_OPTIONS,
    )


def _encode_headers(headers: Sequence[tuple[bytes, bytes]]) -> CIMultiDict[str]:
    """Encode headers in their order, with duplicates. Names are in lower case, because aiohttp
    keeps only the last of two names that differ in case."""
    try:
        return CIMultiDict([(name.decode().lower(), value.decode()) for name, value in headers])
    except UnicodeDecodeError:
        return CIMultiDict(
            [(_decode_header(name.lower()), _decode_header(value)) for name, value in headers]
        )


def _stream_body(content: bytes | AsyncIterable[bytes]) -> AsyncIterable[bytes]:
    if isinstance(content, bytes):
        return _split_body(content)  # too long for a single write
    return content


def _read_content(request: httpx.Request) -> bytes | AsyncIterable[bytes]:
    try:
        return request.content
    except httpx.RequestNotRead:
        assert isinstance(request.stream, AsyncIterable)  # because it was not read
        return request.stream


def _decode_header(header: bytes) -> str:
    """Decode the name or the value of a header. aiohttp writes text as UTF-8. Bytes that are not
    UTF-8 are read as Latin-1, HTTP's old encoding."""
    try:
        return header.decode()
    except UnicodeDecodeError:
        return header.decode("latin-1")


def _convert_error(exc: Exception) -> httpx.TransportError:
    match exc:
        case aiohttp.ConnectionTimeoutError():
            error_class: type[httpx.TransportError] = httpx.ConnectTimeout
        case TimeoutError():
            error_class = httpx.ReadTimeout
        case aiohttp.ClientConnectorError():
            error_class = httpx.ConnectError
        case aiohttp.InvalidURL():
            error_class = httpx.UnsupportedProtocol
        case (
            aiohttp.ClientResponseError()
            | HttpProcessingError()
            | aiohttp.ClientPayloadError()
            | aiohttp.ServerDisconnectedError()
        ):
            error_class = httpx.RemoteProtocolError
        case _:
            error_class = httpx.NetworkError
    return error_class(type(exc).__name__)


KEEP_ALIVE_S = 15.0  # of an idle connection; a server that closes it earlier is noticed at once
NO_TIMEOUT = aiohttp.ClientTimeout()


class Connector(aiohttp.TCPConnector):
    """aiohttp's connector, with our own connections and clock. `sock_connect` bounds all of a new
    connection: name lookup, TCP and TLS."""

    def __init__(self) -> None:
        super().__init__(limit=0, keepalive_timeout=KEEP_ALIVE_S)
        # Any, because aiohttp declares a partial of its own class
        factory: Any = partial(Connection, self._loop)
        self._factory = factory

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's signature
    ) -> ResponseHandler:
        """Make a connection where none is kept: one that is takes no timer."""
        if timeout.sock_connect is None:
            return await super()._create_connection(req, traces, timeout)
        async with limit_running_time(timeout.sock_connect):
            return await super()._create_connection(req, traces, NO_TIMEOUT)
