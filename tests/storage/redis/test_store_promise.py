"""Each sentence that Redis's promise is told in, shown on a server of the test's own."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from om_proxy.common.errors import StorageError
from om_proxy.memory.model import Memory
from om_proxy.storage.promises import REDIS_SCHEMA_VERSION, create_redis_promise
from om_proxy.storage.redis import log_rewriting
from om_proxy.storage.redis.store import RedisOptions, RedisStore
from om_proxy.storage.values.records import StoredReceipt
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.support.own_redis import PASSWORD, OwnRedis, own_redis

OPTIONS = RedisOptions(timeout_s=30.0)
LOOSE = OPTIONS._replace(durable=False)


@pytest.fixture
def server() -> Iterator[OwnRedis]:
    with own_redis() as made:
        yield made


async def commit_canary(store: RedisStore) -> Memory:
    return await store.commit(Memory(key=KEY), MemoryBuilder().chat(40, "canary").memory())


def test_a_promise_is_that_of_the_newest_schema_unless_one_is_named() -> None:
    assert create_redis_promise()[:4] == ("redis", "second", "log", REDIS_SCHEMA_VERSION)
    assert create_redis_promise("fsync", 7)[1:4] == ("fsync", "log", 7)


async def test_a_power_cut_loses_no_turn_whose_reply_has_ended(server: OwnRedis) -> None:
    """With `appendfsync always`. The process ends the moment that a commit returns, and its log
    has the turn, on the disk as the server says."""
    server.start(appendfsync="always")
    store = await RedisStore.open(server.url, OPTIONS)
    assert (await store.describe()).durable == "fsync"
    memory = await commit_canary(store)
    assert server.ask("INFO", "persistence")["aof_pending_bio_fsync"] == 0
    server.kill()
    await store.close()
    server.start()
    store = await RedisStore.open(server.url, OPTIONS)
    assert await store.load(KEY) == memory
    await store.close()


async def test_a_power_cut_may_lose_the_turns_of_the_last_second(server: OwnRedis) -> None:
    """With `appendfsync everysec` a process that ends loses nothing. A power cut may leave the log
    without its end, and what stood before is there."""
    server.start(appendfsync="everysec")
    store = await RedisStore.open(server.url, OPTIONS)
    assert (await store.describe()).durable == "second"
    before = await commit_canary(store)
    async with asyncio.timeout(60):
        while True:
            if not server.ask("INFO", "persistence")["aof_buffer_length"]:
                break
            await asyncio.sleep(0.02)
    [log] = server.folder.glob("appendonly*/*.incr.aof")
    flushed_bytes = log.stat().st_size
    after = await store.commit(before, replace(before, turns=before.turns + 1))
    for lasting_bytes, expected in ((None, after), (flushed_bytes, before)):
        server.kill()
        await store.close()
        if lasting_bytes is not None:
            os.truncate(log, lasting_bytes)
        server.start()
        store = await RedisStore.open(server.url, OPTIONS)
        assert await store.load(KEY) == expected
    await store.close()


async def test_a_power_cut_may_lose_everything(server: OwnRedis) -> None:
    """With `appendfsync no` the machine writes the log when it likes."""
    server.start(appendfsync="no")
    with pytest.raises(StorageError, match="appendfsync no"):
        await RedisStore.open(server.url, OPTIONS)
    store = await RedisStore.open(server.url, LOOSE)
    assert (await store.describe()).durable == "none"
    await store.close()


async def test_all_memories_end_with_the_process(server: OwnRedis) -> None:
    """With the server's. Without a log, what was written since the last snapshot is gone."""
    server.start(appendonly="no")
    with pytest.raises(StorageError, match="appendonly no"):
        await RedisStore.open(server.url, OPTIONS)
    store = await RedisStore.open(server.url, LOOSE)
    assert (await store.describe()).durable == "process"
    await commit_canary(store)
    server.kill()
    await store.close()
    server.start(appendonly="no")
    store = await RedisStore.open(server.url, LOOSE)
    assert await store.load(KEY) == Memory(key=KEY)
    await store.close()


async def test_forgotten_bytes_leave_memory_at_once_and_the_log_once_it_is_rewritten(
    server: OwnRedis,
) -> None:
    """The receipt says so: its bytes are pending until the rewrite has ended."""
    server.start()
    store = await RedisStore.open(server.url, OPTIONS)
    await commit_canary(store)
    assert server.count_in_files(b"canary") > 0
    result = await store.forget(KEY)
    assert (result.database, result.log) == ("gone", "pending")
    assert server.ask("DBSIZE") == len(server.ask("KEYS", "om:*"))
    assert not any(KEY.thread.encode() in name for name in server.ask("KEYS", "*"))
    await store.add_receipt(StoredReceipt("r", 1.0, KEY.tenant, "thread", "label", result))
    found = await store.receipt("r", 1.0)
    assert found is not None
    assert found.result.log == "pending"
    await store.wait_erased()
    assert server.count_in_files(b"canary") == 0
    found = await store.receipt("r", 1.0)
    assert found is not None
    assert found.result.log == "gone"
    await store.close()


