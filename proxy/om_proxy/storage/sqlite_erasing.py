"""Gets the bytes of what was forgotten out of an SQLite file and its WAL.

`secure_delete` overwrites removed rows, but in the WAL first: the old pages stay in the file until a checkpoint, and the frames stay in
the WAL until it is truncated. `PRAGMA wal_checkpoint(TRUNCATE)` does both, unless somebody holds a snapshot: a backup, a shell,
Litestream. Then it says so in the first column of its answer, without an error (measured: 881 canaries in the WAL, 270 in the file, also
after that reader had left).

The table `erasure` says in the same transaction as the forgetting that bytes must go, so that no end of a process loses that. Every
process that uses the file looks there whenever it looks for work.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import aiosqlite
import structlog

from om_proxy.errors import StorageError
from om_proxy.storage.sqlite_lane import Lane

log = structlog.get_logger("store")

ASK = "UPDATE erasure SET asked = asked + 1"  # in the transaction that forgets
IS_PENDING = "SELECT asked > done FROM erasure"

RETRY_EVERY_S = 1.0
READER_WAIT_MS = 100  # our own readers end within milliseconds; all writers of the file wait as long as this


class Eraser:
    """`erase` once, and then by itself every second until it is done. `busy`: the connection's own wait for locks, in seconds."""

    def __init__(self, writer: Lane, busy: float) -> None:
        self._writer = writer
        self._busy_ms = round(busy * 1_000)
        self._task: asyncio.Task[None] | None = None

    async def erase(self) -> bool:
        """Whether the bytes are gone; else it goes on by itself."""
        if await self._try():
            return True
        self.start()
        return False

    def start(self) -> None:
        """Try now and every second."""
        if not self.is_erasing():
            self._task = asyncio.create_task(self._keep_trying())

    def is_erasing(self) -> bool:
        return self._task is not None and not self._task.done()

    async def wait(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """Stop trying: another process goes on, or the next one."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _keep_trying(self) -> None:
        tries = 0
        while not await self._try():
            tries += 1
            if tries == 1:
                log.info("erasure.pending")
            await asyncio.sleep(RETRY_EVERY_S)
        if tries:
            log.info("erasure.done", tries=tries)

    async def _try(self) -> bool:
        try:
            return await self._writer.run_alone(self._truncate_wal)
        except StorageError as exc:  # the rows are gone all the same, and the bytes are tried for again
            log.warning("erasure.failed", error=type(exc).__name__)
            return False

    async def _truncate_wal(self, db: aiosqlite.Connection) -> bool:
        [(asked,)] = await db.execute_fetchall("SELECT asked FROM erasure")
        await db.execute_fetchall(f"PRAGMA busy_timeout = {READER_WAIT_MS}")
        try:
            [(busy, *_)] = await db.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            await db.execute_fetchall(f"PRAGMA busy_timeout = {self._busy_ms}")
        if not busy:
            await db.execute_fetchall("UPDATE erasure SET done = max(done, ?)", (asked,))
        return not busy
