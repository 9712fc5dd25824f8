"""What becomes of work when a server stalls, ends connections, or is not one to trust."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from om_proxy.common.errors import ConfigError, ProgramTooOld, StorageError, UnopenedText
from om_proxy.memory.model import Memory
from om_proxy.storage.redis import queries
from om_proxy.storage.redis.session import Session
from om_proxy.storage.redis.store import RedisOptions, RedisStore
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.two_prefixes import check_that_nothing_is_shared
from tests.support.own_redis import OwnRedis, own_redis
from tests.support.redis_server import own_prefix


@pytest.fixture
async def store(url: str, prefix: str) -> AsyncIterator[RedisStore]:
    store = await RedisStore.open(url, RedisOptions(prefix, 2, timeout_s=30.0))
    yield store
    await store.close()


@pytest.fixture
def server() -> Iterator[OwnRedis]:
    with own_redis() as made:
        made.start()
        yield made


async def list_clients(store: RedisStore) -> list[int]:
    """Return the server's numbers of both connections, after opening them."""
    both = asyncio.Barrier(2)

    async def ask(session: Session) -> int:
        await both.wait()
        return int(await session.call("CLIENT", "ID"))

    return await asyncio.gather(*(store._pool.read(ask) for _ in range(2)))


async def end_clients(store: RedisStore, server: OwnRedis) -> None:
    for number in await list_clients(store):
        server.ask("CLIENT", "KILL", "ID", number)


async def test_a_read_on_a_closed_connection_is_tried_again(server: OwnRedis) -> None:
    """The server has ended every idle connection: no read fails."""
    store = await RedisStore.open(server.url, RedisOptions(connections=2, timeout_s=30.0))
    memory = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    for _ in range(3):
        await end_clients(store, server)
        assert await store.load(KEY) == memory
    await store.close()


