"""Keep wrapped data keys in a schema of a PostgreSQL database of their own.

PostgreSQL frees the place of a removed row and does not clear it: the bytes of a destroyed key stay
in the server's files until `om-proxy store erase --rewrite` has rewritten its table, and in its log until
that is used again. No query finds them.
"""

from __future__ import annotations

import secrets
import zlib
from typing import TypeVar

import asyncpg

from om_proxy.common.errors import StorageError, WrongKeyStore
from om_proxy.storage.encryption.key_store import FORMAT
from om_proxy.storage.postgres.pool import (
    CONNECT_TIMEOUT_S,
    DRIVER_ERRORS,
    ConnectionPool,
    translate_error,
)
from om_proxy.storage.postgres.queries import select_wrapped_keys
from om_proxy.storage.postgres.schema import LOCK
from om_proxy.storage.postgres.session import SchemaNames, Session
from om_proxy.storage.shared.limited_work import LONG_TIMEOUT_S
from om_proxy.storage.sql.key_rows import SqlKeyStore
from om_proxy.storage.sql.session import Work

T = TypeVar("T")

CONNECTIONS = 4
TRY_LOCK = "SELECT pg_try_advisory_xact_lock($1)"
MAX_LOCK_BITS = 63
# not by `to_regclass`: see FIND_TABLES in schema.py
FIND_TABLE = """SELECT count(*) FROM pg_class WHERE relname = 'key_store'
    AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)"""
KEY_STORE_TABLES = """
CREATE TABLE om.key_store (
    number smallint PRIMARY KEY CHECK (number = 1),
    id     text     NOT NULL,
    format smallint NOT NULL
);
CREATE TABLE om.data_key (
    id      bytea PRIMARY KEY,
    master  text    NOT NULL, -- id of the master key that wraps it
    wrapped bytea   NOT NULL,
    made_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    is_used boolean NOT NULL DEFAULT false -- true: a row of the data names it
);
ALTER TABLE om.data_key ALTER id SET STATISTICS 0, ALTER wrapped SET STATISTICS 0;
CREATE INDEX unused_key ON om.data_key (id) WHERE NOT is_used;
CREATE SEQUENCE om.ping;
"""
SELECT_ID = "SELECT id, format FROM om.key_store"
INSERT_ID = "INSERT INTO om.key_store VALUES (1, $1, $2)"


class PostgresKeyStore(SqlKeyStore):
    """The `KeyStore` protocol on one schema, which any number of processes may share."""

    _is_old = "made_at <= clock_timestamp() - $2::float8 * interval '1 second'"
    _ping = "SELECT nextval('om.ping')"
    _select_keys = staticmethod(select_wrapped_keys)

    def __init__(self, pool: ConnectionPool, schema: str) -> None:
        super().__init__()
        self._pool = pool
        self._schema = schema

    @classmethod
    async def open(
        cls,
        url: str,
        schema: str,
        *,
        timeout_s: float = 1.0,
        uses_prepared: bool = True,
        must_be_durable: bool = True,
    ) -> PostgresKeyStore:
        """Connect to the server. Raise StorageError if that fails."""
        pool = await ConnectionPool.open(
            url,
            SchemaNames(schema),
            connections=CONNECTIONS,
            timeout_s=timeout_s,
            uses_prepared=uses_prepared,
            must_be_durable=must_be_durable,
        )
        return cls(pool, schema)

    async def identify(self) -> str | None:
        return await self._pool.read(self._find_id)

    async def create(self, id_: str) -> str:
        async def create(session: Session) -> str:
            await session.select(LOCK, zlib.crc32(f"om-proxy keys {self._schema}".encode()))
            stored = await self._find_id(session)
            if stored is None:
                await session.execute(f'CREATE SCHEMA IF NOT EXISTS "{self._schema}"')
                await session.execute(KEY_STORE_TABLES)
                await session.execute(INSERT_ID, id_, FORMAT)
            return stored or id_

        return await self._pool.transact(create, LONG_TIMEOUT_S)

    def expect(self, id_: str) -> None:
        """As the contract says: a new connection may lead to another server."""
        self._expected_id = id_
        self._pool.check_connection = self._check_id

    async def _check_id(self, session: Session) -> None:
        stored = await self._find_id(session)
        if stored != self._expected_id:
            raise WrongKeyStore(f"the server has another key store now, {stored or 'none'}")

    async def _find_id(self, session: Session) -> str | None:
        """Return the id of the key store; None if there is none. Raise StorageError if a newer
        program has made it."""
        [(is_there,)] = await session.select(FIND_TABLE, self._schema)
        if not is_there:
            return None
        [(id_, format_)] = await session.select(SELECT_ID)
        if format_ != FORMAT:
            raise StorageError("a newer om-proxy has made the key store: run that one")
        return str(id_)

    async def _read(self, work: Work[T], *, is_long: bool = False) -> T:
        return await self._pool.read(work, LONG_TIMEOUT_S if is_long else None)

    async def _write(self, work: Work[T], *, is_long: bool = False) -> T:
        if is_long:
            return await self._pool.transact(work, LONG_TIMEOUT_S)
        return await self._pool.write(work)

    async def close(self) -> None:
        await self._pool.close()


async def rewrite_keys(url: str, schema: str) -> None:
    """Have the server write the table of keys anew, without the bytes of destroyed ones. It is locked
    meanwhile, for a second or so with a million keys."""
    try:
        connection = await asyncpg.connect(url, timeout=CONNECT_TIMEOUT_S, statement_cache_size=0)
        try:
            await Session(connection, SchemaNames(schema)).execute("VACUUM (FULL) om.data_key")
        finally:
            await connection.close()
    except (*DRIVER_ERRORS, TimeoutError) as exc:
        raise StorageError(f"storage.keys_url: {translate_error(exc)}") from exc


async def are_one_database(url: str, other_url: str) -> bool | None:
    """Return whether both addresses name one database, whatever names the server has; None: a server
    cannot be reached, which opening says better. Raise StorageError if a server refuses the question.

    A lock that one connection holds is not free for another one of the same database, and of no other
    database. So nothing is compared that a copy of the server would have too, and the question needs
    no rights. A pooler may be between.
    """
    try:
        one = await _connect(url)
    except (*DRIVER_ERRORS, TimeoutError):
        return None
    try:
        return await _share_lock(one, other_url)
    finally:
        await _close(one)


async def _share_lock(one: asyncpg.Connection, other_url: str) -> bool | None:
    try:
        other = await _connect(other_url)
    except (*DRIVER_ERRORS, TimeoutError):
        return None
    number = secrets.randbits(MAX_LOCK_BITS)
    try:
        # in transactions: a pooler keeps each on one connection meanwhile
        async with one.transaction(), other.transaction():
            await one.fetchval(LOCK, number)
            return not await other.fetchval(TRY_LOCK, number)
    except (*DRIVER_ERRORS, TimeoutError) as exc:
        raise translate_error(exc) from exc
    finally:
        await _close(other)


async def _connect(url: str) -> asyncpg.Connection:
    return await asyncpg.connect(
        url,
        timeout=CONNECT_TIMEOUT_S,
        command_timeout=CONNECT_TIMEOUT_S,
        statement_cache_size=0,
    )


async def _close(connection: asyncpg.Connection) -> None:
    try:
        await connection.close(timeout=CONNECT_TIMEOUT_S)
    except (*DRIVER_ERRORS, TimeoutError):
        connection.terminate()
