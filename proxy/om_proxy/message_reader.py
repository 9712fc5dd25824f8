"""Read a thread's messages for a person, page by page: each with its state, and the notes that it
is in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

from om_proxy.memory.message_places import MessagePlace, MessagePlaces
from om_proxy.memory.model import Key, Memory, Message
from om_proxy.memory_cache import Memories
from om_proxy.storage.base import StoredMessage

ReadState = Literal["raw", "buffered", "observed", "superseded", "interrupted"]


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


def _place_message(stored: StoredMessage, places: MessagePlaces) -> ReadMessage:
    if stored.state != "live":
        return ReadMessage(stored.message, stored.state)
    place: MessagePlace = places.find(stored.message.seq)
    return ReadMessage(stored.message, place.state, place.entry, place.chunk)
