"""One process at a time writes or checkpoints a SQLite file.

SQLite before 3.51.3 can corrupt a file when two connections write and checkpoint at the same instant (its WAL-reset bug, in every
version from 3.7.0 on), and Python ships whatever SQLite it was built with. Between the connections of one process the lane keeps
them apart; between processes this does. It also waits better: SQLite's own lock is polled with growing pauses.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from types import TracebackType

from proxy.errors import StorageError

if sys.platform == "win32":
    fcntl = None
else:
    import fcntl

PAUSE = 0.002  # seconds between two looks; a commit holds the lock for about as long


class OneWriter:
    """`async with`: this process alone writes. Raises StorageError after `busy` seconds of waiting. Without file locks (Windows) it
    lets everybody through."""

    def __init__(self, database: str, busy: float) -> None:
        self._paths = (Path(f"{database}-writer"), Path(f"{database}-next"))
        self._busy = busy
        self._files: tuple[int, int] | None = None

    async def __aenter__(self) -> None:
        """Whoever waits holds the place of the next one: who has just written stands behind them."""
        if fcntl is None:
            return
        until = time.monotonic() + self._busy
        writer, following = self._opened()
        await self._lock(following, until)
        try:
            await self._lock(writer, until)
        finally:
            fcntl.flock(following, fcntl.LOCK_UN)

    async def _lock(self, file: int, until: float) -> None:
        while not _taken(file):
            if time.monotonic() > until:
                raise StorageError("another process has been writing to the database for too long; is it stopped?")
            await asyncio.sleep(PAUSE)

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if fcntl is not None and self._files is not None:
            fcntl.flock(self._files[0], fcntl.LOCK_UN)

    def close(self) -> None:
        for file in self._files or ():
            os.close(file)
        self._files = None

    def _opened(self) -> tuple[int, int]:
        """The files are kept: whoever removed one would lock another one than the rest."""
        if self._files is None:
            first, second = (os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600) for path in self._paths)
            self._files = first, second
        return self._files


def _taken(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
