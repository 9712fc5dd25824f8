"""A search puts first what the notes tell of, where `retrieval.notes` is on."""

from __future__ import annotations

import pytest

from om_proxy.engine.recall.noted_messages import StoredNotes
from om_proxy.engine.recall.searching import MessageSearch
from om_proxy.memory.model import Key
from om_proxy.memory.recall.found import PassageFilter
from om_proxy.settings.config import parse
from om_proxy.settings.config.sections.memory import MemorySettings
from tests.engine.recall.stored_conversations import (
    CURRENT_KEY,
    FOREIGN_KEY,
    CutMessages,
    StoredConversations,
    make_item,
    open_conversations,
)
from tests.storage.memory_builder import MemoryBuilder


async def search(conversations: StoredConversations, *, notes: str) -> list[tuple[str, int]]:
    settings = parse(f"memory: {{retrieval: {{notes: {notes}}}}}").memory

    def find_settings(resource: str) -> MemorySettings:
        assert resource == CURRENT_KEY.resource
        return settings

    source = CutMessages(conversations.store)
    stored_notes = StoredNotes(conversations.memories, find_settings)
    result = await MessageSearch(source, stored_notes).search(
        CURRENT_KEY, "violin", PassageFilter()
    )
    return [(message.thread, message.seq) for message in result.ranked]


async def add_noted(conversations: StoredConversations, key: Key) -> None:
    """Store a conversation whose first two messages are noted."""
    builder = MemoryBuilder(key)
    for text in ("a violin", "good", "a violin", "good"):
        builder.say(make_item({"role": "user", "content": text}))
    await conversations.commit(builder)
    await conversations.commit(builder.chunk(2, "* 🔴 User has a violin.").activate(1))


@pytest.mark.parametrize(("notes", "first"), [("true", 1), ("false", 3)])
async def test_notes_lift_what_they_stand_for(notes: str, first: int) -> None:
    """Of two equal messages the newer comes first, unless a note tells of the older one."""
    async with open_conversations() as conversations:
        await add_noted(conversations, CURRENT_KEY)
        found = await search(conversations, notes=notes)
    assert found[0] == (CURRENT_KEY.thread, first)


async def test_notes_of_another_resource_lift_nothing() -> None:
    """They stand for messages of the same numbers."""
    async with open_conversations() as conversations:
        await add_noted(conversations, FOREIGN_KEY._replace(thread=CURRENT_KEY.thread))
        await conversations.add(CURRENT_KEY, ["a violin", "good", "a violin", "good"])
        found = await search(conversations, notes="true")
    assert found[0] == (CURRENT_KEY.thread, 3)
