"""Compare a store with a dictionary of threads, through random steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from msgspec.structs import replace

from om_proxy.common.errors import Conflict
from om_proxy.memory.model import Key, Memory, Message
from om_proxy.storage.base import Store
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.whole_threads import read_whole_thread
from tests.storage.memory_builder import MemoryBuilder, message, small_things
from tests.support.long_forms import IS_LONG

Opener = Callable[[], Awaitable[Store]]

MACHINE = settings(
    max_examples=40 if IS_LONG else 8,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)

picks = st.integers(0, 5)
counts = st.integers(1, 4)
# a text comes back without half characters (contract.py)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


class StoreMachine(RuleBasedStateMachine):
    """Threads of two tenants, in a store that all examples share. Each step is committed and read
    again."""

    def __init__(
        self, runner: asyncio.Runner, store: list[Store], opener: Opener | None, number: int
    ) -> None:
        super().__init__()
        self.runner, self.place, self.opener = runner, store, opener
        self.keys = [Key(f"{number} {tenant}", "r", thread) for tenant in "ab" for thread in "xy"]
        self.threads = {key: MemoryBuilder(key) for key in self.keys}
        self.stored = {key: Memory(key=key) for key in self.keys}
        self.stale: list[Memory] = []
        # of each thread: a memory that some process may still hold, refreshed now and then
        self.held = dict(self.stored)
        self.at = self.keys[0]

    @property
    def store(self) -> Store:
        return self.place[0]

    @property
    def thread(self) -> MemoryBuilder:
        return self.threads[self.at]

    def commit(self, *interrupted: Message) -> None:
        before = self.stored[self.at]
        after = self.runner.run(self.store.commit(before, self.thread.memory(), interrupted))
        assert after == self.thread.memory(after.version, after.row_id)
        assert after.row_id == before.row_id or not before.version
        assert after.version > before.version
        if before.version:
            self.stale.append(before)
        self.stored[self.at] = after
        assert self.runner.run(self.store.load(self.at)) == after
        assert self.runner.run(self.store.refresh(before)) == after

    @precondition(lambda self: self.stored[self.at].version and hasattr(self.store, "restore"))
    @rule()
    def move_away_and_back(self) -> None:
        """Into a store of another kind, and from there over the thread itself."""
        self.stored[self.at] = self.runner.run(self._move())

    async def _move(self) -> Memory:
        before = await read_whole_thread(self.store, self.at)
        assert before
        away = await SqliteStore.open(":memory:")
        try:
            await away.restore(before)
            found = await read_whole_thread(away, self.at)
        finally:
            await away.close()
        assert found
        held = await self.store.restore(found, before.memory.version)
        back = await read_whole_thread(self.store, self.at)
        assert back == before._replace(memory=held)
        assert held == replace(before.memory, version=held.version, row_id=held.row_id)
        assert await self.store.refresh(before.memory) == held
        return held

    @rule(pick=st.integers(0, 3))
    def turn_to(self, pick: int) -> None:
        self.at = self.keys[pick]

    @rule(count=counts, text=texts)
    def say(self, count: int, text: str) -> None:
        self.thread.chat(count, text)
        self.commit()

    @rule(
        text=texts,
        role=texts | st.just("tool"),
        calls=st.lists(texts, max_size=2).map(tuple),
        answers=st.none() | texts,
    )
    def say_oddly(self, text: str, role: str, calls: tuple[str, ...], answers: str | None) -> None:
        answered = answers if role == "tool" else None
        self.thread.say(message(text, role, calls, answered))
        self.commit()

    @rule(text=texts)
    def be_interrupted(self, text: str) -> None:
        self.commit(self.thread.interrupt_reply(message(text, "assistant")))

    @precondition(lambda self: self.thread.live)
    @rule(count=counts, then=st.integers(0, 2))
    def fork(self, count: int, then: int) -> None:
        self.thread.supersede(self.thread.live[-count:]).chat(then, "instead")
        self.commit()

    @precondition(lambda self: self.thread.tail)
    @rule(pick=picks)
    def delete_one(self, pick: int) -> None:
        self.thread.supersede([self.thread.tail[pick % len(self.thread.tail)].seq])
        self.commit()

    @precondition(lambda self: self.thread.outline().superseded)
    @rule(pick=picks)
    def switch(self, pick: int) -> None:
        superseded = self.thread.outline().superseded
        self.thread.revive(superseded[pick % len(superseded)][0].seq)
        self.commit()

    @precondition(lambda self: self.thread.open)
    @rule(pick=picks, text=texts)
    def swap(self, pick: int, text: str) -> None:
        seen = self.thread.open
        self.thread.swap(seen[pick % len(seen)].seq, message(text, "assistant"))
        self.commit()

    @precondition(lambda self: self.thread.open)
    @rule(count=counts, text=texts)
    def chunk(self, count: int, text: str) -> None:
        self.thread.chunk(count, text)
        self.commit()

    @precondition(lambda self: self.thread.chunks)
    @rule(keep=st.integers(0, 2))
    def drop_chunks(self, keep: int) -> None:
        self.thread.drop_chunks(keep)
        self.commit()

    @precondition(lambda self: self.thread.chunks)
    @rule(count=counts)
    def activate(self, count: int) -> None:
        self.thread.activate(count)
        self.commit()

    @precondition(lambda self: self.thread.log)
    @rule()
    def reflect(self) -> None:
        self.thread.keep_reflection(start=len(self.thread.log) // 2)
        self.commit()

    @precondition(lambda self: self.thread.reflection)
    @rule(together=st.booleans())
    def swap_in(self, together: bool) -> None:
        self.thread.swap_reflection()
        if together:
            self.thread.chat(1)
        self.commit()

    @precondition(lambda self: self.thread.generations(self.thread.generation))
    @rule(pick=picks)
    def undo(self, pick: int) -> None:
        """Return to an older log whose messages are still live."""
        chains = {m.chain for m in (self.thread.every[seq] for seq in self.thread.live)}
        fitting = [
            n
            for n, log in self.thread.generations(self.thread.generation)
            if log[-1].chain in chains
        ]
        if (
            fitting
            and self.thread.past[n := fitting[pick % len(fitting)]][-1].last <= self.thread.coverage
        ):
            self.thread.undo_reflection(n)
            self.commit()

    @rule(title=st.none() | texts, due_at=st.none() | st.floats(0, 1e10), turns=st.integers(0, 9))
    def change_small_things(self, title: str | None, due_at: float | None, turns: int) -> None:
        self.thread.more = {**small_things(), "title": title, "due_at": due_at, "turns": turns}
        self.commit()

    @precondition(lambda self: self.stale)
    @rule(pick=picks)
    def commit_too_late(self, pick: int) -> None:
        stale = self.stale[pick % len(self.stale)]
        with pytest.raises(Conflict):
            self.runner.run(
                self.store.commit(stale, replace(stale, title="too late", tail=(), chunks=()))
            )
        assert self.runner.run(self.store.load(stale.key)) == self.stored[stale.key]

    @rule()
    def refresh(self) -> None:
        """Refresh what was held since the last refresh, whatever happened in between."""
        held, stored = self.held[self.at], self.stored[self.at]
        self.held[self.at] = self.runner.run(self.store.refresh(held))
        assert self.held[self.at] == stored == self.runner.run(self.store.load(self.at))
        if held.version == stored.version:
            assert self.held[self.at] is held

    @precondition(lambda self: self.stale)
    @rule(pick=picks)
    def refresh_stale(self, pick: int) -> None:
        stale = self.stale[pick % len(self.stale)]
        refreshed = self.runner.run(self.store.refresh(stale))
        assert refreshed == self.stored[stale.key] == self.runner.run(self.store.load(stale.key))

    @rule()
    def forget(self) -> None:
        forgotten = self.runner.run(self.store.forget(self.at))
        assert forgotten.messages == len(self.thread.every)
        assert forgotten.threads == bool(self.stored[self.at].version)
        if self.stored[self.at].version:
            self.stale.append(self.stored[self.at])
        self.threads[self.at] = MemoryBuilder(self.at)
        self.stored[self.at] = Memory(key=self.at)
        assert self.runner.run(self.store.load(self.at)) == self.stored[self.at]

    @precondition(lambda self: self.opener)
    @rule()
    def reopen(self) -> None:
        self.runner.run(self.store.close())
        assert self.opener
        self.place[0] = self.runner.run(_awaited(self.opener()))

    def teardown(self) -> None:
        """Read all threads by every method, then remove them for the next example."""
        for key in self.keys:
            self.runner.run(self.compare(key))
        listed = [
            info.key
            for t in "ab"
            for info in self.runner.run(self.store.threads(f"{self.keys[0].tenant[:-1]}{t}"))
        ]
        assert listed == [key for key in self.keys if self.stored[key].version]
        for key in self.keys:
            self.runner.run(self.store.forget(key))

    async def compare(self, key: Key) -> None:
        thread, store = self.threads[key], self.store
        assert await store.load(key) == self.stored[key]
        assert await store.version(key) == self.stored[key].version
        assert await store.outline(key) == thread.outline()
        assert await store.messages(key, 0) == tuple(thread.every[seq] for seq in thread.live)
        assert await store.messages_by_seq(key, list(thread.every)) == tuple(
            thread.every[seq] for seq in sorted(thread.every)
        )
        assert await store.stored_messages(key, 0, limit=1_000) == thread.stored()
        assert await store.generations(key, thread.generation) == thread.generations(
            thread.generation
        )


async def _awaited(store: Awaitable[Store]) -> Store:
    return await store
