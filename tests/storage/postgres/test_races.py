"""Races that a single writer cannot have: what several processes do at once on one PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from itertools import count

import asyncpg
import pytest
from msgspec.structs import replace

from om_proxy.common.errors import Conflict, StorageError, Unwritable
from om_proxy.memory.events.parts import Event, Forgotten
from om_proxy.memory.model import Memory, resource_key
from om_proxy.storage.base import Store
from om_proxy.storage.postgres import commit, forgotten_names, pool
from om_proxy.storage.postgres.commit import Commit
from om_proxy.storage.postgres.session import Session
from om_proxy.storage.postgres.store import PostgresStore
from om_proxy.storage.spooling.forgotten_threads import ForgottenThreads
from om_proxy.storage.sql.forgotten_names import UPSERT_NAME
from om_proxy.storage.values.changes import Change, ResourceWakeup
from tests.storage.contract import Opener
from tests.storage.event_contract import activation
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.postgres.lock_waits import wait_for_lock
from tests.storage.server_race_contract import (
    LOG_KEY,
    ServerRaceContract,
    count_lost_wakeups,
    open_three,
    share,
)
from tests.support.long_forms import IS_LONG

OTHER_THREAD = KEY._replace(thread="other")
# how long commits race with forgettings at least
RACE_S = 60.0 if IS_LONG else 0.0


@pytest.fixture
async def stores(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Store]]:
    """A deadlock is an error, and is not tried again."""
    monkeypatch.setattr(pool, "MAX_ATTEMPTS", 1)
    async with open_three(opener) as stores:
        yield stores


class TestPostgresRaces(ServerRaceContract):
    """The contract, where a deadlock is an error."""


@pytest.mark.parametrize("lock", ["FOR SHARE", ""], ids=["shared", "none"])
async def test_a_wakeup_is_lost_without_the_lock(
    stores: list[Store], monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    """Where two turns may hold the row of the shared log at once, neither counts the other."""
    unlocked = commit.LOCK_ROW.replace("FOR NO KEY UPDATE", lock)
    assert unlocked != commit.LOCK_ROW
    monkeypatch.setattr(commit, "LOCK_ROW", unlocked)
    # the turn that comes first waits in its transaction for the other one
    monkeypatch.setattr(pool, "IDLE_TRANSACTION_TIMEOUT_S", 60.0)
    both_are_there = asyncio.Barrier(2)
    execute = Session.execute

    async def wake_together(session: Session, sql: str, *parameters: object) -> None:
        if sql == commit.WAKE_RESOURCE:
            await both_are_there.wait()
        await execute(session, sql, *parameters)

    monkeypatch.setattr(Session, "execute", wake_together)
    async with asyncio.timeout(60):
        while not await count_lost_wakeups(stores, 1):
            continue


async def test_commits_and_forgets_never_deadlock(stores: list[Store]) -> None:
    """Threads of one resource are committed with its shared log, alone, delivered, forgotten one by
    one and all at once, by three processes: each statement ends, and no deadlock ends one."""
    names = "abcdef"
    rng = random.Random(7)
    until = time.monotonic() + RACE_S

    async def work(store: Store, number: int) -> int:
        done = 0
        for turn in count():
            if turn >= 40 and time.monotonic() > until:
                return done
            key = KEY._replace(thread=rng.choice(names))
            try:
                thread, log = await store.load(key), await store.load(LOG_KEY)
                after = replace(thread, scope="resource", turns=thread.turns + 1)
                match rng.randrange(6):
                    case 0:
                        await store.forget(key)
                    case 1:
                        await store.forget_batch(KEY.tenant, rng.choice((None, KEY.resource)))
                    case 2:
                        replies = {KEY._replace(thread=name): number for name in names}
                        await store.mark_delivered(replies)
                    case 3:
                        await store.commit(thread, after)
                    case _:
                        log_after = replace(log, turns=log.turns + 1)
                        changes = Change(thread, after), Change(log, log_after)
                        await store.commit_shared(*changes, ResourceWakeup(5.0, 1))
                done += 1
            except Conflict:
                continue
        raise AssertionError("counting has no end")

    workers = [work(store, number) for number in range(4) for store in stores]
    assert min(await asyncio.gather(*workers)) > 0


@pytest.mark.parametrize("scope", ["thread", "resource"])
async def test_a_thread_that_comes_while_a_forgetting_waits(
    stores: list[Store], server: asyncpg.Connection, url: str, schema: str, scope: str
) -> None:
    """It shares the log by then, and its next turn waits for that log with its own row held. The
    forgetting does not wait for the turn with the log held: that would be a deadlock."""
    rows = f'"{schema}".thread'
    lock_log = f"SELECT FROM {rows} WHERE thread = '' FOR NO KEY UPDATE"
    lock_newcomer = f"SELECT FROM {rows} WHERE thread = 'a' FOR NO KEY UPDATE"
    come = (
        f"UPDATE {rows} SET resource = $1, shared = true, others = 'told of b' WHERE thread = 'a'"  # noqa: S608 - a test's own name
    )
    list_others = f"SELECT others FROM {rows} WHERE thread <> ''"  # noqa: S608 - as above
    forgotten = (await share(stores[0], "b")).key
    newcomer_key = KEY._replace(resource="elsewhere", thread="a")
    await stores[0].commit(Memory(key=newcomer_key), MemoryBuilder(newcomer_key).memory())
    newcomer = await asyncpg.connect(url)
    try:
        async with server.transaction():
            await server.execute(lock_log)
            forgets = (
                stores[1].forget(forgotten)
                if scope == "thread"
                else stores[1].forget_batch(KEY.tenant, KEY.resource)
            )
            forgetting = asyncio.create_task(forgets)
            await wait_for_lock(server)
            await newcomer.execute(come, KEY.resource)
            turn = newcomer.transaction()
            await turn.start()
            await newcomer.execute(lock_newcomer)
        # the forgetting has the log now and waits for the newcomer, or does so without the log
        await wait_for_lock(newcomer)
        await newcomer.execute(lock_log)
        await turn.commit()
        await forgetting
    finally:
        await newcomer.close()
    others = await server.fetch(list_others)
    assert [bytes(row[0]) for row in others] == ([b""] if scope == "thread" else [])


async def test_no_event_is_skipped_or_told_twice(stores: list[Store]) -> None:
    """Commits that begin in one order and end in another: a reader that goes from cursor to cursor
    gets each event once."""
    keys = [KEY._replace(thread=f"writer {number}") for number in range(12)]
    written = 0

    async def write(number: int) -> None:
        nonlocal written
        store, key = stores[number % 3], keys[number]
        memory = await store.commit(Memory(key=key), MemoryBuilder(key).chat(1).memory())
        log_key = resource_key(key._replace(resource=f"resource {number}"))
        log = Memory(key=log_key)
        for turn in range(50):
            events = [activation(f"{number}.{turn}")]
            after = replace(memory, turns=turn)
            if turn % 2:
                memory = await store.commit(memory, after, (), events)
            else:  # a longer transaction, that writes two events
                other = Change(
                    log, replace(log, turns=turn + 1), (), [activation(f"{number}.log.{turn}")]
                )
                thread_key = log_key._replace(thread=key.thread)
                thread = await store.load(thread_key)
                _, new_log = await store.commit_shared(
                    Change(thread, replace(thread, turns=turn + 1), (), events), other
                )
                assert new_log is not None
                log = new_log
                written += 1
            written += 1

    told: list[str] = []
    is_over = False

    async def read() -> None:
        cursor = 0
        while True:
            was_over = is_over
            page = await stores[2].events(None, None, cursor, 17)
            assert not page.has_gap
            told.extend(json.loads(event.data)["cycleId"] for event in page.events)
            cursor = page.cursor
            if was_over and not page.events:
                return

    reader = asyncio.create_task(read())
    await asyncio.gather(*map(write, range(12)))
    is_over = True
    await reader
    assert len(told) == written == len(set(told)) == 12 * 75


async def test_events_behind_a_transaction_of_somebody(
    stores: list[Store], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events are stored, and kept from readers while an older transaction runs: a page says so."""
    monkeypatch.setattr("om_proxy.storage.postgres.events.MAX_HELD_BACK_S", 0.05)
    reader = stores[1]
    await stores[0].commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    somebody = await asyncpg.connect(url)
    try:
        transaction = somebody.transaction()
        await transaction.start()
        await somebody.execute("SELECT pg_current_xact_id()")
        await stores[0].add_events(KEY, [activation("kept back")])
        page = await reader.events(None, None, None, 10)
        assert page.is_held_back
        assert not page.events
        threads = ForgottenThreads(reader, lambda key: key.thread)
        assert await threads.find_time(OTHER_THREAD) is None
        await stores[0].commit(
            Memory(key=OTHER_THREAD), MemoryBuilder(OTHER_THREAD).chat(2).memory()
        )
        gone = Event(7.0, Forgotten(label=OTHER_THREAD.thread, forgotten_at="now"))
        await stores[0].forget(OTHER_THREAD, None, gone)
        # what waits to be stored must not bring it back
        assert await threads.find_time(OTHER_THREAD) == 7.0
        assert await threads.find_time(KEY) is None
        await transaction.rollback()
    finally:
        await somebody.close()
    async with asyncio.timeout(60):
        # other transactions on this server may hold them back as well
        types: list[str] = []
        while len(types) < 2:
            page = await reader.events(None, None, page.cursor, 10)
            types += [event.type for event in page.events]
    assert types == ["data-om-activation", Forgotten.TYPE]
    assert not page.held_back_forgettings


