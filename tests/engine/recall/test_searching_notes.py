"""Lines of notes are found by words, in the logs that the caller names."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from om_proxy.engine.recall.searching import MessageSearch, NoteFilter, NoteSearch, StoredNotes
from om_proxy.memory.model import (
    RESOURCE_THREAD,
    Key,
    Memory,
    Observation,
    ObservationLog,
    Part,
    resource_key,
)
from om_proxy.memory.recall.found import PassageFilter
from om_proxy.settings.config import parse
from om_proxy.settings.config.sections.memory import MemorySettings
from tests.engine.recall.stored_conversations import (
    CURRENT_KEY,
    FOREIGN_KEY,
    OTHER_KEY,
    CutMessages,
    StoredConversations,
    make_item,
    open_conversations,
)
from tests.storage.memory_builder import MemoryBuilder

SHARED_LOG_KEY = resource_key(CURRENT_KEY)
EVERYTHING = NoteFilter()


@pytest.fixture
async def conversations() -> AsyncIterator[StoredConversations]:
    async with open_conversations() as conversations:
        yield conversations


def make_entry(id_: int, text: str, **more: object) -> Observation:
    entry = Observation(
        id=id_,
        after=2 * id_,
        last=2 * id_ + 2,
        chain=b"",
        text=text,
        tokens=9,
        source_tokens=9,
        at=id_,
    )
    return replace(entry, **more)


async def add_log(conversations: StoredConversations, key: Key, *entries: Observation) -> None:
    log = ObservationLog(entries=entries)
    if key.thread == RESOURCE_THREAD:
        await conversations.store.commit(
            Memory(key=key), Memory(key=key, scope="resource", log=log, next_id=99)
        )
        return
    said = await conversations.store.commit(Memory(key=key), MemoryBuilder(key).chat(2).memory())
    marks = tuple(message.mark for message in said.tail)
    covered = replace(said, coverage=2, covered_count=2, recent=marks, tail=())
    await conversations.store.commit(said, replace(covered, log=log, next_id=99))


async def find(
    conversations: StoredConversations,
    query: str,
    note_filter: NoteFilter = EVERYTHING,
    limit: int = 9,
) -> list[tuple[str, str, str]]:
    found = await NoteSearch(conversations.memories).find(
        (SHARED_LOG_KEY,), query, limit=limit, note_filter=note_filter
    )
    return [(note.key.thread, note.line.text, note.range) for note in found.notes]


async def test_lines_with_more_of_the_words_come_first(conversations: StoredConversations) -> None:
    """Then the newer. Neither another resource nor another tenant is read."""
    await add_log(
        conversations,
        CURRENT_KEY,
        make_entry(1, "* 🔴 User keeps bees\n* the bees sleep in winter\n* a dog"),
        make_entry(2, "  * bees again  "),
    )
    await add_log(conversations, OTHER_KEY, make_entry(3, "bees in Rome"))
    await add_log(conversations, FOREIGN_KEY, make_entry(4, "bees sleep, foreign"))
    stranger = CURRENT_KEY._replace(tenant="stranger")
    await add_log(conversations, stranger, make_entry(5, "bees sleep, of another tenant"))
    assert await find(conversations, "Do bees SLEEP?") == [
        (CURRENT_KEY.thread, "* the bees sleep in winter", "[m3-m4]"),
        (OTHER_KEY.thread, "bees in Rome", "[m7-m8]"),
        (CURRENT_KEY.thread, "* bees again", "[m5-m6]"),
        (CURRENT_KEY.thread, "* 🔴 User keeps bees", "[m3-m4]"),
    ]
    assert len(await find(conversations, "bees", limit=2)) == 2
    assert await find(conversations, "") == await find(conversations, "zeta") == []
    assert [
        line
        for _, line, _ in await find(conversations, "bees", NoteFilter(thread=OTHER_KEY.thread))
    ] == ["bees in Rome"]
    assert [
        line for _, line, _ in await find(conversations, "bees", NoteFilter(before=3.0, after=2.0))
    ] == ["* bees again"]


async def test_lines_of_a_log_that_threads_share(conversations: StoredConversations) -> None:
    """Each names the messages of its threads; of one thread its entries alone are searched."""
    parts = {
        name: (Part(conversations.label(key), 0, 4, bytes(16)),)
        for name, key in (("a", CURRENT_KEY), ("b", OTHER_KEY))
    }
    await add_log(
        conversations,
        SHARED_LOG_KEY,
        make_entry(1, "bees here", after=0, last=0, parts=parts["a"]),
        make_entry(2, "bees there", after=0, last=0, parts=parts["b"]),
    )
    label = conversations.label(OTHER_KEY)[:8]
    there = ("", "bees there", f"[{label}.m1-m4]")
    assert (await find(conversations, "bees"))[0] == there
    assert await find(conversations, "bees", NoteFilter(thread=OTHER_KEY.thread)) == [there]


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
