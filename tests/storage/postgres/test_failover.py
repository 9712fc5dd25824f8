"""A server that lost its newest commits: a standby was promoted, or a backup restored. What the store
then says of versions and events may be of other states than before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest
from msgspec.structs import replace

from om_proxy.errors import Conflict
from om_proxy.memory.model import Memory, resource_key
from om_proxy.storage.base import Change, Store
from tests.storage.contract import Opener
from tests.storage.memory_builder import KEY, MemoryBuilder

LOG_KEY = resource_key(KEY)


@pytest.fixture
async def store(opener: Opener) -> AsyncIterator[Store]:
    store = await opener()
    yield store
    await store.close()


@pytest.fixture
async def server(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection that is not the store's."""
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()


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
        await server.execute(f'INSERT INTO "{schema}".{name} TABLE old_{name}')  # noqa: S608 - as above
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
