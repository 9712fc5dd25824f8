"""Connections to PostgreSQL, and the work on them.

Each piece of work runs in a task of the pool's own. A caller that is cancelled stops waiting, and
nothing else happens: an answer that is under way is never left on a connection. Work that runs into
its time limit is given up for its caller at once; the task itself goes on, asks the server to cancel
the statement, and ends the connection if the server does not answer. (A stopped server process
answers after a second or never; no request waits for that.)

After a connection was lost, the next one may lead to a server that has taken back commits: a standby
that was promoted, or a backup that was restored. It may give version numbers out again. So the pool
counts such *losses*, and what was read before the last one is worth nothing.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal, NamedTuple, TypeVar

import asyncpg
import structlog

from om_proxy.common.errors import ConfigError, OmError, StorageError
from om_proxy.common.running_time import RunningTimer, limit_running_time
from om_proxy.storage.encoding import DECODING_ERRORS, refuse_value
from om_proxy.storage.postgres.kept_connections import (
    CANCEL_TIMEOUT_S,
    KeptConnection,
    KeptConnections,
    is_closed,
)
from om_proxy.storage.postgres.session import SchemaNames, Session
from om_proxy.storage.shared.limited_work import wait_for_work

logger = structlog.get_logger("storage")

T = TypeVar("T")
Work = Callable[[Session], Awaitable[T]]
Isolation = Literal["none", "read_committed", "repeatable_read"]  # none: each statement by itself

APPLICATION_NAME = "om-proxy"  # as the server's list of connections shows it
CONNECT_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 5.0
# The server ends a transaction whose process stands still: it would hold its locks for ever. Below
# the time that a reply waits for its turn to be stored, so that what waits for these locks is stored
# by then.
IDLE_TRANSACTION_TIMEOUT_S = 3.0
LONG_IDLE_TIMEOUT_S = 15.0  # of long work, which computes between two statements
# Work that PostgreSQL has rolled back as a whole, to end a deadlock or a clash, is done again.
MAX_ATTEMPTS = 3
ROLLED_BACK = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)

SELECT_SERVER = """SELECT current_setting('fsync') = 'on', current_setting('synchronous_commit') <> 'off',
    pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on',
    current_setting('server_version_num')::int,
    (pg_postmaster_start_time(), to_regclass('om.thread')::oid)::text"""
OLDEST_SERVER = 130_000


class ServerState(NamedTuple):
    """The state that a server reported when a connection was opened."""

    flushes: bool  # `fsync`: what is written survives a power cut
    commits_wait: bool  # `synchronous_commit`: a commit is written before it is acknowledged
    is_read_only: bool  # a standby, or set so
    version: int
    incarnation: str  # another one after a restart, a failover, or once the tables are others

    @property
    def is_durable(self) -> bool:
        return self.flushes and self.commits_wait


class StatelessConnection(asyncpg.Connection):  # type: ignore[misc] # asyncpg has no types
    """A connection that leaves no state behind: no statement of ours changes its session. asyncpg's
    own reset would cost a round trip after every piece of work."""

    __slots__ = ()

    def get_reset_query(self) -> str:
        return ""


class ConnectionPool:
    """At most `connections` connections, opened as they are needed."""

    def __init__(
        self,
        connections: KeptConnections,
        names: SchemaNames,
        timeout_s: float,
        uses_prepared: bool,
    ) -> None:
        self._connections = connections
        self._names = names
        self._timeout_s = timeout_s
        # Without prepared statements, asyncpg sends a statement and its parameters apart. Outside a
        # transaction a pooler may hand the second to another connection, and so to the statement of
        # another client.
        self._least_isolation: Isolation = "none" if uses_prepared else "read_committed"
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False
        self.server: ServerState | None = None
        self.loss_count = 0
        self.on_loss: Callable[[], None] = lambda: None
        self.check_connection: Work[None] = _accept  # of each new connection

    @classmethod
    async def open(
        cls,
        url: str,
        names: SchemaNames,
        *,
        connections: int,
        timeout_s: float,
        uses_prepared: bool,
        must_be_durable: bool,
    ) -> ConnectionPool:
        """Open one connection, and look at the server. Raise StorageError if it cannot be used."""
        created: list[ConnectionPool] = []

        async def look_at_server(connection: asyncpg.Connection) -> None:
            try:
                async with (
                    limit_running_time(CONNECT_TIMEOUT_S),
                    _transaction(connection, "read_committed", IDLE_TRANSACTION_TIMEOUT_S),
                ):
                    session = Session(connection, names)
                    created[0]._take_server(await _look_at_server(session, must_be_durable))
                    await created[0].check_connection(session)
            except BaseException:
                # the pool closes it politely, and would wait for an answer for ever
                connection.terminate()
                raise

        try:
            pool = asyncpg.create_pool(
                url,
                min_size=0,  # else asyncpg opens one by itself, beside those that are waited for
                max_size=connections,
                connection_class=StatelessConnection,
                init=look_at_server,
                timeout=CONNECT_TIMEOUT_S,
                # statements are known by their text: none is prepared twice, none grows old
                statement_cache_size=200 if uses_prepared else 0,
                max_cached_statement_lifetime=0,
                server_settings={"application_name": APPLICATION_NAME},
            )
        except (ValueError, asyncpg.InterfaceError) as exc:
            raise ConfigError(f"storage.url: {type(exc).__name__}: it cannot be read") from exc
        kept = KeptConnections(pool, connections)
        created.append(cls(kept, names, timeout_s, uses_prepared))
        try:
            await _open_first(pool, kept)
        except ValueError as exc:  # asyncpg reads the address only now
            raise ConfigError("storage.url: this address of a PostgreSQL cannot be read") from exc
        except DRIVER_ERRORS as exc:
            raise translate_error(exc) from exc
        except TimeoutError as exc:
            raise StorageError(f"the server did not answer in {CONNECT_TIMEOUT_S:g} s") from exc
        return created[0]

    def _take_server(self, server: ServerState) -> None:
        # an idle connection that ends raises no error
        if self.server is not None and self.server.incarnation != server.incarnation:
            self._note_loss()
        self.server = server

    def _note_loss(self) -> None:
        self.loss_count += 1
        self.on_loss()

    async def close(self) -> None:
        """Let what is under way end, then close all connections."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_TIMEOUT_S)
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._connections.close()
        except (TimeoutError, *DRIVER_ERRORS):
            self._connections.terminate()

    async def read(
        self, work: Work[T], timeout_s: float | None = None, *, is_snapshot: bool = False
    ) -> T:
        """Run work that changes nothing. If its connection turns out to be closed, run it once more
        on a new one. `is_snapshot`: all its statements see the same state."""
        isolation: Isolation = "repeatable_read" if is_snapshot else self._least_isolation
        return await self._run(work, timeout_s, isolation, is_read=True)

    async def write(self, work: Work[T], timeout_s: float | None = None) -> T:
        """Run one statement that writes. An error after it was sent leaves unknown whether it was
        done: then this raises StorageError."""
        return await self._run(work, timeout_s, self._least_isolation)

    async def transact(
        self, work: Work[T], timeout_s: float | None = None, *, blocks_turns: bool = False
    ) -> T:
        """Run work in a transaction. `blocks_turns`: although it may take long, it may not stand
        still for longer than a turn, as turns wait for what it locks."""
        return await self._run(work, timeout_s, "read_committed", blocks_turns=blocks_turns)

    async def _run(
        self,
        work: Work[T],
        timeout_s: float | None,
        isolation: Isolation,
        is_read: bool = False,
        blocks_turns: bool = False,
    ) -> T:
        if self._is_closed:
            raise StorageError("the store is closed")
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        loop = asyncio.get_running_loop()
        is_short = timeout_s is None or blocks_turns
        idle_s = IDLE_TRANSACTION_TIMEOUT_S if is_short else LONG_IDLE_TIMEOUT_S
        task = loop.create_task(self._perform(work, isolation, idle_s, is_read))
        return await wait_for_work(task, self._tasks, limit_s, RunningTimer)

    async def _perform(
        self, work: Work[T], isolation: Isolation, idle_s: float, is_read: bool
    ) -> T:
        attempt = 1
        while True:
            try:
                return await self._use_connection(work, isolation, idle_s)
            except OmError:
                raise
            except ROLLED_BACK as exc:
                if attempt == MAX_ATTEMPTS:
                    raise translate_error(exc) from exc
            except _ConnectionLost as exc:
                if attempt > 1 or not is_read:
                    raise translate_error(exc.cause) from exc.cause
            except DRIVER_ERRORS as exc:
                raise translate_error(exc) from exc
            except DECODING_ERRORS as exc:
                raise refuse_value(exc) from exc
            attempt += 1

    async def _use_connection(self, work: Work[T], isolation: Isolation, idle_s: float) -> T:
        kept = await self._connections.take()
        is_whole = False
        try:
            session = Session(kept.connection, self._names)
            if isolation == "none":
                result = await work(session)
            else:
                async with _transaction(kept.connection, isolation, idle_s):
                    result = await work(session)
            is_whole = True
            return result
        except DRIVER_ERRORS as exc:
            if not is_closed(kept.connection):
                raise
            # the others of that server are probably gone too
            self._note_loss()
            await self._connections.drop()
            raise _ConnectionLost(exc) from exc
        finally:
            if is_whole and self._connections.can_keep(kept):
                self._connections.keep(kept)
            else:
                await self._give_back(kept)

    async def _give_back(self, kept: KeptConnection) -> None:
        try:
            await self._connections.give_back(kept)
        except (TimeoutError, *DRIVER_ERRORS) as exc:
            # The pool has ended this connection: its server answered nothing. Others may be silent
            # as well, and would let work after work wait for its limit.
            self._note_loss()
            await self._connections.drop_unheard(CANCEL_TIMEOUT_S)
            logger.debug("storage.connection_ended", error=type(exc).__name__)


