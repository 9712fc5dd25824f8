"""Tasks that are to last as long as the process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from om_proxy.errors import place_of

log = structlog.get_logger("background")

RESTART_PAUSE_S = 1.0


async def keep_running(name: str, work: Callable[[], Awaitable[None]], pause_s: float = RESTART_PAUSE_S) -> None:
    """Run `work`, which ends only when it is cancelled. Whatever it did not foresee is logged, and it begins again after `pause_s`
    seconds: a task that ends silently would leave its work undone until the next start."""
    while True:
        try:
            await work()
            return
        except Exception as exc:
            log.error("task.failed", task=name, error=type(exc).__name__, at=place_of(exc))
        await asyncio.sleep(pause_s)
