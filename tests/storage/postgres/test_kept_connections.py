"""Which connections serve the next piece of work, and which go back to asyncpg's pool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from om_proxy.storage.postgres import kept_connections
from om_proxy.storage.postgres.kept_connections import KeptConnection, KeptConnections
from om_proxy.storage.postgres.pool import StatelessConnection


@pytest.fixture
async def pool(url: str) -> AsyncIterator[asyncpg.Pool]:
    async with asyncpg.create_pool(
        url, min_size=0, max_size=2, connection_class=StatelessConnection
    ) as pool:
        yield pool


@pytest.fixture
async def connections(pool: asyncpg.Pool) -> AsyncIterator[KeptConnections]:
    connections = KeptConnections(pool, 2)
    yield connections
    await connections.close()


async def find_process(kept: KeptConnection) -> int:
    return int(await kept.connection.fetchval("SELECT pg_backend_pid()"))


async def take_two(connections: KeptConnections) -> tuple[KeptConnection, KeptConnection]:
    return await connections.take(), await connections.take()


async def test_the_connection_used_last_serves_next(
    pool: asyncpg.Pool, connections: KeptConnections
) -> None:
    """Without going through the pool, which meanwhile counts it as used."""
    first, second = await take_two(connections)
    connections.keep(first)
    connections.keep(second)
    assert pool.get_idle_size() == 0
    assert await connections.take() is second
    connections.keep(second)


async def test_an_old_connection_goes_back(
    pool: asyncpg.Pool, connections: KeptConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the pool's own limits on a connection's life are looked at."""
    kept = await connections.take()
    assert connections.can_keep(kept)
    monkeypatch.setattr(kept_connections, "MAX_KEPT_S", 0.0)
    assert not connections.can_keep(kept)
    await connections.give_back(kept)
    assert pool.get_idle_size() == 1


