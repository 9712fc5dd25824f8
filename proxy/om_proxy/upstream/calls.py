"""The one seam to the model servers: calls that end when they should, whatever becomes of who made them.

httpx speaks at the seam, so an `httpx.MockTransport` (over a router of respx's) stands in for a model server in tests. Whoever waits
for a call may be cancelled at any moment. A request in one piece (whole.py) is then over, and its place free; any other call runs in
a task of its own, which is ended by us, and its place given back only when it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any

import httpx

from om_proxy.errors import Overloaded, UpstreamError
from om_proxy.upstream.causes import broken_off, unreachable
from om_proxy.upstream.transport import AiohttpTransport, Answered, in_one_piece

CLOSE_WITHIN = 1.0  # seconds until an abandoned connection is gone; docs/spec/http.md#leaving
BRINGING = ("POST", "PUT", "PATCH")  # whose meaning it is to bring a body: without one they say so (RFC 9110 8.6)
STATUSES = range(200, 600)  # of a final answer

# What httpx raises, and a transport of it by contract; ValueError: a header that cannot be written.
Foreign = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, ValueError)

Headers = Sequence[tuple[bytes, bytes]]
Content = bytes | AsyncIterable[bytes]


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
        content: Content,
        *,
        connect_timeout: float,
        read_timeout: float,
        setting: str = "upstream",
    ) -> Answer:
        """Send a request and wait for the head of its answer. Times in seconds; `read_timeout` is for the head altogether, and
        between two pieces of what is sent before it or read after it (connection.py).

        Adds no headers but host and the body's framing, follows no redirect, repeats nothing. (On a kept connection that the
        server closes in that very moment, an idempotent method is sent once more, as RFC 9110 9.2.2 allows; no POST.)
        Raises UpstreamError, UpstreamTimeout, or Overloaded when no connection became free within `connect_timeout`; the first two
        name the server's origin and what to check below `setting`, the place of the server in the settings.
        """
        if self._places.locked():
            await self._wait_for_place(connect_timeout)
        else:
            await self._places.acquire()
        asking = self._ask(method, url, headers, content, connect_timeout, read_timeout)
        direct = isinstance(self._transport, AiohttpTransport) and in_one_piece(content)
        try:
            answer = await (self._answered(asking, url) if direct else self._answered_in_a_task(asking, url))
        except Foreign as exc:
            raise unreachable(exc, url, setting) from exc
        if answer.status not in STATUSES:
            await answer.aclose()
            raise UpstreamError(f"the model server answered with a status that is none ({answer.status})")
        return answer

    async def _answered(self, asking: Awaitable[Answered], url: str) -> Answer:
        try:
            return Answer(await asking, self._close, url)
        except BaseException:
            self._places.release()
            raise

    async def _answered_in_a_task(self, asking: Coroutine[Any, Any, Answered], url: str) -> Answer:
        call = self._hold(asking)
        try:
            await until(call)
        except asyncio.CancelledError:
            self._hold(self._abandon(call))
            raise
        if call.cancelled():  # and its caller was not: we are closing
            self._places.release()
            raise UpstreamError("the call to the model server was given up: the proxy is stopping")
        return await self._answered(call, url)

    async def _ask(
        self, method: str, url: str, headers: Headers, content: Content, connect: float, read: float
    ) -> Answered:
        if isinstance(self._transport, AiohttpTransport):
            announced = [len(content)] if isinstance(content, bytes) and (content or method in BRINGING) else []
            framing = [(b"content-length", b"%d" % length) for length in announced]
            return await self._transport.ask(method, url, [*headers, *framing], content, connect, read)
        extensions = {"timeout": {"connect": connect, "read": read}}
        request = httpx.Request(method, url, headers=list(headers), content=content, extensions=extensions)
        response = await self._transport.handle_async_request(request)
        assert isinstance(response.stream, httpx.AsyncByteStream)  # noqa: S101 - a transport that answered an async request
        return Answered(response.status_code, response.headers.raw, response.stream)

    async def aclose(self) -> None:
        """End what is still under way and close every connection. A call that still connects ends with its connect timeout."""
        for task in self._held:
            task.cancel()
        if self._held:
            await asyncio.wait(self._held)
        await self._transport.aclose()

    async def _wait_for_place(self, seconds: float) -> None:
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

    async def _abandon(self, call: asyncio.Task[Answered]) -> None:
        call.cancel()
        await until(call)
        if call.cancelled() or call.exception() is not None:
            self._places.release()
        else:
            await self._end(call.result())

    async def _close(self, answered: Answered, read: bool) -> None:
        """Of an answer read to its end nothing is left to wait for: no task for that, and no limit."""
        if not read:
            await until(self._hold(self._end(answered)))
            return
        try:
            await answered.body.aclose()
        finally:
            self._places.release()

    async def _end(self, answered: Answered) -> None:
        try:
            async with asyncio.timeout(CLOSE_WITHIN):
                await answered.body.aclose()
        except (TimeoutError, *Foreign):
            return  # it is gone either way, and nobody is left to tell
        finally:
            self._places.release()


class Answer:
    """A model server's answer, its body still to be read. Whoever holds it must `aclose` it."""

    __slots__ = ("_answered", "_body", "_close", "_closed", "_read", "_url", "headers", "status")

    def __init__(self, answered: Answered, close: Callable[[Answered, bool], Awaitable[None]], url: str = "") -> None:
        self.status = answered.status
        self.headers = answered.headers
        self._answered = answered
        self._body = aiter(answered.body)
        self._close = close
        self._url = url  # whose answer it is, for an error's message
        self._closed = False
        self._read = False  # to its end

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives: raw, not decompressed. Raises UpstreamError when it breaks off, after all that did come."""
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._body)
        except StopAsyncIteration:
            self._read = True
            raise
        except Foreign as exc:
            raise broken_off(exc, self._url) from exc

    async def read(self) -> bytes:
        """The whole body, for short answers."""
        return b"".join([chunk async for chunk in self.chunks()])

    async def aclose(self) -> None:
        """Give the connection back, or cut it if the body was not read to its end. Repeatable, and done even if cancelled."""
        if not self._closed:
            self._closed = True
            await self._close(self._answered, self._read)

    def __repr__(self) -> str:
        return f"<Answer {self.status}>"


async def until(task: asyncio.Task[Any]) -> None:
    """Wait for a task to end, however it does; whoever waits may be cancelled, the task is not. asyncio.wait costs three times as much."""
    ended = asyncio.get_running_loop().create_future()

    def tell(_: asyncio.Task[Any]) -> None:
        if not ended.done():
            ended.set_result(None)

    task.add_done_callback(tell)
    await ended
