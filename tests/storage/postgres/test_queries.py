"""What the server does for the question that each request asks."""

from __future__ import annotations

from om_proxy.memory.model import Memory
from om_proxy.storage.postgres import queries
from om_proxy.storage.postgres.session import SchemaNames
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.support.postgres_server import ask_server

CUSTOM_PLANS = 5  # that PostgreSQL tries before it compares them with a plan for any thread
SELECT_PLANS = "SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE statement = $1"


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
