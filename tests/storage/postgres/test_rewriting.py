"""Rewriting the tables gets forgotten bytes out of their files, whoever reads or ends meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from om_proxy.common.errors import StorageError
from om_proxy.memory.model import Key, Memory
from om_proxy.storage.postgres.rewriting import RewriteOptions, Table, TableRewriter
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from om_proxy.storage.values.records import ErasureState
from tests.storage.canary_threads import CANARY_WORD, fill, forget
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.support.own_postgres import OwnPostgres, own_postgres
from tests.support.postgres_server import find_pooler_url

GONE = Key("tenant", f"{CANARY_WORD} resource", f"{CANARY_WORD} thread")
IMPATIENT = RewriteOptions(lock_timeout_s=0.01, lock_attempts=2, reader_timeout_s=0.01)
PATIENT = PostgresOptions(timeout_s=30.0)


@pytest.fixture
def server() -> Iterator[OwnPostgres]:
    with own_postgres() as made:
        made.start("autovacuum=off")
        yield made


@pytest.fixture
async def store(server: OwnPostgres) -> AsyncIterator[PostgresStore]:
    opened = await PostgresStore.open(server.url, PATIENT)
    await fill(opened, GONE, GONE._replace(thread="second"))
    # its rows keep the ends of the tables
    await opened.commit(Memory(key=KEY), MemoryBuilder().chat(40).memory())
    yield opened
    await opened.close()


@pytest.fixture
async def admin(server: OwnPostgres) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(server.url)
    yield connection
    connection.terminate()  # its server may be gone


async def read_states(store: PostgresStore) -> tuple[ErasureState, ErasureState]:
    receipt = await store.receipt("r", 2e9)
    assert receipt
    return receipt.result.database, receipt.result.log


async def rewrite(
    server: OwnPostgres, options: RewriteOptions = IMPATIENT
) -> tuple[list[str], int]:
    """Rewrite. Return the names of the tables, and the number of later receipts."""
    names = []
    rewriter = await TableRewriter.open(server.url, "om", options)

    def note(table: Table) -> None:
        names.append(table.name)

    try:
        result = await rewriter.rewrite(note)
    finally:
        await rewriter.close()
    assert result.rewritten == len(names)
    return names, result.later_receipts


async def test_forgotten_words_leave_every_file_of_tables(
    server: OwnPostgres, store: PostgresStore, admin: asyncpg.Connection
) -> None:
    """Neither DELETE nor VACUUM nor CHECKPOINT does that. A dump has live rows only. The log keeps
    the words until it is used again, and the receipt says so."""
    canary = CANARY_WORD.encode()
    await admin.execute("ANALYZE")
    await forget(store, "resource", GONE)
    for statement in ("VACUUM", "CHECKPOINT"):
        await admin.execute(statement)
    assert server.count_in_tables(canary) > 0
    assert canary not in server.dump()
    assert await read_states(store) == ("until_rewrite", "until_rewrite")
    names, later = await rewrite(server)
    assert (later, {"message", "observation", "event", "receipt", "thread"} - {*names}) == (
        0,
        set(),
    )
    await admin.execute("CHECKPOINT")
    assert server.count_in_tables(canary) == 0
    assert canary not in server.dump()
    assert await read_states(store) == ("gone", "until_rewrite")
    assert server.count_in_log(canary) > 0
    assert len(await store.messages(KEY, 0)) == 40
    # a later forgetting needs another rewriting
    await store.forget(KEY)
    receipt = await store.receipt("r", 2e9)
    assert receipt
    await store.add_receipt(receipt._replace(id="later", result=await store.forget(KEY)))
    assert len((await rewrite(server))[0]) == len(names)


async def test_a_reader_keeps_forgotten_rows(
    server: OwnPostgres, store: PostgresStore, admin: asyncpg.Connection
) -> None:
    """VACUUM FULL copies what an older transaction may still see: a dump, a shell."""
    reader = await asyncpg.connect(server.url, server_settings={"application_name": "a dump"})
    async with reader.transaction(isolation="repeatable_read"):
        await reader.fetch("SELECT 1")
        await forget(store, "resource", GONE)
        with pytest.raises(StorageError, match=r"still seen by process \d+ \(a dump\)"):
            await rewrite(server)
        await admin.execute("VACUUM FULL om.message")
        await admin.execute("CHECKPOINT")
        assert server.count_in_tables(CANARY_WORD.encode()) > 0
    await reader.close()
    assert await read_states(store) == ("until_rewrite", "until_rewrite")
    await rewrite(server, RewriteOptions())
    await admin.execute("CHECKPOINT")
    assert server.count_in_tables(CANARY_WORD.encode()) == 0


async def test_a_table_in_use_interrupts_a_run_that_then_goes_on(
    server: OwnPostgres, store: PostgresStore, admin: asyncpg.Connection
) -> None:
    await forget(store, "resource", GONE)
    async with admin.transaction():
        # a transaction of the newest snapshot: it sees no forgotten row
        await admin.execute("LOCK TABLE om.message IN ACCESS SHARE MODE")
        with pytest.raises(StorageError, match="the table message is in use all the time"):
            await rewrite(server, RewriteOptions(0.01, 2, 30.0))
    assert await read_states(store) == ("until_rewrite", "until_rewrite")
    await store.add_receipt((await store.receipt("r", 2e9))._replace(id="later"))  # type: ignore[union-attr] # it is there
    names, later = await rewrite(server, RewriteOptions())
    assert names[0] == "message"
    assert later == 1
    assert await read_states(store) == ("gone", "until_rewrite")
    found = await store.receipt("later", 2e9)
    assert found
    assert found.result.database == "until_rewrite"
    assert (await rewrite(server, RewriteOptions()))[1] == 0
    found = await store.receipt("later", 2e9)
    assert found
    assert found.result.database == "gone"


async def test_a_server_that_is_killed_while_it_rewrites_loses_nothing(
    server: OwnPostgres, store: PostgresStore, admin: asyncpg.Connection
) -> None:
    """An index of the test's own stops VACUUM FULL in the middle: while indexes are made anew."""
    await forget(store, "resource", GONE)
    await admin.execute("""CREATE FUNCTION om.hold(bytea) RETURNS integer IMMUTABLE LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN 1; END'""")
    await admin.execute("CREATE INDEX held ON om.message (om.hold(fp))")
    await admin.execute("SELECT pg_advisory_lock(7)")
    rewriting = asyncio.create_task(rewrite(server, RewriteOptions(30.0, 1, 30.0)))
    is_held = "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)"
    while not await admin.fetchval(is_held):
        assert not rewriting.done()
    server.kill()
    with pytest.raises(StorageError):
        await rewriting
    await store.close()
    server.start("autovacuum=off")
    store = await PostgresStore.open(server.url, PATIENT)
    assert len(await store.messages(KEY, 0)) == 40
    assert await read_states(store) == ("until_rewrite", "until_rewrite")
    names, _ = await rewrite(server, RewriteOptions())
    assert names[0] == "message"
    checking = await asyncpg.connect(server.url)
    await checking.execute("CHECKPOINT")
    await checking.close()
    assert server.count_in_tables(CANARY_WORD.encode()) == 0
    assert await read_states(store) == ("gone", "until_rewrite")
    assert len(await store.messages(KEY, 0)) == 40
    await store.close()