async def test_what_was_read_before_a_loss_is_read_anew(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next connection may lead to a server that has taken back commits, and gives their versions
    out again. That also holds for a read that has already begun."""
    held = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    assert await store.refresh(held) is held
    losses: list[int] = []
    store._pool.on_loss = lambda: losses.append(store._pool.loss_count)
    is_lost = False

    async def lose_connection(session: Session, *known: object) -> object:
        nonlocal is_lost
        if not is_lost:
            is_lost = True
            number = await session.call("CLIENT", "ID")
            await session.call("CLIENT", "KILL", "ID", number, "SKIPME", "no")
        return await select_newest(session, *known)

    select_newest = queries.select_newest
    monkeypatch.setattr(queries, "select_newest", lose_connection)
    newest = await store.refresh(held)
    assert newest == held
    assert newest is not held
    assert losses
    assert await store.refresh(held) is held


async def test_a_server_that_was_started_again_is_another_one(server: OwnRedis) -> None:
    """Also where no work was under way: an idle connection that ends raises no error."""
    losses: list[str] = []
    store = await RedisStore.open(
        server.url, RedisOptions(timeout_s=30.0), on_connection_lost=lambda: losses.append("lost")
    )
    held = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    server.kill()
    server.start()
    newest = await store.refresh(held)
    assert newest == held
    assert newest is not held
    assert losses
    await store.close()


async def test_a_server_that_lost_the_secret_gets_it_back(server: OwnRedis) -> None:
    """A crash may take the last second of its log. What the process holds was keyed with it, and
    another process would make a new one."""
    store = await RedisStore.open(server.url, RedisOptions(timeout_s=30.0))
    secret = await store.secret()
    server.ask("DEL", "om:secret")
    server.kill()
    server.start()
    await store.load(KEY)
    other = await RedisStore.open(server.url, RedisOptions(timeout_s=30.0))
    assert await other.secret() == secret
    await other.close()
    await store.close()


async def test_a_server_with_another_secret_is_told_of(server: OwnRedis) -> None:
    """That one stays: another process has taken it already."""
    store = await RedisStore.open(server.url, RedisOptions(timeout_s=30.0))
    await store.secret()
    server.ask("SET", "om:secret", "another")
    server.kill()
    server.start()
    with capture_logs() as lines:
        await store.load(KEY)
    assert "storage.other_secret" in [line["event"] for line in lines]
    assert server.ask("GET", "om:secret") == b"another"
    await store.close()


async def test_a_server_that_became_unfit_is_refused(server: OwnRedis) -> None:
    """Each new connection looks at it."""
    store = await RedisStore.open(server.url, RedisOptions(timeout_s=30.0))
    server.kill()
    server.start(maxmemory_policy="allkeys-lru")
    with pytest.raises(StorageError, match="maxmemory-policy allkeys-lru"):
        await store.load(KEY)
    await store.close()


async def test_keys_that_exclude_an_open_store(server: OwnRedis) -> None:
    """A newer program has written them: a look at them finds that, and no new connection serves."""
    store = await RedisStore.open(server.url, RedisOptions(timeout_s=30.0))
    memory = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    server.ask("HSET", "om:schema", "min_writer", 9999)
    with pytest.raises(ProgramTooOld):
        await store.check_schema()
    server.kill()
    server.start()
    with pytest.raises(ProgramTooOld, match="run a newer om-proxy"):
        await store.load(KEY)
    server.ask("HSET", "om:schema", "min_writer", 1)
    assert await store.load(KEY) == memory
    await store.close()


async def test_keys_of_an_older_layout_are_refused(server: OwnRedis) -> None:
    """Those of `main` before its schema was one say how their memories move, and do not change."""
    store = await RedisStore.open(server.url, RedisOptions(timeout_s=30.0))
    await store.close()
    server.ask("HSET", "om:schema", "version", 2, "min_reader", 2, "min_writer", 2)
    with pytest.raises(StorageError, match="nothing was changed: export it"):
        await RedisStore.open(server.url)
    assert server.ask("HGET", "om:schema", "version") == b"2"


async def test_a_replica_is_refused(server: OwnRedis) -> None:
    server.ask("REPLICAOF", "127.0.0.1", 1)
    with pytest.raises(StorageError, match="is a replica; name the primary"):
        await RedisStore.open(server.url)


async def test_a_cluster_is_refused(server: OwnRedis) -> None:
    server.kill()
    server.start(cluster_enabled="yes")
    with pytest.raises(StorageError, match="part of a Redis Cluster"):
        await RedisStore.open(server.url)


async def test_a_stalled_server_holds_no_caller_up(server: OwnRedis) -> None:
    """The caller is told at the limit; what it sent may still happen, and then a commit on the old
    version conflicts or finds the old one."""
    store = await RedisStore.open(server.url, RedisOptions(connections=1, timeout_s=30.0))
    store._pool._timeout_s = 0.3
    process = server.process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    try:
        commit = store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
        with pytest.raises(StorageError, match=r"no answer of the server in 0\.3 s") as failed:
            await commit
        assert type(failed.value) is StorageError
    finally:
        process.send_signal(signal.SIGCONT)
    patient = await RedisStore.open(server.url, RedisOptions(timeout_s=30.0))
    found = await patient.load(KEY)
    assert found.count in (0, 2)
    after = await patient.commit(found, replace(found, turns=7))
    assert await patient.load(KEY) == after
    await patient.close()
    await store.close()


async def test_a_cancelled_caller_only_stops_waiting(server: OwnRedis) -> None:
    """Its commit goes on, and its connection stays whole."""
    store = await RedisStore.open(server.url, RedisOptions(connections=1, timeout_s=30.0))
    process = server.process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    commit = asyncio.create_task(store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory()))
    await asyncio.sleep(0)  # it has begun
    assert store._pool._tasks
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    process.send_signal(signal.SIGCONT)
    assert (await store.load(KEY)).count == 2
    await store.close()


async def test_two_prefixes_share_nothing(store: RedisStore, url: str) -> None:
    with own_prefix(url) as other_prefix:
        other = await RedisStore.open(url, RedisOptions(other_prefix, 2, timeout_s=30.0))
        await check_that_nothing_is_shared(store, other)
        await other.close()


async def test_a_pool_without_a_connection_left(store: RedisStore) -> None:
    """All connections of the pool are busy: a request waits no longer than its limit."""
    release, holding = asyncio.Event(), asyncio.Semaphore(0)

    async def hold(session: Session) -> None:
        holding.release()
        await release.wait()

    held = [asyncio.create_task(store._pool.read(hold)) for _ in range(2)]
    for _ in held:
        await holding.acquire()
    with pytest.raises(StorageError, match="no answer"):
        await store._pool.read(lambda s: s.call("PING"), 0.05)
    release.set()
    await asyncio.gather(*held)
    assert await store.load(KEY) == Memory(key=KEY)


async def test_a_server_that_forgot_the_scripts_is_sent_them(server: OwnRedis) -> None:
    store = await RedisStore.open(server.url, RedisOptions(timeout_s=30.0))
    memory = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    server.ask("SCRIPT", "FLUSH")
    assert await store.load(KEY) == memory
    await store.close()


async def test_a_full_server_writes_nothing_and_still_forgets(server: OwnRedis) -> None:
    """Its answer is an error like any other; forgetting takes bytes away, and is not refused."""
    store = await RedisStore.open(server.url, RedisOptions(timeout_s=30.0))
    memory = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    await store.secret()
    server.ask("CONFIG", "SET", "maxmemory", 1)
    stood = sorted(server.ask("KEYS", "*"))
    for work in (
        store.commit(memory, replace(memory, turns=1)),
        store.commit(Memory(key=KEY._replace(thread="new")), Memory(key=KEY)),
        store.ping(),
    ):
        with pytest.raises(StorageError, match="it is full; raise its maxmemory"):
            await work
    assert sorted(server.ask("KEYS", "*")) == stood
    assert await store.load(KEY) == memory
    assert (await store.forget(KEY)).messages == 2
    assert await store.load(KEY) == Memory(key=KEY)
    await store.close()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("redis://:wrong@127.0.0.1:{port}/0", "refuses the user or the password"),
        ("redis://127.0.0.1:{port}/0", "asks for a password|refuses the user or the password"),
        ("redis://:geheim@127.0.0.1:{port}/99", "Redis says"),
        ("redis://:geheim@127.0.0.1:1/0", "cannot be reached"),
    ],
)
async def test_an_address_that_does_not_serve(server: OwnRedis, address: str, said: str) -> None:
    with pytest.raises(StorageError, match=said) as failed:
        await RedisStore.open(address.format(port=server.port))
    assert "geheim" not in str(failed.value)


async def test_an_address_that_cannot_be_read() -> None:
    with pytest.raises(ConfigError, match=r"storage\.url: this address of a Redis"):
        await RedisStore.open("redis://127.0.0.1/0?socket_timeout=nonsense")


async def test_a_database_without_memories_is_not_made(url: str, prefix: str) -> None:
    """A command that only reads says so, and writes nothing."""
    with pytest.raises(StorageError, match="holds no memories"):
        await RedisStore.open(url, RedisOptions(prefix), create=False)
    store = await RedisStore.open(url, RedisOptions(prefix))
    await store.close()
    await (await RedisStore.open(url, RedisOptions(prefix), create=False)).close()


async def test_a_value_that_cannot_be_decoded_is_no_fault_of_the_server(store: RedisStore) -> None:
    """Its thread alone cannot be read: others are asked for as before."""

    async def read_damaged(_session: Session) -> None:
        json.loads("canary")

    with pytest.raises(UnopenedText) as failed:
        await store._pool.read(read_damaged)
    assert "canary" not in str(failed.value)
    assert await store.load(KEY) == Memory(key=KEY)


async def test_an_error_holds_no_value(store: RedisStore) -> None:
    """Redis quotes commands in its messages; ours have only its code."""
    with pytest.raises(StorageError) as failed:
        await store._pool.read(lambda s: s.call("NONSENSE", "canary"))
    assert "canary" not in str(failed.value)
    assert await store.load(KEY) == Memory(key=KEY)
