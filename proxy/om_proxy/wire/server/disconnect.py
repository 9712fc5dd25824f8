"""Read a request's body, and notice at once that its client has left, even while the proxy works for
it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive, Scope

from om_proxy.common.errors import TooLarge
from om_proxy.wire.server.protocol import DISCONNECT_EXTENSION

T = TypeVar("T")


class ClientDisconnected(Exception):
    """The client left before its request was complete. No response is sent."""


async def read_body(receive: Receive, limit_bytes: int) -> bytes:
    """Return the whole body. Raises TooLarge as soon as the body exceeds `limit` bytes, and
    ClientDisconnected."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        part = message.get("body", b"")
        size += len(part)
        if size > limit_bytes:
            raise make_too_large(limit_bytes)
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


def make_too_large(limit_bytes: int) -> TooLarge:
    """Make the error for a body above limits.body."""
    return TooLarge(
        f"the request body is larger than limits.body ({limit_bytes} bytes); send less or raise it"
    )


def get_disconnect_future(scope: Scope) -> asyncio.Future[None] | None:
    """Return a future that is done once the client has left. Return None under any server but the
    proxy's own (wire/server/protocol.py)."""
    extension = scope.get("extensions", {}).get(DISCONNECT_EXTENSION, {})
    disconnect: asyncio.Future[None] | None = extension.get("future")
    return disconnect


def get_shutdown_future(scope: Scope) -> asyncio.Future[None] | None:
    """Return a future that is done once the server is told to end. Return None under any server
    but the proxy's own."""
    extension = scope.get("extensions", {}).get(DISCONNECT_EXTENSION, {})
    create: Callable[[], asyncio.Future[None]] | None = extension.get("create_shutdown_future")
    return create() if create else None


class DisconnectWatch:
    """The wait for a client to leave: `async with` gives a future that is done once the client has
    left. The request's body must have been read, and no other code may call `receive`.

    The proxy's own server provides the future. Under another server, a task waits in `receive`. A
    generator in place of this class would cost four times as much.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        disconnect = get_disconnect_future(scope)
        self._task = None if disconnect else asyncio.create_task(wait_for_disconnect(receive))
        self._disconnect = disconnect or self._task

    async def __aenter__(self) -> asyncio.Future[None]:
        assert self._disconnect is not None  # it is the server's future or the task
        return self._disconnect

    async def __aexit__(self, *exc_info: object) -> None:
        if self._task:
            self._task.cancel()


async def wait_for_disconnect(receive: Receive) -> None:
    """Drop the client's messages until it has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def run_unless_disconnected(
    disconnect: asyncio.Future[None] | None, work: Coroutine[Any, Any, T]
) -> T | None:
    """Return the result of `work`. If the client leaves first, cancel the work, wait until it has
    ended, and return None.

    If `disconnect` is None, the work runs to its end. The work runs in the caller's own task, as
    under `asyncio.timeout`: a task for the work and one for the waiting would cost 0.1 ms a
    request.
    """
    if disconnect is None:
        return await work
    if disconnect.done():
        work.close()
        return None
    task = asyncio.current_task()
    assert task is not None  # a running coroutine runs in a task
    cancellations_before = task.cancelling()
    is_watching = True
    has_left = False

    def cancel_work(_: asyncio.Future[None]) -> None:
        nonlocal has_left
        if is_watching and not disconnect.cancelled():
            has_left = True
            task.cancel()

    disconnect.add_done_callback(cancel_work)
    try:
        return await work
    except asyncio.CancelledError:
        if has_left and task.uncancel() <= cancellations_before:
            has_left = False  # our own cancellation ends here; any other is raised again
            return None
        raise
    finally:
        is_watching = False  # a callback that is already scheduled does nothing
        disconnect.remove_done_callback(cancel_work)
        if has_left and task.cancelling() > cancellations_before:
            task.uncancel()  # the work ended although it was cancelled
