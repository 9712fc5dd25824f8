"""A store whose reads merge what is stored with turns that are only kept in memory; and the one of a
preview, which keeps every commit to itself: what a request would change is seen by the request alone,
and nothing is written."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from om_proxy.common.errors import StorageError, Unwritable
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import Beginning, Generation, Key, Memory, Message
from om_proxy.storage.base import Store
from om_proxy.storage.contract.memories import MemoryCommits, MemoryRows, ThreadLists, ThreadRows
from om_proxy.storage.forwarding_store import ForwardingStore, list_methods
from om_proxy.storage.spooling.spooled_turns import SpoolBudget, SpooledTurn, SpooledTurns
from om_proxy.storage.values.changes import Change, ResourceWakeup
from om_proxy.storage.values.stored_rows import (
    GenerationEntries,
    GenerationSummary,
    Outline,
    StoredMessage,
    StoredObservation,
    summarize_generation,
)

MESSAGES_PER_PAGE = 1_000
# what a turn calls before its reply is asked for
CALLED_PARTS = (MemoryRows, MemoryCommits, ThreadRows, ThreadLists)
CALLED_METHODS = ("delivered_reply", "events", "forgotten_at", "resource_backlog", "close")

T = TypeVar("T")


class MergingStore(ForwardingStore):
    """Reads memories, messages, generations and tails as if the turns of `spool` were stored. A
    subclass adds turns to it."""

    def __init__(self, spool: SpooledTurns) -> None:
        self.spool = spool

    async def load(self, key: Key) -> Memory:
        if spooled := self.spool.find_thread(key):
            return spooled.current[key]
        return self._merge(await self._read(super().load(key)))

    async def version(self, key: Key) -> int:
        if spooled := self.spool.find_thread(key):
            return spooled.current[key].version
        return await self._read(super().version(key))

    async def refresh(self, held: Memory) -> Memory:
        if self.spool.find_thread(held.key):
            return self._merge(held)
        return self._merge(await self._read(super().refresh(_find_stored(held))))

    async def refresh_shared(self, thread: Memory, shared_log: Memory) -> tuple[Memory, Memory]:
        """Return both with the waiting turns applied. If only one of them has any, a commit of
        another process may lie between the two."""
        newest = thread, shared_log
        resource = self.spool.find_resource(thread.key)
        if resource is None or not all(memory.key in resource.current for memory in newest):
            reading = super().refresh_shared(_find_stored(thread), _find_stored(shared_log))
            newest = await self._read(reading)
        return self._merge(newest[0]), self._merge(newest[1])

    async def _read(self, reading: Coroutine[Any, Any, T]) -> T:
        """Return what `inner` answers."""
        return await reading

    def _merge(self, memory: Memory) -> Memory:
        """Return the memory with the turns that wait: they may have come while it was read. Return
        `memory` itself if it has them."""
        spooled = self.spool.find_thread(memory.key)
        if spooled is None or spooled.current[memory.key].version == memory.version:
            return memory
        return spooled.current[memory.key]

    async def outline(self, key: Key) -> Outline:
        stored = await super().outline(key)
        spooled = self.spool.find_thread(key)
        return spooled.merge_outline(key, stored) if spooled else stored

    async def messages(
        self, key: Key, after: int, through: int | None = None, limit: int | None = None
    ) -> tuple[Message, ...]:
        if not self.spool.find_thread(key):
            return await super().messages(key, after, through, limit)
        live: list[Message] = []
        while limit is None or len(live) < limit:
            page = await self.stored_messages(key, after, through, limit=MESSAGES_PER_PAGE)
            live += [stored.message for stored in page if stored.state == "live"]
            if len(page) < MESSAGES_PER_PAGE:
                break
            after = page[-1].message.seq
        return tuple(live[:limit])

    async def stored_messages(
        self, key: Key, after: int, through: int | None = None, *, limit: int
    ) -> tuple[StoredMessage, ...]:
        stored = await super().stored_messages(key, after, through, limit=limit)
        if not (spooled := self.spool.find_thread(key)):
            return stored
        return spooled.merge_stored(key, after, through, stored)[:limit]

    async def messages_by_seq(self, key: Key, seqs: Sequence[int]) -> tuple[Message, ...]:
        stored = await super().messages_by_seq(key, seqs)
        if not (spooled := self.spool.find_thread(key)):
            return stored
        by_seq = spooled.merge_messages(key, {m.seq: m for m in stored})
        return tuple(by_seq[seq] for seq in sorted(set(seqs)) if seq in by_seq)

    async def generations(
        self, key: Key, before: int, limit: int | None = None
    ) -> tuple[Generation, ...]:
        stored = await super().generations(key, before, limit)
        spooled = self.spool.find_thread(key)
        return spooled.merge_generations(key, before, stored)[:limit] if spooled else stored

    async def generation_summaries(self, key: Key, before: int) -> tuple[GenerationSummary, ...]:
        if not self.spool.find_thread(key):
            return await super().generation_summaries(key, before)
        return tuple(map(summarize_generation, await self.generations(key, before)))

    async def beginnings(self, key: Key) -> Mapping[int, Beginning]:
        stored = await super().beginnings(key)
        spooled = self.spool.find_thread(key)
        return spooled.merge_beginnings(key, stored) if spooled else stored

    async def observations(
        self, key: Key, after: int, *, limit: int
    ) -> tuple[StoredObservation, ...]:
        self._require_stored(key)
        return await super().observations(key, after, limit=limit)

    async def generation_entries(
        self, key: Key, after: int, *, limit: int
    ) -> tuple[GenerationEntries, ...]:
        self._require_stored(key)
        return await super().generation_entries(key, after, limit=limit)

    def _require_stored(self, key: Key) -> None:
        """Raise StorageError while turns of the thread wait: its rows say less than its memory."""
        if self.spool.find_thread(key):
            raise StorageError("turns of this thread wait to be stored; try again once they are")

    async def other_thread_tails(
        self, key: Key, threads: int, messages: int
    ) -> tuple[tuple[Key, tuple[Message, ...]], ...]:
        stored_tails = await super().other_thread_tails(key, threads, messages)
        if not (resource := self.spool.find_resource(key)):
            return stored_tails
        memories = [resource.current[k] for k in resource.threads if k != key]
        latest_first = sorted(
            (m for m in memories if m.tail), key=lambda m: m.turn_at or 0.0, reverse=True
        )
        spooled_tails = [(m.key, m.tail[-messages:]) for m in latest_first if m.scope == "resource"]
        spooled_keys = {m.key for m in memories}
        other_tails = [(other, tail) for other, tail in stored_tails if other not in spooled_keys]
        return (*spooled_tails, *other_tails)[:threads]


def _find_stored(held: Memory) -> Memory:
    """Return the memory if the store has returned it, and not the spool: then nothing is known."""
    return held if held.version >= 0 else Memory(key=held.key)


# ── a preview ──


class PreviewStore(MergingStore):
    """Reads from `inner`, and from what was committed to this very store. It lives as long as one
    preview. The methods that no turn needs before its reply raise Unwritable. They are made below,
    so that a new method of the protocol is refused too."""

    def __init__(
        self, inner: Store, find_cached: Callable[[Key], Memory | None] = lambda _: None
    ) -> None:
        """`find_cached`: returns what this process holds of a thread, to be refreshed."""
        # one request's own commits: its body is bounded already
        super().__init__(SpooledTurns(SpoolBudget(sys.maxsize)))
        self._inner = inner
        self._find_cached = find_cached

    @property
    def inner(self) -> Store:
        return self._inner

    async def refresh(self, held: Memory) -> Memory:
        return await super().refresh(self._choose_held(held))

    async def refresh_shared(self, thread: Memory, shared_log: Memory) -> tuple[Memory, Memory]:
        return await super().refresh_shared(
            self._choose_held(thread), self._choose_held(shared_log)
        )

    def _choose_held(self, held: Memory) -> Memory:
        """Return what the process holds if the preview holds nothing yet."""
        return held if held.version else self._find_cached(held.key) or held

    async def commit(
        self,
        before: Memory,
        after: Memory,
        interrupted: Sequence[Message] = (),
        events: Sequence[Event] = (),
        began_at: float | None = None,
    ) -> Memory:
        return self.spool.add(SpooledTurn(Change(before, after, interrupted)))[0]

    async def commit_shared(
        self, thread: Change, shared_log: Change | None, wakeup: ResourceWakeup | None = None
    ) -> tuple[Memory, Memory | None]:
        return self.spool.add(SpooledTurn(thread, shared_log, wakeup, is_shared=True))

    async def close(self) -> None:
        """Do nothing: the store behind goes on."""


async def _refuse(*_args: object, **_options: object) -> NoReturn:
    raise Unwritable("a preview changes nothing")


def list_refused_methods() -> set[str]:
    called = {name for part in CALLED_PARTS for name in list_methods(part)}
    return {*list_methods(ForwardingStore)} - called - {*CALLED_METHODS}


for _name in list_refused_methods():
    setattr(PreviewStore, _name, _refuse)
