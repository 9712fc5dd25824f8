"""A limit that costs nothing for work that never waits, and that ends work that waits too long."""

from __future__ import annotations

import asyncio

import pytest

from om_proxy.common.running_time import Deadline


async def at_once() -> int:
    return 7


async def waiting(for_: asyncio.Future[int]) -> int:
    return await for_ + await for_


async def test_what_never_waits_has_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(asyncio, "timeout")
    assert await Deadline(0.0).run(at_once()) == 7


async def test_work_that_waits() -> None:
    """Work that waits continues in the same task, with the result of its wait."""
    later = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.01, later.set_result, 3)
    assert await Deadline(5.0).run(waiting(later)) == 6


async def test_what_waits_too_long_is_cancelled() -> None:
    seen: list[type[BaseException]] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except BaseException as exc:
            seen.append(type(exc))
            raise

    with pytest.raises(TimeoutError):
        await Deadline(0.01).run(work())
    assert seen == [asyncio.CancelledError]


@pytest.mark.parametrize("wait_first", [False, True])
async def test_more_time(wait_first: bool) -> None:
    """Work may extend its limit before its first wait, and after it."""
    limit = Deadline(0.05)

    async def work() -> str:
        if wait_first:
            await asyncio.sleep(0)
        limit.extend(5.0)
        await asyncio.sleep(0.15)
        return "done"

    assert await limit.run(work()) == "done"


async def test_errors_pass() -> None:
    """Errors pass, before the first wait and after it. Work may also catch an error of what it
    waits for."""

    async def fails(wait: bool) -> None:
        if wait:
            await asyncio.sleep(0)
        raise LookupError

    for wait in (False, True):
        with pytest.raises(LookupError):
            await Deadline(5.0).run(fails(wait))

    async def answers() -> str:
        try:
            await broken
        except LookupError:
            await asyncio.sleep(0)
            return "answered"
        return "not asked"

    broken = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(broken.set_exception, LookupError())
    assert await Deadline(5.0).run(answers()) == "answered"


async def test_cancelled_from_outside() -> None:
    """A cancellation from outside is no timeout, and ends the work."""
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(Deadline(5.0).run(work()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
