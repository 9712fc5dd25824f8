"""A server that lost its newest commits: a standby was promoted, or a backup restored. What the store
then says of versions and events may be of other states than before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest
from msgspec.structs import replace

from om_proxy.common.errors import Conflict
from om_proxy.memory.model import Memory, resource_key
from om_proxy.storage.base import Store
from om_proxy.storage.postgres.events import PLACE_BITS
from om_proxy.storage.values.changes import Change
from tests.storage.contract import Opener
from tests.storage.event_contract import activation
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.support.postgres_server import list_columns

LOG_KEY = resource_key(KEY)
# of the server that a backup comes from: it has counted so many more transactions
OLDER_BY = 1_000_000


@pytest.fixture
async def store(opener: Opener) -> AsyncIterator[Store]:
    store = await opener()
    yield store
    await store.close()


@asynccontextmanager
async def lose_commits(server: asyncpg.Connection, schema: str) -> AsyncIterator[None]:
    """Take back, at the end of the block, what was committed in it, with the versions given out."""
    tables = ("thread", "message")
    for name in tables:
        await server.execute(f'CREATE TEMP TABLE old_{name} AS TABLE "{schema}".{name}')
    version = await server.fetchval(f'SELECT last_value FROM "{schema}".version')  # noqa: S608 - a test's own name
    yield
    for name in tables:
        await server.execute(f'TRUNCATE "{schema}".{name}')
        columns = ", ".join(await list_columns(server, schema, name))
        await server.execute(
            f'INSERT INTO "{schema}".{name} ({columns}) SELECT {columns} FROM old_{name}'  # noqa: S608 - as above
        )
    await server.fetchval("SELECT setval($1::text::regclass, $2)", f'"{schema}".version', version)


@pytest.mark.parametrize("differs", ["turn_at", "next_id", "next_seq"])
async def test_a_version_that_was_given_out_again(
    store: Store, server: asyncpg.Connection, schema: str, differs: str
) -> None:
    """What was computed from a lost commit is a conflict with another one of the same version, and
    writes nothing."""
    first = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    changes: dict[str, dict[str, float]] = {
        "turn_at": {"turn_at": 7.5},
        "next_id": {"next_id": first.next_id + 1},
        "next_seq": {"next_seq": first.next_seq + 1},
    }
    async with lose_commits(server, schema):
        lost = await store.commit(first, replace(first, turn_at=7.0))
    kept = await store.commit(first, replace(first, **{"turn_at": 7.0} | changes[differs]))
    assert (lost.version, lost.row_id) == (kept.version, kept.row_id)
    with pytest.raises(Conflict):
        await store.commit(lost, replace(lost, turns=9))
    with pytest.raises(Conflict):
        await store.commit_shared(Change(lost, replace(lost, turns=9)), None)
    assert await store.load(KEY) == kept
    await store.commit(kept, replace(kept, turns=9))


async def test_a_version_of_a_shared_log_that_was_given_out_again(
    store: Store, server: asyncpg.Connection, schema: str
) -> None:
    """A turn of a thread does not write the log that it was computed with, and compares it."""
    log = await store.commit(Memory(key=LOG_KEY), Memory(key=LOG_KEY, next_id=2))
    thread = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    async with lose_commits(server, schema):
        lost = await store.commit(log, replace(log, next_id=3))
    kept = await store.commit(log, replace(log, next_id=4))
    assert lost.version == kept.version
    change = Change(thread, replace(thread, turns=9))
    with pytest.raises(Conflict):
        await store.commit_shared(change, Change(lost, lost))
    assert await store.load(KEY) == thread
    await store.commit_shared(change, Change(kept, kept))


@pytest.mark.parametrize("is_running", [False, True], ids=["started since", "running"])
async def test_events_go_on_in_a_younger_server(
    opener: Opener, server: asyncpg.Connection, schema: str, is_running: bool
) -> None:
    """A database was restored into a server that has counted fewer transactions, from which ids of
    events are made. Events go on behind the old ones; a reader that stood anywhere misses none and
    gets none twice. Also where processes were running meanwhile."""
    stores = [await opener() for _ in range(2)]
    memory = await stores[0].commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    await write_events(stores[0], memory, 3)
    older = await stores[0].events(None, None, None, 10)
    await server.execute(
        f'UPDATE "{schema}".event SET id = id + $1::bigint',  # noqa: S608 - a test's own name
        OLDER_BY << PLACE_BITS,
    )
    if is_running:
        await end_connections(server, schema)
    else:
        for store in stores:
            await store.close()
        stores = [await opener() for _ in range(2)]
    restored = await stores[0].events(None, None, None, 10)
    assert [event.id for event in restored.events] == [
        event.id + (OLDER_BY << PLACE_BITS) for event in older.events
    ]
    for store in stores:
        await write_events(store, memory, 2)
    for place, event in enumerate(restored.events, 1):
        page = await stores[1].events(None, None, event.id, 10)
        assert not page.has_gap
        assert len(page.events) == 3 - place + 4
        assert [e.id for e in page.events] == sorted({e.id for e in page.events})
    for store in stores:
        await store.close()


async def write_events(store: Store, memory: Memory, count: int) -> None:
    for number in range(count):
        await store.add_events(memory.key, [activation(str(number))])


async def end_connections(server: asyncpg.Connection, schema: str) -> None:
    """End the connections of this test's stores, as a restore does."""
    await server.execute(
        """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE pid <> pg_backend_pid() AND query LIKE '%' || $1 || '%'""",
        schema,
    )
