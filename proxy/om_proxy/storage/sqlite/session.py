"""Run the statements that SQL stores share on a connection to an SQLite file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import aiosqlite

from om_proxy.storage.row_decoding import Row

_TRANSLATIONS = tuple(
    (re.compile(pattern), sqlite)
    for pattern, sqlite in (
        (r"\bom\.", ""),
        (r"= ANY \(\$(\d+)::\w+\[\]\)", r"IN (SELECT value FROM json_each(?\1))"),
        (r"::\w+(\[\])?", ""),
        (r"\$(\d+)", r"?\1"),
        # a partial index serves its own condition, letter by letter
        (r"= true\b", "= 1"),
    )
)


@lru_cache(maxsize=1_000)
def translate(sql: str) -> str:
    """Return PostgreSQL's statement as SQLite understands it."""
    for pattern, sqlite in _TRANSLATIONS:
        sql = pattern.sub(sqlite, sql)
    return sql


def bind(parameters: Iterable[Any]) -> list[Any]:
    """Return the parameters as SQLite takes them: a list is JSON."""
    return [json.dumps(value) if isinstance(value, list) else value for value in parameters]


class SqliteSession:
    """One connection, for one piece of work: the `Session` of SQLite."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self.connection = connection

    async def select(self, sql: str, *parameters: Any) -> list[Row]:
        found = await self.connection.execute_fetchall(translate(sql), bind(parameters))
        return list(found)

    async def execute(self, sql: str, *parameters: Any) -> None:
        await self.connection.execute_fetchall(translate(sql), bind(parameters))
