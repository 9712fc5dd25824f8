"""A page of a thread's messages says of each where it stands, and reads no more than the page."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from om_proxy.common.errors import NotFound, StorageError
from om_proxy.management.message_reader import MessagePlace, MessagePlaces, MessageReader
from om_proxy.memory.model import RESOURCE_THREAD, Key, Memory, ObservationLog, Part, SharedLogRef
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.memory_builder import KEY, MemoryBuilder, item
from tests.support.performing import Parts, open_parts

LONG_THREAD_MESSAGES = 100_000


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    async with open_parts(path=tmp_path / "om.db") as parts:
        yield parts


async def add_thread(parts: Parts) -> MemoryBuilder:
    """Store a thread with messages in every state: 1–4 observed, 5 in a chunk, 6 superseded, 7
    broken off, 8 raw."""
    thread = MemoryBuilder().chat(6)
    broken = thread.interrupt_reply(item("I was say", "assistant"))
    memory = await parts.store.commit(Memory(key=KEY), thread.memory(), [broken])
    thread.cover(2).cover(2).chunk(1).supersede([6]).chat(1)
    await parts.store.commit(memory, thread.memory(memory.version))
    return thread


async def test_states_of_messages(parts: Parts) -> None:
    thread = await add_thread(parts)
    page = await MessageReader(parts.memories).read_page(KEY, 0, None, 99, only_live=False)
    first, second = (entry.id for entry in thread.log)
    assert [(read.message.seq, read.state, read.entry, read.chunk) for read in page.messages] == [
        (1, "observed", first, None),
        (2, "observed", first, None),
        (3, "observed", second, None),
        (4, "observed", second, None),
        (5, "buffered", None, thread.chunks[0].id),
        (6, "superseded", None, None),
        (7, "interrupted", None, None),
        (8, "raw", None, None),
    ]
    assert page.memory.end == 8


@pytest.mark.parametrize(
    ("only_live", "after", "through", "limit", "seqs", "next_after"),
    [
        (True, 0, None, 99, [1, 2, 3, 4, 5, 8], None),
        (True, 4, None, 1, [5], 5),
        (True, 5, None, 1, [8], None),
        (False, 4, 7, 2, [5, 6], 6),
        (False, 6, 7, 2, [7], None),
        (False, 8, None, 9, [], None),
    ],
)
async def test_pages(
    parts: Parts,
    only_live: bool,
    after: int,
    through: int | None,
    limit: int,
    seqs: list[int],
    next_after: int | None,
) -> None:
    await add_thread(parts)
    reader = MessageReader(parts.memories)
    page = await reader.read_page(KEY, after, through, limit, only_live=only_live)
    assert [read.message.seq for read in page.messages] == seqs
    assert page.next_after == next_after


@pytest.mark.parametrize("thread", ["unknown", RESOURCE_THREAD])
async def test_no_thread(parts: Parts, thread: str) -> None:
    """A shared log is no thread."""
    log_key = Key(KEY.tenant, KEY.resource, RESOURCE_THREAD)
    await parts.store.commit(Memory(key=log_key), Memory(key=log_key))
    with pytest.raises(NotFound):
        await MessageReader(parts.memories).read_page(
            KEY._replace(thread=thread), 0, None, 9, only_live=True
        )


async def test_first_words_of_a_list_are_read_a_few_at_a_time(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for the store together, and leave some of its connections to requests. A thread
    whose messages cannot be read has none."""
    keys = [KEY._replace(thread=f"t{number}") for number in range(20)]
    for key in keys[1:]:
        await parts.store.commit(Memory(key=key), MemoryBuilder(key).chat(2).memory())
    read, reading, highest = type(parts.store).messages, 0, 0

    async def read_counted(store: Any, key: Key, *args: Any, **options: Any) -> Any:
        nonlocal reading, highest
        reading += 1
        highest = max(highest, reading)
        await asyncio.sleep(0)
        reading -= 1
        if key == keys[-1]:
            raise StorageError("unreadable")
        return await read(store, key, *args, **options)

    monkeypatch.setattr(type(parts.store), "messages", read_counted)
    words = await MessageReader(parts.memories).read_first_words([*keys, *keys])
    assert list(words) == keys
    assert [key for key in keys if words[key] is None] == [keys[0], keys[-1]]
    assert highest == 4


