"""Statements that SQL stores share are PostgreSQL's; SQLite's session translates them."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

import aiosqlite
import pytest

from om_proxy.storage.shared.row_decoding import Row
from om_proxy.storage.sql.session import Session
from om_proxy.storage.sqlite.session import SqliteSession, run_in_thread, translate


@pytest.mark.parametrize(
    ("postgres", "sqlite"),
    [
        ("SELECT id FROM om.thread", "SELECT id FROM thread"),
        ("FROM om.entry JOIN om.observation", "FROM entry JOIN observation"),
        ("FROM room.thread", "FROM room.thread"),
        ("tenant = $1 AND seq > $12", "tenant = ?1 AND seq > ?12"),
        ("seq = ANY ($4::bigint[])", "seq IN (SELECT value FROM json_each(?4))"),
        ("id = ANY (ARRAY (\nSELECT (1)\n)) AND (2)", "id IN (SELECT (1)) AND (2)"),
        ("sum(tokens)::bigint", "sum(tokens)"),
        ("$1::text IS NULL", "?1 IS NULL"),
        ("NULL::bytea[]", "NULL"),
        ("shared = true AND trueness = true", "shared = 1 AND trueness = 1"),
        ("coalesce(turn_at, created_at)", "ifnull(turn_at, created_at)"),
        (
            "active_slot <= floor(least($1::float8, $2) / 600) ORDER BY active_slot DESC, id DESC",
            "ifnull(turn_at, created_at) <= min(?1, ?2) ORDER BY id DESC",
        ),
        ("ORDER BY active_slot, id", "ORDER BY id"),
        ("scope IS DISTINCT FROM $1", "scope IS NOT ?1"),
        ("FROM om.thread /* INDEXED BY thread_due */", "FROM thread INDEXED BY thread_due"),
        ("SELECT id FROM om.thread FOR NO KEY UPDATE", "SELECT id FROM thread"),
        ("(SELECT id LIMIT 9 FOR UPDATE SKIP LOCKED)", "(SELECT id LIMIT 9)"),
        (
            "json_array_elements($4::json) AS wanted WHERE seq = (wanted.value ->> 1)::bigint",
            "json_each(?4) AS wanted WHERE seq = (json_extract(wanted.value, '$[1]'))",
        ),
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


async def write(session: Session) -> list[Row]:
    await session.execute("CREATE TABLE om.seen (seq INTEGER, role ANY)")
    await session.execute("INSERT INTO om.seen VALUES ($1::bigint, $2)", 7, None)
    columns = {"seq": "bigint", "role": "bytea"}
    await session.insert("seen", columns, [(8, session.encoder.encode_text("a")), (9, b"b")])
    return await session.select("SELECT seq, role FROM om.seen")


async def test_a_session_writes() -> None:
    async with aiosqlite.connect(":memory:") as connection:
        assert await write(SqliteSession(connection)) == [(7, None), (8, "a"), (9, b"b")]


def test_work_runs_in_one_step_in_the_thread_of_its_connection() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        assert run_in_thread(write, connection) == [(7, None), (8, "a"), (9, b"b")]


def test_work_that_waits_for_something_else_is_refused() -> None:
    """It would never end: no event loop runs there."""

    async def wait(session: Session) -> None:
        await asyncio.sleep(0)

    with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(RuntimeError):
        run_in_thread(wait, connection)
