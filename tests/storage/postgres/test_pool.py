"""What becomes of work when a server stalls, ends connections, or is not one to trust."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from urllib.parse import urlsplit

import asyncpg
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from om_proxy.common.errors import ConfigError, StorageError, UnopenedText
from om_proxy.memory.model import Memory
from om_proxy.storage.postgres import events, kept_connections, pool, queries
from om_proxy.storage.postgres.session import SchemaNames, Session
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from om_proxy.storage.spooling.spooling_store import COMMIT_TIMEOUT_S
from tests.storage.event_contract import activation
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.postgres.lock_waits import wait_for_lock
from tests.storage.two_prefixes import check_that_nothing_is_shared
from tests.support.postgres_server import find_pooler_url, find_postgres_url, own_schema
from tests.support.waiting import until
from tests.support.wire import open_wire


@pytest.fixture
async def store(url: str, schema: str) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.open(url, PostgresOptions(schema, 2, timeout_s=30.0))
    yield store
    await store.close()


async def open_hasty(url: str, schema: str) -> PostgresStore:
    """Open a store of one connection that waits 0.3 s for an answer. Only its opening is patient."""
    store = await PostgresStore.open(url, PostgresOptions(schema, 1, timeout_s=30.0))
    store._pool._timeout_s = 0.3
    return store


async def find_backends(store: PostgresStore, count: int) -> list[int]:
    """Return the processes of the server that serve the store's connections, after opening so
    many."""

    async def ask(session: Session) -> int:
        [(pid, _)] = await session.select("SELECT pg_backend_pid(), pg_sleep(0.05)")
        return int(pid)

    return await asyncio.gather(*(store._pool.read(ask) for _ in range(count)))


async def test_a_read_on_a_closed_connection_is_tried_again(
    store: PostgresStore, server: asyncpg.Connection
) -> None:
    """The server has ended every idle connection: no read fails."""
    memory = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    pids = await find_backends(store, 2)
    for _ in range(5):
        await server.execute("SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS pid", pids)
        assert await store.load(KEY) == memory
        pids = await find_backends(store, 2)


async def test_what_was_read_before_a_loss_is_read_anew(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next connection may lead to a server that has taken back commits, and gives their versions
    out again. That also holds for a read that has already begun."""
    held = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    assert await store.refresh(held) is held
    losses: list[int] = []
    store._pool.on_loss = lambda: losses.append(store._pool.loss_count)
    is_lost = False

    async def lose_connection(session: Session, known: object, keys: object) -> object:
        nonlocal is_lost
        if not is_lost:
            is_lost = True
            await session.select("SELECT pg_terminate_backend(pg_backend_pid())")
        return await select_newest(session, known, keys)

    select_newest = queries.select_newest
    monkeypatch.setattr(queries, "select_newest", lose_connection)
    newest = await store.refresh(held)
    assert newest == held
    assert newest is not held
    assert losses
    assert await store.refresh(held) is held


async def test_a_commit_that_broke_off_is_unknown(
    store: PostgresStore, server: asyncpg.Connection, schema: str
) -> None:
    """The connection ends while the commit waits for a lock: it is a StorageError, never a
    Conflict. What is stored is told by the next load."""
    memory = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    async with server.transaction():
        await server.execute(f'SELECT FROM "{schema}".thread FOR UPDATE')
        commit = asyncio.create_task(store.commit(memory, replace(memory, turns=1)))
        await wait_for_lock(server)
        await server.execute(
            """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE pg_blocking_pids(pid) @> ARRAY[pg_backend_pid()]"""
        )
        with pytest.raises(StorageError, match=r"AdminShutdown|Connection") as failed:
            await commit
        assert type(failed.value) is StorageError
    assert await store.load(KEY) == memory


async def has_turn(store: PostgresStore) -> bool:
    return (await store.load(KEY)).turns == 1


async def test_a_statement_that_takes_too_long(
    url: str, store: PostgresStore, server: asyncpg.Connection, schema: str
) -> None:
    """Its caller is told at the limit, the server stops it, and the connection serves again: the
    commit does not happen later."""
    memory = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    hasty = await open_hasty(url, schema)
    async with server.transaction():
        await server.execute(f'SELECT FROM "{schema}".thread FOR UPDATE')
        with pytest.raises(StorageError, match=r"no answer of the server in 0\.3 s"):
            await hasty.commit(memory, replace(memory, turns=1))
        await wait_for_lock(server, 0)
    assert await store.load(KEY) == memory
    await hasty.close()


