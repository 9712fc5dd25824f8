"""A part is created when it is first asked for, once, and without holding up the event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from om_proxy.common.off_loop import FirstUse


async def test_it_is_created_once() -> None:
    """Everybody who asks gets the same part, also those who ask while it is being created."""
    created: list[object] = []
    may_end = threading.Event()

    def create() -> object:
        may_end.wait(30)
        created.append(object())
        return created[-1]

    part = FirstUse(create)
    asking = [asyncio.create_task(part.get()) for _ in range(3)]
    await asyncio.sleep(0)
    asking[0].cancel()  # its client left; the others wait on
    may_end.set()
    assert await asyncio.gather(*asking[1:]) == [await part.get()] * 2 == created * 2
    assert asking[0].cancelled()


async def test_nothing_is_created_before() -> None:
    FirstUse(lambda: pytest.fail("nobody has asked"))


async def test_a_failure_is_raised_and_tried_again() -> None:
    answers = iter([ImportError("broken"), "part"])

    def create() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    part = FirstUse(create)
    with pytest.raises(ImportError, match="broken"):
        await part.get()
    assert [await part.get(), await part.get()] == ["part", "part"]