async def _open_first(pool: asyncpg.Pool, connections: KeptConnections) -> None:
    try:
        await pool
        connections.keep(await connections.take())
    except BaseException:
        connections.terminate()  # others may still be being opened beside the first
        raise


@asynccontextmanager
async def _transaction(
    connection: asyncpg.Connection, isolation: Isolation, idle_s: float
) -> AsyncIterator[None]:
    """Run a transaction with a limit on its idle time. asyncpg's own `transaction` has no place for
    that setting, which would cost a round trip. A connection's start has none either: a pooler
    refuses what it does not know there."""
    level = isolation.replace("_", " ")
    idle_ms = int(idle_s * 1_000)
    try:
        await connection.execute(
            f"BEGIN ISOLATION LEVEL {level}; SET LOCAL idle_in_transaction_session_timeout = {idle_ms}"
        )
        yield
    except BaseException:
        await _roll_back(connection)
        raise
    await connection.execute("COMMIT")


async def _roll_back(connection: asyncpg.Connection) -> None:
    """Roll back, or end the connection if the server does not answer: the caller may have been
    given up already, so nothing else limits the wait."""
    if is_closed(connection):
        return
    try:
        async with limit_running_time(CANCEL_TIMEOUT_S):
            await connection.execute("ROLLBACK")
    except BaseException:
        connection.terminate()
        raise


