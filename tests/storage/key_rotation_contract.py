"""What every encrypted store promises of a new master key, of keys that go while it reads, and of rows
that are not encrypted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from om_proxy.common.errors import Conflict, UnopenedText, WrongMasterKey
from om_proxy.management.moving.verifying import verify_store
from om_proxy.memory.model import RESOURCE_THREAD, Key, Memory
from om_proxy.storage.base import Store
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.values.changes import Change
from tests.storage.event_contract import activation
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.shared_machine import share_log

OLD, NEW = bytes(range(32)), bytes(range(1, 33))
OWN, LONE = KEY._replace(resource="own"), KEY._replace(resource="lone")
# opens the storage of the test with these master keys
OpenWith = Callable[..., Awaitable[Any]]


async def fill(store: Store) -> list[Key]:
    """Store threads of all kinds. Return their keys, and those of shared logs."""
    keys = [KEY._replace(thread=f"t{number}") for number in range(4)]
    for key in keys:
        builder = MemoryBuilder(key).chat(7).cover(2).chunk(2)
        memory = await store.commit(Memory(key=key), MemoryBuilder(key).chat(7).memory())
        after = replace(builder.memory(), title="a title", overrides=b"{}")
        await store.commit(memory, after, events=[activation("c")])
    shared = await share_log(store)
    told = replace(await store.load(shared.stored["A"].key), other_threads_text="they said")
    thread = await store.load(told.key)
    await store.commit_shared(Change(thread, told), None)
    return [*keys, *(memory.key for memory in shared.stored.values())]


def without_version(memory: Memory) -> Memory:
    return replace(memory, version=0)


def happen_before_keys(store: Any, happens: Callable[[], Awaitable[Any]]) -> None:
    """Let something happen once: between the rows and the keys of the store's next read."""
    select = store._keys._select_wrapped

    async def select_later(connection: Any, ids: Sequence[bytes]) -> Any:
        store._keys._select_wrapped = select
        await happens()
        return await select(connection, ids)

    store._keys._select_wrapped = select_later


