"""Large work runs off the event loop, small work on it."""

from __future__ import annotations

import asyncio
import sys
import threading
from functools import partial

import pytest

from om_proxy.common.off_loop import MANY_MESSAGES, SWITCH_INTERVAL_S, run_in_turn, run_off_loop


@pytest.mark.parametrize(
    ("messages", "here"), [(0, True), (MANY_MESSAGES, True), (MANY_MESSAGES + 1, False)]
)
async def test_where_it_is_done(messages: int, here: bool) -> None:
    """Work on few messages uses no thread: every request would pay for it."""
    assert (
        await run_off_loop(messages, threading.current_thread) is threading.current_thread()
    ) is here


@pytest.mark.parametrize("messages", [0, MANY_MESSAGES + 1])
async def test_what_it_raises(messages: int) -> None:
    """The caller gets the exception."""

    def failing() -> None:
        raise ValueError("of the work")

    with pytest.raises(ValueError, match="of the work"):
        await run_off_loop(messages, failing)


async def test_the_event_loop_gets_the_interpreter_soon() -> None:
    """While large work runs, and only then: turns do not pay for it."""
    interval_s = sys.getswitchinterval()
    assert await run_in_turn(sys.getswitchinterval) == pytest.approx(SWITCH_INTERVAL_S)
    assert sys.getswitchinterval() == interval_s > SWITCH_INTERVAL_S


async def test_one_thread_for_all() -> None:
    """One thread does all work, one piece at a time. Work of a cancelled caller is skipped."""
    go, begun, done = threading.Event(), threading.Event(), list[int]()

    def work(number: int) -> None:
        begun.set()
        assert go.wait(30)
        done.append(number)

    waiting = [
        asyncio.create_task(run_off_loop(MANY_MESSAGES + 1, partial(work, n))) for n in range(4)
    ]
    await asyncio.to_thread(begun.wait, 30)
    assert done == []
    waiting[2].cancel()
    await asyncio.wait(waiting[2:3])
    go.set()
    await asyncio.wait(waiting)
    assert done == [0, 1, 3]
