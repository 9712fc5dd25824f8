"""Statements that SQL stores share are PostgreSQL's; SQLite's session translates them."""

from __future__ import annotations

from typing import Any

import aiosqlite
import pytest

from om_proxy.storage.sqlite.session import SqliteSession, translate


@pytest.mark.parametrize(
    ("postgres", "sqlite"),
    [
        ("SELECT id FROM om.thread", "SELECT id FROM thread"),
        ("FROM om.entry JOIN om.observation", "FROM entry JOIN observation"),
        ("FROM room.thread", "FROM room.thread"),
        ("tenant = $1 AND seq > $12", "tenant = ?1 AND seq > ?12"),
        ("seq = ANY ($4::bigint[])", "seq IN (SELECT value FROM json_each(?4))"),
        ("sum(tokens)::bigint", "sum(tokens)"),
        ("$1::text IS NULL", "?1 IS NULL"),
        ("NULL::bytea[]", "NULL"),
        ("shared = true AND trueness = true", "shared = 1 AND trueness = 1"),
        ("json_extract(state, '$.cause') = ?", "json_extract(state, '$.cause') = ?"),
    ],
)
def test_a_statement_is_translated(postgres: str, sqlite: str) -> None:
    assert translate(postgres) == sqlite


@pytest.mark.parametrize(
    ("sql", "parameters", "found"),
    [
        ("SELECT $2::text, $1::bigint, $2", (1, "a"), [("a", 1, "a")]),
        ("SELECT 2 = ANY ($1::bigint[]), 2 = ANY ($2::bigint[])", ([1, 2], []), [(1, 0)]),
        ("SELECT $1::bytea, $2", (b"\x00", None), [(b"\x00", None)]),
        ("SELECT value FROM (SELECT 3 AS value) AS listed LIMIT $1", (2**63 - 1,), [(3,)]),
    ],
)
async def test_a_session_runs_it(sql: str, parameters: tuple[Any, ...], found: Any) -> None:
    """A parameter may come several times; a list stands for its values."""
    async with aiosqlite.connect(":memory:") as connection:
        assert await SqliteSession(connection).select(sql, *parameters) == found


async def test_a_session_writes() -> None:
    async with aiosqlite.connect(":memory:") as connection:
        session = SqliteSession(connection)
        await session.execute("CREATE TABLE om.seen (seq INTEGER)")
        await session.execute("INSERT INTO om.seen VALUES ($1::bigint)", 7)
        assert await session.select("SELECT seq FROM om.seen") == [(7,)]