@pytest.mark.parametrize("has_lock", [True, False], ids=["locked", "not locked"])
async def test_a_name_is_noted_while_a_first_turn_is_written(
    stores: list[Store], url: str, monkeypatch: pytest.MonkeyPatch, has_lock: bool
) -> None:
    """The statement of the turn cannot see the name any more. So who notes it waits, and finds the
    row afterwards; without the lock it would look too early."""
    if not has_lock:
        monkeypatch.setattr(forgotten_names, "LOCK_NAMES", "SELECT 1")
    turning, noting, rival = stores
    assert isinstance(rival, PostgresStore)
    may_end, is_written = asyncio.Event(), asyncio.Event()

    async def hold_row(session: Session) -> None:
        await Commit(Memory(key=KEY), MemoryBuilder().chat(1).memory()).write(session)
        is_written.set()
        await may_end.wait()
        raise Unwritable("rolled back")

    rolled_back = asyncio.create_task(rival._pool.transact(hold_row, 60.0))
    await is_written.wait()
    began_at = time.time()
    memory = MemoryBuilder().chat(1).memory()
    turn = asyncio.create_task(turning.commit(Memory(key=KEY), memory, (), (), began_at))
    somebody = await asyncpg.connect(url)
    try:
        await wait_for_waiting(somebody, rival._prefix, 1)
        noted = asyncio.create_task(noting.note_forgotten(KEY, began_at + 1.0))
        if has_lock:
            await wait_for_waiting(somebody, rival._prefix, 2)
            may_end.set()
        await noted
        assert bool(await noting.version(KEY)) == has_lock
        may_end.set()
        assert await turn == await noting.load(KEY)
    finally:
        await somebody.close()
    with pytest.raises(Unwritable):
        await rolled_back