class KeyRotationContract:
    """A test of a backend has the fixture `open_with`."""

    async def test_a_row_that_is_not_encrypted_is_no_memory(self, open_with: OpenWith) -> None:
        """Whoever may write to the database brings no text of their own in. Such a thread is like one
        that was changed: lists and `om-proxy store verify` name it, and it can be forgotten."""
        store = await open_with(OLD)
        own = await store.commit(Memory(key=OWN), MemoryBuilder(OWN).chat(2).memory())
        writer = await open_with(OLD)
        writer._keys.masters = None
        writer.secret = store.secret  # that is sealed
        await writer.commit(Memory(key=LONE), MemoryBuilder(LONE).chat(2).memory())
        keys = [*await fill(writer), LONE]
        held = await writer.load(keys[0])
        reads: list[Callable[[], Awaitable[object]]] = [
            lambda: store.load(keys[0]),
            lambda: store.refresh(replace(held, version=0)),
            lambda: store.messages(keys[0], 0),
            lambda: store.messages_by_seq(keys[0], [1]),
            lambda: store.observations(keys[0], 0, limit=9),
            lambda: store.commit(held, replace(held, turns=9)),
            lambda: store.add_events(keys[0], [activation("c")]),
        ]
        for read in reads:
            with pytest.raises(UnopenedText, match="not encrypted"):
                await read()
        listed = {info.key: info.title for info in await store.threads(KEY.tenant)}
        assert listed == dict.fromkeys(key for key in (OWN, *keys) if key.thread)
        named = [fault.key for fault in (await verify_store(store)).faults]
        assert sorted(named) == sorted(keys)
        assert (await store.forget(LONE)).threads == 1
        assert (await store.forget_batch(KEY.tenant, KEY.resource)).is_last
        assert (await verify_store(store)).is_sound
        assert await store.load(OWN) == own

    async def test_a_process_without_the_key_gives_an_encrypted_store_no_secret(
        self, open_with: OpenWith
    ) -> None:
        """It would be readable, and open to nobody who has the key."""
        plain = await open_with()
        begun = await open_with(OLD)
        with pytest.raises(WrongMasterKey, match="set storage"):
            await plain.secret()
        with pytest.raises(WrongMasterKey, match="set storage"):
            await plain.adopt_secret(bytes(32))
        assert await begun.secret() == await (await open_with(OLD)).secret() != bytes(32)

    async def test_a_key_that_goes_while_it_is_looked_for(self, open_with: OpenWith) -> None:
        """A read finds what is stored before or after, and a commit a conflict: another process has
        forgotten the thread, or has given the log another key."""
        store = await open_with(OLD)
        *threads, a, log, b = await fill(store)
        assert log.thread == RESOURCE_THREAD
        reader = await open_with(OLD)
        held, shared = await reader.load(threads[3]), await reader.load(b)
        reader._keys.drop_row(held.row_id)  # as ten minutes later

        async def forget_meanwhile(key: Key, read: Callable[[Store], Awaitable[Any]]) -> None:
            happen_before_keys(reader, partial(store.forget, key, defers_erasure=True))
            before = await read(store)
            assert await read(reader) in (before, await read(store)) != (before, before)

        await forget_meanwhile(threads[0], lambda s: s.load(threads[0]))
        await forget_meanwhile(threads[1], lambda s: s.stored_messages(threads[1], 0, limit=9))
        happen_before_keys(reader, partial(store.forget, threads[2], defers_erasure=True))
        await reader.add_events(threads[2], [activation("c")])
        happen_before_keys(reader, partial(store.forget, threads[3], defers_erasure=True))
        with pytest.raises(Conflict):
            await reader.commit(held, replace(held, turns=9))
        await forget_meanwhile(a, lambda s: s.observations(log, 0, limit=99))
        reader = await open_with(OLD)
        await forget_meanwhile(b, lambda s: s.refresh_shared(shared, Memory(key=log)))

    async def test_a_new_master_key_takes_over_under_load(self, open_with: OpenWith) -> None:
        """No read and no turn fails, and the old key is refused afterwards."""
        first = await open_with(OLD)
        keys = await fill(first)
        secret = await first.secret()
        before = {key: without_version(await first.load(key)) for key in keys}
        server = await open_with(NEW, OLD)
        is_over = asyncio.Event()

        async def serve() -> int:
            turns = 0
            while not is_over.is_set() or turns < 3:
                key = KEY._replace(thread=f"under way {turns}")
                await server.commit(Memory(key=key), MemoryBuilder(key).chat(1).memory())
                for known in keys:
                    assert without_version(await server.load(known)) == before[known]
                turns += 1
            return turns

        serving = asyncio.create_task(serve())
        rekeyed = await open_with(NEW, OLD)
        assert await rekeyed.key_rotation.rewrap_keys() >= len(keys)
        is_over.set()
        assert await serving >= 3
        with pytest.raises(WrongMasterKey, match=MasterKeys([NEW]).newest_id):
            await open_with(OLD)
        fresh = await open_with(NEW)
        assert {key: without_version(await fresh.load(key)) for key in keys} == before
        assert await fresh.secret() == secret
        log = next(key for key in keys if key.thread == RESOURCE_THREAD)
        assert (await fresh.load(log)).log.entries == before[log].log.entries

    async def test_a_rotation_that_broke_off_goes_on(self, open_with: OpenWith) -> None:
        """Until its end both keys open the database."""
        first = await open_with(OLD)
        keys = await fill(first)
        both = await open_with(NEW, OLD)
        batch = await both.key_rotation.rewrap_batch(b"")
        assert batch.keys > 0
        again = await open_with(OLD, NEW)
        for key in keys:
            await again.load(key)
        with pytest.raises(WrongMasterKey):
            await open_with(NEW)
        await again.commit(
            Memory(key=KEY._replace(thread="late")),
            MemoryBuilder(KEY._replace(thread="late")).chat(1).memory(),
        )
        assert await both.key_rotation.rewrap_keys() == 1
        fresh = await open_with(NEW)
        for key in keys:
            await fresh.load(key)

    async def test_a_rotation_needs_the_old_key(self, open_with: OpenWith) -> None:
        first = await open_with(OLD)
        await fill(first)
        both = await open_with(NEW, OLD)
        both._keys.masters = MasterKeys([NEW])
        with pytest.raises(UnopenedText, match=MasterKeys([OLD]).newest_id):
            await both.key_rotation.rewrap_keys()
        assert await open_with(OLD)
