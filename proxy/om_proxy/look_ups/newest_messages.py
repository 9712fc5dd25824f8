"""Find passages among the newest messages of a resource, for a store that has no index."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from om_proxy.apis.message_parts import read_message_parts
from om_proxy.errors import UnopenedText
from om_proxy.memory.model import Key, Message
from om_proxy.memory.recall.found import Found, FoundPassage, PassageFilter
from om_proxy.memory.recall.matching import match_passages
from om_proxy.memory.recall.passages import IndexPlace, MessageText, cut_passages
from om_proxy.storage.base import Store
from om_proxy.storage.listing import ThreadPlace, ThreadSelection

NEWEST_MESSAGES = 2_000
MAX_SEARCHED_THREADS = 200  # those with the latest turns


@dataclass(frozen=True, slots=True, eq=False)
class NewestMessages:
    """Reads the newest NEWEST_MESSAGES messages of a resource for each search."""

    store: Store

    async def find_passages(
        self, key: Key, words: Sequence[str], passage_filter: PassageFilter
    ) -> Found:
        """Return the passages that have one of the words. Messages that are not read are told by
        `unread`, and so is a thread that does not open."""
        selection = ThreadSelection(key.tenant, key.resource, order="recent")
        read: list[tuple[str, str | None, Sequence[Message]]] = []  # thread, its zone, by seq
        room, unread = NEWEST_MESSAGES, 0
        place: ThreadPlace | None = None
        while room:
            page = await self.store.find_threads(selection, place)
            for info in page.threads:
                messages: Sequence[Message] = ()
                if room and len(read) < MAX_SEARCHED_THREADS:
                    zone, messages = await self._read_thread(info.key, room)
                    read.append((info.key.thread, zone, messages))
                room -= len(messages)
                unread += max(0, info.messages - len(messages))
            if page.end is None:
                break
            place = page.end

        def match() -> Found:
            passages = [
                FoundPassage(thread, passage)
                for thread, zone, messages in reversed(read)
                for passage in cut_passages(map(_read_text, messages), IndexPlace(), zone)[0]
            ]
            return match_passages(passages, words, passage_filter, unread=unread)

        return await asyncio.to_thread(match)

    async def _read_thread(self, key: Key, limit: int) -> tuple[str | None, Sequence[Message]]:
        try:
            memory = await self.store.load(key)
            # at most so many have these numbers: messages that were taken back leave gaps
            return memory.timezone, await self.store.messages(
                key, max(0, memory.end - limit), memory.end
            )
        except UnopenedText:
            return None, ()


def _read_text(message: Message) -> MessageText:
    parts = read_message_parts(message.item.raw, message.item.role)
    return MessageText(
        message.seq,
        message.item.role,
        message.at,
        spoken=tuple(
            part.text or part.name for part in parts if part.kind in ("text", "image", "file")
        ),
        called=tuple(
            text for part in parts if part.kind == "tool-call" for text in (part.name, part.text)
        ),
        result=tuple(part.text for part in parts if part.kind == "tool-result"),
    )
