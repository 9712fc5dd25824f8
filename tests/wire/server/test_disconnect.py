"""Clients that leave."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from om_proxy.wire.server.disconnect import DisconnectWatch, run_unless_disconnected
from om_proxy.wire.server.protocol import DISCONNECT_EXTENSION


def future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


async def returning(value: int, turns: int = 0) -> int:
    for _ in range(turns):
        await asyncio.sleep(0)
    return value


async def failing() -> int:
    raise LookupError


class Endless:
    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.cleaned = False

    async def run(self) -> int:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.cleaned = True
        return 0


async def test_result() -> None:
    """Work that ends first returns its result."""
    assert await run_unless_disconnected(future(), returning(1, turns=3)) == 1
    assert await run_unless_disconnected(None, returning(1, turns=3)) == 1


async def test_failure() -> None:
    """Work that fails raises its error."""
    with pytest.raises(LookupError):
        await run_unless_disconnected(future(), failing())


async def test_client_leaves() -> None:
    """When the client leaves, the work is cancelled, its clean-up runs, and the code that started
    it continues."""
    gone, work = future(), Endless()
    waiting = asyncio.create_task(run_unless_disconnected(gone, work.run()))
    await work.started.wait()
    gone.set_result(None)
    assert await waiting is None
    assert work.cleaned
    assert waiting.cancelling() == 0


async def test_client_has_left_before() -> None:
    """Work for a client that has left does not start."""
    gone, work = future(), Endless()
    gone.set_result(None)
    assert await run_unless_disconnected(gone, work.run()) is None
    assert not work.started.is_set()


async def test_cancelled_from_outside() -> None:
    """A cancellation from outside is raised, even if the client leaves at the same time."""
    gone, work = future(), Endless()
    waiting = asyncio.create_task(run_unless_disconnected(gone, work.run()))
    await work.started.wait()
    gone.set_result(None)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert work.cleaned


@pytest.mark.parametrize("turns", range(6))
async def test_leaving_as_the_work_ends(turns: int) -> None:
    """In any order of the two events, no cancellation is left for the code after it."""
    gone = future()

    async def caller() -> int | None:
        result = await run_unless_disconnected(gone, returning(1, turns=3))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return result

    waiting = asyncio.create_task(caller())
    for _ in range(turns):
        await asyncio.sleep(0)
    gone.set_result(None)
    assert await waiting in (1, None)


async def test_work_that_ends_although_cancelled() -> None:
    """Work that catches its cancellation and returns a result keeps it, and the task stays
    clean."""
    gone = future()

    async def stubborn() -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return 7
        return 0

    async def caller() -> tuple[int | None, int]:
        result = await run_unless_disconnected(gone, stubborn())
        task = asyncio.current_task()
        assert task is not None
        return result, task.cancelling()

    waiting = asyncio.create_task(caller())
    await asyncio.sleep(0)
    gone.set_result(None)
    assert await waiting == (7, 0)


async def test_watching() -> None:
    """The watch drops the rest of a body, is done at the disconnect, and ends with its block."""
    messages: asyncio.Queue[Message] = asyncio.Queue()
    async with DisconnectWatch({}, messages.get) as gone:
        messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        await asyncio.sleep(0)
        assert not gone.done()
        messages.put_nowait({"type": "http.disconnect"})
        await asyncio.wait_for(gone, 30)
    async with DisconnectWatch({}, messages.get) as gone:
        pass
    await asyncio.wait((gone,))
    assert gone.cancelled()


async def test_watching_the_server_s_future() -> None:
    """The proxy's own server provides the future, so no task waits in `receive`."""

    async def receive() -> Message:
        raise AssertionError("not needed")

    gone = future()
    async with DisconnectWatch(
        {"extensions": {DISCONNECT_EXTENSION: {"future": gone}}}, receive
    ) as left:
        assert not left.done()
        gone.set_result(None)
        assert left.done()
