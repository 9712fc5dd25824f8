"""Run the statements that SQL stores share on a connection to an SQLite file."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache, partial
from typing import Any, TypeVar, cast

import aiosqlite

from om_proxy.storage import encoding
from om_proxy.storage.shared.row_decoding import Row
from om_proxy.storage.shared.row_encoding import RowEncoder
from om_proxy.storage.sql import session as sql_session
from om_proxy.storage.sql.columns import Columns, list_names
from om_proxy.storage.sqlite.connection_worker import run_in_connection_thread
from om_proxy.storage.sqlite.queries import UNIX_NOW

T = TypeVar("T")

NEXT_VERSION = "(SELECT value + 1 FROM sequence)"
INCREMENT_SEQUENCE = "UPDATE sequence SET value = value + 1"
DRAW_VERSION = f"{INCREMENT_SEQUENCE} RETURNING value"
RAISE_VERSIONS = f"UPDATE om.thread SET version = {NEXT_VERSION} WHERE id = ANY ($1::bigint[])"
CLEAR_OTHERS = f"""UPDATE om.thread SET others = '', version = {NEXT_VERSION}
    WHERE tenant = $1 AND resource = $2 AND others <> ''"""
REQUEST_ERASURE = "UPDATE erasure SET asked = asked + 1"  # in the transaction that forgets

_SQLITE_BY_PATTERN = tuple(
    (re.compile(pattern), sqlite)
    for pattern, sqlite in (
        # an index of SQLite has the time itself
        (r"\bactive_slot ([<>]=) floor\((.+?) / 600\)", r"coalesce(turn_at, created_at) \1 \2"),
        (r"\bactive_slot( DESC)?, ", ""),
        (r"\bom\.", ""),
        (re.escape(sql_session.UNIX_NOW), UNIX_NOW),
        (r"= ANY \(\$(\d+)::\w+\[\]\)", r"IN (SELECT value FROM json_each(?\1))"),
        (r"(?s)= ANY \(ARRAY \(\n(.*?)\n\)\)", r"IN (\1)"),
        (
            r"unnest\(\$(\d+)::\w+\[\]\) AS (\w+) \((\w+)\)",
            r"(SELECT value AS \3 FROM json_each(?\1)) AS \2",
        ),
        (r"\bposition\((\$\d+)::\w+ IN (\w+)\)", r"instr(\2, \1)"),
        (r"::\w+(\[\])?", ""),
        (r"\$(\d+)", r"?\1"),
        # an index serves its own expression or condition, letter by letter
        (r"= true\b", "= 1"),
        (r"= false\b", "= 0"),
        (r"\bcoalesce\(", "ifnull("),
        (r"\bgreatest\(", "max("),
        (r"\bleast\(", "min("),
        (r"\bIS DISTINCT FROM\b", "IS NOT"),
        # a file has one writer at a time
        (r"^LOCK TABLE .*", "SELECT 1"),
        (r" FOR (NO KEY UPDATE|UPDATE|KEY SHARE|SHARE)( SKIP LOCKED)?", ""),
        # a hint for SQLite alone
        (r"/\* (INDEXED BY \w+|\+) \*/", r"\1"),
        (r"\bjson_array_elements\(", "json_each("),
        (r"(\w+\.value) ->> (\d)", r"json_extract(\1, '$[\2]')"),
    )
)


def encode_text(text: str) -> str | bytes:
    """Return the text as SQLite can hold it. TEXT cannot hold a lone surrogate, so a text with one
    is a BLOB."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return encoding.encode_text(text)
    return text


ROW_ENCODER = RowEncoder(encode_text)


@lru_cache(maxsize=1_000)
def translate(sql: str) -> str:
    """Return PostgreSQL's statement as SQLite understands it."""
    for pattern, sqlite in _SQLITE_BY_PATTERN:
        sql = pattern.sub(sqlite, sql)
    return sql


def bind(parameters: Iterable[Any]) -> list[Any]:
    """Return the parameters as SQLite takes them: a list is JSON."""
    return [json.dumps(value) if isinstance(value, list) else value for value in parameters]


class SqliteSession:
    """The `Session` of SQLite. Each statement is a hop to the connection's thread."""

    encoder = ROW_ENCODER

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run work in the connection's thread."""
        return await run_in_connection_thread(self._connection, work)

    async def run_together(self, work: Callable[[ThreadSession], Awaitable[T]]) -> T:
        """Run work of several statements with one hop; see `run_in_thread`."""
        return await self.run(partial(run_in_thread, work))

    async def select(self, sql: str, *parameters: Any) -> list[Row]:
        return await self.run(lambda db: db.execute(translate(sql), bind(parameters)).fetchall())

    async def execute(self, sql: str, *parameters: Any) -> None:
        await self.select(sql, *parameters)

    async def execute_many(self, sql: str, parameters: Iterable[Row]) -> None:
        await self.run(lambda db: db.executemany(translate(sql), parameters))

    async def select_many(self, sql: str, parameters: Iterable[Row]) -> list[Row]:
        def select(db: sqlite3.Connection) -> list[Row]:
            return [found for row in parameters for found in db.execute(translate(sql), row)]

        return await self.run(select)

    async def insert(self, table: str, columns: Columns, rows: Iterable[Row]) -> None:
        values = ", ".join("?" * len(columns))
        sql = f"INSERT INTO {table} ({list_names(columns)}) VALUES ({values})"
        await self.run(lambda db: db.executemany(sql, rows))

    async def draw_version(self) -> int:
        [(version,)] = await self.select(DRAW_VERSION)
        return int(version)

    async def raise_versions(self, ids: Iterable[int]) -> None:
        await self.execute(RAISE_VERSIONS, [*ids])
        await self.execute(INCREMENT_SEQUENCE)

    async def clear_others(self, tenant: str, resource: str) -> None:
        await self.execute(CLEAR_OTHERS, tenant, resource)
        await self.execute(INCREMENT_SEQUENCE)

    async def request_erasure(self) -> None:
        await self.execute(REQUEST_ERASURE)


class ThreadSession(SqliteSession):
    """A session in the connection's thread, where no statement is a hop."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return work(self.connection)


def run_in_thread(
    work: Callable[[ThreadSession], Awaitable[T]], connection: sqlite3.Connection
) -> T:
    """Run work in the connection's thread. It may wait for nothing but its session, which answers at
    once: so its first step is its last."""
    steps = work(ThreadSession(connection)).__await__()
    try:
        next(steps)
    except StopIteration as end:
        return cast(T, end.value)
    raise RuntimeError("work in a connection's thread waits for something else")
