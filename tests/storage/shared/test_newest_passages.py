"""A search without an index reads the newest messages, and never holds many of them at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from om_proxy.memory.model import Memory, Message
from om_proxy.memory.recall.found import NO_FILTER
from om_proxy.storage.base import Store
from om_proxy.storage.forwarding_store import ForwardingStore
from om_proxy.storage.shared import newest_passages
from om_proxy.storage.shared.newest_passages import MESSAGES_A_READ, find_newest_passages
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.search_contract import add_said

LONG_THREAD = 3 * MESSAGES_A_READ + 50
LAST_WORDS = "the newest violin"


class CountingStore(ForwardingStore):
    """Remembers how many messages each read gave."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.read: list[int] = []

    @property
    def inner(self) -> Store:
        return self._store

    async def messages(self, *arguments: Any) -> tuple[Message, ...]:
        found = await self.inner.messages(*arguments)
        self.read.append(len(found))
        return found


@pytest.fixture
async def store() -> AsyncIterator[CountingStore]:
    inner = await SqliteStore.open(":memory:")
    builder = MemoryBuilder()
    for number in range(LONG_THREAD - 1):
        add_said(builder, f"a violin {number}")
    add_said(builder, LAST_WORDS)
    await inner.commit(Memory(key=KEY), builder.memory())
    yield CountingStore(inner)
    await inner.close()


async def test_a_long_thread_is_read_in_pieces(store: CountingStore) -> None:
    found = await find_newest_passages(store, KEY, ["violin"], NO_FILTER, 10)
    assert (found.messages, found.unread, found.counts) == (LONG_THREAD, 0, {"violin": LONG_THREAD})
    assert max(store.read) == MESSAGES_A_READ
    # as if they had been read at once
    first, *_ = found.matches
    assert (first.passage.seq, first.passage.position) == (LONG_THREAD, LONG_THREAD)


async def test_texts_are_bounded(store: CountingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is older counts as not read, and the newest are found."""
    monkeypatch.setattr(newest_passages, "MAX_READ_CHARS", len(LAST_WORDS))
    found = await find_newest_passages(store, KEY, ["newest"], NO_FILTER, 10)
    assert store.read == [MESSAGES_A_READ]
    assert (found.messages, found.unread) == (MESSAGES_A_READ, LONG_THREAD - MESSAGES_A_READ)
    assert len(found.matches) == 1
