"""Read a thread's messages for a person, page by page or one alone: each with its state, and the
notes that it is in."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from msgspec import Struct

from om_proxy.common.errors import NotFound, StorageError
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.memory.model import Key, Memory, Message, Observation
from om_proxy.storage.values.stored_rows import StoredMessage
from om_proxy.wire.apis.message_parts import read_indexed_text
from om_proxy.wire.apis.titles import cut_first_words

MAX_READS_AT_ONCE = 4  # requests need the store's other connections: there are 10 by default

# of a message that is live
LiveState = Literal["raw", "buffered", "observed"]


ReadState = Literal["raw", "buffered", "observed", "superseded", "interrupted"]


class MessagePlace(NamedTuple):
    """The place of a live message."""

    state: LiveState
    entry: int | None = None  # the id of the entry that covers it, as far as one can be told
    chunk: int | None = None  # the id of the chunk


class _Range(NamedTuple):
    last: int
    after: int
    id: int


class MessagePlaces:
    """The places of one thread's messages. It is made once for a page of them."""

    def __init__(self, memory: Memory) -> None:
        self._coverage = memory.coverage
        self._entries = sorted(_list_ranges(memory.log.entries, memory.thread_label))
        self._chunks = sorted(_list_ranges(memory.chunks, ""))

    def find(self, seq: int) -> MessagePlace:
        """Return the place of a live message."""
        if seq <= self._coverage:
            return MessagePlace("observed", entry=_find_range(self._entries, seq))
        chunk = _find_range(self._chunks, seq)
        return MessagePlace("raw") if chunk is None else MessagePlace("buffered", chunk=chunk)


def _list_ranges(entries: Iterable[Observation], label: str) -> Iterable[_Range]:
    """Yield what each entry covers of the thread. `label`: of the thread, if it shares its log."""
    for entry in entries:
        if entry.parts:
            for part in entry.parts:
                if part.label == label and not part.covers_nothing:
                    yield _Range(part.last, part.after, entry.id)
        elif entry.last > entry.after and not label:
            yield _Range(entry.last, entry.after, entry.id)


def _find_range(ranges: list[_Range], seq: int) -> int | None:
    at = bisect_left(ranges, seq, key=lambda covered: covered.last)
    if at == len(ranges) or ranges[at].after >= seq:
        return None
    return ranges[at].id


class ReadMessage(Struct, frozen=True):
    """One message of a thread, as it stands."""

    message: Message
    state: ReadState
    entry: int | None = None  # the id of the entry that covers it
    chunk: int | None = None  # the id of the chunk that it waits in


class MessagePage(Struct, frozen=True):
    """Some messages of a thread, by seq."""

    memory: Memory
    messages: tuple[ReadMessage, ...]
    next_after: int | None  # the seq after which the next page begins; None: this is the last


class NotedMessage(Struct, frozen=True):
    """One message, and the notes whose range holds it."""

    memory: Memory
    read: ReadMessage
    notes: tuple[Observation, ...]  # the active entry, or the chunk; a message is in one at most


@dataclass(frozen=True, slots=True, eq=False)
class MessageReader:
    """Reads pages. No page reads more of the thread than its messages and its bounded memory."""

    memories: Memories

    async def read_page(
        self, key: Key, after: int, through: int | None, limit: int, *, only_live: bool
    ) -> MessagePage:
        """Return the first `limit` messages with `after < seq <= through`. Raise NotFound for a
        thread without a memory."""
        memory = await self.memories.load_known(key)
        store = self.memories.store
        found: tuple[StoredMessage, ...]
        if only_live:
            live = await store.messages(key, after, through, limit + 1)
            found = tuple(StoredMessage(message, 0, "live") for message in live)
        else:
            found = await store.stored_messages(key, after, through, limit=limit + 1)
        places = MessagePlaces(memory)
        page = tuple(_place_message(stored, places) for stored in found[:limit])
        return MessagePage(memory, page, page[-1].message.seq if len(found) > limit else None)

    async def read_first_words(self, keys: Iterable[Key]) -> dict[Key, str | None]:
        """Return the first words of the first question of each thread; None if a thread does not
        begin with one, or if its messages cannot be read."""
        slots = asyncio.Semaphore(MAX_READS_AT_ONCE)
        found = dict.fromkeys(keys)
        words = await asyncio.gather(*(self._read_words(key, slots) for key in found))
        return dict(zip(found, words, strict=True))

    async def _read_words(self, key: Key, slots: asyncio.Semaphore) -> str | None:
        try:
            async with slots:
                messages = await self.memories.store.messages(key, 0, limit=1)
        except StorageError:  # a list shows the thread all the same
            return None
        asked = [read_indexed_text(message) for message in messages if message.item.role == "user"]
        return cut_first_words(asked[0]) if asked else None

    async def read_message(self, key: Key, seq: int) -> NotedMessage:
        """Return one message, live or not. Raise NotFound if there is none of this number."""
        page = await self.read_page(key, seq - 1, seq, 1, only_live=False)
        if not page.messages:
            raise NotFound(
                f"there is no message {seq}; the newest of this thread is {page.memory.end}"
            )
        read, memory = page.messages[0], page.memory
        entries = memory.chunks if read.chunk is not None else memory.log.entries
        noted_in = (entry for entry in entries if entry.id in (read.entry, read.chunk))
        return NotedMessage(memory, read, tuple(noted_in))

    async def read_ranges(
        self, key: Key, ranges: Sequence[tuple[int, int]], after: int, limit: int
    ) -> MessagePage:
        """Return the first `limit` live messages after `after` in ranges `(after, last]` of a
        thread, which are in order."""
        memory = await self.memories.load_known(key)
        found: list[Message] = []
        for start, last in ranges:
            if last > after and len(found) <= limit:
                found += await self.memories.store.messages(
                    key, max(start, after), last, limit + 1 - len(found)
                )
        places = MessagePlaces(memory)
        page = tuple(_place_message(StoredMessage(m, 0, "live"), places) for m in found[:limit])
        return MessagePage(memory, page, page[-1].message.seq if len(found) > limit else None)


def _place_message(stored: StoredMessage, places: MessagePlaces) -> ReadMessage:
    if stored.state != "live":
        return ReadMessage(stored.message, stored.state)
    place: MessagePlace = places.find(stored.message.seq)
    return ReadMessage(stored.message, place.state, place.entry, place.chunk)
