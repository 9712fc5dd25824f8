"""Keep tasks running as long as the process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from om_proxy.common.errors import raise_site

logger = structlog.get_logger("background")

RESTART_PAUSE_S = 1.0


async def keep_running(
    name: str, work: Callable[[], Awaitable[None]], pause_s: float = RESTART_PAUSE_S
) -> None:
    """Run `work`, which ends only when it is cancelled. After an unexpected exception, log it and
    start the work again `pause_s` seconds later.

    A task that ends silently would leave its work undone until the next start.
    """
    while True:
        try:
            await work()
            return
        except Exception as exc:
            logger.error("task.failed", task=name, error=type(exc).__name__, at=raise_site(exc))
        await asyncio.sleep(pause_s)
