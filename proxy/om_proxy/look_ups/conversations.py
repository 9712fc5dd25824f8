"""Find the conversation that a look-up is about, among those of the caller's resource."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import NamedTuple

from om_proxy.memory.model import Key, Memory, Scope
from om_proxy.memory.recall import faults
from om_proxy.memory.recall.arguments import CURRENT_THREAD, LookUp
from om_proxy.memory.recall.faults import LookUpFault
from om_proxy.memory.recall.message_ids import MessageId, parse_label, parse_message_id
from om_proxy.memory_cache import Memories
from om_proxy.storage.listing import ThreadInfo, ThreadPlace, ThreadSelection

THREADS_A_READ = 500


class Conversation(NamedTuple):
    """A thread that a look-up may read. `memory`: without messages, it has never been stored."""

    key: Key
    label: str  # the whole one
    is_current: bool
    memory: Memory

    @property
    def shown_label(self) -> str:
        """The label that stands before ids; of the current conversation none does."""
        return "" if self.is_current else self.label


@dataclass(slots=True, eq=False)
class Conversations:
    """The conversations that one caller may read: those of its resource, or its own alone."""

    memories: Memories
    key: Key  # of the current one
    scope: Scope
    _keys_by_label: dict[str, Key] = field(default_factory=dict)

    async def find(self, look_up: LookUp) -> Conversation:
        """Return the conversation that the look-up names. Raise LookUpFault."""
        return await self.open(await self._find_key(_read_thread(look_up)))

    async def open(self, key: Key) -> Conversation:
        memory = await self.memories.load(key)
        return Conversation(key, self.memories.label(key), key == self.key, memory)

    async def list_recent(self) -> AsyncIterator[ThreadInfo]:
        """Yield the threads, the latest turn first."""
        if self.scope == "thread":
            raise LookUpFault(faults.ONLY_THIS_CONVERSATION)
        selection = ThreadSelection(self.key.tenant, self.key.resource, order="recent")
        async for info in self._list(selection):
            yield info

    async def _find_key(self, label: str | None) -> Key:
        if label is None:
            return self.key
        if label in self._keys_by_label:
            return self._keys_by_label[label]
        own = self.memories.label(self.key)
        if self.scope == "thread":
            if own.startswith(label):
                return self.key
            raise LookUpFault(faults.ONLY_THIS_CONVERSATION)
        found = {own: self.key} if own.startswith(label) else {}
        async for info in self._list(ThreadSelection(self.key.tenant, self.key.resource)):
            whole = self.memories.label(info.key)
            if whole.startswith(label):
                found[whole] = info.key
        if len(found) > 1:
            raise faults.ambiguous_label(label, sorted(found)[:5])
        if not found:
            raise faults.unknown_conversation(label)
        [self._keys_by_label[label]] = found.values()
        return self._keys_by_label[label]

    async def _list(self, selection: ThreadSelection) -> AsyncIterator[ThreadInfo]:
        place: ThreadPlace | None = None
        while True:
            page = await self.memories.store.find_threads(selection, place, THREADS_A_READ)
            for info in page.threads:
                yield info
            if page.end is None:
                return
            place = page.end


def _read_thread(look_up: LookUp) -> str | None:
    """Return the label that the look-up names; None: the current conversation. Raise
    LookUpFault."""
    if look_up.cursor is not None and look_up.cursor.label:
        return look_up.cursor.label
    written = (look_up.thread or CURRENT_THREAD).strip()
    if written.lower() == CURRENT_THREAD:
        return None
    label = parse_label(written)
    if label is None:
        parsed = parse_message_id(written[:100])
        label = parsed.label if isinstance(parsed, MessageId) else None
    if not label:
        raise faults.unknown_conversation(written)
    return label
