"""What several processes do at once on one Redis."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from om_proxy.common.errors import Conflict
from om_proxy.memory.model import Memory
from om_proxy.storage.base import Store
from om_proxy.storage.redis.changes import Applied, Changes
from om_proxy.storage.values.changes import Change, ResourceWakeup
from tests.storage.contract import Opener
from tests.storage.event_contract import activation
from tests.storage.key_rotation_contract import OpenWith
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.server_race_contract import LOG_KEY, ServerRaceContract, open_three, share

KEYS_OF_THE_STORE = {"secret", "schema", "version", "event", "pruned", "erasure", "erasure_turn"}
KEYS_OF_AN_ENCRYPTED_STORE = KEYS_OF_THE_STORE | {"encryption", "key_counts"}


@pytest.fixture
async def stores(opener: Opener) -> AsyncIterator[list[Store]]:
    async with open_three(opener) as stores:
        yield stores


class TestRedisRaces(ServerRaceContract):
    """The contract under a prefix of the test's own."""


def list_keys(url: str, prefix: str) -> set[str]:
    """Return the names of all keys that stand, without the prefix."""
    import redis

    with redis.Redis.from_url(url) as client:
        return {name.decode().partition(":")[2] for name in client.scan_iter(f"{prefix}:*")}


@pytest.mark.parametrize("keys", [(), (bytes(32),)], ids=["plain", "encrypted"])
async def test_commits_beside_forgets_leave_nothing_behind(
    open_with: OpenWith, url: str, prefix: str, keys: tuple[bytes, ...]
) -> None:
    """Threads of one resource are committed with its shared log, alone, delivered, forgotten one by
    one and all at once, by three processes. Then all is forgotten, and no key names anything."""
    names = "abcdef"
    rng = random.Random(7)
    stores = [await open_with(*keys) for _ in range(3)]

    async def work(store: Store, number: int) -> int:
        done = 0
        for turn in range(20):
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
                        replies = {KEY._replace(thread=name): turn for name in names}
                        await store.mark_delivered(replies)
                    case 3:
                        await store.commit(thread, after, (), [activation(f"{number}.{turn}")])
                    case _:
                        log_after = replace(log, turns=log.turns + 1)
                        changes = Change(thread, after), Change(log, log_after)
                        await store.commit_shared(*changes, ResourceWakeup(5.0, 1))
                done += 1
            except Conflict:
                continue
        return done

    workers = [work(store, number) for number in range(2) for store in stores]
    assert min(await asyncio.gather(*workers)) > 0
    while not (await stores[0].forget_batch(KEY.tenant)).is_last:
        continue
    assert list_keys(url, prefix) <= KEYS_OF_AN_ENCRYPTED_STORE


async def test_a_due_time_that_is_set_during_a_forget_stays(
    stores: list[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is forgotten was read before it: the thread that stays, and the shared log."""
    for name in "ab":
        thread = await share(stores[0], name)
        told = replace(thread, other_threads_text="told")
        await stores[0].commit(thread, told)
    kept = KEY._replace(thread="a")
    apply = Changes.apply
    is_set = False

    async def set_due_first(changes: Changes) -> Applied:
        nonlocal is_set
        if not is_set:
            is_set = True
            await stores[1].set_due(LOG_KEY, 7.0)
            await stores[1].set_due(kept, 8.0)
        return await apply(changes)

    monkeypatch.setattr(Changes, "apply", set_due_first)
    await stores[0].forget(KEY._replace(thread="b"))
    found = [(await stores[2].load(key)).due_at for key in (LOG_KEY, kept)]
    assert found == [7.0, 8.0]
    assert (await stores[2].load(kept)).other_threads_text == ""


async def test_nothing_stays_of_what_is_forgotten(
    stores: list[Store], url: str, prefix: str
) -> None:
    """Only what belongs to the store as a whole: its secret, its counters, its schema."""
    store = stores[0]
    for name in "ab":
        thread = await share(store, name)
        said = replace(MemoryBuilder(thread.key).chat(4).memory(), scope="resource", due_at=1.0)
        after = replace(said, version=thread.version, row_id=thread.row_id)
        await store.commit(thread, after, (), [activation("now")])
        await store.claim(9.0, 9, "me", 60)
    await store.secret()
    for name in "ab":
        await store.forget(KEY._replace(thread=name))
    assert list_keys(url, prefix) <= KEYS_OF_THE_STORE


async def test_no_event_is_skipped_or_told_twice(stores: list[Store]) -> None:
    """A reader that goes from cursor to cursor while others write gets each event once."""
    told: list[str] = []
    cursor = 0
    is_done = False

    async def write(number: int) -> None:
        key = KEY._replace(thread=f"writer {number}")
        memory = await stores[number % 3].commit(Memory(key=key), Memory(key=key))
        for turn in range(20):
            events = [activation(f"{number}.{turn}")]
            after = replace(memory, turns=turn)
            memory = await stores[number % 3].commit(memory, after, (), events)

    async def read() -> None:
        nonlocal cursor
        while True:
            was_done = is_done
            page = await stores[0].events(None, None, cursor, 7)
            assert not page.has_gap
            told.extend(event.data for event in page.events)
            cursor = page.cursor
            if was_done and not page.events:
                return

    reader = asyncio.create_task(read())
    await asyncio.gather(*map(write, range(6)))
    is_done = True
    await reader
    assert len(told) == len(set(told)) == 120
