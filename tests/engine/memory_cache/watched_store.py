"""A store that records its calls, and changes to commit to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.memory.model import Key, Memory
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.values.changes import ResourceWakeup
from om_proxy.storage.values.records import EventPage
from tests.memory.building import KEY, chat
from tests.support.policies import build_answering_policies


class WatchedStore(SqliteStore):
    """A store that records its calls; `meanwhile` runs inside one such call."""

    asked: list[str]
    event_count = 0  # of those that were read
    meanwhile: Callable[[str], object] = staticmethod(lambda _: None)

    async def load(self, key: Key) -> Memory:
        self.asked.append("load")
        found = await super().load(key)
        self.meanwhile("load")
        return found

    async def refresh(self, held: Memory) -> Memory:
        what = "refresh" if held.version else "whole"  # of what is not held, all is read
        self.asked.append(what)
        found = await super().refresh(held)
        self.meanwhile(what)
        return found

    async def events(
        self, tenant: str | None, keys: Sequence[Key] | None, after: int | None, limit: int
    ) -> EventPage:
        page = await super().events(tenant, keys, after, limit)
        self.event_count += len(page.events)
        return page


def set_title(title: str) -> Callable[[Memory], Memory]:
    return lambda memory: replace(memory, title=title)


def say_turns(turns: int) -> Callable[[Memory], Memory]:
    tail = chat(turns, 50)
    return lambda memory: replace(memory, tail=tail, next_seq=len(tail) + 1)


def other_key(number: int) -> Key:
    return KEY._replace(thread=f"thread {number}")


def name_thread(key: Key) -> str:
    return "a" * 16


async def share_a_log(store: WatchedStore) -> Memories:
    """A thread with 40 unobserved tokens; its resource's shared log is due from 30 on."""
    memories = Memories(
        store, build_answering_policies(wakeup=lambda _: ResourceWakeup(5.0, 30)), label=name_thread
    )
    fresh = await memories.load(KEY, "resource")
    tail = chat(2, 10)
    await memories.commit(fresh, replace(fresh, tail=tail, next_seq=len(tail) + 1))
    return memories
