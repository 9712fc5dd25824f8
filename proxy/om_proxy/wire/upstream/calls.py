"""Call the model servers. Every call ends in time, even if its caller is cancelled.

The interface is httpx's, so an `httpx.MockTransport` (over respx's router) can replace a model
server in tests. A caller may be cancelled at any moment. A request in one piece (single_write.py)
then ends at once, and its slot is free. Any other call runs in a task of its own: we cancel that
task, and free its slot only when the task has ended.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import quote_from_bytes, urlsplit

import aiohttp
import httpx

from om_proxy.common.apis import PATHS_BESIDE_V1
from om_proxy.common.errors import Overloaded, UpstreamError, UpstreamTimeout
from om_proxy.common.running_time import limit_running_time
from om_proxy.wire.upstream.transport import AiohttpTransport, RawResponse, is_single_write

CLOSE_TIMEOUT_S = 1.0  # until an abandoned connection is closed; docs/contributing/http.md#leaving
# methods that expect a body: without one, they send `content-length: 0` (RFC 9110 8.6)
METHODS_WITH_BODY = ("POST", "PUT", "PATCH")
FINAL_STATUSES = range(200, 600)

# the errors of httpx and of its transports; ValueError: a header that cannot be written
TRANSPORT_ERRORS = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, ValueError)

Headers = Sequence[tuple[bytes, bytes]]
Content = bytes | AsyncIterable[bytes]


QUERY_SAFE_BYTES = bytes(range(0x21, 0x7F))  # printable ASCII, which needs no quoting


class Upstream:
    """The calls to the model servers; all requests share their connections."""

    def __init__(
        self, *, connections: int = 1000, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._transport = transport or AiohttpTransport()
        self._slots = asyncio.Semaphore(connections)  # calls wait for a slot, not in the pool
        self._tasks: set[asyncio.Task[Any]] = set()

    async def send(
        self,
        method: str,
        url: str,
        headers: Headers,
        content: Content,
        *,
        connect_timeout_s: float,
        read_timeout_s: float,
        path_in_settings: str = "upstream",
    ) -> UpstreamResponse:
        """Send a request, and wait for the head of its response. `read_timeout_s` bounds the whole
        head, and each wait between two pieces of the bodies (connection.py).

        `send` adds only the host header and the body's framing. It follows no redirect and retries
        nothing, except that an idempotent method is sent once more if the server closes a kept
        connection at that moment, as RFC 9110 9.2.2 allows; a POST is not.

        Raises UpstreamError or UpstreamTimeout, which name the server's origin and the setting to
        check. `path_in_settings` is the server's path in the settings, such as `upstream[0]`.
        Raises Overloaded if no connection is free within `connect_timeout_s`.
        """
        if self._slots.locked():
            await self._wait_for_slot(connect_timeout_s)
        else:
            await self._slots.acquire()
        sending = self._send_once(method, url, headers, content, connect_timeout_s, read_timeout_s)
        needs_no_task = isinstance(self._transport, AiohttpTransport) and is_single_write(content)
        try:
            if needs_no_task:
                response = await self._finish_call(sending, url)
            else:
                response = await self._run_in_task(sending, url)
        except TRANSPORT_ERRORS as exc:
            raise make_unreachable_error(exc, url, path_in_settings) from exc
        if response.status not in FINAL_STATUSES:
            await response.aclose()
            raise UpstreamError(
                f"the model server answered with an invalid status ({response.status})"
            )
        return response

    async def _finish_call(self, sending: Awaitable[RawResponse], url: str) -> UpstreamResponse:
        try:
            return UpstreamResponse(await sending, self._close, url)
        except BaseException:
            self._slots.release()
            raise

    async def _run_in_task(
        self, sending: Coroutine[Any, Any, RawResponse], url: str
    ) -> UpstreamResponse:
        call = self._start_task(sending)
        try:
            await wait_until_done(call)
        except asyncio.CancelledError:
            self._start_task(self._abandon(call))
            raise
        if call.cancelled():  # by `aclose`, because the caller was not cancelled
            self._slots.release()
            raise UpstreamError("the call to the model server was cancelled: the proxy is stopping")
        return await self._finish_call(call, url)

    async def _send_once(
        self,
        method: str,
        url: str,
        headers: Headers,
        content: Content,
        connect_timeout_s: float,
        read_timeout_s: float,
    ) -> RawResponse:
        if isinstance(self._transport, AiohttpTransport):
            if isinstance(content, bytes) and (content or method in METHODS_WITH_BODY):
                headers = [*headers, (b"content-length", b"%d" % len(content))]
            return await self._transport.send(
                method, url, headers, content, connect_timeout_s, read_timeout_s
            )
        extensions = {"timeout": {"connect": connect_timeout_s, "read": read_timeout_s}}
        request = httpx.Request(
            method, url, headers=list(headers), content=content, extensions=extensions
        )
        response = await self._transport.handle_async_request(request)
        assert isinstance(response.stream, httpx.AsyncByteStream)  # the transport is asynchronous
        return RawResponse(response.status_code, response.headers.raw, response.stream)

    async def aclose(self) -> None:
        """Cancel all calls and close every connection. A call that is connecting ends at its
        connect timeout."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._transport.aclose()

    async def _wait_for_slot(self, timeout_s: float) -> None:
        try:
            async with limit_running_time(timeout_s):
                await self._slots.acquire()
        except TimeoutError as exc:
            raise Overloaded(
                "all connections to the model server are in use; try again shortly"
            ) from exc

    def _start_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task that outlives its caller, and keep a reference to the task, because the
        event loop keeps only weak ones."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _abandon(self, call: asyncio.Task[RawResponse]) -> None:
        call.cancel()
        await wait_until_done(call)
        if call.cancelled() or call.exception() is not None:
            self._slots.release()
        else:
            await self._end(call.result())

    async def _close(self, response: RawResponse, is_read: bool) -> None:
        """Close a response. Closing a response that was read to its end needs no wait, so it needs
        no task and no time limit."""
        if not is_read:
            await wait_until_done(self._start_task(self._end(response)))
            return
        try:
            await response.body.aclose()
        finally:
            self._slots.release()

    async def _end(self, response: RawResponse) -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await response.body.aclose()
        except (TimeoutError, *TRANSPORT_ERRORS):
            return  # the connection is closed all the same, and no caller waits for the end
        finally:
            self._slots.release()


