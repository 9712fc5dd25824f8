"""Open connections to a SQLite file, and bring its schema up to date."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import aiosqlite

from om_proxy.storage.migrate import Migration, list_migrations, list_missing_migrations

CREATE_MIGRATION_TABLE = """CREATE TABLE IF NOT EXISTS migration (
    number     INTEGER PRIMARY KEY,
    name       TEXT NOT NULL,
    checksum   TEXT NOT NULL,
    applied_at TEXT NOT NULL DEFAULT (datetime('now'))
) STRICT"""


def ensure_private_file(path: Path) -> None:
    """Create the file if it is missing. Only its owner can read it, because it will hold
    conversations. SQLite gives its WAL the same mode."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


async def open_connection(
    database: str, busy_timeout_s: float, pragmas: Iterable[str]
) -> aiosqlite.Connection:
    """Open a connection in autocommit mode: the code writes every BEGIN itself. `busy_timeout_s`:
    how long to wait for another process's lock."""
    connection = await aiosqlite.connect(database, timeout=busy_timeout_s, isolation_level=None)
    try:
        for pragma in pragmas:
            await _set_pragma(connection, pragma, busy_timeout_s)
    except BaseException:
        await connection.close()
        raise
    return connection


async def _set_pragma(connection: aiosqlite.Connection, pragma: str, busy_timeout_s: float) -> None:
    """Set a pragma, and wait for locks. SQLite waits for most locks by itself, but not for the one
    that changes the journal mode. Two processes that open a new file at once compete for it."""
    deadline = time.monotonic() + busy_timeout_s
    while True:
        try:
            await connection.execute_fetchall(f"PRAGMA {pragma}")
            return
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.01)


async def apply_migrations(connection: aiosqlite.Connection) -> None:
    """Apply the migrations that the file lacks, all or none. Raise `StorageError` if the file is
    newer than this program, or another program made it."""
    shipped = list_migrations("sqlite")
    if not list_missing_migrations(shipped, await _read_applied(connection)):
        return
    await connection.execute("BEGIN EXCLUSIVE")
    try:
        # read again under the lock: another process may have applied them first
        for step in list_missing_migrations(shipped, await _read_applied(connection)):
            await _apply_step(connection, step)
        await connection.execute("COMMIT")
    except BaseException:
        await connection.execute("ROLLBACK")
        raise


async def _read_applied(connection: aiosqlite.Connection) -> dict[int, str]:
    find_table = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'migration'"
    if not list(await connection.execute_fetchall(find_table)):
        return {}
    checksums: Iterable[Any] = await connection.execute_fetchall(
        "SELECT number, checksum FROM migration"
    )
    return dict(checksums)


async def _apply_step(connection: aiosqlite.Connection, step: Migration) -> None:
    await connection.execute(CREATE_MIGRATION_TABLE)
    for statement in split_statements(step.sql):
        await connection.execute(statement)
    await connection.execute(
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
