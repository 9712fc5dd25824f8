"""Bring the schema of a database up to date. One process does it at a time; the others wait."""

from __future__ import annotations

import zlib

import asyncpg

from om_proxy.common.errors import StorageError
from om_proxy.storage.postgres.events import align_events
from om_proxy.storage.postgres.session import Session
from om_proxy.storage.shared.migrate import (
    Migration,
    SchemaRow,
    list_migrations,
    list_missing_migrations,
)

BACKEND = "postgres"
LOCK = "SELECT pg_advisory_xact_lock($1)"
# Another process that migrates is waited for: no turn waits behind this lock. If it takes longer, as
# for an index, this process goes on without the store, and tries again.
LIMIT_WAIT_FOR_OTHERS = "SET LOCAL lock_timeout = '10s'"
# another transaction may hold a table: a migration that waited would make every turn wait behind it
LIMIT_WAIT_FOR_TABLES = "SET LOCAL lock_timeout = '2s'"
# Not by `to_regclass`: that may still answer from what this connection knew before it waited for
# another process, and the same tables would be made again.
FIND_TABLES = """SELECT bool_or(relname = 'migration'), bool_or(relname = 'schema') FROM pg_class
    WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)"""
CREATE_MIGRATION_TABLE = """CREATE TABLE IF NOT EXISTS om.migration (
    number     integer PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)"""
SELECT_APPLIED = "SELECT number, checksum FROM om.migration"
SELECT_SCHEMA_ROW = "SELECT version, min_reader, min_writer FROM om.schema"
RAISE_SCHEMA_VERSION = "UPDATE om.schema SET version = greatest(version, $1)"
INSERT_APPLIED = "INSERT INTO om.migration (number, name, checksum) VALUES ($1, $2, $3)"
LOCK_TABLES_OF = "om-proxy schema "


def find_lock_key(schema: str) -> int:
    """Return the number that stands for the schema among the server's advisory locks."""
    return zlib.crc32(f"{LOCK_TABLES_OF}{schema}".encode())


async def require_own_schema(session: Session, schema: str) -> None:
    """Raise StorageError unless the schema is of this program. Nothing is created."""
    [(has_migrations, _)] = await session.select(FIND_TABLES, schema)
    if not has_migrations:
        raise StorageError(f"the database has no schema {schema} of om-proxy")


async def find_missing(session: Session, schema: str) -> tuple[Migration, ...]:
    """Return the migrations that are missing from the database. Raise StorageError if it is not for
    this program."""
    [(has_migrations, has_row)] = await session.select(FIND_TABLES, schema)
    row = await read_schema_row(session) if has_row else None
    applied = await session.select(SELECT_APPLIED) if has_migrations else []
    checksums = dict(map(tuple, applied))
    return list_missing_migrations(list_migrations(BACKEND), checksums, row)


async def read_schema_row(session: Session) -> SchemaRow:
    [row] = await session.select(SELECT_SCHEMA_ROW)
    return SchemaRow(*row)


async def check_schema(session: Session) -> None:
    """Raise `ProgramTooOld` if the schema excludes this program."""
    (await read_schema_row(session)).check_program(list_migrations(BACKEND)[-1].number)


async def apply_next_migration(session: Session, schema: str) -> bool:
    """Apply the first migration that is missing, inside a transaction. Return whether there was
    one."""
    await session.execute(LIMIT_WAIT_FOR_OTHERS)
    try:
        await session.select(LOCK, find_lock_key(schema))
    except asyncpg.LockNotAvailableError as exc:
        raise StorageError(
            "another process brings its schema up to date; try again once that has ended"
        ) from exc
    await session.execute(LIMIT_WAIT_FOR_TABLES)
    missing = await find_missing(session, schema)  # again: another process may have been first
    if not missing:
        return False
    step = missing[0]
    try:
        await session.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
    except asyncpg.InsufficientPrivilegeError as exc:
        raise StorageError(
            f"the user of storage.url may not create the schema {schema}; "
            f"run: CREATE SCHEMA {schema} AUTHORIZATION that user"
        ) from exc
    await session.execute(CREATE_MIGRATION_TABLE)
    try:
        await session.execute(step.sql)
    except asyncpg.LockNotAvailableError as exc:
        raise StorageError(
            f"migration {step.number} ({step.name}) was given up: a transaction of somebody holds a "
            "table for more than 2 s, such as a dump; try again once that has ended"
        ) from exc
    await session.execute(INSERT_APPLIED, step.number, step.name, step.checksum)
    await session.execute(RAISE_SCHEMA_VERSION, step.number)
    return True


async def look_at_schema(session: Session) -> None:
    """Look at the schema on a new connection, inside a transaction: the server may be another one
    since. Raise `ProgramTooOld` if the schema excludes this program. Let ids of events go on where
    those of a restored database end."""
    await check_schema(session)
    await align_events(session)