async def test_an_unused_connection_goes_back(
    pool: asyncpg.Pool, connections: KeptConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though no work ends any more: the pool closes it in its time."""
    first, second = await take_two(connections)
    returned = asyncio.Semaphore(0)

    async def release(pool: asyncpg.Pool, *given: object, **options: float) -> None:
        await release_to_pool(pool, *given, **options)
        returned.release()

    release_to_pool = asyncpg.pool.Pool.release
    monkeypatch.setattr(asyncpg.pool.Pool, "release", release)
    monkeypatch.setattr(kept_connections, "MAX_KEPT_S", 0.01)
    connections.keep(first)
    connections.keep(second)
    await returned.acquire()
    await returned.acquire()
    assert pool.get_idle_size() == 2
    again = await connections.take()
    assert await find_process(again)
    await connections.give_back(again)


async def test_those_who_wait_are_served_in_order(connections: KeptConnections) -> None:
    """Also if one of them has left."""
    first, second = await take_two(connections)
    waiting = [asyncio.create_task(connections.take()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    connections.keep(first)
    assert await waiting[1] is first
    connections.keep(second)
    assert await waiting[2] is second
    for kept in (first, second):
        connections.keep(kept)


async def test_a_loss_ends_what_is_idle(connections: KeptConnections) -> None:
    """A connection that was in use then, or was still being opened, does not serve again."""
    idle, used = await take_two(connections)
    processes = {await find_process(idle), await find_process(used)}
    connections.keep(idle)
    await connections.drop()
    assert kept_connections.is_closed(idle.connection)
    assert not connections.can_keep(used)
    await connections.give_back(used)
    newer = await take_two(connections)
    assert not processes & {await find_process(kept) for kept in newer}
    assert all(map(connections.can_keep, newer))
    for kept in newer:
        connections.keep(kept)


async def test_a_silence_ends_what_was_not_heard_meanwhile(connections: KeptConnections) -> None:
    """One that has served since the silence began stays."""
    silent, heard = await take_two(connections)
    connections.keep(silent)
    began_at = asyncio.get_running_loop().time()
    await heard.connection.fetchval("SELECT 1")
    connections.keep(heard)
    await connections.drop_unheard(asyncio.get_running_loop().time() - began_at)
    assert kept_connections.is_closed(silent.connection)
    assert await connections.take() is heard
    assert connections.can_keep(heard)
    connections.keep(heard)


async def test_a_connection_closed_while_idle_is_replaced(connections: KeptConnections) -> None:
    """The server ended it, or it broke: whoever takes one gets another that is open."""
    kept = await connections.take()
    process = await find_process(kept)
    connections.keep(kept)
    kept.connection.terminate()
    newer = await connections.take()
    assert await find_process(newer) != process
    connections.keep(newer)


async def test_a_place_is_free_again_after_a_failed_opening(
    connections: KeptConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each failure would leave one connection fewer, until none is left."""

    async def fail(pool: asyncpg.Pool) -> None:
        raise ConnectionRefusedError

    with monkeypatch.context() as patched:
        patched.setattr(asyncpg.pool.Pool, "acquire", fail)
        for _ in range(3):
            with pytest.raises(ConnectionRefusedError):
                await connections.take()
    for kept in await take_two(connections):
        connections.keep(kept)


class Openings:
    """Stands before asyncpg's pool, and lets a connection be opened when a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[asyncio.Future[None]] = []
        acquire = asyncpg.pool.Pool.acquire

        async def wait_and_acquire(pool: asyncpg.Pool) -> object:
            self.begun.append(asyncio.get_running_loop().create_future())
            await self.begun[-1]
            return await acquire(pool)

        monkeypatch.setattr(asyncpg.pool.Pool, "acquire", wait_and_acquire)

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.begun) < count:  # noqa: ASYNC110 - bounded by the time-out above
                await asyncio.sleep(0)


async def test_an_opening_outlives_the_work_that_asked_for_it(
    connections: KeptConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy server lets nobody in within the limit of a statement: what is being opened serves the
    next one, and is not begun again."""
    openings = Openings(monkeypatch)
    for _ in range(3):
        given_up = asyncio.create_task(connections.take())
        await openings.wait_for(1)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
    next_one = asyncio.create_task(connections.take())
    openings.begun[0].set_result(None)
    kept = await next_one
    assert len(openings.begun) == 1
    connections.keep(kept)
    assert await connections.take() is kept
    connections.keep(kept)


async def test_an_opening_that_hangs(
    connections: KeptConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes were lost: another one is begun beside it, and serves. It then fails, which is told
    to nobody who came later."""
    monkeypatch.setattr(kept_connections, "HANGS_AFTER_S", 0.05)
    openings = Openings(monkeypatch)
    waiting = asyncio.create_task(connections.take())
    await openings.wait_for(2)
    openings.begun[1].set_result(None)
    used = await waiting
    later = asyncio.create_task(connections.take())
    openings.begun[0].set_exception(TimeoutError())
    await openings.wait_for(3)
    connections.keep(used)
    assert await later is used
    connections.keep(used)


async def test_few_are_opened_at_once(pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All processes that lost a server come back together. Those who wait get what is opened, in
    order, or what is kept meanwhile."""
    openings = Openings(monkeypatch)
    connections = KeptConnections(pool, 9)
    waiting = [asyncio.create_task(connections.take()) for _ in range(5)]
    await openings.wait_for(2)
    await asyncio.sleep(0)
    assert len(openings.begun) == kept_connections.MAX_OPENINGS_AT_ONCE
    openings.begun[0].set_result(None)
    first = await waiting[0]
    assert not any(task.done() for task in waiting[1:])
    for task in waiting[1:]:
        connections.keep(first)
        assert await task is first
    connections.keep(first)
    await connections.close()


async def test_what_is_being_opened_when_all_end(
    pool: asyncpg.Pool, connections: KeptConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a start that failed: no connection is left behind."""
    openings = Openings(monkeypatch)
    waiting = [asyncio.create_task(connections.take()) for _ in range(2)]
    await openings.wait_for(2)
    openings.begun[0].set_result(None)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    connections.terminate()
    await asyncio.sleep(0)
    assert openings.begun[1].cancelled()
    assert pool.get_size() == pool.get_idle_size()
