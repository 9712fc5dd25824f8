"""Know at once when a client has left, whatever is being done for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive, Scope

from om_proxy.edge.protocol import GONE

T = TypeVar("T")


def told(scope: Scope) -> asyncio.Future[None] | None:
    """Done once the client has left, where the server is our own (edge/protocol.py)."""
    found: asyncio.Future[None] | None = scope.get("extensions", {}).get(GONE, {}).get("future")
    return found


class watching:  # noqa: N801 — read as a verb, like asyncio.timeout; a generator would cost four times as much
    """`async with`: a future that is done once the client has left. The body was read, and nobody else may call `receive`.

    Our own server's connections bring it along; under another, a task waits in `receive`.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        gone = told(scope)
        self._task = None if gone else asyncio.create_task(until_gone(receive))
        self._gone = gone or self._task

    async def __aenter__(self) -> asyncio.Future[None]:
        assert self._gone is not None  # noqa: S101 — one of the two
        return self._gone

    async def __aexit__(self, *exc_info: object) -> None:
        if self._task:
            self._task.cancel()


async def until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_there(gone: asyncio.Future[None] | None, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`, or None when the client left first: the work was then cancelled, and has ended.

    Without a `gone` to watch for it is simply done to its end. The work runs in the caller's own task, as under
    `asyncio.timeout`: tasks for it and for the waiting cost 0.1 ms a request.
    """
    if gone is None:
        return await work
    if gone.done():
        work.close()
        return None
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine that runs runs in a task
    before = task.cancelling()
    watching, left = True, False

    def leave(_: asyncio.Future[None]) -> None:
        nonlocal left
        if watching and not gone.cancelled():
            left = True
            task.cancel()

    gone.add_done_callback(leave)
    try:
        return await work
    except asyncio.CancelledError:
        if left and task.uncancel() <= before:
            left = False  # our own cancellation, answered for; one from outside would go on
            return None
        raise
    finally:
        watching = False  # a callback already on its way does nothing
        gone.remove_done_callback(leave)
        if left and task.cancelling() > before:
            task.uncancel()  # the work ended although it was cancelled
