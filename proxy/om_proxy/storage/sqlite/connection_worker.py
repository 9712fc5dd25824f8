"""Run units of work from a queue on one SQLite connection.

Units that people wait for share a transaction, and with it one fsync: group commit. Background
units, such as those of a run that forgets old threads, come one at a time, each alone, while no
other unit waits:

- A unit that arrives while a background unit runs waits for that one only.
- A background unit that has waited for MAX_YIELD_S comes between two groups of other units, or it
  would never come on a busy store.

The worker runs the transaction in its own task. So a cancelled caller only stops waiting: its unit
still commits or rolls back as a whole. After an error the connection is rolled back, closed and
never used again; the next unit opens another.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar, cast

import aiosqlite

from om_proxy.common.errors import Conflict, KeysAway, StorageError, UnopenedText, Unwritable
from om_proxy.storage.encoding import DECODING_ERRORS, refuse_value

# in one transaction; it limits how long the first unit waits for its fsync
MAX_GROUP_UNITS = 64
MAX_YIELD_S = 0.1

AsyncWork = Callable[[aiosqlite.Connection], Awaitable[Any]]
SyncWork = Callable[[sqlite3.Connection], Any]


@dataclass(slots=True)
class WorkUnit:
    """A piece of work and the future of its outcome. If the caller is cancelled, the future is done
    before the work."""

    work: AsyncWork
    outcome: asyncio.Future[Any] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    needs_no_transaction: bool = False
    is_background: bool = False
    sync_work: SyncWork | None = None  # the same work, to be run in the connection's thread

    def set_outcome(self, result: Any) -> None:
        """Give the caller the result, or raise it there if it is an exception."""
        if self.outcome.done():
            return
        if isinstance(result, BaseException):
            self.outcome.set_exception(result)
        else:
            self.outcome.set_result(result)


class WorkQueue:
    """The units of one connection that wait. Times are the caller's, in seconds."""

    def __init__(self, max_units: int = MAX_GROUP_UNITS) -> None:
        self._max_units = max_units
        self._waiting: deque[WorkUnit] = deque()
        self._background: deque[tuple[WorkUnit, float]] = deque()  # each with when it came
        self._was_background = False  # the group that was taken last

    def __bool__(self) -> bool:
        return bool(self._waiting or self._background)

    def add(self, unit: WorkUnit, now: float) -> None:
        if unit.is_background:
            self._background.append((unit, now))
        else:
            self._waiting.append(unit)

    def take_group(self, now: float) -> list[WorkUnit]:
        """Take the next units that may share a transaction. The queue is not empty."""
        self._was_background = self._is_background_next(now)
        if self._was_background:
            return [self._background.popleft()[0]]
        group = [self._waiting.popleft()]
        if group[0].needs_no_transaction:
            return group
        while self._waiting and len(group) < self._max_units:
            if self._waiting[0].needs_no_transaction:
                break
            group.append(self._waiting.popleft())
        return group

    def _is_background_next(self, now: float) -> bool:
        if not self._waiting:
            return True
        if not self._background or self._was_background:
            return False
        _, came_at = self._background[0]
        return now - came_at >= MAX_YIELD_S


T = TypeVar("T")


