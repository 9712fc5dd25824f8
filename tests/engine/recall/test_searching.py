"""A search finds messages that the index lacks, and reads none that it has."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from om_proxy.engine.recall.searching import IndexedOrNewest
from om_proxy.memory.recall.found import Found, PassageFilter
from om_proxy.storage.shared.newest_passages import NEWEST_MESSAGES
from tests.engine.recall.stored_conversations import CURRENT_KEY, open_conversations


@dataclass
class IndexOfNothing:
    messages: int
    unread: int

    async def find_passages(self, *_: object) -> Found:
        return Found(self.messages, {}, (), (), unread=self.unread)


@pytest.mark.parametrize(
    ("messages", "unread", "found"), [(1, 0, 0), (0, 1, 1), (1, 1, 1), (NEWEST_MESSAGES, 1, 0)]
)
async def test_what_the_index_lacks_is_read(messages: int, unread: int, found: int) -> None:
    async with open_conversations() as conversations:
        await conversations.add(CURRENT_KEY, ["a violin"])
        source = IndexedOrNewest(IndexOfNothing(messages, unread), conversations.store)
        result = await source.find_passages(CURRENT_KEY, ("violin",), PassageFilter())
    assert len(result.matches) == found