async def test_a_server_that_is_killed_in_a_batch_has_forgotten_all_of_it_or_nothing(
    server: OwnPostgres, store: PostgresStore, admin: asyncpg.Connection
) -> None:
    """The batch waits for its last table; then the server ends. The same call goes on after that."""
    before = await store.load(GONE)
    await admin.execute("BEGIN; LOCK TABLE om.ledger IN ACCESS EXCLUSIVE MODE")
    batch = asyncio.create_task(store.forget_batch(GONE.tenant))
    is_held = "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted)"
    while not await admin.fetchval(is_held):
        assert not batch.done()
    server.kill()
    with pytest.raises(StorageError):
        await batch
    server.start("autovacuum=off")
    store = await PostgresStore.open(server.url, PATIENT)
    assert await store.load(GONE) == before
    await forget(store, "tenant", GONE)
    assert await store.load(GONE) == Memory(key=GONE)
    await store.close()


async def test_a_run_is_alone(server: OwnPostgres, store: PostgresStore) -> None:
    first = await TableRewriter.open(server.url, "om")
    with pytest.raises(StorageError, match="another `om-proxy store erase --rewrite`"):
        await TableRewriter.open(server.url, "om")
    await first.close()


async def test_a_user_who_owns_no_table_is_told_so(
    server: OwnPostgres, store: PostgresStore, admin: asyncpg.Connection
) -> None:
    """VACUUM only warns."""
    await admin.execute("CREATE ROLE reader LOGIN")
    await admin.execute("GRANT USAGE ON SCHEMA om TO reader")
    await admin.execute("GRANT ALL ON ALL TABLES IN SCHEMA om TO reader")
    await admin.execute("GRANT ALL ON ALL SEQUENCES IN SCHEMA om TO reader")
    url = server.url.replace("postgres:geheim@", "reader@")
    rewriter = await TableRewriter.open(url, "om")
    with pytest.raises(StorageError, match=r"the user of storage\.url must own it"):
        await rewriter.rewrite()
    await rewriter.close()


async def test_a_pooler_is_told_apart_from_the_server() -> None:
    with pytest.raises(StorageError, match="a pooler stands before the server"):
        await TableRewriter.open(find_pooler_url(), "om")