class ConnectionWorker:
    """The queue of one connection. `connect` opens the connection in autocommit mode.
    `is_kept_open`: never close it after an error, which would lose the data (`:memory:`). `lock` is
    held while any unit runs, and while the connection closes."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[aiosqlite.Connection]],
        begin_sql: Literal["BEGIN", "BEGIN IMMEDIATE"],
        *,
        is_kept_open: bool = False,
        max_units: int = MAX_GROUP_UNITS,
        lock: AbstractAsyncContextManager[None] | None = None,
    ) -> None:
        self._connect = connect
        self._begin_sql = begin_sql
        self._is_kept_open = is_kept_open
        self._lock = lock or nullcontext()
        self._queue = WorkQueue(max_units)
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self.connection: aiosqlite.Connection | None = None

    async def run(
        self, work: Callable[[aiosqlite.Connection], Awaitable[T]], *, is_background: bool = False
    ) -> T:
        """Run the work, and return its result once its transaction is committed. A `Conflict`
        leaves the other units of the transaction untouched."""
        return cast(T, await self._enqueue(WorkUnit(work, is_background=is_background)))

    async def write(
        self, work: Callable[[sqlite3.Connection], T], *, is_background: bool = False
    ) -> T:
        """Run work like `run`, but in the connection's thread. A hop there and back costs 100 µs of
        CPU. If all units of a transaction are such work, one hop runs it from BEGIN to COMMIT."""
        unit = WorkUnit(
            lambda connection: run_in_connection_thread(connection, work),
            is_background=is_background,
            sync_work=work,
        )
        return cast(T, await self._enqueue(unit))

    async def run_alone(
        self, work: Callable[[aiosqlite.Connection], Awaitable[T]], *, is_background: bool = False
    ) -> T:
        """Run work that needs no transaction (a single statement) or cannot have one (a
        checkpoint)."""
        unit = WorkUnit(work, needs_no_transaction=True, is_background=is_background)
        return cast(T, await self._enqueue(unit))

    async def close(self) -> None:
        """Finish the units in the queue, then close. Later work is refused."""
        self._is_closed = True
        if self._task is not None:
            await asyncio.wait([self._task])
        if self.connection is not None:
            connection, self.connection = self.connection, None
            try:
                async with self._lock:
                    await connection.close()
            except sqlite3.Error as exc:
                raise as_storage_error(exc) from exc

    def _enqueue(self, unit: WorkUnit) -> asyncio.Future[Any]:
        if self._is_closed:
            raise StorageError("the store is closed")
        self._queue.add(unit, time.monotonic())
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._drain(), name="sqlite worker")
        return unit.outcome

    async def _drain(self) -> None:
        while self._queue:
            group = self._queue.take_group(time.monotonic())
            await self._perform(group)
            # many callers commit: let those of this event-loop pass share the next fsync
            if len(group) > 1:
                await asyncio.sleep(0)

    async def _perform(self, group: list[WorkUnit]) -> None:
        try:
            async with self._lock:
                results = await (
                    self._run_without_transaction(group[0])
                    if group[0].needs_no_transaction
                    else self._run_transaction(group)
                )
        except asyncio.CancelledError:  # the loop is shutting down
            for unit in group:
                unit.outcome.cancel()
            raise
        except Exception as exc:
            await self._discard_connection()
            await self._fail_or_retry(group, exc)
        else:
            for unit, result in zip(group, results, strict=True):
                unit.set_outcome(result)

    async def _run_transaction(self, group: list[WorkUnit]) -> list[Any]:
        connection = await self._open()
        sync_works = [unit.sync_work for unit in group if unit.sync_work]
        if len(sync_works) == len(group):
            return await run_in_connection_thread(
                connection, partial(_run_sync_works, self._begin_sql, sync_works)
            )
        await connection.execute(self._begin_sql)
        results = [await self._run_unit(unit, connection) for unit in group]
        await connection.execute("COMMIT")
        return results

    async def _run_without_transaction(self, unit: WorkUnit) -> list[Any]:
        return [await self._run_unit(unit, await self._open())]

    async def _run_unit(self, unit: WorkUnit, connection: aiosqlite.Connection) -> Any:
        """Run the work, and return its result or its `Conflict`. A Conflict is raised before
        anything is written, so the transaction may continue. So may one that only reads."""
        try:
            return await unit.work(connection)
        except Conflict as conflict:
            return conflict
        except (UnopenedText, KeysAway, *DECODING_ERRORS) as exc:
            if self._begin_sql != "BEGIN":
                raise
            return as_storage_error(exc)

    async def _open(self) -> aiosqlite.Connection:
        if self.connection is None:
            self.connection = await self._connect()
        return self.connection

    async def _discard_connection(self) -> None:
        connection = self.connection
        if connection is None:
            return
        # the error may have rolled back, or broken the connection; closing undoes the rest
        with suppress(sqlite3.Error):
            if connection.in_transaction:
                await connection.execute("ROLLBACK")
        if not self._is_kept_open:
            self.connection = None
            with suppress(sqlite3.Error):  # it is never used again, whether it closes or not
                await connection.close()

    async def _fail_or_retry(self, group: list[WorkUnit], exc: Exception) -> None:
        """Fail all units for a full disk or a lock. Any other error may come from one unit, so run
        each unit in its own transaction."""
        is_of_all = isinstance(exc, sqlite3.OperationalError | StorageError)
        if len(group) == 1 or (is_of_all and not isinstance(exc, UnopenedText | KeysAway)):
            for unit in group:
                unit.set_outcome(as_storage_error(exc))
        else:
            for unit in group:
                await self._perform([unit])


async def run_in_connection_thread(
    connection: aiosqlite.Connection, work: Callable[[sqlite3.Connection], T]
) -> T:
    """Run work of several statements in the connection's thread. aiosqlite's own methods hop there
    for each statement, and it has no public way to do otherwise."""
    result: T = await connection._execute(work, connection._conn)  # type: ignore[no-untyped-call] # aiosqlite's private methods have no types
    return result


def _run_sync_works(
    begin_sql: str, works: Sequence[SyncWork], connection: sqlite3.Connection
) -> list[Any]:
    """Run one transaction; see `_run_unit`. An error leaves the transaction open, and closing the
    connection rolls it back."""
    connection.execute(begin_sql)
    results = [_run_sync_work(work, connection) for work in works]
    connection.execute("COMMIT")
    return results


def _run_sync_work(work: SyncWork, connection: sqlite3.Connection) -> Any:
    try:
        return work(connection)
    except Conflict as conflict:
        return conflict


def as_storage_error(exc: Exception) -> StorageError:
    """Translate a foreign error into a StorageError. SQLite's texts name tables and columns, never
    values; other errors' texts might hold values."""
    if isinstance(exc, StorageError):
        return exc
    if isinstance(exc, DECODING_ERRORS) and not isinstance(exc, UnicodeEncodeError):
        return refuse_value(exc)
    error_class = Unwritable if _is_caused_by_work(exc) else StorageError
    error = error_class(
        f"SQLite: {type(exc).__name__}: {exc}"
        if isinstance(exc, sqlite3.Error)
        else f"SQLite: {type(exc).__name__}"
    )
    error.__cause__ = exc
    return error


def _is_caused_by_work(exc: Exception) -> bool:
    """Return whether the written values caused the error, and not the disk or the file. If so,
    another try does not help."""
    return isinstance(
        exc,
        sqlite3.IntegrityError
        | sqlite3.InterfaceError
        | sqlite3.DataError
        | UnicodeEncodeError
        | TypeError
        | OverflowError,
    )
