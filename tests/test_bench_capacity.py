"""`scripts/bench capacity` and `resource`: what they measure are threads as the store makes them.
Nothing is timed here."""

from __future__ import annotations

from collections.abc import Iterator

import asyncpg
import pytest
from msgspec.structs import replace

from om_proxy.memory.model import Key, Memory
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from tests.bench import capacity, long_resource
from tests.bench.capacity import Server, add_turn, name_thread
from tests.support.postgres_server import find_postgres_url, own_schema


@pytest.fixture
def schema() -> Iterator[str]:
    with own_schema(find_postgres_url()) as name:
        yield name


async def test_copied_threads_are_as_the_store_makes_them(schema: str) -> None:
    """Each has the template's messages and notes, goes on like any other, and is found when due."""
    url = find_postgres_url()
    store = await PostgresStore.open(url, PostgresOptions(schema, 2, timeout_s=60.0))
    connection = await asyncpg.connect(url)
    try:
        await capacity.store_template(store)
        await capacity.copy_threads(Server(connection, schema), 120)
        template = await store.load(capacity.TEMPLATE)
        for n in (0, 7, 119):
            copy = await store.load(name_thread(n))
            assert (copy.tail, copy.log) == (template.tail, template.log)
            assert copy.row_id not in (0, template.row_id)
            committed = await store.commit(copy, add_turn(copy))
            assert await store.load(copy.key) == committed
        due = await store.claim(await store.clock(), 10, "holder", 60.0, callers=False)
        assert set(due) == {name_thread(n) for n in (0, 50, 100)}
        assert (await store.totals(await store.clock())).messages_tokens > 0
    finally:
        await connection.close()
        await store.close()


async def test_a_lengthened_thread_differs_in_what_is_covered(schema: str) -> None:
    url = find_postgres_url()
    store = await PostgresStore.open(url, PostgresOptions(schema, 2, timeout_s=60.0))
    connection = await asyncpg.connect(url)
    server = Server(connection, schema)
    try:
        short = await long_resource.store_thread(store, Key("bench", "long", "t"))
        await long_resource.lengthen_thread(server, short, 2_000)
        long = await store.load(short.key)
        assert long.count == short.count + 2_000
        assert [message.item for message in long.tail] == [message.item for message in short.tail]
        assert [entry.text for entry in long.log.entries] == [
            entry.text for entry in short.log.entries
        ]
        assert len(await store.messages(long.key, 0)) >= 100
        committed = await store.commit(long, add_turn(long))
        assert await store.refresh(long) == committed == await store.load(long.key)

        place = await long_resource.store_shared(store, Key("bench", "far", "t"))
        await long_resource.copy_shared(server, place, 3)
        assert place.shared_log is not None
        blank = Memory(key=place.thread.key, scope="resource"), Memory(key=place.shared_log.key)
        assert await store.refresh_shared(*blank) == (place.thread, place.shared_log)
        other = replace(blank[0], key=place.thread.key._replace(thread="thread-3"))
        copied = await store.refresh(other)
        assert (copied.count, len(copied.tail)) == (
            long_resource.THREAD_MESSAGES,
            long_resource.TAIL,
        )
    finally:
        await connection.close()
        await store.close()
