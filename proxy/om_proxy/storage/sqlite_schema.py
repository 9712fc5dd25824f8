"""A SQLite file made ready: its connections set up, its schema brought up to date."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import aiosqlite

from om_proxy.storage.migrate import Migration, lacking, migrations

APPLIED = """CREATE TABLE IF NOT EXISTS migration (
    number     INTEGER PRIMARY KEY,
    name       TEXT NOT NULL,
    checksum   TEXT NOT NULL,
    applied_at TEXT NOT NULL DEFAULT (datetime('now'))
) STRICT"""


def private_file(path: Path) -> None:
    """Make sure the file is there and, if new, its owner's alone: it will hold conversations. SQLite gives its WAL the same mode."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


async def connected(database: str, busy: float, pragmas: Iterable[str]) -> aiosqlite.Connection:
    """A connection in autocommit mode: every BEGIN is written out. `busy`: seconds to wait for another process's lock."""
    connection = await aiosqlite.connect(database, timeout=busy, isolation_level=None)
    try:
        for pragma in pragmas:
            await _told(connection, pragma, busy)
    except BaseException:
        await connection.close()
        raise
    return connection


async def _told(connection: aiosqlite.Connection, pragma: str, busy: float) -> None:
    """SQLite waits for a lock as it was told to, but not to change the journal's mode: two that open a new file at once meet there."""
    until = time.monotonic() + busy
    while True:
        try:
            await connection.execute_fetchall(f"PRAGMA {pragma}")
            return
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
        await asyncio.sleep(0.01)


async def brought_up_to_date(connection: aiosqlite.Connection) -> None:
    """Apply what the file lacks, all or nothing. `StorageError` if the file is newer than this program, or of another making."""
    shipped = migrations("sqlite")
    if not lacking(shipped, await _applied(connection)):
        return
    await connection.execute("BEGIN EXCLUSIVE")
    try:
        # Asked again under the lock: another process may have been first.
        for step in lacking(shipped, await _applied(connection)):
            await _apply(connection, step)
        await connection.execute("COMMIT")
    except BaseException:
        await connection.execute("ROLLBACK")
        raise


async def _applied(connection: aiosqlite.Connection) -> dict[int, str]:
    there = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'migration'"
    if not list(await connection.execute_fetchall(there)):
        return {}
    found: Iterable[Any] = await connection.execute_fetchall("SELECT number, checksum FROM migration")
    return dict(found)


async def _apply(connection: aiosqlite.Connection, step: Migration) -> None:
    await connection.execute(APPLIED)
    for statement in statements(step.sql):
        await connection.execute(statement)
    await connection.execute(
        "INSERT INTO migration (number, name, checksum) VALUES (?, ?, ?)", (step.number, step.name, step.checksum)
    )


def statements(script: str) -> Iterator[str]:
    """The script's statements one by one: `executescript` would commit the transaction it is called in."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
