"""Which threads have another conversation to look into: known by one bounded read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from om_proxy.engine.recall.conversations import NOTHING_FOUND_FOR_S, OfferedThreads
from tests.engine.recall.stored_conversations import (
    CURRENT_KEY,
    FOREIGN_KEY,
    OTHER_KEY,
    StoredConversations,
    open_conversations,
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def count_reads(
    conversations: StoredConversations, threads: OfferedThreads, reads: list[Any]
) -> tuple[bool, int]:
    reads.clear()
    return await threads.has_others(CURRENT_KEY), len(reads)


async def test_a_yes_is_remembered_and_a_no_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither the thread itself nor another resource counts."""
    async with open_conversations() as conversations:
        clock, reads = Clock(), list[Any]()
        read = conversations.store.threads

        async def count(*arguments: Any, **more: Any) -> Any:
            reads.append(more)
            return await read(*arguments, **more)

        monkeypatch.setattr(conversations.store, "threads", count)
        threads = OfferedThreads(conversations.store, clock)
        await conversations.add(CURRENT_KEY, ["a violin", "Noted."])
        await conversations.add(FOREIGN_KEY, ["a viola", "Noted."])
        assert await count_reads(conversations, threads, reads) == (False, 1)
        await conversations.add(OTHER_KEY, ["a cello", "Noted."])
        assert await count_reads(conversations, threads, reads) == (False, 0)
        clock.now += NOTHING_FOUND_FOR_S
        assert await count_reads(conversations, threads, reads) == (True, 1)
        assert reads == [{"limit": 2}]
        clock.now += 1e9
        assert await count_reads(conversations, threads, reads) == (True, 0)
        threads.clear()
        assert await count_reads(conversations, threads, reads) == (True, 1)


async def test_a_store_that_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request does not wait for it, and nothing is remembered."""
    monkeypatch.setattr(f"{OfferedThreads.__module__}.MAX_READ_S", 0.01)
    async with open_conversations() as conversations:
        read = conversations.store.threads

        async def stall(*_: Any, **__: Any) -> Any:
            await asyncio.Event().wait()

        monkeypatch.setattr(conversations.store, "threads", stall)
        threads = OfferedThreads(conversations.store)
        await conversations.add(OTHER_KEY, ["a cello", "Noted."])
        with pytest.raises(TimeoutError):
            await threads.has_others(CURRENT_KEY)
        monkeypatch.setattr(conversations.store, "threads", read)
        monkeypatch.setattr(f"{OfferedThreads.__module__}.MAX_READ_S", 60.0)
        assert await threads.has_others(CURRENT_KEY)
