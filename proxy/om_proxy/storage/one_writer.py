"""One process at a time writes or checkpoints a SQLite file.

SQLite before 3.51.3 can corrupt a file when two connections write and checkpoint at the same instant (its WAL-reset bug, in every
version from 3.7.0 on), and Python ships whatever SQLite it was built with. Between the connections of one process the lane keeps
them apart; between processes this does. It also waits better: SQLite's own lock is polled with growing pauses.

Its two files are removed at a clean end, also while other processes still use them. Two rules make that safe: only a process that
holds a lock removes its file, and a lock counts only if the path still names the file that is locked. A process that waited for a
file which was removed meanwhile opens the new one.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from om_proxy.errors import StorageError

if sys.platform == "win32":
    fcntl = None
else:
    import fcntl

PAUSE = 0.002  # seconds between two looks; a commit holds the lock for about as long


class OneWriter:
    """`async with`: this process alone writes. Raises StorageError after `busy` seconds of waiting. Without file locks (Windows) it lets
    everybody through."""

    def __init__(self, database: str, busy: float) -> None:
        self._writer = LockFile(Path(f"{database}-writer"))
        self._next = LockFile(Path(f"{database}-next"))
        self._busy = busy

    async def __aenter__(self) -> None:
        """Whoever waits holds the place of the next one: who has just written stands behind them."""
        if fcntl is None:
            return
        until = time.monotonic() + self._busy
        await self._lock(self._next, until)
        try:
            await self._lock(self._writer, until)
        finally:
            self._next.unlock()

    async def _lock(self, file: LockFile, until: float) -> None:
        while not file.try_lock():
            if time.monotonic() > until:
                raise StorageError("another process has been writing to the database for too long; is it stopped?")
            await asyncio.sleep(PAUSE)

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if fcntl is not None:
            self._writer.unlock()

    def close(self) -> None:
        """Remove both files, unless another process is writing: that one removes them when it ends."""
        if fcntl is not None:
            self._next.remove_if_free()
            self._writer.remove_if_free()


class LockFile:
    """A file that exists to be locked. It stays open between two locks."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)  # looked up at every commit, and pathlib takes as long as the system does
        self._file: int | None = None
        self._identity: tuple[int, int] | None = None  # device and inode of the open file

    def try_lock(self) -> bool:
        """Whether this process has the lock now. False also where the path names another file by now: that one comes next."""
        file = self._open()
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if self._is_current():
            return True
        self._close()
        return False

    def unlock(self) -> None:
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def remove_if_free(self) -> None:
        """Remove the file, never made anew for that, if nobody holds its lock; close it in any case."""
        if self._file is not None and self.try_lock():
            with suppress(OSError):  # a folder that became read-only keeps an empty file: nothing is lost
                Path(self._path).unlink()
        self._close()

    def _open(self) -> int:
        if self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            found = os.fstat(self._file)
            self._identity = found.st_dev, found.st_ino
        return self._file

    def _is_current(self) -> bool:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def _close(self) -> None:
        """Closing gives the lock back."""
        if self._file is not None:
            os.close(self._file)
        self._file = self._identity = None