async def test_text_is_not_encrypted(server: OwnRedis) -> None:
    """Whoever may read the server's log reads the conversations."""
    server.start()
    store = await RedisStore.open(server.url, OPTIONS)
    await commit_canary(store)
    await store.close()
    assert server.count_in_files(b"canary") > 0


async def test_backups_keep_what_was_forgotten_since(server: OwnRedis) -> None:
    """A copy of its log that was made before is not reached by forgetting."""
    server.start(appendfsync="always")
    store = await RedisStore.open(server.url, OPTIONS)
    memory = await commit_canary(store)
    with tempfile.TemporaryDirectory() as name:
        backup = Path(name) / "backup"
        shutil.copytree(server.folder, backup)
        await store.forget(KEY)
        await store.wait_erased()
        await store.close()
        assert server.count_in_files(b"canary") == 0
        server.kill()
        shutil.rmtree(server.folder / "appendonlydir")
        shutil.copytree(backup / "appendonlydir", server.folder / "appendonlydir")
    server.start()
    store = await RedisStore.open(server.url, OPTIONS)
    assert await store.load(KEY) == memory
    await store.close()


async def test_a_failover_may_lose_turns_that_were_not_replicated(server: OwnRedis) -> None:
    """A replica that nothing came to any more, as on a slow way, is made the primary."""
    server.start()
    store = await RedisStore.open(server.url, OPTIONS)
    before = await commit_canary(store)
    with own_redis() as replica:
        replica.start(masterauth=PASSWORD)
        replica.ask("REPLICAOF", "127.0.0.1", server.port)
        async with asyncio.timeout(60):
            while True:
                if replica.ask("DBSIZE") == server.ask("DBSIZE"):
                    break
                await asyncio.sleep(0.02)
        replica.ask("REPLICAOF", "NO", "ONE")
        await store.commit(before, replace(before, turns=before.turns + 1))
        server.kill()
        await store.close()
        store = await RedisStore.open(replica.url, OPTIONS)
        assert await store.load(KEY) == before
        await store.close()


async def test_a_server_without_a_log_has_none_to_rewrite(server: OwnRedis) -> None:
    """What is forgotten there is gone, and no file is written."""
    server.start(appendonly="no")
    store = await RedisStore.open(server.url, LOOSE)
    await commit_canary(store)
    assert (await store.forget(KEY)).log == "gone"
    await store.claim(9.0, 9, "me", 60)
    await store.wait_erased()
    await store.close()
    assert not list(server.folder.glob("appendonly*/*"))


async def test_an_erasure_goes_on_in_another_process(server: OwnRedis) -> None:
    """The process that forgot has ended before the log was rewritten."""
    server.start()
    store = await RedisStore.open(server.url, OPTIONS)
    await commit_canary(store)
    await store.forget(KEY)
    await store.close()
    assert server.count_in_files(b"canary") > 0
    store = await RedisStore.open(server.url, OPTIONS)
    await store.wait_erased()
    assert server.count_in_files(b"canary") == 0
    await store.close()


async def test_the_log_is_rewritten_at_most_once_a_minute(server: OwnRedis) -> None:
    """However often something is forgotten, and by however many processes."""
    server.start()
    stores = [await RedisStore.open(server.url, OPTIONS) for _ in range(2)]
    for store in stores:
        await commit_canary(store)
        await store.forget(KEY)
    for store in stores:
        await store._rewriter._try_rewrite()
    called = server.ask("INFO", "commandstats")["cmdstat_bgrewriteaof"]["calls"]
    assert called == 1
    for store in stores:
        await store.close()


async def test_forgotten_bytes_leave_the_log_of_a_full_server(server: OwnRedis) -> None:
    """Also of one that stays full. Its log is still rewritten at most once a minute for all."""
    server.start()
    store = await RedisStore.open(server.url, OPTIONS)
    await commit_canary(store)
    await store.secret()
    server.ask("CONFIG", "SET", "maxmemory", 1)
    await store.forget(KEY)
    async with asyncio.timeout(60):
        await store.wait_erased()
    assert server.count_in_files(b"canary") == 0
    assert not await store._pool.write(store._rewriter._take_turn)
    await store.close()


async def test_errors_of_rewriting_are_logged_once_a_minute(
    server: OwnRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is away, and each attempt comes later than the last."""
    server.start()
    store = await RedisStore.open(server.url, OPTIONS)
    server.kill()
    pauses: list[float] = []

    async def note_pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 9:
            raise asyncio.CancelledError

    monkeypatch.setattr(log_rewriting.asyncio, "sleep", note_pause)
    with capture_logs() as lines, pytest.raises(asyncio.CancelledError):
        await store._rewriter._keep_trying()
    monkeypatch.undo()
    assert pauses[1:] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0, 10.0]
    assert [line["event"] for line in lines] == ["erasure.failed"]
    await store.close()
