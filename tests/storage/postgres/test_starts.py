"""Processes that start together on one schema, while another one migrates it, or too old for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import asyncpg
import pytest
from msgspec.structs import replace

from om_proxy.common.errors import ProgramTooOld, StorageError
from om_proxy.memory.model import Memory
from om_proxy.storage.postgres import schema as schema_module
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from om_proxy.storage.shared.migrate import Migration, list_migrations
from tests.storage.contract import Opener
from tests.storage.memory_builder import KEY, MemoryBuilder

NEXT_NUMBER = list_migrations("postgres")[-1].number + 1


@pytest.fixture
async def somebody(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection that is not the store's."""
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()


def become_next_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this program be the next release, which adds a column."""
    step = Migration(NEXT_NUMBER, "next", "ALTER TABLE om.thread ADD COLUMN next integer;")
    monkeypatch.setattr(
        schema_module, "list_migrations", lambda name: (*list_migrations(name), step)
    )


async def list_applied(connection: asyncpg.Connection, schema: str) -> list[int]:
    rows = await connection.fetch(
        f'SELECT number FROM "{schema}".migration ORDER BY number'  # noqa: S608 - a test's own name
    )
    return [row[0] for row in rows]


async def test_opened_by_many_at_once(
    opener: Opener, somebody: asyncpg.Connection, schema: str
) -> None:
    """Processes that start together on a new schema all find it ready; each step is made once."""
    stores = await asyncio.gather(*(opener() for _ in range(6)))
    for store in stores:
        await store.ping()
        await store.close()
    numbers = [step.number for step in list_migrations("postgres")]
    assert await list_applied(somebody, schema) == numbers


async def test_a_process_waits_for_another_one_that_migrates(
    opener: Opener,
    somebody: asyncpg.Connection,
    schema: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit for tables does not hold for that: no turn waits behind it."""
    monkeypatch.setattr(schema_module, "LIMIT_WAIT_FOR_TABLES", "SET LOCAL lock_timeout = '1ms'")
    transaction = somebody.transaction()
    await transaction.start()
    await somebody.fetch(schema_module.LOCK, schema_module.find_lock_key(schema))
    opening = asyncio.create_task(opener())
    await wait_for_waiter(somebody, schema)
    await transaction.rollback()
    await (await opening).close()


async def wait_for_waiter(connection: asyncpg.Connection, schema: str) -> None:
    """Return once another connection waits for the lock of this schema."""
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND objid = $1"
    async with asyncio.timeout(60):
        while True:
            if await connection.fetchval(waiting, schema_module.find_lock_key(schema)):
                return
            await asyncio.sleep(0.02)


async def test_a_process_that_migrates_for_long(
    opener: Opener,
    somebody: asyncpg.Connection,
    schema: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others start without the store meanwhile, and are told why."""
    monkeypatch.setattr(schema_module, "LIMIT_WAIT_FOR_OTHERS", "SET LOCAL lock_timeout = '100ms'")
    async with somebody.transaction():
        await somebody.fetch(schema_module.LOCK, schema_module.find_lock_key(schema))
        with pytest.raises(StorageError, match="another process brings its schema up to date"):
            await opener()
    await (await opener()).close()


async def test_a_table_in_use_is_not_waited_for(
    opener: Opener,
    somebody: asyncpg.Connection,
    schema: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every turn would wait behind the migration. It is given up whole, told of, and made later."""
    await (await opener()).close()
    become_next_release(monkeypatch)
    before = await list_applied(somebody, schema)
    async with somebody.transaction():
        await somebody.execute(f'LOCK TABLE "{schema}".thread IN ACCESS SHARE MODE')
        with pytest.raises(StorageError, match="a transaction of somebody holds a table"):
            await opener()
        assert await list_applied(somebody, schema) == before
    await (await opener()).close()
    assert await list_applied(somebody, schema) == [*before, NEXT_NUMBER]


async def test_a_schema_that_excludes_an_open_store(
    url: str, schema: str, somebody: asyncpg.Connection
) -> None:
    """A look at it finds that, and no new connection serves."""
    async with AsyncExitStack() as stack:
        store = await PostgresStore.open(url, PostgresOptions(schema, 2, timeout_s=30.0))
        stack.push_async_callback(store.close)
        memory = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
        await set_min_writer(somebody, schema, 9999)
        with pytest.raises(ProgramTooOld):
            await store.check_schema()
        await store._pool._connections.drop()
        with pytest.raises(ProgramTooOld):
            await store.load(KEY)
        with pytest.raises(ProgramTooOld):
            await store.commit(memory, replace(memory, turns=1))
        with pytest.raises(ProgramTooOld, match="run a newer om-proxy"):
            await PostgresStore.open(url, PostgresOptions(schema))
        await set_min_writer(somebody, schema, 1)
        assert await store.load(KEY) == memory
        await store.commit(memory, replace(memory, turns=1))


async def set_min_writer(connection: asyncpg.Connection, schema: str, migration: int) -> None:
    await connection.execute(
        f'UPDATE "{schema}".schema SET min_writer = $1',  # noqa: S608 - a test's own name
        migration,
    )
