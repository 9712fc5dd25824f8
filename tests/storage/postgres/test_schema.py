"""The schema is brought up to date while processes of the release before serve on it, by a made-up
step; and whose schema it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
from msgspec.structs import replace

from om_proxy.common.errors import ProgramTooOld, StorageError
from om_proxy.memory.model import Memory
from om_proxy.storage.postgres import schema as schema_module
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from om_proxy.storage.shared.migrate import Migration, list_migrations
from tests.storage.memory_builder import KEY, MemoryBuilder

STEP = Migration(
    list_migrations("postgres")[-1].number + 1,
    "next",
    "ALTER TABLE om.thread ADD COLUMN next integer NOT NULL DEFAULT 7;",
)


@pytest.fixture
def options(schema: str) -> PostgresOptions:
    # patient: a machine that tests many things at once may take seconds for one statement
    return PostgresOptions(prefix=schema, connections=5, timeout_s=30.0)


@pytest.fixture
async def older(url: str, options: PostgresOptions) -> AsyncIterator[PostgresStore]:
    """A store of this release."""
    store = await PostgresStore.open(url, options)
    yield store
    await store.close()


@pytest.fixture
def next_release(older: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens the schema from now on has one more step."""
    shipped = (*list_migrations("postgres"), STEP)
    monkeypatch.setattr(schema_module, "list_migrations", lambda _: shipped)


@pytest.fixture
async def connection(url: str, schema: str) -> AsyncIterator[asyncpg.Connection]:
    """Another client of the server."""
    made = await asyncpg.connect(url, server_settings={"search_path": schema})
    yield made
    await made.close()


async def take_turn(store: PostgresStore, memory: Memory) -> Memory:
    return await store.commit(memory, replace(memory, turns=memory.turns + 1))


@pytest.mark.usefixtures("next_release")
async def test_both_releases_serve_while_one_replaces_the_other(
    url: str, options: PostgresOptions, older: PostgresStore
) -> None:
    memory = await older.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    newer = await PostgresStore.open(url, options)
    try:
        assert (await newer.describe()).schema_version == STEP.number
        for _ in range(2):
            memory = await take_turn(newer, memory)
            assert await older.load(KEY) == memory
            memory = await take_turn(older, memory)
            assert await newer.load(KEY) == memory
        await older.check_schema()
    finally:
        await newer.close()


@pytest.mark.usefixtures("next_release")
async def test_turns_go_on_while_a_migration_waits_for_its_lock(
    url: str, options: PostgresOptions, older: PostgresStore, connection: asyncpg.Connection
) -> None:
    """It gives up after 2 s, so that no turn waits behind it for longer; the next start goes on."""
    memory = await older.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    holder = connection.transaction()
    await holder.start()
    await connection.execute("LOCK TABLE thread IN ROW EXCLUSIVE MODE")
    opening = asyncio.create_task(PostgresStore.open(url, options))
    memory = await take_turn(older, memory)
    with pytest.raises(StorageError, match="a transaction of somebody holds a table"):
        await opening
    memory = await take_turn(older, memory)
    await holder.rollback()
    newer = await PostgresStore.open(url, options)
    try:
        assert await newer.load(KEY) == memory
    finally:
        await newer.close()


async def test_a_schema_of_main_before_it_had_one_is_refused(
    url: str, options: PostgresOptions, older: PostgresStore, connection: asyncpg.Connection
) -> None:
    """It says how its memories move, and nothing in it changes."""
    memory = await older.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    await connection.execute("UPDATE migration SET name = 'memory', checksum = '9a44'")
    await connection.execute(
        "INSERT INTO migration (number, name, checksum) VALUES ($1, 'encryption', '7b03')",
        STEP.number,
    )
    await connection.execute("UPDATE schema SET version = 13")
    listed = "SELECT number, checksum, applied_at, version FROM migration, schema ORDER BY 1"
    before = await connection.fetch(listed)
    for create in (True, False):
        with pytest.raises(StorageError, match="nothing was changed: export it") as raised:
            await PostgresStore.open(url, options, create=create)
        assert not isinstance(raised.value, ProgramTooOld)
    assert await connection.fetch(listed) == before
    assert await older.load(KEY) == memory
