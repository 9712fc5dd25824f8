"""Time-outs of a process that may stand still."""

from __future__ import annotations

import asyncio
import time

import pytest

from om_proxy.running_time import limit_running_time

LIMIT_S = 0.2


async def test_a_stop_is_no_time_out() -> None:
    """What was answered while the process stood still has not failed."""
    answered = asyncio.Event()
    async with limit_running_time(LIMIT_S):
        asyncio.get_running_loop().call_later(LIMIT_S / 2, answered.set)
        await asyncio.sleep(0)
        time.sleep(2 * LIMIT_S)  # noqa: ASYNC251 - the process stands still
        await answered.wait()
        await asyncio.sleep(0)


async def test_what_is_not_answered_in_time() -> None:
    """It fails after the whole time, and not twice."""
    began_at = time.monotonic()
    with pytest.raises(TimeoutError):
        async with limit_running_time(LIMIT_S):
            await asyncio.Event().wait()
    assert time.monotonic() - began_at >= LIMIT_S
    async with limit_running_time(LIMIT_S):
        pass
    await asyncio.sleep(LIMIT_S / 2)
