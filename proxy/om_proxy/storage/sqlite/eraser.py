"""Erases forgotten bytes from an SQLite file and its WAL.

`secure_delete` overwrites removed rows, but in the WAL first: the old pages stay in the file until
a checkpoint, and the frames stay in the WAL until it is truncated. `PRAGMA
wal_checkpoint(TRUNCATE)` does both, unless a reader holds a snapshot: a backup, a shell,
Litestream. Then the first column of its answer says so, without an error (measured: 881 canaries in
the WAL, 270 in the file, also after that reader had left).

The transaction that forgets also writes to the table `erasure` that bytes must go, so that this
survives the end of the process. Every process that uses the file reads that table whenever it looks
for work.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import aiosqlite
import structlog

from om_proxy.errors import StorageError
from om_proxy.storage.sqlite.connection_worker import ConnectionWorker

log = structlog.get_logger("store")

REQUEST_ERASURE = "UPDATE erasure SET asked = asked + 1"  # in the transaction that forgets
IS_ERASURE_PENDING = "SELECT asked > done FROM erasure"

RETRY_INTERVAL_S = 1.0
# the proxy's own readers end within milliseconds; all writers of the file wait as long as this
READER_WAIT_MS = 100


class Eraser:
    """Tries `erase` again every second until it succeeds. `busy_timeout_s`: the connection's own
    wait for locks."""

    def __init__(self, writer: ConnectionWorker, busy_timeout_s: float) -> None:
        self._writer = writer
        self._busy_ms = round(busy_timeout_s * 1_000)
        self._task: asyncio.Task[None] | None = None

    async def erase(self) -> bool:
        """Return whether the bytes are gone; if not, it tries again by itself."""
        if await self._try_erase():
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
        while not await self._try_erase():
            tries += 1
            if tries == 1:
                log.info("erasure.pending")
            await asyncio.sleep(RETRY_INTERVAL_S)
        if tries:
            log.info("erasure.done", tries=tries)

    async def _try_erase(self) -> bool:
        try:
            return await self._writer.run_alone(self._truncate_wal)
        except StorageError as exc:  # the rows are gone all the same; the bytes are tried again
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