async def test_a_stopped_backend_holds_no_caller_up(
    url: str, store: PostgresStore, schema: str
) -> None:
    """A process of the server that answers nothing, not even a cancel: the caller is told at the
    limit, and the next one gets another connection."""
    await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    hasty = await PostgresStore.open(url, PostgresOptions(schema, 1, timeout_s=30.0))
    [pid] = await find_backends(hasty, 1)
    hasty._pool._timeout_s = 0.3
    try:
        os.kill(pid, signal.SIGSTOP)
    except PermissionError:
        await hasty.close()
        pytest.skip("the server's processes belong to another user")
    try:
        with pytest.raises(StorageError, match="no answer"):
            await hasty.load(KEY)

        async def answers() -> bool:
            with suppress(StorageError):
                return (await hasty.load(KEY)).count == 2
            return False

        await until(answers)
    finally:
        os.kill(pid, signal.SIGCONT)
        await hasty.close()


@pytest.mark.parametrize("find_url", [find_postgres_url, find_pooler_url])
async def test_a_stopped_process_holds_no_row(
    schema: str, find_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one has the row soon, and nothing of the transaction that stood still is written."""
    assert pool.IDLE_TRANSACTION_TIMEOUT_S < COMMIT_TIMEOUT_S, "a reply of another turn waits"
    options = PostgresOptions(schema, 2, timeout_s=30.0, prepared=find_url is find_postgres_url)
    store = await PostgresStore.open(find_url(), options)
    memory = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    has_lock, goes_on = asyncio.Event(), asyncio.Event()

    async def stand_still(session: Session) -> None:
        await session.execute("UPDATE om.thread SET title = NULL")
        has_lock.set()
        await goes_on.wait()
        await session.select("SELECT 1")

    with monkeypatch.context() as of_this_transaction:
        of_this_transaction.setattr(pool, "IDLE_TRANSACTION_TIMEOUT_S", 1.0)
        stopped = asyncio.create_task(store._pool.transact(stand_still))
        await has_lock.wait()
    monkeypatch.setattr(pool, "IDLE_TRANSACTION_TIMEOUT_S", 60.0)
    assert (await store.commit(memory, replace(memory, turns=9))).turns == 9
    goes_on.set()
    with pytest.raises(StorageError):
        await stopped
    assert (await store.load(KEY)).turns == 9
    await store.close()


async def test_a_cancelled_caller_only_stops_waiting(
    store: PostgresStore, server: asyncpg.Connection, schema: str
) -> None:
    """Its commit goes on, and its connection stays whole."""
    memory = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    async with server.transaction():
        await server.execute(f'SELECT FROM "{schema}".thread FOR UPDATE')
        commit = asyncio.create_task(store.commit(memory, replace(memory, turns=1)))
        await wait_for_lock(server)
        commit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await commit
    await until(lambda: has_turn(store))


async def test_turns_of_other_threads_while_one_is_held(
    store: PostgresStore, server: asyncpg.Connection, schema: str
) -> None:
    """Another process holds a thread. Replies of several threads are marked as delivered: that of
    the held one is marked later, and turns of the others do not wait for it."""
    other_key = KEY._replace(thread="a")
    other = await store.commit(Memory(key=other_key), MemoryBuilder(other_key).chat(2).memory())
    held_key = KEY._replace(thread="b")
    await store.commit(Memory(key=held_key), MemoryBuilder(held_key).chat(2).memory())
    async with server.transaction():
        await server.execute(f'SELECT FROM "{schema}".thread WHERE thread = $1 FOR UPDATE', "b")
        marking = asyncio.create_task(store.mark_delivered({other_key: 2, held_key: 2}))
        await wait_for_lock(server)
        assert (await store.commit(other, replace(other, turns=1))).turns == 1
        assert await store.delivered_reply(other_key) == 2
        assert await store.delivered_reply(held_key) is None
        assert not marking.done()
    await marking
    assert await store.delivered_reply(held_key) == 2


async def test_events_while_another_process_removes_old_ones(
    store: PostgresStore,
    server: asyncpg.Connection,
    schema: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It stands still in the middle of that. Nobody waits for it: what is too much by then goes
    with a later event."""
    monkeypatch.setattr(events, "MAX_EVENTS", 2)
    count_events = f'SELECT count(*) FROM "{schema}".event'  # noqa: S608 - a test's own name
    await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    async with server.transaction():
        await server.execute(f'SELECT FROM "{schema}".event_mark FOR UPDATE')
        await store.add_events(KEY, [activation("first")] * 3)  # the newest two are kept
        await store.add_events(KEY, [activation("second")])
        assert await server.fetchval(count_events) == 3

    async def removes_old_ones() -> bool:
        await store.add_events(KEY, [activation("third")])
        return bool(await server.fetchval(count_events) == 2)

    # other transactions on this server may keep events from being removed
    await until(removes_old_ones)


@pytest.mark.parametrize("setting", ["synchronous_commit"])
async def test_a_server_that_may_lose_turns(url: str, schema: str, setting: str) -> None:
    """It is refused, with what is lost; with `storage.durable: false` it is told of and used."""
    loose = f"{url}?options=-c%20{setting}%3Doff"
    with pytest.raises(
        StorageError, match=rf"{setting} = off: a power cut loses.*storage\.durable"
    ):
        await PostgresStore.open(loose, PostgresOptions(schema))
    with capture_logs() as logged:
        store = await PostgresStore.open(loose, PostgresOptions(schema, durable=False))
    assert {"storage.not_durable"} == {event["event"] for event in logged}
    assert (await store.describe()).durable == "second"
    await store.close()


async def test_a_read_only_server(url: str, store: PostgresStore, schema: str) -> None:
    """A standby, or a server that was set so."""
    with pytest.raises(StorageError, match="read-only"):
        await PostgresStore.open(
            f"{url}?options=-c%20default_transaction_read_only%3Don", PostgresOptions(schema)
        )


async def test_two_prefixes_share_nothing(store: PostgresStore, url: str) -> None:
    with own_schema(url) as other_prefix:
        other = await PostgresStore.open(url, PostgresOptions(other_prefix, 2, timeout_s=30.0))
        await check_that_nothing_is_shared(store, other)
        await other.close()


async def test_a_pool_without_a_connection_left(store: PostgresStore) -> None:
    """All connections of the pool are busy: a request waits no longer than its limit."""
    release, holding = asyncio.Event(), asyncio.Semaphore(0)

    async def hold(session: Session) -> None:
        holding.release()
        await release.wait()

    held = [asyncio.create_task(store._pool.read(hold)) for _ in range(2)]
    for _ in held:
        await holding.acquire()
    with pytest.raises(StorageError, match="no answer"):
        await store._pool.read(lambda s: s.select("SELECT 1"), 0.05)
    release.set()
    await asyncio.gather(*held)
    assert await store.load(KEY) == Memory(key=KEY)


async def test_no_state_is_left_on_a_connection(store: PostgresStore) -> None:
    """asyncpg sends nothing of its own when a connection goes back: a round trip after each piece of
    work, for state that no statement of ours leaves."""
    assert pool.StatelessConnection.get_reset_query(object()) == ""


@pytest.mark.parametrize("name", ["", "Om", "1om", "pg_om", 'o"m', "o.m", "o" * 64, "é"])
def test_a_name_that_cannot_be_a_schema(name: str) -> None:
    with pytest.raises(ConfigError, match=r"storage\.prefix"):
        SchemaNames(name)


@pytest.mark.parametrize("name", ["om", "user", "_om1", "table"])
async def test_a_schema_of_any_fitting_name(url: str, name: str) -> None:
    """Words of SQL too. Only names of our own tables are qualified."""
    names = SchemaNames(name)
    assert names.qualify("SELECT om.version FROM om.thread, custom.x") == (
        f'SELECT "{name}".version FROM "{name}".thread, custom.x'  # noqa: S608 - never sent
    )


async def test_a_value_that_cannot_be_decoded_is_no_fault_of_the_server(
    store: PostgresStore,
) -> None:
    """Its thread alone cannot be read: others are asked for as before."""

    async def read_damaged(_session: Session) -> None:
        json.loads("canary")

    with pytest.raises(UnopenedText) as failed:
        await store._pool.read(read_damaged)
    assert "canary" not in str(failed.value)
    assert await store.load(KEY) == Memory(key=KEY)


async def test_an_error_holds_no_value(store: PostgresStore) -> None:
    """PostgreSQL quotes values in its messages; ours have only its code."""
    with pytest.raises(StorageError) as failed:
        await store._pool.read(lambda s: s.select("SELECT 'canary'::int"))
    assert "canary" not in str(failed.value)
    assert "22P02" in str(failed.value)


@pytest.mark.parametrize(
    "error", [asyncpg.DuplicatePreparedStatementError, asyncpg.InvalidSQLStatementNameError]
)
def test_a_pooler_that_keeps_no_statements_is_named(error: type[Exception]) -> None:
    """Such as PgBouncer before 1.21: the setting for it is told."""
    assert "storage.prepared: false" in str(pool.translate_error(error("statement __asyncpg_1")))


async def test_transactions_that_clash_are_done_again(store: PostgresStore) -> None:
    """PostgreSQL has rolled back all of such a transaction."""
    attempts = 0

    async def clash(session: Session) -> int:
        nonlocal attempts
        attempts += 1
        if attempts < pool.MAX_ATTEMPTS:
            raise asyncpg.DeadlockDetectedError
        return attempts

    assert await store._pool.transact(clash) == pool.MAX_ATTEMPTS


@pytest.mark.parametrize("moment", ["idle", "in_transaction", "new"])
async def test_a_way_that_swallows_everything_keeps_no_connection(
    url: str, schema: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Packets are lost without a word, and no connection ends: neither the rollback nor the first
    question of a new connection waits for an answer for ever. Once the way is there again, the
    store works."""
    address = urlsplit(url)
    assert address.hostname
    async with open_wire(address.hostname, address.port or 5432) as wire:
        own_url = url.replace(f"{address.hostname}:{address.port}", f"127.0.0.1:{wire.port}")
        store = await open_hasty(own_url, schema)
        monkeypatch.setattr(pool, "CANCEL_TIMEOUT_S", 0.2)
        monkeypatch.setattr(pool, "CONNECT_TIMEOUT_S", 0.4)
        try:
            stalled = asyncio.Event()

            async def work(session: Session) -> None:
                if moment == "in_transaction":
                    wire.swallow()
                stalled.set()
                await session.select("SELECT 1")

            if moment == "new":
                await store._pool._connections.drop()
                wire.swallow(b"server_version")
            elif moment == "idle":
                wire.swallow()
            with pytest.raises(StorageError):
                await store._pool.transact(work)
            wire.restore()
            async with asyncio.timeout(60):
                while True:
                    with suppress(StorageError):
                        await store.load(KEY)
                        break
            assert not store._pool._tasks
        finally:
            await store.close()


async def test_connections_that_have_all_fallen_silent(
    url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A firewall has forgotten the idle connections, and the way is whole again. The first work waits
    for its limit; then the others are known to be silent, too, and none of them is handed out."""
    monkeypatch.setattr(pool, "CANCEL_TIMEOUT_S", 0.2)
    monkeypatch.setattr(kept_connections, "CANCEL_TIMEOUT_S", 0.2)
    address = urlsplit(url)
    assert address.hostname
    async with open_wire(address.hostname, address.port or 5432) as wire:
        own_url = url.replace(f"{address.hostname}:{address.port}", f"127.0.0.1:{wire.port}")
        store = await PostgresStore.open(own_url, PostgresOptions(schema, 6, timeout_s=30.0))
        try:
            all_are_open = asyncio.Barrier(6)
            await asyncio.gather(
                *(store._pool.read(lambda _: all_are_open.wait()) for _ in "123456")
            )
            wire.swallow()
            wire.restore()
            with pytest.raises(StorageError, match="no answer"):
                await store._pool.read(lambda s: s.select("SELECT 1"), 0.3)
            await until(lambda: has_ended(store))
            async with asyncio.timeout(25):  # below the limit of a statement
                assert await store.load(KEY) == Memory(key=KEY)
        finally:
            await store.close()


async def has_ended(store: PostgresStore) -> bool:
    return not store._pool._tasks


async def test_a_server_that_is_slow_to_let_anybody_in(
    url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An opening takes longer than a statement may: it goes on when its work is given up, and the
    work that comes next finds it further on. Else the server would never be reached again."""
    openings = 0
    address = urlsplit(url)
    assert address.hostname
    async with open_wire(address.hostname, address.port or 5432) as wire:
        own_url = url.replace(f"{address.hostname}:{address.port}", f"127.0.0.1:{wire.port}")
        store = await PostgresStore.open(own_url, PostgresOptions(schema, 1, timeout_s=30.0))
        store._pool._timeout_s = 0.3
        try:
            look_at_server = pool._look_at_server

            async def look_slowly(session: Session, must_be_durable: bool) -> pool.ServerState:
                nonlocal openings
                openings += 1
                await session.select("SELECT pg_sleep(1)")
                return await look_at_server(session, must_be_durable)

            monkeypatch.setattr(pool, "_look_at_server", look_slowly)
            wire.refuse()
            wire.restore()
            with pytest.raises(StorageError):
                await store.ping()

            async def answers() -> bool:
                with suppress(StorageError):
                    return await store.load(KEY) == Memory(key=KEY)
                return False

            await until(answers)
            assert openings == 1
        finally:
            await store.close()
