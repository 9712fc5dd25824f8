"""A lane: one SQLite connection and the units of work that queue for it.

Units that arrive while a transaction runs share the next one, and with it one fsync: group commit. The transaction runs in a
task of the lane's own, so a caller who is cancelled stops waiting and nothing else: what was handed over still commits or
rolls back as a whole. After an error the connection is rolled back, closed and never used again; the next unit opens another.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar, cast

import aiosqlite

from om_proxy.errors import Conflict, StorageError, Unwritable

GROUP = 64  # units in one transaction: bounds how long the first of them waits for its fsync

T = TypeVar("T")
Work = Callable[[aiosqlite.Connection], Awaitable[Any]]
Writing = Callable[[sqlite3.Connection], Any]


@dataclass(slots=True)
class Unit:
    """A piece of work and where its outcome goes; the future is done early if its caller was cancelled."""

    work: Work
    outcome: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    alone: bool = False  # runs outside any transaction
    writing: Writing | None = None  # the same, for who is in the connection's thread already

    def settle(self, result: Any) -> None:
        if self.outcome.done():
            return
        if isinstance(result, BaseException):
            self.outcome.set_exception(result)
        else:
            self.outcome.set_result(result)


class Lane:
    """`connect` opens a connection in autocommit mode. `keep`: a connection whose close would lose the data (`:memory:`)."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[aiosqlite.Connection]],
        begin: Literal["BEGIN", "BEGIN IMMEDIATE"],
        *,
        keep: bool = False,
        group: int = GROUP,
        turn: AbstractAsyncContextManager[None] | None = None,
    ) -> None:
        """`turn`: held while anything is done, and while the connection closes."""
        self._connect = connect
        self._begin = begin
        self._keep = keep
        self._group = group
        self._turn = turn or nullcontext()
        self._waiting: deque[Unit] = deque()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.connection: aiosqlite.Connection | None = None

    async def run(self, work: Callable[[aiosqlite.Connection], Awaitable[T]]) -> T:
        """The work's result, once the transaction it ran in is committed. `Conflict` leaves its companions untouched."""
        return cast(T, await self._hand_over(Unit(work)))

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """As `run`, of work that is done in the connection's thread: a hop there and back costs 100 µs of CPU, and where all units of a
        transaction are such work, one hop does it from BEGIN to COMMIT."""
        return cast(T, await self._hand_over(Unit(lambda connection: in_one_hop(connection, work), writing=work)))

    async def run_alone(self, work: Callable[[aiosqlite.Connection], Awaitable[T]]) -> T:
        """The result of work that needs no transaction (a single statement) or cannot have one (a checkpoint)."""
        return cast(T, await self._hand_over(Unit(work, alone=True)))

    async def close(self) -> None:
        """Finish what was handed over, then close; later work is refused."""
        self._closed = True
        if self._task is not None:
            await asyncio.wait([self._task])
        if self.connection is not None:
            connection, self.connection = self.connection, None
            try:
                async with self._turn:
                    await connection.close()
            except sqlite3.Error as exc:
                raise translated(exc) from exc

    def _hand_over(self, unit: Unit) -> asyncio.Future[Any]:
        if self._closed:
            raise StorageError("the store is closed")
        self._waiting.append(unit)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._drain(), name="sqlite lane")
        return unit.outcome

    async def _drain(self) -> None:
        while self._waiting:
            group = self._next_group()
            await self._perform(group)
            # many commit: those of this pass of the loop share the next transaction, and its fsync
            if len(group) > 1:
                await asyncio.sleep(0)

    def _next_group(self) -> list[Unit]:
        group = [self._waiting.popleft()]
        while self._waiting and len(group) < self._group and not (group[0].alone or self._waiting[0].alone):
            group.append(self._waiting.popleft())
        return group

    async def _perform(self, group: list[Unit]) -> None:
        try:
            async with self._turn:
                results = await (self._without_transaction(group[0]) if group[0].alone else self._transaction(group))
        except asyncio.CancelledError:  # the loop is shutting down
            for unit in group:
                unit.outcome.cancel()
            raise
        except Exception as exc:
            await self._discard()
            await self._failed(group, exc)
        else:
            for unit, result in zip(group, results, strict=True):
                unit.settle(result)

    async def _transaction(self, group: list[Unit]) -> list[Any]:
        connection = await self._open()
        writings = [unit.writing for unit in group if unit.writing]
        if len(writings) == len(group):
            return await in_one_hop(connection, partial(_write_all, self._begin, writings))
        await connection.execute(self._begin)
        results = [await _result(unit, connection) for unit in group]
        await connection.execute("COMMIT")
        return results

    async def _without_transaction(self, unit: Unit) -> list[Any]:
        return [await _result(unit, await self._open())]

    async def _open(self) -> aiosqlite.Connection:
        if self.connection is None:
            self.connection = await self._connect()
        return self.connection

    async def _discard(self) -> None:
        connection = self.connection
        if connection is None:
            return
        with suppress(
            sqlite3.Error
        ):  # the error may have rolled back, or broken the connection; closing undoes the rest
            if connection.in_transaction:
                await connection.execute("ROLLBACK")
        if not self._keep:
            self.connection = None
            with suppress(sqlite3.Error):  # it is given up either way
                await connection.close()

    async def _failed(self, group: list[Unit], exc: Exception) -> None:
        """A full disk or a lock is everyone's trouble; any other error may be one unit's own, so each gets a transaction of its own."""
        if len(group) == 1 or isinstance(exc, sqlite3.OperationalError | StorageError):
            for unit in group:
                unit.settle(translated(exc))
        else:
            for unit in group:
                await self._perform([unit])


async def in_one_hop(connection: aiosqlite.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    """The result of work of several statements, done in the connection's thread. aiosqlite's own methods hop there for each one, and
    it has no public way to do otherwise."""
    result: T = await connection._execute(work, connection._conn)  # type: ignore[no-untyped-call] # as all of aiosqlite below its methods
    return result


async def _result(unit: Unit, connection: aiosqlite.Connection) -> Any:
    """The work's result, or its `Conflict`: it is found before anything is written, so the transaction may go on."""
    try:
        return await unit.work(connection)
    except Conflict as conflict:
        return conflict


def _write_all(begin: str, works: Sequence[Writing], connection: sqlite3.Connection) -> list[Any]:
    """One transaction; see `_result`. An error leaves it open: it is rolled back with the connection."""
    connection.execute(begin)
    results = [_write(work, connection) for work in works]
    connection.execute("COMMIT")
    return results


def _write(work: Writing, connection: sqlite3.Connection) -> Any:
    try:
        return work(connection)
    except Conflict as conflict:
        return conflict


def translated(exc: Exception) -> StorageError:
    """A foreign error as ours. SQLite's texts name tables and columns, never values; other errors' texts might."""
    if isinstance(exc, StorageError):
        return exc
    kind = Unwritable if _is_of_the_work(exc) else StorageError
    error = kind(
        f"SQLite: {type(exc).__name__}: {exc}" if isinstance(exc, sqlite3.Error) else f"SQLite: {type(exc).__name__}"
    )
    error.__cause__ = exc
    return error


def _is_of_the_work(exc: Exception) -> bool:
    """Whether what was to be written is at fault, and no state of disk or file: trying again would not help."""
    return isinstance(
        exc,
        sqlite3.IntegrityError | sqlite3.InterfaceError | sqlite3.DataError | UnicodeError | TypeError | OverflowError,
    )
