"""Lets one process at a time write or checkpoint a SQLite file.

SQLite before 3.51.3 can corrupt a file when two connections write and checkpoint at the same
instant (its WAL-reset bug, in every version from 3.7.0 on), and Python ships the SQLite it was
built with. The connection worker keeps the connections of one process apart, this lock those of
several processes. It also waits better: SQLite polls its own lock with growing pauses.

A clean end removes the two files, also while other processes still use them. Two rules make that
safe. Only a process that holds a lock removes its file. A lock counts only if the path still names
the locked file: a process that waited for a file which was removed meanwhile opens the new one.
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

RETRY_PAUSE_S = 0.002  # between two tries; a commit holds the lock for about as long


class WriterLock:
    """`async with`: only this process writes. Raises StorageError after waiting `busy_timeout_s`.
    Without file locks (Windows) it lets every process through."""

    def __init__(self, database: str, busy_timeout_s: float) -> None:
        self._writer = LockFile(Path(f"{database}-writer"))
        self._next = LockFile(Path(f"{database}-next"))
        self._busy_timeout_s = busy_timeout_s

    async def __aenter__(self) -> None:
        """Take the lock of the next writer, then that of the writer: so a process that has just
        written comes after one that waits."""
        if fcntl is None:
            return
        until = time.monotonic() + self._busy_timeout_s
        await self._lock(self._next, until)
        try:
            await self._lock(self._writer, until)
        finally:
            self._next.unlock()

    async def _lock(self, file: LockFile, until: float) -> None:
        while not file.try_lock():
            if time.monotonic() > until:
                raise StorageError(
                    "another process has been writing to the database for too long; is it stopped?"
                )
            await asyncio.sleep(RETRY_PAUSE_S)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if fcntl is not None:
            self._writer.unlock()

    def close(self) -> None:
        """Remove both files, unless another process is writing: it removes them at its own end."""
        if fcntl is not None:
            self._next.remove_if_free()
            self._writer.remove_if_free()


class LockFile:
    """A file that exists only to be locked. It stays open between two locks."""

    def __init__(self, path: Path) -> None:
        # a string: every commit looks the path up, and pathlib takes as long as the system call
        self._path = str(path)
        self._file: int | None = None
        self._identity: tuple[int, int] | None = None  # device and inode of the open file

    def try_lock(self) -> bool:
        """Return whether this process has the lock now. False also if the path names another file
        now: the next try locks that one."""
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
        """Remove the open file unless another process holds its lock; close it in any case."""
        if self._file is not None and self.try_lock():
            # a folder that became read-only keeps an empty file: nothing is lost
            with suppress(OSError):
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
        """Close the file, which gives the lock back."""
        if self._file is not None:
            os.close(self._file)
        self._file = self._identity = None
