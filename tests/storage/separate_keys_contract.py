"""What every store promises whose keys live in a key store of their own."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from om_proxy.common.errors import Conflict, KeysAway, UnopenedText, WrongKeyStore
from om_proxy.memory.model import RESOURCE_THREAD, Key, Memory
from om_proxy.storage.base import Store
from om_proxy.storage.encryption import key_store
from om_proxy.storage.encryption.key_store import KeyStore, SeparateKeys
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.sqlite.key_store import SqliteKeyStore
from om_proxy.storage.values.changes import Change
from om_proxy.storage.values.records import StoredReceipt
from tests.storage.faulty_keys import FaultyKeys, ProcessEnded
from tests.storage.key_rotation_contract import NEW, OLD, fill, without_version
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.shared_machine import share_log

ONE, OTHER = KEY._replace(thread="one"), KEY._replace(resource="r2", thread="other")


class SeparatePlace:
    """The storage of a test: its data, and its keys elsewhere."""

    def __init__(
        self,
        open_data: Callable[..., Awaitable[Any]],
        open_keys: Callable[[], Awaitable[KeyStore]],
        back_up: Callable[[], Awaitable[Callable[[], Awaitable[None]]]],
    ) -> None:
        self.open_data = open_data
        self.open_keys = open_keys
        self.back_up = back_up  # the data alone; what it returns restores it
        self.stores: list[Any] = []
        self.key_stores: list[KeyStore] = []

    async def open(self, *masters: bytes, is_separate: bool = True, **options: Any) -> Any:
        separate = None
        if is_separate:
            self.key_stores.append(await self.open_keys())
            separate = SeparateKeys(FaultyKeys(self.key_stores[-1]))  # type: ignore[arg-type] # it passes every method on
        keys = MasterKeys(masters or [OLD]) if masters != (b"",) else None
        store = await self.open_data(masters=keys, separate=separate, **options)
        self.stores.append(store)
        return store

    async def close(self) -> None:
        while self.stores:
            await self.stores.pop().close()
        while self.key_stores:
            await self.key_stores.pop().close()

    async def list_keys(self) -> set[bytes]:
        keys = await self.open_keys()
        self.key_stores.append(keys)
        id_ = await keys.identify()
        assert id_ is not None
        keys.expect(id_)
        await keys.mark_used([])
        listed = await keys.select_unused(b"", -1e6, 10_000)
        return set(listed)

    async def list_named(self) -> set[bytes]:
        """Return the keys that rows of the data name."""
        raise NotImplementedError

    async def count_beside(self) -> int:
        raise NotImplementedError


class SqlPlace(SeparatePlace):
    """The data is a file or a schema. `run_sql`: on the data."""

    def __init__(self, run_sql: Callable[[str], Awaitable[list[Any]]], *places: Any) -> None:
        super().__init__(*places)
        self._run_sql = run_sql

    async def list_named(self) -> set[bytes]:
        sql = """SELECT key_id FROM thread WHERE key_id IS NOT NULL
            UNION SELECT substr(others, 1, 16) FROM thread WHERE length(others) > 16"""
        return {bytes(id_) for (id_,) in await self._run_sql(sql)}

    async def count_beside(self) -> int:
        return int((await self._run_sql("SELECT count(*) FROM data_key"))[0][0])


def faults(store: Any) -> FaultyKeys:
    keys = store._keys.separate._keys
    assert isinstance(keys, FaultyKeys)
    return keys


async def say(store: Store, key: Key, count: int = 3) -> Memory:
    after = MemoryBuilder(key).chat(count).memory()
    return await store.commit(await store.load(key), after)


class SeparateKeysContract:
    """A test of a backend has the fixture `place`."""

    async def test_no_key_is_beside_the_data(self, place: SeparatePlace) -> None:
        store = await place.open()
        keys = await fill(store)
        assert await place.count_beside() == 0
        assert await place.list_keys() == await place.list_named() != set()
        again = await place.open()
        for key in keys:
            assert await again.load(key) == await store.load(key)
        assert (await store.describe()).separate_keys

    async def test_no_key_opens_forgotten_text_in_backups_of_the_data(
        self, place: SeparatePlace
    ) -> None:
        """A thread, a part of a shared log, a resource: and it opens all that still exists."""
        store = await place.open()
        await say(store, ONE)
        kept = await say(store, OTHER)
        shared = await share_log(store, "ABC")
        log = shared.stored[RESOURCE_THREAD].key
        whole = OTHER._replace(resource="whole")
        await say(store, whole)
        restore = await place.back_up()
        await say(store, ONE._replace(thread="later"))
        results = [await store.forget(ONE), await store.forget(shared.stored["A"].key)]
        results.append((await store.forget_batch(whole.tenant, whole.resource)).result)
        for result in results:
            assert (result.backups, "pending" in result) == ("keys_destroyed", False)
        left = await store.load(log)
        await place.close()
        await restore()
        restored = await place.open()
        for key in (ONE, shared.stored["A"].key, log, whole):
            assert (await restored.version(key)) > 0
            with pytest.raises(UnopenedText):
                await restored.load(key)
        assert without_version(await restored.load(OTHER)) == without_version(kept)
        assert (await restored.load(shared.stored["B"].key)).version
        assert left.log.entries
        # what is there in ruins can be forgotten again
        for key in (ONE, shared.stored["A"].key):
            again = await restored.forget(key)
            assert (again.threads, again.backups) == (1, "keys_destroyed")
        assert (await restored.version(log)) > 0
        assert (await restored.forget_batch(log.tenant, log.resource)).is_last

    async def test_a_receipt_waits_for_a_key_store_that_is_away(self, place: SeparatePlace) -> None:
        """The rows are gone at once. The next process to look for work destroys the key."""
        store = await place.open()
        await say(store, ONE)
        faults(store).is_away = True
        result = await store.forget(ONE)
        assert (result.threads, result.backups) == (1, "pending")
        await store.add_receipt(StoredReceipt("r", 1.0, "t", "thread", "l", result))
        assert (await store.receipt("r", 1.0)).result.backups == "pending"
        assert len(await place.list_keys()) == 1
        other = await place.open()
        await other.claim(0.0, 1, "holder", 1.0)
        assert await place.list_keys() == set()
        settled = (await store.receipt("r", 1.0)).result
        assert (settled.backups, "pending" in settled) == ("keys_destroyed", False)
        await asyncio.wait_for(other.wait_erased(), 60)

    @pytest.mark.parametrize("step", ["ends_before", "ends_after"])
    async def test_a_process_that_ends_while_it_forgets_leaves_no_key(
        self, place: SeparatePlace, step: str
    ) -> None:
        """Whether it had destroyed the key or not: nothing is live without a key, and the next
        process finishes it."""
        store = await place.open()
        await say(store, ONE)
        kept = await say(store, OTHER)
        setattr(faults(store), step, "destroy")
        with pytest.raises(ProcessEnded):
            await store.forget(ONE)
        other = await place.open()
        assert (await other.version(ONE)) == 0
        assert await other.load(OTHER) == kept
        assert (await other.forget_batch("nobody")).is_last
        assert await place.list_keys() == await place.list_named()
        assert len(await place.list_keys()) == 1

    async def test_a_process_that_ends_before_its_data_leaves_a_key_that_is_swept(
        self, place: SeparatePlace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After a week, and no other key with it: none that a row named once, even if the data is an
        old copy by then."""
        store = await place.open()
        restore = await place.back_up()
        kept = await say(store, OTHER)
        faults(store).ends_after = "insert"
        with pytest.raises(ProcessEnded):
            await say(store, ONE)
        faults(store).ends_after = ""
        assert (await store.version(ONE)) == 0
        orphans = await place.list_keys() - await place.list_named()
        assert len(orphans) == 1
        await store.prune(0.0)
        assert orphans <= await place.list_keys()
        monkeypatch.setattr(key_store, "MIN_SWEPT_AGE_S", -1e6)
        await store.prune(0.0)  # notes that rows name the others
        current = await place.back_up()
        await place.close()
        await restore()
        monkeypatch.setattr(key_store, "ORPHAN_KEPT_S", -1e6)
        old = await place.open()
        await old.prune(0.0)
        assert await place.list_keys() == set()
        await place.close()
        await current()
        store = await place.open()
        assert await store.load(OTHER) == kept

    async def test_a_first_turn_needs_its_key_to_be_written(self, place: SeparatePlace) -> None:
        """Nothing of it is stored without. Threads whose keys are held go on meanwhile."""
        store = await place.open()
        held = await say(store, OTHER)
        faults(store).is_away = True
        with pytest.raises(KeysAway, match=r"storage\.keys_url"):
            await say(store, ONE)
        assert (await store.version(ONE)) == 0
        after = await store.commit(held, replace(held, turns=9))
        assert await store.load(OTHER) == after
        with pytest.raises(KeysAway):
            await store.ping()
        await store.prune(0.0)  # the records go meanwhile
        fresh = await place.open()
        faults(fresh).is_away = True
        with pytest.raises(KeysAway):
            await fresh.load(OTHER)
        faults(fresh).is_away = False
        assert await fresh.load(OTHER) == after

    async def test_a_key_store_that_does_not_answer_is_asked_once_a_second(
        self, place: SeparatePlace
    ) -> None:
        store = await place.open()
        now = 1_000.0
        store._keys.separate._clock = lambda: now
        faults(store).is_away = True
        faults(store).asked.clear()
        for _ in range(20):
            with pytest.raises(KeysAway):
                await store.ping()
        assert len(faults(store).asked) == 5
        faults(store).is_away = False
        now += 1.0
        await store.ping()

    async def test_another_process_drops_the_key_of_what_was_forgotten(
        self, place: SeparatePlace
    ) -> None:
        """When it finds the thread gone, and when the log has got another key."""
        store = await place.open()
        held = await say(store, ONE)
        shared = await share_log(store)
        log_key = shared.stored[RESOURCE_THREAD].key
        other = await place.open()
        await other.load(ONE)
        log = await other.load(log_key)
        count = len(other._keys)
        await store.forget(ONE)
        assert (await other.refresh(held)).version == 0
        assert len(other._keys) == count - 1
        await store.forget(shared.stored["A"].key)
        assert (await other.refresh(log)).version != log.version
        assert len(other._keys) == count - 1
        assert not set(other._keys._held) - await place.list_keys()

    async def test_a_key_that_goes_while_its_memory_is_read_is_no_error(
        self, place: SeparatePlace
    ) -> None:
        """The log has another key by then, and the thread is gone: a turn of it is a conflict."""
        store = await place.open()
        shared = await share_log(store)
        log_key, a, b = (shared.stored[name].key for name in (RESOURCE_THREAD, "A", "B"))
        reader = await place.open()
        faults(reader).before["select"] = lambda: store.forget(a)
        assert await reader.load(log_key) == await store.load(log_key)
        kept = await say(store, ONE)
        faults(reader).before["select"] = lambda: store.forget(ONE)
        with pytest.raises(Conflict):
            await reader.commit(kept, replace(kept, turns=9))
        fresh = await place.open()
        held = await fresh.load(b)
        faults(fresh).before["select"] = lambda: store.forget(b)
        thread, log = await fresh.refresh_shared(held, Memory(key=log_key))
        assert (thread.version, log.version) == (0, 0)

    async def test_a_conflict_costs_nothing_but_a_key(self, place: SeparatePlace) -> None:
        store, other = await place.open(), await place.open()
        memory = await say(store, ONE)
        with pytest.raises(Conflict):
            await other.commit(Memory(key=ONE), MemoryBuilder(ONE).chat(1).memory())
        assert await other.load(ONE) == memory

    async def test_the_key_of_what_was_told_of_others_goes(self, place: SeparatePlace) -> None:
        store = await place.open()
        thread = replace(MemoryBuilder(ONE).chat(1).memory(), scope="resource")
        told = replace(thread, other_threads_text="they said")
        memory, _ = await store.commit_shared(Change(Memory(key=ONE), told), None)
        assert len(await place.list_keys()) == 2
        silent = replace(memory, other_threads_text="")
        await store.commit_shared(Change(memory, silent), None)
        await store.claim(0.0, 1, "holder", 1.0)
        assert await place.list_keys() == await place.list_named()
        assert len(await place.list_keys()) == 1

    # ── which key store ──

    async def test_another_key_store_or_none_is_refused(
        self, place: SeparatePlace, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        store = await place.open()
        await say(store, ONE)
        id_ = await place.key_stores[0].identify()
        with pytest.raises(WrongKeyStore, match=f"in the key store {id_}: set storage.keys_url"):
            await place.open(is_separate=False)
        before = place.open_keys

        file = tmp_path_factory.mktemp("other") / "keys.db"

        async def open_other() -> KeyStore:
            return SqliteKeyStore(file)

        place.open_keys = open_other
        with pytest.raises(WrongKeyStore, match=f"names no key store.* in {id_}"):
            await place.open()
        assert await SqliteKeyStore(file).identify() is None
        await SqliteKeyStore(file).create("another")
        with pytest.raises(WrongKeyStore, match=f"another key store, another;.* in {id_}"):
            await place.open()
        place.open_keys = before
        assert (await (await place.open()).load(ONE)).version

    async def test_a_database_whose_keys_are_beside_it_is_told_to_move_them(
        self, place: SeparatePlace
    ) -> None:
        beside = await place.open(is_separate=False)
        keys = await fill(beside)
        before = {key: without_version(await beside.load(key)) for key in keys}
        with pytest.raises(WrongKeyStore, match="om-proxy store rekey"):
            await place.open()
        moving = await place.open(moves_keys=True)
        server = await place.open()  # reads what is not moved yet
        assert {key: without_version(await server.load(key)) for key in keys} == before
        count = await place.count_beside()
        assert await moving.key_rotation.move_keys() == count > 0
        assert (await place.count_beside(), await moving.key_rotation.move_keys()) == (0, 0)
        fresh = await place.open()
        assert {key: without_version(await fresh.load(key)) for key in keys} == before
        with pytest.raises(WrongKeyStore):
            await place.open(is_separate=False)
        assert (await fresh.forget(keys[0])).backups == "keys_destroyed"

    async def test_moving_that_breaks_off_goes_on(self, place: SeparatePlace) -> None:
        beside = await place.open(is_separate=False)
        keys = await fill(beside)
        moving = await place.open(moves_keys=True)
        faults(moving).ends_after = "insert"
        with pytest.raises(ProcessEnded):
            await moving.key_rotation.move_keys()
        again = await place.open(moves_keys=True)
        await again.key_rotation.move_keys()
        fresh = await place.open()
        for key in keys:
            await fresh.load(key)
        assert await place.count_beside() == 0

    async def test_a_key_store_of_another_database_is_refused(self, place: SeparatePlace) -> None:
        """It would sweep the other's keys."""
        restore = await place.back_up()  # before anything was stored
        store = await place.open()
        await say(store, ONE)
        await place.close()
        await restore()
        with pytest.raises(WrongKeyStore, match="of another database"):
            await place.open()

    # ── a new master key ──

    async def test_a_new_master_key_wraps_the_keys_in_the_key_store(
        self, place: SeparatePlace
    ) -> None:
        keys = await fill(await place.open())
        both = await place.open(NEW, OLD)
        assert await both.key_rotation.rewrap_keys() == len(await place.list_keys())
        fresh = await place.open(NEW)
        for key in keys:
            await fresh.load(key)
        with pytest.raises(Exception, match=re.escape(MasterKeys([NEW]).newest_id)):
            await place.open(OLD)