@pytest.mark.parametrize("ends", [True, False], ids=["ends", "goes on"])
async def test_first_turns_while_a_name_waits_for_one_that_stands_still(
    stores: list[Store], server: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """A first turn stands still in its transaction. Who notes a name tries again and again, and first
    turns of other threads go on in between. If it takes too long, nothing is noted, and that is said."""
    monkeypatch.setattr(forgotten_names, "MAX_LOCK_WAIT_S", 0.1)
    monkeypatch.setattr(forgotten_names, "LOCK_PAUSE_S", 0.1)
    if not ends:
        monkeypatch.setattr(forgotten_names, "MAX_LOCK_ATTEMPTS", 3)
    turning, noting, _ = stores
    assert isinstance(turning, PostgresStore)
    async with server.transaction():
        await server.execute(f'SELECT FROM "{turning._prefix}".forgotten_name FOR SHARE')
        noted = asyncio.create_task(noting.note_forgotten(KEY, 7.0))
        await wait_for_lock(server)
        memory = MemoryBuilder(OTHER_THREAD).memory()
        async with asyncio.timeout(20):
            await turning.commit(Memory(key=OTHER_THREAD), memory, (), (), time.time())
        if not ends:
            with pytest.raises(StorageError, match="nothing was forgotten; try again"):
                await noted
    if ends:
        await noted
    assert await turning.forgotten_at(KEY) == (7.0 if ends else None)


async def test_who_notes_a_name_holds_the_lock_as_short_as_a_turn(
    stores: list[Store], server: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands still with the lock: the server ends it as soon as it would end a turn."""
    monkeypatch.setattr(pool, "IDLE_TRANSACTION_TIMEOUT_S", 0.2)
    turning, noting, _ = stores
    has_lock, goes_on = asyncio.Event(), asyncio.Event()
    execute = Session.execute

    async def stand_still(session: Session, sql: str, *parameters: object) -> None:
        if sql == UPSERT_NAME:
            has_lock.set()
            await goes_on.wait()
        await execute(session, sql, *parameters)

    monkeypatch.setattr(Session, "execute", stand_still)
    noted = asyncio.create_task(noting.note_forgotten(KEY, 7.0))
    await has_lock.wait()
    async with asyncio.timeout(10):
        await turning.commit(Memory(key=KEY), MemoryBuilder().memory(), (), (), time.time())
    goes_on.set()
    with pytest.raises(StorageError):
        await noted
    assert await turning.forgotten_at(KEY) is None


async def wait_for_waiting(connection: asyncpg.Connection, schema: str, count: int) -> None:
    """Wait until so many statements of the schema wait for a lock."""
    sql = """SELECT count(*) FROM pg_stat_activity
        WHERE wait_event_type = 'Lock' AND position('"' || $1 || '"' IN query) > 0"""
    async with asyncio.timeout(60):
        while await connection.fetchval(sql, schema) < count:
            await connection.execute("SELECT pg_sleep(0.01)")
