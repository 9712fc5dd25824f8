"""What the server does for the question that each request asks."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from om_proxy.memory.model import Memory
from om_proxy.storage.postgres import queries
from om_proxy.storage.postgres.session import SchemaNames, Session
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from om_proxy.storage.values.listing import ThreadPlace, ThreadSelection
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.support.postgres_server import ask_server, list_columns
from tests.support.waiting import until

CUSTOM_PLANS = 5  # that PostgreSQL tries before it compares them with a plan for any thread
SELECT_PLANS = "SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE statement = $1"

SELECT_UPDATES = """SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
    WHERE schemaname = $1 AND relname = 'thread'"""


async def copy_thread(server: asyncpg.Connection, schema: str, count: int) -> None:
    """Copy the only thread: the last turns of the copies are a second apart."""
    own = {"id": "id + n", "thread": "'copy ' || n", "turn_at": "1790000000 + n"}
    names = await list_columns(server, schema, "thread")
    values = ", ".join(own.get(name, name) for name in names)
    await server.execute(
        f"""INSERT INTO "{schema}".thread ({", ".join(names)})
        SELECT {values} FROM "{schema}".thread, generate_series(1, {count}) AS n"""  # noqa: S608 - our own names
    )
    await server.execute(f'ANALYZE "{schema}".thread')


async def test_a_question_for_news_is_not_planned_each_time(url: str, schema: str) -> None:
    """Whatever the statistics say of a long thread: that would take many times as long as to
    answer."""
    store = await PostgresStore.open(url, PostgresOptions(schema, 1, timeout_s=30.0))
    thread = MemoryBuilder().chat(800, "x" * 1_000)
    told = await store.commit(Memory(key=KEY), thread.memory())
    for _ in range(19):
        thread.cover(40)
    memory = await store.commit(told, thread.memory(told.version, told.row_id))
    for table in ("thread", "message", "observation", "entry"):
        vacuum = f'VACUUM ANALYZE "{schema}".{table}'
        ask_server(url, lambda connection, sql=vacuum: connection.execute(sql))
    for _ in range(CUSTOM_PLANS + 10):
        assert await store.refresh(memory) is memory
    asked = SchemaNames(schema).qualify(queries.SELECT_CHANGES_OF_ONE)
    [(generic, custom)] = await store._pool.read(lambda s: s.select(SELECT_PLANS, asked))
    assert (generic, custom) == (10, CUSTOM_PLANS)
    await store.close()


async def test_most_turns_write_no_index_of_the_thread(
    url: str, schema: str, server: asyncpg.Connection
) -> None:
    """Else each turn leaves a dead row and an entry in every index of it for a vacuum."""
    turns = 30
    store = await PostgresStore.open(url, PostgresOptions(schema, 1, timeout_s=30.0))
    thread, memory = MemoryBuilder(), Memory(key=KEY)
    for turn in range(turns + 1):
        thread.chat(2)
        thread.more["turn_at"] = 1_790_000_000.0 + turn
        memory = await store.commit(memory, thread.memory(memory.version, memory.row_id))
    await store.close()

    async def are_counted() -> bool:  # the server's process adds them up when it ends
        return bool(await server.fetchval(SELECT_UPDATES, schema) == turns)

    await until(are_counted)
    hot = await server.fetchval(SELECT_UPDATES, schema, column=1)
    assert hot >= 0.9 * turns


async def test_lists_of_the_most_recent_threads_go_along_an_index(
    url: str, schema: str, server: asyncpg.Connection
) -> None:
    """A page sorts the threads of some ten minutes, and not all of them."""
    store = await PostgresStore.open(url, PostgresOptions(schema, 1, timeout_s=30.0))
    await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    await copy_thread(server, schema, 20_000)
    plans: list[str] = []
    select = Session.select

    async def explain(session: Session, sql: str, *parameters: Any) -> list[Any]:
        if "active_slot" in sql:
            steps = await select(session, f"EXPLAIN {sql}", *parameters)
            plans.append("\n".join(step for (step,) in steps))
        return await select(session, sql, *parameters)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "select", explain)
        for tenant in (KEY.tenant, None):
            page = await store.find_threads(ThreadSelection(tenant, order="recent"), None, 50)
            await store.find_threads(ThreadSelection(tenant, order="recent"), page.end, 50)
        await store.idle_threads(1.9e9, None, 50)
        await store.idle_threads(1.9e9, ThreadPlace(KEY, 1.79e9, 1), 50)
        await store.unindexed_threads(1, 1.9e9, None, 50)
    assert len(plans) >= 7
    for plan in plans:
        assert "Incremental Sort" in plan, plan
        assert "thread_recent" in plan, plan
        assert "Seq Scan on thread" not in plan, plan
    await store.close()


async def test_the_events_of_a_thread_are_found_by_their_index(
    url: str, schema: str, server: asyncpg.Connection
) -> None:
    """Those of all others are not looked at, although nobody knows how many keys were asked for."""
    store = await PostgresStore.open(url, PostgresOptions(schema, 1, timeout_s=30.0))
    await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    await copy_thread(server, schema, 2_000)
    await server.execute(
        f"""INSERT INTO "{schema}".event (id, number, tenant, thread_id, at, type, data)
        SELECT 5 * thread.id + n, n, tenant, thread.id, 0, 'x', '{{}}'
        FROM "{schema}".thread, generate_series(1, 5) AS n"""  # noqa: S608 - our own names
    )
    plans: list[str] = []
    select = Session.select

    async def explain(session: Session, sql: str, *parameters: Any) -> list[Any]:
        if "event.id <=" in sql:
            steps = await select(session, f"EXPLAIN {sql}", *parameters)
            plans.append("\n".join(step for (step,) in steps))
        return await select(session, sql, *parameters)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "select", explain)
        for tenant in (KEY.tenant, None):
            assert len((await store.events(tenant, [KEY], None, 100)).events) == 5
    assert len(plans) == 2
    for plan in plans:
        assert "Index Scan using event_thread" in plan, plan
    await store.close()
