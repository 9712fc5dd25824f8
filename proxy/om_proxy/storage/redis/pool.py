"""Connections to Redis, and the work on them.

Each piece of work runs in a task of the pool's own. A caller that is cancelled stops waiting, and
nothing else happens: an answer that is under way is never left on a connection. Work that runs into
its time limit is given up for its caller at once, and its connection is closed: what it has sent may
still happen, so its outcome is unknown.

After a connection was lost, the next one may lead to a server that has taken back commits: a replica
that was promoted, a log without its last second, or a backup that was restored. It may give version
numbers out again. So the pool counts such *losses*, and what was read before the last one is worth
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from redis.asyncio.connection import AbstractConnection, BlockingConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
)
from redis.exceptions import ConnectionError as DriverConnectionError
from redis.exceptions import TimeoutError as DriverTimeoutError

from om_proxy.common.errors import ConfigError, OmError, StorageError
from om_proxy.storage.encoding import DECODING_ERRORS, refuse_value
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.redis.keys import KeyNames
from om_proxy.storage.redis.server import ServerState, check_rights, check_server, read_server_state
from om_proxy.storage.redis.session import Session
from om_proxy.storage.shared.limited_work import wait_for_work

T = TypeVar("T")
Work = Callable[[Session], Awaitable[T]]

CLIENT_NAME = "om-proxy"  # as the server's list of connections shows it
CONNECT_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 5.0
DRIVER_ERRORS = (RedisError, OSError, asyncio.IncompleteReadError)
LOST_CONNECTION = (DriverConnectionError, DriverTimeoutError, OSError, asyncio.IncompleteReadError)


class ConnectionPool:
    """At most `connections` connections, opened as they are needed."""

    def __init__(
        self, keys: KeyNames, keyring: Keyring, timeout_s: float, must_be_durable: bool
    ) -> None:
        self._keys = keys
        self.keyring = keyring
        self._timeout_s = timeout_s
        self._must_be_durable = must_be_durable
        self._pool: BlockingConnectionPool
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
        keys: KeyNames,
        keyring: Keyring,
        *,
        connections: int,
        timeout_s: float,
        must_be_durable: bool,
    ) -> ConnectionPool:
        """Open one connection, and look at the server. Raise StorageError if it cannot be used."""
        pool = cls(keys, keyring, timeout_s, must_be_durable)
        try:
            pool._pool = BlockingConnectionPool.from_url(
                url,
                max_connections=connections,
                timeout=None,  # work that waits for a connection has a time limit of its own
                socket_connect_timeout=CONNECT_TIMEOUT_S,
                retry=Retry(NoBackoff(), 0),  # a write that was sent may have happened
                redis_connect_func=pool._greet_server,
                client_name=CLIENT_NAME,
                protocol=2,
            )
        except (ValueError, TypeError) as exc:
            raise ConfigError("storage.url: this address of a Redis cannot be read") from exc
        try:
            await pool.read(lambda session: session.call("PING"), 2 * CONNECT_TIMEOUT_S)
        except BaseException:
            await pool.close()
            raise
        return pool

    async def _greet_server(self, connection: AbstractConnection) -> None:
        try:
            await connection.on_connect()
            session = Session(connection, self._keys, self.keyring)
            state = await read_server_state(session)
            check_server(state, self._must_be_durable)
            await check_rights(session)
            self._take_server(state)
            await self.check_connection(session)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise

    def _take_server(self, state: ServerState) -> None:
        # an idle connection that ends raises no error
        if self.server is not None and self.server.incarnation != state.incarnation:
            self._note_loss()
        self.server = state

    def _note_loss(self) -> None:
        self.loss_count += 1
        self.on_loss()

    async def close(self) -> None:
        """Let what is under way end, then close all connections."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=CLOSE_TIMEOUT_S)
            for task in late:
                task.cancel()
        await self._pool.disconnect()

    async def read(self, work: Work[T], timeout_s: float | None = None) -> T:
        """Run work that changes nothing. If its connection turns out to be closed, run it once more
        on a new one."""
        return await self._run(work, timeout_s, is_read=True)

    async def write(self, work: Work[T], timeout_s: float | None = None) -> T:
        """Run work that writes. An error after it was sent leaves unknown whether it was done: then
        this raises StorageError."""
        return await self._run(work, timeout_s)

    async def _run(self, work: Work[T], timeout_s: float | None, is_read: bool = False) -> T:
        if self._is_closed:
            raise StorageError("the store is closed")
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._perform(work, is_read))
        return await wait_for_work(task, self._tasks, limit_s, loop.call_later)

    async def _perform(self, work: Work[T], is_read: bool) -> T:
        attempt = 1
        while True:
            try:
                return await self._use_connection(work)
            except OmError:
                raise
            except LOST_CONNECTION as exc:
                if attempt > 1 or not is_read:
                    raise translate_error(exc) from exc
            except DRIVER_ERRORS as exc:
                raise translate_error(exc) from exc
            except DECODING_ERRORS as exc:
                raise refuse_value(exc) from exc
            attempt += 1

    async def _use_connection(self, work: Work[T]) -> T:
        take: Callable[[], Awaitable[AbstractConnection]] = self._pool.get_connection
        connection = await take()
        is_whole = False
        try:
            result = await work(Session(connection, self._keys, self.keyring))
            is_whole = True
            return result
        except OmError:
            is_whole = True
            raise
        except LOST_CONNECTION:
            self._note_loss()
            # the others of that server are probably gone too
            await self._pool.disconnect(inuse_connections=False)
            raise
        except RedisError:
            is_whole = True  # an answer like any other
            raise
        finally:
            try:
                if not is_whole:  # an answer may still be under way
                    await connection.disconnect(nowait=True)
            finally:
                await self._pool.release(connection)


async def _accept(session: Session) -> None:
    return


def translate_error(exc: BaseException) -> StorageError:
    """Return what we raise for an error of the driver. Its text may hold a value of a command, so
    none of it but its kind is in ours."""
    if isinstance(exc, tuple(_HINTS)):
        hint = next(hint for kind, hint in _HINTS.items() if isinstance(exc, kind))
        return StorageError(f"Redis says {type(exc).__name__}: {hint}")
    if isinstance(exc, LOST_CONNECTION):
        return StorageError(f"the server cannot be reached: {type(exc).__name__}")
    kind = str(exc).split(" ", 1)[0]
    named = kind if kind.isupper() and kind.isalpha() else type(exc).__name__
    return StorageError(f"Redis says {named}{_CODES.get(named, '')}")


_HINTS: dict[type[BaseException], str] = {
    OutOfMemoryError: "it is full; raise its maxmemory",
    AuthenticationError: "it refuses the user or the password of storage.url",
    NoPermissionError: "the user of storage.url may not do this",
    ReadOnlyError: "it is a replica; name the primary",
    BusyLoadingError: "it is still reading its data",
}
_CODES = {
    "MISCONF": ": it cannot write to its disk",
    "OOM": ": it is full; raise its maxmemory",
    "NOAUTH": ": it asks for a password; name one in storage.url",
    "NOREPLICAS": ": it has too few replicas",
    "BUSY": ": it is busy with another script",
}
