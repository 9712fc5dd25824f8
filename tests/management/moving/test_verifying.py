"""Every thread of a store is verified, and repaired where that is possible."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from om_proxy.management.moving.verifying import verify_store
from om_proxy.memory.model import Key, Memory
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.spooling.spooling_store import SpoolingStore
from om_proxy.storage.sqlite.store import SqliteStore
from tests.management.moving.test_importing import export
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.moving_contract import store_eventful
from tests.storage.shared_machine import share_log
from tests.support.faulty_store import Faulty


async def test_a_sound_store_has_no_fault(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "om.db")
    try:
        await share_log(store, reflected=True)
        result = await verify_store(store)
        assert (result.faults, result.threads) == ([], 2)
        assert result.is_sound
    finally:
        await store.close()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("UPDATE message SET chain = zeroblob(16) WHERE seq = 2", "chain"),
        ("UPDATE message SET parent = 1 WHERE seq = 4", "another parent"),
        ("UPDATE thread SET live_count = 99", "another number of messages"),
        ("UPDATE thread SET pending = 7", "tokens in its tail"),
        ("UPDATE thread SET covered_count = 1", "counts of covered"),
    ],
)
async def test_damage_in_the_file_is_repaired(tmp_path: Path, damage: str, said: str) -> None:
    """The export is what it was; without `repairs` nothing changes."""
    path = tmp_path / "om.db"
    key = Key("t", "r", "t")
    store = await SqliteStore.open(path)
    thread = MemoryBuilder(key).chat(9)
    memory = await store.commit(Memory(key=key), thread.memory())
    await store.commit(memory, thread.cover(3).cover(2).chunk(1).memory())
    await store.commit(Memory(key=KEY), MemoryBuilder().chat(3).memory())
    before = await export(store)
    await store.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            f"{damage} {'AND' if 'WHERE' in damage else 'WHERE'} {OF_THREAD[damage.split()[1]]}"
        )
    store = await SqliteStore.open(path)
    try:
        found = await verify_store(store)
        assert [(fault.key, fault.state) for fault in found.faults] == [(key, "repairable")]
        assert said in found.faults[0].text
        assert not found.is_sound
        assert (await verify_store(store)).faults == found.faults
        repaired = await verify_store(store, repairs=True)
        assert repaired.is_sound
        assert [fault.state for fault in repaired.faults] == ["repaired"]
        assert (await verify_store(store)).faults == []
        assert await export(store) == before
    finally:
        await store.close()


OF_THREAD = {
    "message": "thread_id = (SELECT id FROM thread WHERE tenant = 't')",
    "thread": "tenant = 't'",
}


async def test_a_thread_in_use_is_left_for_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await SqliteStore.open(tmp_path / "om.db")
    try:
        whole = await store_eventful(store)
        versions = iter(range(1_000, 2_000))

        async def moving_version(key: Key) -> int:
            return next(versions)

        monkeypatch.setattr(store, "version", moving_version)
        result = await verify_store(store, repairs=True)
        assert (result.busy_threads, result.faults) == (1, [])
        assert not result.is_sound
        assert await store.load(KEY) == whole.memory
    finally:
        await store.close()


async def test_turns_that_wait_are_stored_behind_a_repair(tmp_path: Path) -> None:
    """Another process repairs their thread meanwhile: it was not forgotten."""
    faulty = Faulty(await SqliteStore.open(tmp_path / "om.db"))
    store = SpoolingStore(faulty)
    try:
        thread = MemoryBuilder().chat(2)
        before = await store.commit(Memory(key=KEY), thread.memory())
        with closing(sqlite3.connect(tmp_path / "om.db")) as connection, connection:
            connection.execute("UPDATE thread SET live_count = 99")
        faulty.refuses = True
        await store.commit(before, thread.chat(2).memory())
        assert (await verify_store(faulty._store, repairs=True)).is_sound
        faulty.refuses = False
        assert await store.flusher.flush()
        stored = await faulty._store.load(KEY)
        assert [m.item for m in stored.tail] == [m.item for m in thread.memory().tail]
    finally:
        await store.close()


async def test_a_thread_whose_key_is_gone_is_named_and_the_others_are_verified(
    tmp_path: Path,
) -> None:
    store = await SqliteStore.open(tmp_path / "om.db", masters=MasterKeys([bytes(32)]))
    try:
        for name in ("one", "two"):
            key = KEY._replace(thread=name)
            await store.commit(Memory(key=key), MemoryBuilder(key).chat(3).memory())
        with closing(sqlite3.connect(tmp_path / "om.db")) as connection, connection:
            connection.execute(
                "DELETE FROM data_key WHERE id = (SELECT key_id FROM thread WHERE thread = 'one')"
            )
        store._keys.drop(list(store._keys._held))
        result = await verify_store(store, repairs=True)
        assert (result.threads, result.is_sound) == (2, False)
        [fault] = result.faults
        assert (fault.key.thread, fault.state) == ("one", "lasting")
        assert "key of this thread is gone" in fault.text
    finally:
        await store.close()
