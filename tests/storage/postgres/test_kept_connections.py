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
