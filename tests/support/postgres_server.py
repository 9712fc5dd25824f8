"""Find the PostgreSQL that tests may use, and give each test a schema of its own in it.

`scripts/servers up` starts one and writes its address to `.servers/postgres`; OM_TEST_POSTGRES_URL
names another. No other server is ever touched. Without any, these tests are skipped, loudly; where
OM_TEST_SERVERS is `required`, as in CI, they fail.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    import asyncpg

ADDRESS_FILE = Path(__file__).parents[2] / ".servers" / "postgres"
POOLER_ADDRESS_FILE = ADDRESS_FILE.with_name("pgbouncer")
HOW_TO_START = "no PostgreSQL to test with: start one with `scripts/servers up`"

T = TypeVar("T")


def find_postgres_url() -> str:
    """Return the address of the server. Skip the test where there is none, or fail it."""
    return _find_url("OM_TEST_POSTGRES_URL", ADDRESS_FILE)


def find_pooler_url() -> str:
    """Return the address of a PgBouncer in transaction mode, in front of that server."""
    return _find_url("OM_TEST_PGBOUNCER_URL", POOLER_ADDRESS_FILE)


def _find_url(variable: str, file: Path) -> str:
    url = os.environ.get(variable, "")
    if not url and file.exists():
        url = file.read_text(encoding="utf-8").strip()
    if url:
        return url
    if os.environ.get("OM_TEST_SERVERS") == "required":
        pytest.fail(HOW_TO_START)
    pytest.skip(HOW_TO_START)


def ask_server(url: str, work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
    """Run work on a connection of its own, in a thread: wherever the caller's event loop is."""

    async def connected() -> T:
        import asyncpg  # of the few tests that have a server

        connection = await asyncpg.connect(url)
        try:
            return await work(connection)
        finally:
            await connection.close()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(connected())).result()


async def list_columns(connection: asyncpg.Connection, schema: str, table: str) -> list[str]:
    """Return the columns of a table that a copy of a row gives values for."""
    rows = await connection.fetch(
        """SELECT column_name FROM information_schema.columns WHERE table_schema = $1
        AND table_name = $2 AND is_generated = 'NEVER' ORDER BY ordinal_position""",
        schema,
        table,
    )
    return [name for (name,) in rows]


@contextmanager
def own_schema(url: str) -> Iterator[str]:
    """Yield the name of a schema that is dropped afterwards."""
    schema = f"om_test_{secrets.token_hex(6)}"
    try:
        yield schema
    finally:
        ask_server(url, lambda c: c.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'))
