"""A schema of its own for each test, or one for all tests of a file, emptied before each."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import asyncpg
import pytest

from om_proxy.storage.base import Store
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from tests.storage.contract import Opener
from tests.storage.key_rotation_contract import OpenWith
from tests.support.postgres_server import ask_server, find_postgres_url, own_schema

# What the migrations leave in a new schema, and nothing else. A new schema takes many times as long.
EMPTY = """DO $$
DECLARE
    name text;
BEGIN
    SET LOCAL session_replication_role = replica; -- in any order
    FOR name IN
        SELECT format('%I.%I', schemaname, tablename) FROM pg_tables
        WHERE schemaname = 'om' AND tablename NOT IN ('migration', 'schema')
    LOOP
        EXECUTE 'DELETE FROM ' || name;
    END LOOP;
    FOR name IN SELECT format('%I.%I', schemaname, sequencename) FROM pg_sequences WHERE schemaname = 'om'
    LOOP
        PERFORM setval(name::regclass, 1, false);
    END LOOP;
    INSERT INTO om.event_mark VALUES (1, 0, 0, 0);
END $$"""


@pytest.fixture(autouse=True)
def patient_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for events: transactions of other tests on this server hold them back, at times for long."""
    monkeypatch.setattr("om_proxy.storage.postgres.events.MAX_HELD_BACK_S", 60.0)


@pytest.fixture
def url() -> str:
    return find_postgres_url()


@pytest.fixture
async def server(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection that is not the store's."""
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()


@pytest.fixture
def schema(url: str) -> Iterator[str]:
    with own_schema(url) as name:
        yield name


@pytest.fixture(scope="module")
def kept_schema() -> Iterator[str]:
    url = find_postgres_url()
    with own_schema(url) as name:

        async def migrate() -> None:
            await (await PostgresStore.open(url, PostgresOptions(prefix=name))).close()

        asyncio.run(migrate())
        yield name


@pytest.fixture
def empty_schema(url: str, kept_schema: str) -> str:
    """A schema that is as new: what earlier tests of the file stored is gone."""
    empty = EMPTY.replace("'om'", f"'{kept_schema}'").replace("om.", f'"{kept_schema}".')
    ask_server(url, lambda connection: connection.execute(empty))
    return kept_schema


@pytest.fixture
def opener(url: str, schema: str) -> Opener:
    async def open_store() -> Store:
        # patient: a machine that tests many things at once may take seconds for one statement
        options = PostgresOptions(prefix=schema, connections=5, timeout_s=30.0)
        return await PostgresStore.open(url, options)

    return open_store


@pytest.fixture
async def open_with(url: str, schema: str) -> AsyncIterator[OpenWith]:
    async with AsyncExitStack() as stack:

        async def open_store(*keys: bytes) -> PostgresStore:
            store = await PostgresStore.open(
                url,
                PostgresOptions(prefix=schema, connections=3, timeout_s=30.0),
                masters=MasterKeys(keys) if keys else None,
            )
            stack.push_async_callback(store.close)
            return store

        yield open_store
