"""Erase forgotten bytes from an SQLite file and its WAL, and say what has become of them.

`secure_delete` overwrites removed rows, but in the WAL first: the old pages stay in the file until
a checkpoint, and the frames stay in the WAL until it is truncated, with no one reading an older
state. `PRAGMA wal_checkpoint(TRUNCATE)` does both, unless a reader holds a snapshot: a backup, a
shell, Litestream. In that case the first column of its result is 1, and no error is raised
(measured: 881 canaries in the WAL, 270 in the file, also after that reader had ended).

When SQLite moves rows within and between pages, it leaves copies in the gap between a page's
pointers and its cells. `secure_delete` does not clear them (measured: forgotten words in 5 of 60
random stores). VACUUM does: it writes the file anew. It takes 0.7 s for 100 MB. Meanwhile no one
writes, and reading goes on. So a file that is not small waits for a quiet moment, and is not
written anew all the time.

The transaction that forgets also requests the erasure in the table `erasure`, so that the request
survives the end of the process. Every process that uses the file reads that table whenever it looks
for work.

A run that forgets many old threads has turns beside it. Its erasure goes in short steps that give
way to them (connection_worker.py):

- a checkpoint each time something was written, and before the one that truncates, so that none has
  much to copy, nor the one that SQLite makes in the commit that fills 1 000 pages;
- a part of the index's words at a time (search_erasure.py), with pauses that are as long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import aiosqlite
import structlog

from om_proxy.common.errors import StorageError
from om_proxy.storage.sql.record_keeping import RecordMethods
from om_proxy.storage.sqlite.connection_worker import ConnectionWorker, run_in_connection_thread
from om_proxy.storage.sqlite.search_erasure import MERGE_PAGES, MergeStep, merge_words
from om_proxy.storage.values.records import ForgetResult

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


logger = structlog.get_logger("store")

IS_ERASURE_PENDING = "SELECT asked > done FROM erasure"
NOTE_ERASED = "UPDATE erasure SET done = max(done, ?)"

RETRY_INTERVAL_S = 1.0
# The proxy's own readers end within milliseconds; all writers of the file wait this long, where
# nobody waits for the answer at most this short.
READER_WAIT_MS = 100
BACKGROUND_READER_WAIT_MS = 20
# threads, messages and pages of words that are written between two checkpoints: some 350 pages of the
# WAL, which take 4 ms to copy, of which 2 ms are the sync
CHECKPOINT_ROWS = 256


class Eraser:
    """The erasure of one file, tried every second until it succeeds. `busy_timeout_s`: the
    connection's own wait for locks."""

    def __init__(self, writer: ConnectionWorker, busy_timeout_s: float, database: str) -> None:
        self._writer = writer
        self._rewriting = FileRewriting(database)
        self._busy_ms = round(busy_timeout_s * 1_000)
        self._task: asyncio.Task[None] | None = None
        self._is_asked_again = False  # since the task began to try
        self._uncopied_rows = 0  # since the last checkpoint, about
        self._merging = asyncio.Lock()  # held while words are merged
        self._merged_s = 0.0  # how long that took last

    async def erase(self) -> bool:
        """Try now. Return whether the bytes are gone; if not, try again every second."""
        if await self._try_erase(is_background=False):
            return True
        self.start()
        return False

    def start(self) -> None:
        """Try now and every second."""
        if not self.is_erasing():
            self._task = asyncio.create_task(self._keep_trying(0.0))

    async def erase_soon(self, row_count: int) -> None:
        """Try soon, once for all that is asked for until then. `row_count`: how many threads and
        messages were removed. Return after the merging of words if that is under way, and after the
        checkpoint if one is due."""
        self._is_asked_again = True
        if not self.is_erasing():
            self._task = asyncio.create_task(self._keep_trying(self._find_delay()))
        async with self._merging:  # what is removed meanwhile would take another round
            await self._copy_when_due(row_count, is_background=True)

    async def _copy_when_due(self, row_count: int, *, is_background: bool) -> None:
        self._uncopied_rows += row_count
        if self._uncopied_rows >= CHECKPOINT_ROWS:
            self._uncopied_rows = 0
            try:
                await self._writer.run_alone(_copy_wal, is_background=is_background)
            except StorageError as exc:  # the rows are gone; the erasure copies what is left
                logger.warning("erasure.failed", error=type(exc).__name__)

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
            await asyncio.sleep(self._find_delay())
            await self._try_until_erased()

    def _find_delay(self) -> float:
        """Return how long removals are collected: where the index of words is large, for as long as
        its merging holds them up."""
        return max(RETRY_INTERVAL_S, self._merged_s)

    async def _try_until_erased(self) -> None:
        self._is_asked_again = False
        tries = 0
        while not await self._try_erase(is_background=True):
            tries += 1
            if tries == 1:
                logger.info("erasure.pending")
            await asyncio.sleep(RETRY_INTERVAL_S)
        if tries:
            logger.info("erasure.done", tries=tries)

    async def _try_erase(self, *, is_background: bool) -> bool:
        """Erase in steps that others may come between. What they forget meanwhile is asked for
        again."""
        try:
            asked = await self._erase_words(is_background=is_background)
            # little is left to copy then while the log is truncated
            frame_count = await self._writer.run_alone(_copy_wal, is_background=is_background)
            self._uncopied_rows = 0
            if not await self._truncate(is_background=is_background):
                return False
            is_rewritten = await self._writer.run_alone(
                lambda db: self._rewriting.rewrite(db, asked, is_quiet=frame_count == 0),
                is_background=is_background,
            )
            if not is_rewritten:
                return False
            is_truncated = await self._truncate(is_background=is_background)
            if is_truncated:
                await self._writer.run_alone(
                    lambda db: db.execute_fetchall(NOTE_ERASED, (asked,)),
                    is_background=is_background,
                )
        except StorageError as exc:  # the rows are gone anyway; the bytes are tried again
            logger.warning("erasure.failed", error=type(exc).__name__)
            return False
        return is_truncated

    async def _erase_words(self, *, is_background: bool) -> int:
        """Get the words of what was forgotten out of the index: finish a round of merging, if one is
        left, and take another one if words were deleted since it began. Return how often was asked
        by then."""
        async with self._merging:
            asked = await self._writer.run_alone(_select_asked, is_background=is_background)
            began_at = step_began_at = time.monotonic()
            has_own_round = False
            while True:
                step = await self._writer.run_alone(_merge_words, is_background=is_background)
                has_own_round = has_own_round or step is MergeStep.FIRST
                if step is MergeStep.NONE or (step is MergeStep.LAST and has_own_round):
                    break
                await self._copy_when_due(MERGE_PAGES, is_background=is_background)
                if is_background:
                    await asyncio.sleep(time.monotonic() - step_began_at)
                    step_began_at = time.monotonic()
            self._merged_s = time.monotonic() - began_at
        return asked

    async def _truncate(self, *, is_background: bool) -> bool:
        wait_ms = BACKGROUND_READER_WAIT_MS if is_background else READER_WAIT_MS
        return await self._writer.run_alone(
            lambda db: self._truncate_wal(db, wait_ms), is_background=is_background
        )

    async def _truncate_wal(self, db: aiosqlite.Connection, reader_wait_ms: int) -> bool:
        """Checkpoint and truncate the WAL. Return False if a reader prevents that."""
        await db.execute_fetchall(f"PRAGMA busy_timeout = {reader_wait_ms}")
        try:
            [(is_busy, *_)] = await db.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            await db.execute_fetchall(f"PRAGMA busy_timeout = {self._busy_ms}")
        return not is_busy


async def _select_asked(db: aiosqlite.Connection) -> int:
    [(asked,)] = await db.execute_fetchall("SELECT asked FROM erasure")
    return int(asked)


async def _merge_words(db: aiosqlite.Connection) -> MergeStep:
    return await run_in_connection_thread(db, merge_words)


async def _copy_wal(db: aiosqlite.Connection) -> int:
    """Copy what no reader holds from the WAL to the file. The next commit begins the WAL anew.
    Return how many frames it had."""
    [(_, frame_count, _)] = await db.execute_fetchall("PRAGMA wal_checkpoint(PASSIVE)")
    return int(frame_count)


class SqliteRecords(RecordMethods):
    """The `RecordKeeping` of an SQLite file."""

    _are_bytes_gone = f"NOT ({IS_ERASURE_PENDING})"

    @staticmethod
    def _settle(result: ForgetResult, are_bytes_gone: bool, is_destroyed: bool) -> ForgetResult:
        if are_bytes_gone:
            result = result._replace(database="gone", log="gone")
        return result.settle_keys(is_destroyed=is_destroyed)
