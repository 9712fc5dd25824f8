"""A permanent task goes on after an unforeseen error."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from om_proxy.common.permanent_tasks import keep_running


async def test_it_begins_again() -> None:
    """An unforeseen error is logged as class and place, without its text, and the work starts
    again."""
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            raise KeyError("hush")

    with capture_logs() as logs:
        await keep_running("flush", work, pause_s=0)
    assert begun == 3
    assert [(line["event"], line["task"], line["error"]) for line in logs] == [
        ("task.failed", "flush", "KeyError")
    ] * 2
    assert all(line["at"].startswith("test_permanent_tasks.py:") for line in logs)
    assert "hush" not in str(logs)


async def test_it_ends_when_it_is_cancelled() -> None:
    """A cancellation ends it, also in the pause between two attempts."""

    async def broken() -> None:
        raise ValueError

    running = asyncio.create_task(keep_running("flush", broken, pause_s=60))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
