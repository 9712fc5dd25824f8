"""Let all clients of a run pause between two requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Pause:
    """It is off, until `hold_all`."""

    def __init__(self) -> None:
        self._may_begin = asyncio.Event()
        self._may_begin.set()
        self._is_quiet = asyncio.Event()
        self._is_quiet.set()
        self._under_way = 0

    @asynccontextmanager
    async def stay_out(self) -> AsyncIterator[None]:
        """Wait until no pause is on. None begins until the block has ended."""
        await self._may_begin.wait()
        self._under_way += 1
        self._is_quiet.clear()
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._is_quiet.set()

    @asynccontextmanager
    async def hold_all(self) -> AsyncIterator[None]:
        """Let no client begin anything, and wait until what they have begun has ended."""
        self._may_begin.clear()
        try:
            await self._is_quiet.wait()
            yield
        finally:
            self._may_begin.set()