@pytest.mark.parametrize("only_live", [True, False])
async def test_a_page_of_a_long_thread_reads_only_itself(tmp_path: Path, only_live: bool) -> None:
    """Of 100 000 messages, a page in the middle reads as many rows as it holds. SQLite counts its
    steps: a hundred rows take some thousand, the thread would take a million."""
    path = tmp_path / "om.db"
    store = await SqliteStore.open(path)
    builder = MemoryBuilder().chat(2)
    before = await store.commit(Memory(key=KEY), builder.memory())
    covered = replace(
        before, tail=(), recent=(), coverage=LONG_THREAD_MESSAGES, next_seq=LONG_THREAD_MESSAGES + 1
    )
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(
            """WITH RECURSIVE n (seq) AS (SELECT 3 UNION ALL SELECT seq + 1 FROM n WHERE seq < ?)
            INSERT INTO message SELECT thread_id, n.seq, n.seq % 3 > 0, parent, fp, chain, role,
                calls, answers, tokens, encoding, at, raw, look_ups, api, origin FROM message, n
            WHERE message.seq = 1""",
            (LONG_THREAD_MESSAGES,),
        )
        db.execute("UPDATE thread SET coverage = ?", (covered.coverage,))
    await store.close()
    async with open_parts(path=path) as parts:
        reader = MessageReader(parts.memories)
        await reader.read_page(KEY, 0, None, 1, only_live=only_live)  # the memory is cached now
        steps = 0

        def count() -> int:
            nonlocal steps
            steps += 1
            return 0

        assert isinstance(parts.store, SqliteStore)
        connection = parts.store._reader.connection
        assert connection is not None
        await connection.set_progress_handler(count, 10)
        page = await reader.read_page(KEY, 50_000, None, 100, only_live=only_live)
        through = await reader.read_page(KEY, 50_000, 50_010, 100, only_live=only_live)
    assert len(page.messages) == 100
    assert {read.state for read in page.messages} <= {"observed", "superseded"}
    assert 0 < len(through.messages) <= 10
    assert 10 < steps < 1_000


def test_places_of_a_thread() -> None:
    """Messages 1–2 and 3–4 are covered, 5 waits in a chunk, 6 and 7 are raw."""
    thread = MemoryBuilder().chat(7).cover(2).cover(2).chunk(1)
    first, second = (entry.id for entry in thread.log)
    places = MessagePlaces(thread.memory())
    assert [places.find(seq) for seq in range(1, 8)] == [
        *[MessagePlace("observed", entry=first)] * 2,
        *[MessagePlace("observed", entry=second)] * 2,
        MessagePlace("buffered", chunk=thread.chunks[0].id),
        *[MessagePlace("raw")] * 2,
    ]


def test_places_after_a_reflection() -> None:
    thread = MemoryBuilder().chat(6).cover(2).cover(2).swap_reflection().cover(1)
    reflection, note = (entry.id for entry in thread.log)
    places = MessagePlaces(thread.memory())
    assert [places.find(seq).entry for seq in range(1, 7)] == [*[reflection] * 4, note, None]


@pytest.mark.parametrize("with_notes", [False, True])
def test_places_in_a_log_that_threads_share(with_notes: bool) -> None:
    """Only the parts of this thread count; one that covers nothing more covers nothing."""
    entry = MemoryBuilder().chat(4).cover(4).log[0]
    parts = (Part("other", 0, 9, b""), Part("mine", 0, 2, b""), Part("mine", 0, 0, b""))
    notes = (replace(entry, id=8, parts=parts),) if with_notes else ()
    later = replace(entry, id=9, parts=(Part("mine", 2, 3, b""),))
    memory = Memory(
        key=KEY,
        coverage=3,
        log=ObservationLog(entries=(*notes, later, replace(entry, id=10))),
        shared_log_ref=SharedLogRef(label="mine"),
    )
    places = MessagePlaces(memory)
    found = [places.find(seq) for seq in (1, 2, 3, 4)]
    first = 8 if with_notes else None
    assert [place.entry for place in found] == [first, first, 9, None]
    assert [place.state for place in found] == [*["observed"] * 3, "raw"]
