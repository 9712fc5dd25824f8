"""Stored conversations to be looked up, and a search that finds by whole words."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import orjson
from msgspec.structs import replace

from om_proxy.identity.keyed_hashes import label_thread
from om_proxy.look_ups.performing import LookUpPerformer, ReadingRights
from om_proxy.look_ups.searching import SearchFilter, SearchHit, SearchResult
from om_proxy.look_ups.turn_look_ups import TurnLookUps
from om_proxy.memory.model import Key, Memory
from om_proxy.memory.recall.look_ups import LookUpAnswer, LookUpCall
from om_proxy.memory.recall.snippets import FindWords, Hit
from om_proxy.memory.tokens import estimate_tokens
from om_proxy.memory_cache import Memories
from om_proxy.settings import parse
from om_proxy.storage.base import Store
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.memory_builder import MemoryBuilder, item
from tests.support.policies import build_policies

CURRENT = Key("tenant", "resource", "current")
OTHER = Key("tenant", "resource", "Trip to Rome, by name")
FOREIGN = Key("tenant", "somebody else's", "foreign")
UTC = ZoneInfo("UTC")
SECRET = b"s" * 32


def find_words(text: str) -> Iterator[Hit]:
    for run in re.finditer(r"\w+", text):
        yield Hit(run.start(), run.end(), frozenset((run[0].lower(),)))


@dataclass
class WordSearch:
    """Finds messages that have the words, in the order of their threads' names."""

    store: Store
    find_words: FindWords = find_words

    async def search(self, key: Key, query: str, search_filter: SearchFilter) -> SearchResult:
        words = tuple(word for hit in find_words(query) for word in hit.words)
        counts = dict.fromkeys(words, 0)
        hits = []
        for info in await self.store.threads(key.tenant):
            if info.key.resource != key.resource or search_filter.thread not in (
                None,
                info.key.thread,
            ):
                continue
            for message in await self.store.messages(info.key, 0):
                text = message.item.raw.decode().lower()
                found = [word for word in words if word in text]
                counts.update((word, counts[word] + 1) for word in found)
                if found:
                    hits.append(SearchHit(info.key.thread, message.seq, float(len(found))))
        return SearchResult(words, counts, tuple(sorted(hits, key=lambda hit: -hit.score)))


@dataclass
class StoredConversations:
    """A store with conversations, and what looks them up."""

    store: Store
    memories: Memories
    performer: LookUpPerformer

    async def add(self, key: Key, messages: Sequence[str | Mapping[str, Any]]) -> MemoryBuilder:
        """Store a conversation of user and assistant in turns, or of whole messages."""
        builder = MemoryBuilder(key)
        for number, message in enumerate(messages):
            role = ("user", "assistant")[number % 2]
            builder.say(
                make_item(
                    {"role": role, "content": message} if isinstance(message, str) else message
                )
            )
        await self.commit(builder)
        return builder

    async def commit(self, builder: MemoryBuilder, *interrupted: Any, **changes: Any) -> Memory:
        before = await self.store.load(builder.key)
        after = replace(builder.memory(before.version, before.row_id), **changes)
        return await self.store.commit(before, after, interrupted)

    def label(self, key: Key) -> str:
        return label_thread(SECRET, key)

    def create_look_ups(self, key: Key = CURRENT, **options: Any) -> TurnLookUps:
        rights = ReadingRights(
            key,
            options.pop("scope", "resource"),
            UTC,
            options.pop("max_tokens", 2_000),
            options.pop("raw_from", None),
            options.pop("with_superseded", False),
        )
        options = {"max_steps": 1_000, "timeout_s": 60.0, **options}
        return TurnLookUps(self.performer, rights, **options)

    async def ask(
        self, key: Key = CURRENT, /, *, rights: Mapping[str, Any] = {}, **fields: Any
    ) -> LookUpAnswer:
        """Ask one look-up in a reply of its own."""
        call = LookUpCall("call_1", orjson.dumps(fields).decode())
        [answer] = await self.create_look_ups(key, **rights).answer([call])
        return answer


def make_item(message: Mapping[str, Any]) -> Any:
    """Return a message as the store keeps it."""
    calls = tuple(call["id"] for call in message.get("tool_calls", ()))
    return item(
        json.dumps(message),
        message["role"],
        calls=calls,
        answers=message.get("tool_call_id"),
    )


@asynccontextmanager
async def open_conversations(path: Path | str = ":memory:") -> AsyncIterator[StoredConversations]:
    store = await SqliteStore.open(path)
    try:
        memories = Memories(
            store, build_policies(parse("")), label=lambda key: label_thread(SECRET, key)
        )
        performer = LookUpPerformer(memories, WordSearch(store), estimate_tokens)
        yield StoredConversations(store, memories, performer)
    finally:
        await store.close()
