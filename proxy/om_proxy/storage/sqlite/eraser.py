"""Erase forgotten bytes from an SQLite file and its WAL.

`secure_delete` overwrites removed rows, but in the WAL first: the old pages stay in the file until
a checkpoint, and the frames stay in the WAL until it is truncated. `PRAGMA
wal_checkpoint(TRUNCATE)` does both, unless a reader holds a snapshot: a backup, a shell,
Litestream. In that case the first column of its result is 1, and no error is raised (measured: 881
canaries in the WAL, 270 in the file, also after that reader had ended).

The transaction that forgets also requests the erasure in the table `erasure`, so that the request
survives the end of the process. Every process that uses the file reads that table whenever it looks
for work.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import aiosqlite
import structlog

from om_proxy.errors import StorageError
from om_proxy.storage.sqlite.connection_worker import ConnectionWorker, run_in_connection_thread
from om_proxy.storage.sqlite.search_erasure import erase_words

logger = structlog.get_logger("store")

REQUEST_ERASURE = "UPDATE erasure SET asked = asked + 1"  # in the transaction that forgets
IS_ERASURE_PENDING = "SELECT asked > done FROM erasure"

RETRY_INTERVAL_S = 1.0
# the proxy's own readers end within milliseconds; all writers of the file wait this long
READER_WAIT_MS = 100


class Eraser:
    """The erasure of one file, tried every second until it succeeds. `busy_timeout_s`: the
    connection's own wait for locks."""

    def __init__(self, writer: ConnectionWorker, busy_timeout_s: float) -> None:
        self._writer = writer
        self._busy_ms = round(busy_timeout_s * 1_000)
        self._task: asyncio.Task[None] | None = None
        self._is_asked_again = False  # since the task began to try

    async def erase(self) -> bool:
        """Try now. Return whether the bytes are gone; if not, try again every second."""
        if await self._try_erase():
            return True
        self.start()
        return False

    def start(self) -> None:
        """Try now and every second."""
        if not self.is_erasing():
            self._task = asyncio.create_task(self._keep_trying(0.0))

    def erase_soon(self) -> None:
        """Try in a second, once for all that is asked for until then."""
        self._is_asked_again = True
        if not self.is_erasing():
            self._task = asyncio.create_task(self._keep_trying(RETRY_INTERVAL_S))

    def is_erasing(self) -> bool:
        return self._task is not None and not self._task.done()

    async def wait(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """Stop trying: another process continues, or this one after its next start."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _keep_trying(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        await self._try_until_erased()
        while self._is_asked_again:
            await asyncio.sleep(RETRY_INTERVAL_S)
            await self._try_until_erased()

    async def _try_until_erased(self) -> None:
        self._is_asked_again = False
        tries = 0
        while not await self._try_erase():
            tries += 1
            if tries == 1:
                logger.info("erasure.pending")
            await asyncio.sleep(RETRY_INTERVAL_S)
        if tries:
            logger.info("erasure.done", tries=tries)

    async def _try_erase(self) -> bool:
        try:
            return await self._writer.run_alone(self._truncate_wal)
        except StorageError as exc:  # the rows are gone anyway; the bytes are tried again
            logger.warning("erasure.failed", error=type(exc).__name__)
            return False

    async def _truncate_wal(self, db: aiosqlite.Connection) -> bool:
        """Checkpoint and truncate the WAL. Return False if a reader prevents that."""
        [(asked,)] = await db.execute_fetchall("SELECT asked FROM erasure")
        await run_in_connection_thread(db, erase_words)
        await db.execute_fetchall(f"PRAGMA busy_timeout = {READER_WAIT_MS}")
        try:
            [(is_busy, *_)] = await db.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            await db.execute_fetchall(f"PRAGMA busy_timeout = {self._busy_ms}")
        if is_busy:
            return False
        await db.execute_fetchall("UPDATE erasure SET done = max(done, ?)", (asked,))
        return True
