"""Open connections to a SQLite file, and bring its schema up to date."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import aiosqlite

from om_proxy.common.errors import StorageError
from om_proxy.storage.shared.migrate import (
    Migration,
    SchemaRow,
    list_migrations,
    list_missing_migrations,
)
from om_proxy.storage.sqlite.connection_worker import run_in_connection_thread

CREATE_MIGRATION_TABLE = """CREATE TABLE IF NOT EXISTS migration (
    number     INTEGER PRIMARY KEY,
    name       TEXT NOT NULL,
    checksum   TEXT NOT NULL,
    applied_at TEXT NOT NULL DEFAULT (datetime('now'))
) STRICT"""

SELECT_SCHEMA_ROW = "SELECT version, min_reader, min_writer FROM schema"
RAISE_SCHEMA_VERSION = "UPDATE schema SET version = max(version, ?)"

FIND_SCHEMA_TABLE = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'schema'"
FIND_MIGRATION_TABLE = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'migration'"


def ensure_private_file(path: Path) -> None:
    """Create the file if it is missing. Only its owner can read it, because it will hold
    conversations. SQLite gives its WAL the same mode."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def require_own_database(path: Path, busy_timeout_s: float) -> None:
    """Raise StorageError unless the file is a database of this program. Nothing is created or
    changed: neither the file, nor the files that SQLite puts beside it."""
    # `immutable` reads the file alone, and creates no write-ahead log for another program's database
    modes = ["mode=ro&immutable=1"]
    if Path(f"{path}-wal").exists():  # a young database may be in its log alone
        modes.append("mode=ro")
    fault = "its tables are another program's, or it has none"
    for mode in modes:
        try:
            if _has_migration_table(path, mode, busy_timeout_s):
                return
        except sqlite3.Error as exc:
            fault = str(exc)
    raise StorageError(f"{path} is no database of om-proxy ({fault})")


def _has_migration_table(path: Path, mode: str, busy_timeout_s: float) -> bool:
    uri = f"{path.resolve().as_uri()}?{mode}"
    with closing(sqlite3.connect(uri, uri=True, timeout=busy_timeout_s)) as connection:
        return connection.execute(FIND_MIGRATION_TABLE).fetchone() is not None


async def open_connection(
    database: str, busy_timeout_s: float, pragmas: Iterable[str]
) -> aiosqlite.Connection:
    """Open a connection in autocommit mode: the code writes every BEGIN itself. `busy_timeout_s`:
    how long to wait for another process's lock. Raise StorageError if the file is not for this
    program: a newer one may have changed it since the last connection was opened."""
    connection = await aiosqlite.connect(database, timeout=busy_timeout_s, isolation_level=None)
    try:
        await _set_pragmas(connection, pragmas, busy_timeout_s)
        await check_schema(connection)
    except BaseException:
        await connection.close()
        raise
    return connection


async def _set_pragmas(
    connection: aiosqlite.Connection, pragmas: Iterable[str], busy_timeout_s: float
) -> None:
    """Set pragmas, and wait for locks. SQLite waits for most locks by itself, but not for the one
    that changes the journal mode. Two processes that open a new file at once compete for it."""
    script = "".join(f"PRAGMA {pragma};" for pragma in pragmas)
    deadline = time.monotonic() + busy_timeout_s
    while True:
        try:
            await connection.executescript(script)
            return
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.01)


async def apply_migrations(connection: aiosqlite.Connection) -> None:
    """Apply the migrations that are missing from the file, all or none. Raise `StorageError` if the
    file is too new for this program, or another program made it."""
    await run_in_connection_thread(connection, _apply_missing)


def _apply_missing(connection: sqlite3.Connection) -> None:
    if not _list_missing(connection):
        return
    connection.execute("BEGIN EXCLUSIVE")
    try:
        # read again under the lock: another process may have applied them first
        steps = _list_missing(connection)
        for step in steps:
            _apply_step(connection, step)
        if steps:
            connection.execute(RAISE_SCHEMA_VERSION, (steps[-1].number,))
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _list_missing(connection: sqlite3.Connection) -> tuple[Migration, ...]:
    applied = _read_applied(connection)
    return list_missing_migrations(list_migrations("sqlite"), applied, _find_schema_row(connection))


def _read_applied(connection: sqlite3.Connection) -> dict[int, str]:
    if connection.execute(FIND_MIGRATION_TABLE).fetchone() is None:
        return {}
    return dict(connection.execute("SELECT number, checksum FROM migration"))


async def check_schema(connection: aiosqlite.Connection) -> None:
    """Raise `ProgramTooOld` if the file's schema excludes this program, and StorageError if another
    one made it."""
    await run_in_connection_thread(connection, _list_missing)


async def read_schema_row(connection: aiosqlite.Connection) -> SchemaRow:
    [row] = await connection.execute_fetchall(SELECT_SCHEMA_ROW)
    return SchemaRow(*row)


def _find_schema_row(connection: sqlite3.Connection) -> SchemaRow | None:
    """Return the row; None for a file that has none yet."""
    if connection.execute(FIND_SCHEMA_TABLE).fetchone() is None:
        return None
    return SchemaRow(*connection.execute(SELECT_SCHEMA_ROW).fetchone())


def _apply_step(connection: sqlite3.Connection, step: Migration) -> None:
    connection.execute(CREATE_MIGRATION_TABLE)
    for statement in split_statements(step.sql):
        connection.execute(statement)
    connection.execute(
        "INSERT INTO migration (number, name, checksum) VALUES (?, ?, ?)",
        (step.number, step.name, step.checksum),
    )


def split_statements(script: str) -> Iterator[str]:
    """Yield the script's statements one by one. `executescript` would commit the transaction that
    it is called in."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
