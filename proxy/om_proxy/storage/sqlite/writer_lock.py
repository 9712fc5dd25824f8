"""Let one process at a time write or checkpoint a SQLite file.

SQLite before 3.51.3 can corrupt a file when two connections write and checkpoint at the same
instant (its WAL-reset bug, in every version from 3.7.0 on), and Python ships the SQLite it was
built with. The connection worker separates the connections of one process, and this lock those of
several processes. The lock also waits better: SQLite polls its own lock with growing pauses.

A clean end removes the two files, also while other processes still use them. Two rules make that
safe. Only a process that holds a lock removes its file. A lock counts only if the path still names
the locked file: a process that waited for a file which was removed meanwhile opens the new file.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from om_proxy.common.errors import StorageError

if sys.platform == "win32":
    fcntl = None
else:
    import fcntl

RETRY_PAUSE_S = 0.002  # between two tries; a commit holds the lock for about as long


class WriterLock:
    """The lock of a file's writer, for `async with`. Entering raises StorageError after
    `busy_timeout_s`. On Windows, which has no such file locks, nothing is locked."""

    def __init__(self, database: str, busy_timeout_s: float) -> None:
        self._writer_file = LockFile(Path(f"{database}-writer"), Path(database))
        self._next_writer_file = LockFile(Path(f"{database}-next"), Path(database))
        self._busy_timeout_s = busy_timeout_s

    async def __aenter__(self) -> None:
        """Take the lock of the next writer, then that of the writer. So a process that has just
        written comes after one that waits."""
        if fcntl is None:
            return
        deadline = time.monotonic() + self._busy_timeout_s
        await self._lock(self._next_writer_file, deadline)
        try:
            await self._lock(self._writer_file, deadline)
        finally:
            self._next_writer_file.unlock()

    async def _lock(self, file: LockFile, deadline: float) -> None:
        while not file.try_lock():
            if time.monotonic() > deadline:
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
            self._writer_file.unlock()

    def close(self) -> None:
        """Remove both files, unless another process is writing: it removes them at its own end."""
        if fcntl is not None:
            self._next_writer_file.remove_if_free()
            self._writer_file.remove_if_free()


class LockFile:
    """A file that exists only to be locked. It stays open between two locks. Where root creates it,
    it belongs to the owner of `owned_file`."""

    def __init__(self, path: Path, owned_file: Path | None = None) -> None:
        self._owned_file = owned_file
        # a string: every commit looks the path up, and pathlib takes as long as the system call
        self._path = str(path)
        self._descriptor: int | None = None
        self._identity: tuple[int, int] | None = None  # device and inode of the open file

    def try_lock(self) -> bool:
        """Try to lock the file. Return False if another process holds the lock, or if the path now
        names another file: the next try locks that file."""
        descriptor = self._open()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if self._is_at_path():
            return True
        self._close()
        return False

    def unlock(self) -> None:
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def remove_if_free(self) -> None:
        """Remove the open file unless another process holds its lock. Close it in any case."""
        if self._descriptor is not None and self.try_lock():
            # a folder that became read-only keeps an empty file: nothing is lost
            with suppress(OSError):
                Path(self._path).unlink()
        self._close()

    def _open(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            status = os.fstat(self._descriptor)
            self._identity = status.st_dev, status.st_ino
            self._give_to_owner(self._descriptor, status)
        return self._descriptor

    def _give_to_owner(self, descriptor: int, status: os.stat_result) -> None:
        """As SQLite does with its own files: a server of another user could not open root's, while
        root runs a command beside it."""
        if self._owned_file is None or os.geteuid() != 0:
            return
        with suppress(FileNotFoundError):  # a new database: its owner is root too
            owner = os.stat(self._owned_file)
            if (owner.st_uid, owner.st_gid) != (status.st_uid, status.st_gid):
                os.fchown(descriptor, owner.st_uid, owner.st_gid)

    def _is_at_path(self) -> bool:
        """Return whether the path still names the open file."""
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return False
        return (status.st_dev, status.st_ino) == self._identity

    def _close(self) -> None:
        """Close the file, which also releases the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = self._identity = None