class UpstreamResponse:
    """A model server's response with an unread body. The caller must `aclose` it."""

    __slots__ = (
        "_body",
        "_close",
        "_is_closed",
        "_is_read",
        "_put_back",
        "_response",
        "_url",
        "client_headers",
        "headers",
        "status",
        "told_status",
    )

    def __init__(
        self,
        response: RawResponse,
        close: Callable[[RawResponse, bool], Awaitable[None]],
        url: str = "",
    ) -> None:
        self.status = response.status
        # of an error inside a 200, once someone has looked for it
        self.told_status = response.status
        self.headers = response.headers
        # those that go to the client (edge/headers.py); None: not selected yet
        self.client_headers: list[tuple[bytes, bytes]] | None = None
        self._response = response
        self._body = aiter(response.body)
        self._close = close
        self._url = url  # for an error's message
        self._is_closed = False
        self._is_read = False  # whether the body was read to its end
        self._put_back: list[bytes] = []  # the next chunks, the first one last

    def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over the body as it arrives: raw, not decompressed. If it breaks off, all
        received bytes come first, and then UpstreamError is raised."""
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._put_back:
            return self._put_back.pop()
        try:
            return await anext(self._body)
        except StopAsyncIteration:
            self._is_read = True
            raise
        except TRANSPORT_ERRORS as exc:
            raise make_interrupted_error(exc, self._url) from exc

    @property
    def transport_chunks(self) -> AsyncIterator[bytes]:
        """The chunks without a coroutine for each around the transport's. They leave out those that
        were put back, raise TRANSPORT_ERRORS as they are, and do not note the end of the body."""
        return self._body

    def make_error(self, exc: Exception) -> UpstreamError:
        """Return what `chunks` raises for an error of the transport."""
        return make_interrupted_error(exc, self._url)

    def put_back(self, chunks: Sequence[bytes]) -> None:
        """Let chunks that were read come again, before those that were not."""
        self._put_back += reversed(chunks)

    async def read(self) -> bytes:
        """Return the whole body. Use it for short responses."""
        return b"".join([chunk async for chunk in self.chunks()])

    async def aclose(self) -> None:
        """Return the connection to the pool, or close it if the body was not read to its end.
        `aclose` may be called again, and completes even if it is cancelled."""
        if not self._is_closed:
            self._is_closed = True
            await self._close(self._response, self._is_read)

    def __repr__(self) -> str:
        return f"<UpstreamResponse {self.status}>"


async def wait_until_done(task: asyncio.Task[Any]) -> None:
    """Wait until a task has ended, in any way. A cancelled waiter does not cancel the task.
    `asyncio.wait` would cost three times as much."""
    ended = asyncio.get_running_loop().create_future()

    def set_ended(_: asyncio.Task[Any]) -> None:
        if not ended.done():
            ended.set_result(None)

    task.add_done_callback(set_ended)
    await ended


# Name the cause of a failed call to a model server so that an operator can act on it.
#
# A message names the server's origin (scheme, host, port), never its path or query, because either
# may hold a key. A message names the class of the exception, never its text, which may quote an
# address or a header.


CAUSES_BY_ERRNO = {
    errno.ECONNREFUSED: "nothing listens there",
    errno.EHOSTUNREACH: "no route to it",
    errno.ENETUNREACH: "no route to it",
}


def make_unreachable_error(exc: Exception, url: str, path_in_settings: str) -> UpstreamError:
    """Make the error for a request that got no response. `path_in_settings`: the path of the server
    in the settings, such as `upstream[0]`."""
    error_class = UpstreamTimeout if isinstance(exc, httpx.TimeoutException) else UpstreamError
    source = exc.__cause__ or exc
    cause, key = find_cause(exc, source)
    class_name = type(source).__name__
    description = f"{cause} ({class_name})" if cause else class_name
    return error_class(
        f"could not reach {get_origin(url)}: {description}; check {path_in_settings}.{key}"
    )


def make_interrupted_error(exc: Exception, url: str) -> UpstreamError:
    """Make the error for a response that broke off."""
    error_class = UpstreamTimeout if isinstance(exc, httpx.TimeoutException) else UpstreamError
    return error_class(
        f"{get_origin(url)} broke off its answer ({type(exc.__cause__ or exc).__name__})"
    )


def is_broken_connection(exc: UpstreamError) -> bool:
    """Return whether the server broke the connection before its response: an outage, or its way to
    refuse the request."""
    cause = exc.__cause__
    return isinstance(cause, httpx.RemoteProtocolError | httpx.NetworkError) and not isinstance(
        cause, httpx.ConnectError
    )


def find_cause(exc: Exception, source: BaseException) -> tuple[str, str]:
    """Return the cause in plain words, and the setting to check. The words are "" if the class of
    the error says it best. `source`: the exception that `exc` was made from, or `exc` itself."""
    if isinstance(exc, httpx.ConnectTimeout):
        return "no connection in time", "connect_timeout"
    if isinstance(exc, httpx.TimeoutException):
        return "no answer in time", "read_timeout"
    if isinstance(source, aiohttp.ClientConnectorDNSError):
        return "name not resolved", "base_url"
    if isinstance(source, aiohttp.ClientConnectorCertificateError):
        return "its TLS certificate is not trusted", "base_url"
    if isinstance(source, aiohttp.ClientSSLError):
        return "TLS failed", "base_url"
    number = source.errno if isinstance(source, OSError) else None
    return CAUSES_BY_ERRNO.get(number or 0, ""), "base_url"


def get_origin(url: str) -> str:
    """Return scheme, host and port of an address, without user, path and query."""
    try:
        parts = urlsplit(url)
    except ValueError:  # `http://[::1/`
        return "the model server"
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}" if parts.scheme and host else "the model server"


def join_url(base_url: str, path: str, query: bytes) -> str:
    """Return the upstream address of a client's path. One leading `/v1` of the path is dropped,
    because the base has its own (`/v1`, `/v1beta/openai`, …). A path beside `/v1` is beside that of the
    base; all others stay below it.

    A query in the base, such as Azure's `?api-version=…`, comes before the client's query.
    """
    origin, base_query = _split_base_url(base_url)
    path_in_api = path[3:] if path == "/v1" or path.startswith("/v1/") else path
    if path_in_api is path and path.encode() in PATHS_BESIDE_V1:
        origin = origin.removesuffix("/v1")
    if not query and not base_query:
        return origin + path_in_api
    client_query = quote_from_bytes(query, safe=QUERY_SAFE_BYTES)
    joined_query = "&".join(filter(None, (base_query, client_query)))
    return f"{origin}{path_in_api}?{joined_query}" if joined_query else f"{origin}{path_in_api}"


@lru_cache(maxsize=64)
def _split_base_url(base_url: str) -> tuple[str, str]:
    parts = urlsplit(base_url)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}", parts.query
