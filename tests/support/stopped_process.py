"""A process that stands still for a while: its machine is paused, or out of memory."""

from __future__ import annotations

import asyncio


def stand_still(seconds: float) -> None:
    """Let the running loop find so many seconds gone, as after a stop, and take none."""
    loop = asyncio.get_running_loop()
    read_clock = loop.time
    loop.time = lambda: read_clock() + seconds  # type: ignore[method-assign] # of this test's own loop
