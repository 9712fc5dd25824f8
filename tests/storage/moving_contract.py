"""What every store promises about threads that come from another store."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from om_proxy.common.errors import Conflict
from om_proxy.management.moving.copying import StoreCopier
from om_proxy.management.moving.verifying import verify_store
from om_proxy.memory.events.parts import Event, Forgotten
from om_proxy.memory.model import Beginning, Failures, Key, Memory, View, resource_key
from om_proxy.storage.base import Store
from om_proxy.storage.contract.status import MAX_COUNTED_TOKENS
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.values.changes import Change
from om_proxy.storage.values.listing import ThreadSelection
from om_proxy.storage.values.stored_rows import WholeThread
from om_proxy.storage.whole_threads import list_keys, read_whole_thread
from tests.storage.memory_builder import KEY, MemoryBuilder, full_thread, message, small_things

BORN_AT = 1_700_000_000.5


async def store_eventful(store: Store, key: Key = KEY) -> WholeThread:
    """Store a thread with older generations, chunks, a pending reflection, superseded messages and
    a reply that broke off."""
    thread = MemoryBuilder(key).chat(9)
    memory = await store.commit(Memory(key=key), thread.memory())
    for step in (
        lambda: thread.cover(3).cover(2),
        lambda: thread.swap_reflection().chunk(1),
        lambda: thread.supersede([8, 9]).chat(2, "instead").keep_reflection(),
    ):
        step()
        memory = await store.commit(memory, thread.memory())
    broken = thread.interrupt_reply(message("\ufffd off", "assistant"))
    thread.more = small_things()
    after = thread.memory()
    began = replace(after.log, generation=5, next_generation=6, began=Beginning("edit", 7.0))
    memory = await store.commit(memory, replace(after, log=began), (broken,))
    await store.mark_delivered({key: 2})
    whole = await read_whole_thread(store, key, BORN_AT)
    assert whole
    assert {stored.state for stored in whole.messages} == {"live", "superseded", "interrupted"}
    assert len(whole.generations) > 2
    assert whole.beginnings
    assert whole.memory.chunks
    assert whole.memory.log.reflection
    return whole


class MovingContract:
    async def test_restored_thread_answers_as_it_did(self, store: Store) -> None:
        """Under its own name, after it was removed; its versions go on."""
        whole = await store_eventful(store)
        await store.forget(KEY)
        restored = await store.restore(whole)
        assert restored.version > whole.memory.version
        assert restored.row_id > whole.memory.row_id
        assert await store.load(KEY) == restored
        assert await read_whole_thread(store, KEY, BORN_AT) == whole._replace(memory=restored)
        [info] = (await store.find_threads(ThreadSelection(KEY.tenant))).threads
        assert (info.created_at, info.row_id) == (BORN_AT, restored.row_id)
        assert [listed async for listed in list_keys(store)] == [(KEY, BORN_AT)]
        after = await store.commit(restored, replace(restored, turns=restored.turns + 1))
        assert await store.refresh(restored) == after

    async def test_no_field_of_a_restored_message_is_left_out(self, store: Store) -> None:
        thread = full_thread()
        await store.commit(Memory(key=KEY), thread.memory())
        whole = await read_whole_thread(store, KEY)
        assert whole
        await store.forget(KEY)
        await store.restore(whole)
        assert await store.messages(KEY, 0) == tuple(thread.tail)

    async def test_nothing_is_restored_over_what_is_stored(self, store: Store) -> None:
        """Unless that is named by its version; then it is replaced, with its events."""
        whole = await store_eventful(store)
        for key in (KEY._replace(tenant="other"), KEY._replace(resource="other")):
            copy = whole._replace(memory=replace(whole.memory, key=key))
            assert (await store.restore(copy)).key == key
        await store.add_events(KEY, [Event(5.0, Forgotten(label="f" * 16, forgotten_at="now"))])
        for over in (0, whole.memory.version - 1, whole.memory.version + 99):
            with pytest.raises(Conflict):
                await store.restore(whole, over)
        unknown = whole._replace(memory=Memory(key=KEY._replace(thread="unknown")))
        with pytest.raises(Conflict):
            await store.restore(unknown, 1)
        assert await read_whole_thread(store, KEY, BORN_AT) == whole
        assert (await store.events(KEY.tenant, [KEY], None, 9)).events
        small = whole._replace(
            memory=MemoryBuilder().chat(1).memory(),
            messages=MemoryBuilder().chat(1).stored(),
            observations=(),
            generations=(),
            beginnings={},
        )
        restored = await store.restore(small, whole.memory.version)
        assert await read_whole_thread(store, KEY, BORN_AT) == small._replace(memory=restored)
        assert not (await store.events(KEY.tenant, [KEY], None, 9)).events
        for key in (KEY._replace(tenant="other"), KEY._replace(resource="other")):
            assert len((await store.load(key)).tail) == len(whole.memory.tail)
        await store.wait_erased()

    async def test_a_repaired_thread_keeps_its_row(self, store: Store) -> None:
        """Whoever holds an older state of it reads all of it again."""
        whole = await store_eventful(store)
        held = whole.memory
        last = replace(held.tail[-1], at=77.0)
        changed = whole._replace(
            memory=replace(held, tail=(*held.tail[:-1], last)),
            messages=tuple(
                one._replace(message=last) if one.message.seq == last.seq else one
                for one in whole.messages
            ),
            created_at=None,
        )
        restored = await store.restore(changed, held.version, keeps_row=True)
        assert restored.row_id == held.row_id
        assert restored.version > held.version
        assert await store.load(KEY) == await store.refresh(held) == restored
        [info] = (await store.find_threads(ThreadSelection(KEY.tenant))).threads
        assert info.row_id == held.row_id
        after = await store.commit(restored, replace(restored, turns=restored.turns + 1))
        assert await store.refresh(restored) == after

    async def test_a_thread_loses_settings_that_break_a_rule(self, store: Store) -> None:
        """`om-proxy store verify` names them, and a repair takes them out; lists show the thread."""
        bad = replace(MemoryBuilder().chat(3).memory(), overrides=b"x")
        await store.commit(Memory(key=KEY), bad)
        for repairs, state in ((False, "repairable"), (True, "repaired")):
            [fault] = (await verify_store(store, repairs=repairs)).faults
            assert (fault.key, fault.state) == (KEY, state)
            assert "its own settings" in fault.text
            assert [info.key for info in await store.threads(None)] == [KEY]
        assert (await verify_store(store)).faults == []
        assert (await store.load(KEY)).overrides is None

    async def test_values_that_no_memory_has_are_put_aside(self, store: Store) -> None:
        """As another program may write them. The thread loads, lists and sums go on, `verify` names
        each value, and a repair writes the thread without them."""
        thread = MemoryBuilder().chat(4)
        before = thread.memory()
        sound = replace(thread.cover(2).memory(), turn_at=5.0)
        first, *rest = sound.tail
        bad = replace(
            sound,
            tail=(replace(first, at=1e300), *rest),
            log=replace(
                sound.log,
                entries=tuple(replace(o, tokens=2**62, at=-1e300) for o in sound.log.entries),
            ),
            next_seq=2**63 - 1,
            next_id=2**63 - 1,
            turn_at=1e300,
            render_date=-1e300,
            timezone="\x1b[31m",
            views=(View(count=-1, digest=b"x", chain=b"", seq=-5, end=9, asked_at=0.0),),
            failures=Failures(2**63 - 1, 1e300, False, "x" * 9_000),
        )
        for name in ("a", "b", "c"):
            key = KEY._replace(thread=name)
            stored = await store.commit(Memory(key=key), replace(before, key=key))
            await store.commit(stored, replace(bad, key=key))
        loaded = await store.load(KEY._replace(thread="a"))
        assert (loaded.turn_at, loaded.render_date, loaded.timezone, loaded.views) == (
            *(None, None, None),
            (),
        )
        assert {"next_seq", "turn_at", "render_date", "views", "cause"} <= set(loaded.put_aside)
        assert len(await store.threads(None)) == 3
        assert len((await store.find_threads(ThreadSelection(None, order="recent"))).threads) == 3
        assert 0 <= (await store.totals(0.0)).observations_tokens <= 3 * MAX_COUNTED_TOKENS
        found = [fault.text for fault in (await verify_store(store)).faults]
        for said in ("its stored next_seq", "at of message 3", "tokens of note 1", "views"):
            assert sum(said in text for text in found) == 3, said
        copy = await SqliteStore.open(":memory:")
        for _ in range(2):
            assert (await StoreCopier(store, copy).copy(verifies=True)).is_complete
        assert {fault.text for fault in (await verify_store(copy)).faults} < set(found)
        assert (await verify_store(copy, repairs=True)).is_sound
        await copy.close()
        await verify_store(store, repairs=True)
        assert (await verify_store(store)).faults == []
        repaired = await store.load(KEY._replace(thread="a"))
        assert repaired.put_aside == ()
        assert [m.item for m in repaired.tail] == [m.item for m in sound.tail]
        assert repaired.log.tokens < 100
        assert (await store.totals(0.0)).observations_tokens < 300

    async def test_restored_threads_share_their_log(self, store: Store) -> None:
        """The sums that make a shared log due are restored too."""
        keys = [KEY._replace(thread=name) for name in ("a", "b")]
        for key in keys:
            memory = replace(MemoryBuilder(key).chat(3).memory(), scope="resource", turn_at=5.0)
            log = await store.load(resource_key(key))
            await store.commit_shared(
                Change(Memory(key=key), memory), Change(log, replace(log, turns=log.turns + 1))
            )
        backlog = await store.resource_backlog(resource_key(KEY))
        assert len(backlog) == 2
        listed = [key async for key, _ in list_keys(store, KEY.tenant)]
        assert listed == [resource_key(KEY), *keys]
        whole = [await read_whole_thread(store, key) for key in listed]
        while not (await store.forget_batch(KEY.tenant)).is_last:
            pass
        for thread in whole:
            assert thread
            await store.restore(thread)
        assert await store.resource_backlog(resource_key(KEY)) == backlog
        assert [key async for key, _ in list_keys(store, KEY.tenant, KEY.resource)] == listed

    async def test_secret_of_another_store(self, store: Store) -> None:
        """A store takes it while it has no thread."""
        first, second = bytes(32), bytes(range(32))
        assert await store.adopt_secret(first)
        assert await store.adopt_secret(second)
        assert await store.secret() == second
        await store.commit(Memory(key=KEY), Memory(key=KEY))
        assert not await store.adopt_secret(first)
        assert await store.adopt_secret(second)
        assert await store.secret() == second