async def _accept(session: Session) -> None:
    return


class _ConnectionLost(Exception):
    """The connection was closed in the middle of work: whatever ran on it is unknown."""

    def __init__(self, cause: Exception) -> None:
        super().__init__()
        self.cause = cause


async def _look_at_server(session: Session, must_be_durable: bool) -> ServerState:
    """Return what the server says of itself. Raise StorageError if it cannot be used."""
    [row] = await session.select(SELECT_SERVER)
    state = ServerState(*row)
    if state.version < OLDEST_SERVER:
        raise StorageError(
            f"the server is PostgreSQL {state.version // 10_000}; om-proxy needs 13 or newer"
        )
    if state.is_read_only:
        raise StorageError("the server is read-only, or a standby; name the primary")
    if not state.is_durable:
        setting = "fsync" if not state.flushes else "synchronous_commit"
        loss = (
            "a power cut may lose the whole database"
            if not state.flushes
            else "a power cut loses acknowledged turns"
        )
        if must_be_durable:
            raise StorageError(
                f"the server runs with {setting} = off: {loss}; "
                "turn it on, or set storage.durable: false"
            )
        logger.warning("storage.not_durable", setting=setting, loss=loss)
    return state


def translate_error(exc: BaseException) -> StorageError:
    """Return what we raise for an error of the driver. Its text may hold a value of a statement, so
    only PostgreSQL's own code is in ours."""
    if isinstance(exc, asyncpg.PostgresError):
        hint = _HINTS.get(type(exc), "")
        return StorageError(f"PostgreSQL says {type(exc).__name__} ({exc.sqlstate}){hint}")
    if isinstance(exc, socket.gaierror):
        return StorageError("the server cannot be reached: the name of its host is not known")
    if isinstance(exc, OSError):
        return StorageError(f"the server cannot be reached: {type(exc).__name__}")
    return StorageError(f"the connection failed: {type(exc).__name__}")


_NO_STATEMENTS = (
    ": a pooler stands before it that keeps no prepared statements; set storage.prepared: false"
)
_HINTS: dict[type[BaseException], str] = {
    asyncpg.DuplicatePreparedStatementError: _NO_STATEMENTS,
    asyncpg.InvalidSQLStatementNameError: _NO_STATEMENTS,
    asyncpg.TooManyConnectionsError: ": it has no connection left; lower storage.connections",
    asyncpg.InvalidPasswordError: ": it refuses the user or the password of storage.url",
    asyncpg.InvalidAuthorizationSpecificationError: ": it refuses the user of storage.url",
    asyncpg.InvalidCatalogNameError: ": the database of storage.url does not exist",
    asyncpg.InsufficientPrivilegeError: ": the user of storage.url may not do this",
    asyncpg.ReadOnlySQLTransactionError: ": it is read-only; name the primary",
    asyncpg.UndefinedTableError: ": the tables of om-proxy are gone",
    asyncpg.DiskFullError: ": its disk is full",
}
