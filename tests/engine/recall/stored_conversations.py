"""Stored conversations to be looked up, and what looks them up."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import orjson
from msgspec.structs import replace

from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.recall.performing import LookUpPerformer, ReadingRights
from om_proxy.engine.recall.searching import MessageSearch
from om_proxy.engine.recall.turn_look_ups import TurnLookUps
from om_proxy.memory.model import Key, Memory
from om_proxy.memory.recall.found import Found, FoundPassage, PassageFilter, match_passages
from om_proxy.memory.recall.passages import IndexPlace, MessageText, cut_passages
from om_proxy.memory.rounds import LookUpAnswer, LookUpCall
from om_proxy.memory.tokens import estimate_tokens
from om_proxy.settings.config import parse
from om_proxy.settings.identity.keyed_hashes import label_thread
from om_proxy.storage.base import Store
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.wire.server.capacity.budget import MemoryBudget
from om_proxy.wire.server.capacity.work_queues import LOOK_UP, WorkQueue
from tests.storage.memory_builder import MemoryBuilder, item
from tests.support.policies import build_policies

CURRENT_KEY = Key("tenant", "resource", "current")
OTHER_KEY = Key("tenant", "resource", "Trip to Rome, by name")
FOREIGN_KEY = Key("tenant", "somebody else's", "foreign")
UTC = ZoneInfo("UTC")
SECRET = b"s" * 32


@dataclass
class CutMessages:
    """Finds passages by cutting the stored messages of the resource at each search."""

    store: Store

    async def find_passages(
        self, key: Key, words: Sequence[str], passage_filter: PassageFilter
    ) -> Found:
        passages: list[FoundPassage] = []
        for info in await self.store.threads(key.tenant):
            if info.key.resource == key.resource:
                texts = [
                    MessageText(m.seq, m.item.role, m.at, spoken=(m.item.raw.decode(),))
                    for m in await self.store.messages(info.key, 0)
                ]
                cut, _ = cut_passages(texts, IndexPlace(), None)
                passages += (FoundPassage(info.key.thread, passage) for passage in cut)
        return match_passages(passages, words, passage_filter)


@dataclass
class StoredConversations:
    """A store with conversations, and what looks them up."""

    store: Store
    memories: Memories
    performer: LookUpPerformer
    queue: WorkQueue = field(
        default_factory=lambda: WorkQueue(LOOK_UP, MemoryBudget(lambda: 512 * 2**20))
    )

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

    async def list_pages(self, limit: int) -> list[str]:
        """List all conversations, page by page as each answer says. Return their labels as they
        are shown."""
        shown: list[str] = []
        fields: dict[str, Any] = {"page": 1}
        for _ in range(200):
            answer = await self.ask(mode="threads", limit=limit, **fields)
            first, *lines = answer.text.split("\n")
            shown += (line.partition("[")[2][:8] for line in lines)
            way_on = re.search(r"; more: (page|before) (\S.*)$", first)
            if way_on is None:
                return shown
            fields = {**(fields if way_on[1] == "page" else {}), way_on[1]: way_on[2]}
        raise AssertionError("the list does not end")

    def create_look_ups(self, key: Key = CURRENT_KEY, **options: Any) -> TurnLookUps:
        rights = ReadingRights(
            key,
            options.pop("scope", "resource"),
            UTC,
            options.pop("max_tokens", 2_000),
            options.pop("raw_from", None),
            options.pop("with_superseded", False),
        )
        options = {"max_steps": 1_000, "timeout_s": 60.0, **options}
        return TurnLookUps(self.performer, rights, self.queue, **options)

    async def ask(
        self, key: Key = CURRENT_KEY, /, *, rights: Mapping[str, Any] = {}, **fields: Any
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
        yield look_into(store)
    finally:
        await store.close()


def look_into(store: Store) -> StoredConversations:
    memories = Memories(
        store, build_policies(parse("")), label=lambda key: label_thread(SECRET, key)
    )
    performer = LookUpPerformer(memories, MessageSearch(CutMessages(store)), estimate_tokens)
    return StoredConversations(store, memories, performer)
