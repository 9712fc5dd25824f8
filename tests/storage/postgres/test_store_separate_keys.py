"""A PostgreSQL schema whose keys are elsewhere."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from om_proxy.storage.encryption.key_store import KeyStore
from om_proxy.storage.postgres.key_store import PostgresKeyStore
from om_proxy.storage.postgres.session import SchemaNames
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from tests.storage.memory_builder import KEY
from tests.storage.separate_keys_contract import (
    SeparateKeysContract,
    SeparatePlace,
    SqlPlace,
    say,
)
from tests.support.own_postgres import find_programs
from tests.support.postgres_server import ask_server, own_schema


@pytest.fixture
async def place(url: str, schema: str, tmp_path: Path) -> AsyncIterator[SeparatePlace]:
    options = PostgresOptions(prefix=schema, connections=3, timeout_s=30.0)
    names = SchemaNames(schema)

    async def open_keys() -> KeyStore:
        return await PostgresKeyStore.open(url, key_schema, timeout_s=30.0)

    async def run_sql(sql: str) -> list[Any]:
        qualified = sql.replace("FROM ", "FROM om.")
        return ask_server(url, lambda c: c.fetch(names.qualify(qualified)))

    async def back_up() -> Callable[[], Awaitable[None]]:
        """With the server's own programs, as an operator does."""
        dump = tmp_path / f"dump {len(os.listdir(tmp_path))}.sql"
        if not ask_server(url, lambda c: c.fetchval("SELECT to_regnamespace($1)", schema)):
            await (await PostgresStore.open(url, options)).close()
        run("pg_dump", f"--schema={schema}", f"--file={dump}")

        async def restore() -> None:
            ask_server(url, lambda c: c.execute(f'DROP SCHEMA "{schema}" CASCADE'))
            run("psql", "--quiet", "--set=ON_ERROR_STOP=1", f"--file={dump}", "--output=/dev/null")

        return restore

    def run(program: str, *arguments: str) -> None:
        command = [find_programs() / program, f"--dbname={url}", *arguments]
        subprocess.run(command, check=True, capture_output=True, timeout=60)

    with own_schema(url) as key_schema:
        opened = SqlPlace(run_sql, partial(PostgresStore.open, url, options), open_keys, back_up)
        yield opened
        await opened.close()


class TestPostgresSeparateKeys(SeparateKeysContract):
    """The contract on a schema, with its keys in another."""


async def test_receipts_say_that_nobody_can_decrypt_what_stays(place: SeparatePlace) -> None:
    """Bytes in the tables' files and in the log."""
    store = await place.open()
    await say(store, KEY)
    result = await store.forget(KEY)
    assert (result.database, result.log, result.backups) == ("keys_destroyed",) * 3
