"""Write an SQLite file anew, without the copies of rows that are in unused parts of its pages.

When SQLite moves rows within and between pages, it leaves copies in the gap between a page's
pointers and its cells. `secure_delete` does not clear them (measured: forgotten words in 5 of 60
random stores). VACUUM does. It takes 0.7 s for 100 MB. Meanwhile no one writes, and reading goes
on. So a file that is not small waits for a quiet moment, and is not written anew all the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import aiosqlite

SMALL_FILE_BYTES = 16 * 2**20  # takes 0.1 s: no one needs to wait for a quiet moment
MAX_QUIET_WAIT_S = 600.0  # then turns wait for it
PAUSE_FACTOR = 20  # at most a 20th of the time goes into it
IS_REWRITTEN = "SELECT rewritten >= ? FROM erasure"
NOTE_REWRITTEN = "UPDATE erasure SET rewritten = max(rewritten, ?)"


class FileRewriting:
    """When the file is written anew, and how."""

    def __init__(self, database: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = Path(database).absolute()
        self._clock = clock
        self._may_begin_at = 0.0
        self._due_since: float | None = None

    async def rewrite(self, db: aiosqlite.Connection, asked: int, *, is_quiet: bool) -> bool:
        """Write the file anew, outside a transaction, unless another process has done so for what
        was asked for. Return False if it is too early. `is_quiet`: no one has written to the file
        since the last try, a second ago."""
        [(is_rewritten,)] = await db.execute_fetchall(IS_REWRITTEN, (asked,))
        if is_rewritten:
            return True
        began_at = self._clock()
        if not self._is_time(began_at, is_quiet=is_quiet):
            return False
        try:
            await self._keep_temporary_files_here(db)
            await db.execute_fetchall("VACUUM")
            await db.execute_fetchall(NOTE_REWRITTEN, (asked,))
        finally:
            ended_at = self._clock()
            self._may_begin_at = ended_at + PAUSE_FACTOR * (ended_at - began_at)
            self._due_since = None
        return True

    def _is_time(self, now: float, *, is_quiet: bool) -> bool:
        if self._due_since is None:
            self._due_since = now
        if self._path.stat().st_size <= SMALL_FILE_BYTES:
            return True
        return now >= self._may_begin_at and (is_quiet or now - self._due_since >= MAX_QUIET_WAIT_S)

    async def _keep_temporary_files_here(self, db: aiosqlite.Connection) -> None:
        """VACUUM makes a temporary file as large as this one, and /tmp may be held in memory."""
        folder = str(self._path.parent).replace("'", "''")
        [*found] = await db.execute_fetchall("PRAGMA temp_store_directory")
        # once: SQLite has one setting for all connections of a process
        if not found or found[0][0] != str(self._path.parent):
            await db.execute_fetchall(f"PRAGMA temp_store_directory = '{folder}'")
