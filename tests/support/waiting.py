"""Wait until something is true that tells nobody when it becomes so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

MAX_WAIT_S = 60.0
LOOK_INTERVAL_S = 0.02


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(MAX_WAIT_S):
        while True:
            if await condition():
                return
            await asyncio.sleep(LOOK_INTERVAL_S)
