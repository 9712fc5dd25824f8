"""Each sentence that PostgreSQL's promise is told in, shown on a server of the test's own."""

from __future__ import annotations

from collections.abc import Iterator

import asyncpg
import pytest

from om_proxy.common.errors import StorageError
from om_proxy.memory.model import Memory
from om_proxy.storage.contract.status import Promise
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from om_proxy.storage.promises import create_postgres_promise
from om_proxy.storage.shared.migrate import list_migrations
from om_proxy.storage.values.listing import ThreadSelection
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.sqlite.test_store_sealed_texts import CANARY_WORD, commit_canaries
from tests.support.own_postgres import OwnPostgres, own_postgres

LOOSE = PostgresOptions(durable=False)


@pytest.fixture
def server() -> Iterator[OwnPostgres]:
    with own_postgres() as made:
        yield made


async def commit_canary(store: PostgresStore) -> Memory:
    return await store.commit(Memory(key=KEY), MemoryBuilder().chat(40, "canary").memory())


def test_a_promise_is_that_of_the_newest_schema_unless_one_is_named() -> None:
    newest = list_migrations("postgres")[-1].number
    assert create_postgres_promise() == Promise("postgresql", "fsync", "rewrite", newest)
    assert create_postgres_promise(commits_wait=False, schema_version=7)[1:4] == (
        "second",
        "rewrite",
        7,
    )
    assert create_postgres_promise(flushes=False).durable == "none"


async def test_a_power_cut_loses_no_turn_whose_reply_has_ended(server: OwnPostgres) -> None:
    """All the server's processes end at once, as in a power cut, the moment that a commit returns."""
    server.start()
    store = await PostgresStore.open(server.url)
    memory = await commit_canary(store)
    server.kill()
    await store.close()
    server.start()
    store = await PostgresStore.open(server.url)
    assert await store.load(KEY) == memory
    await store.close()


async def test_a_power_cut_may_lose_the_turns_of_the_last_second(server: OwnPostgres) -> None:
    """The server writes its log later than it acknowledges; here a minute later, to be caught."""
    settings = ("synchronous_commit=off", "wal_writer_delay=10000ms", "autovacuum=off")
    server.start(*settings)
    with pytest.raises(StorageError, match="synchronous_commit = off"):
        await PostgresStore.open(server.url)
    store = await PostgresStore.open(server.url, LOOSE)
    assert (await store.describe()).durable == "second"
    await store.commit(Memory(key=KEY), MemoryBuilder().chat(1).memory())
    server.kill()
    await store.close()
    server.start(*settings)
    store = await PostgresStore.open(server.url, LOOSE)
    assert await store.load(KEY) == Memory(key=KEY)
    await store.close()


async def test_a_power_cut_may_lose_everything(server: OwnPostgres) -> None:
    """Without `fsync` the order in which files reach the disk is left to chance."""
    server.start("fsync=off")
    with pytest.raises(StorageError, match="fsync = off: a power cut may lose the whole database"):
        await PostgresStore.open(server.url)
    store = await PostgresStore.open(server.url, LOOSE)
    assert (await store.describe()).durable == "none"
    await store.close()


async def test_forgotten_rows_are_gone_at_once_and_their_bytes_once_the_tables_are_rewritten(
    server: OwnPostgres,
) -> None:
    """VACUUM frees the place of a row and does not clear it."""
    server.start("autovacuum=off")
    store = await PostgresStore.open(server.url)
    await commit_canary(store)
    other = KEY._replace(thread="other")  # its rows keep the end of the table
    await store.commit(Memory(key=other), MemoryBuilder(other).chat(2).memory())
    await store.forget(KEY)
    admin = await asyncpg.connect(server.url)
    assert await admin.fetchval("SELECT count(*) FROM om.message") == 2
    await admin.execute("VACUUM")
    await admin.execute("CHECKPOINT")
    assert server.count_in_tables(b"canary") > 0
    await admin.execute("VACUUM FULL om.message")
    await admin.execute("CHECKPOINT")
    assert server.count_in_tables(b"canary") == 0
    await admin.close()
    await store.close()


async def test_the_server_s_log_keeps_forgotten_bytes_until_it_is_used_again(
    server: OwnPostgres,
) -> None:
    """A server with `wal_recycle = off` removes the files of its log that it needs no more."""
    settings = ("autovacuum=off", "wal_recycle=off", "wal_keep_size=0", "min_wal_size=32MB")
    server.start(*settings)
    store = await PostgresStore.open(server.url)
    await commit_canary(store)
    await store.forget(KEY)
    admin = await asyncpg.connect(server.url)
    await admin.execute("VACUUM FULL om.message")
    assert server.count_in_log(b"canary") > 0
    for _ in range(2):  # a file that the newest checkpoint but one needs is kept
        await store.ping()
        await admin.execute("SELECT pg_switch_wal()")
        await admin.execute("CHECKPOINT")
    assert server.count_in_log(b"canary") == 0
    await admin.close()
    await store.close()


async def test_text_is_not_encrypted(server: OwnPostgres) -> None:
    """Whoever may read the server's files, or a dump, reads the conversations."""
    server.start()
    store = await PostgresStore.open(server.url)
    await commit_canary(store)
    await store.close()
    assert server.count_in_log(b"canary") > 0
    assert b"canary".hex().encode() in server.dump()


async def test_text_is_encrypted_and_titles_cannot_be_searched(server: OwnPostgres) -> None:
    """Neither files nor a dump have a word, and every text comes back."""
    server.start()
    store = await PostgresStore.open(server.url, masters=MasterKeys([bytes(range(32))]))
    memory = await commit_canaries(store)
    secret = await store.secret()
    admin = await asyncpg.connect(server.url)
    await admin.execute("CHECKPOINT")
    await admin.close()
    dumped = server.dump()
    for word in (CANARY_WORD.encode(), secret):
        assert (server.count_in_tables(word), server.count_in_log(word)) == (0, 0)
        assert word not in dumped
        assert word.hex().encode() not in dumped
    assert await store.load(KEY) == memory
    [line] = await store.threads(KEY.tenant)
    assert line.title == CANARY_WORD
    found = await store.find_threads(ThreadSelection(KEY.tenant, prefix=CANARY_WORD[:3]))
    assert found.threads == ()
    await store.close()


async def test_backups_keep_what_was_forgotten_since(server: OwnPostgres) -> None:
    """A copy of its files that was made before is not reached by forgetting."""
    server.start()
    store = await PostgresStore.open(server.url)
    memory = await commit_canary(store)
    await store.close()
    server.kill()
    server.copy()
    server.start()
    store = await PostgresStore.open(server.url)
    await store.forget(KEY)
    assert await store.load(KEY) == Memory(key=KEY)
    await store.close()
    server.kill()
    server.put_copy_back()
    server.start()
    store = await PostgresStore.open(server.url)
    assert await store.load(KEY) == memory
    await store.close()
