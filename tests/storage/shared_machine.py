"""Compare threads that share a log in a store with the same threads in the pure functions, through
random steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec.structs import replace

from om_proxy.common.errors import Conflict
from om_proxy.memory.model import RESOURCE_THREAD, Key, Memory, replace_log, resource_key
from om_proxy.settings.identity.keyed_hashes import label_thread
from om_proxy.storage.base import Store
from om_proxy.storage.values.changes import Change
from tests.memory.sharing import Resource
from tests.storage.memory_builder import KEY
from tests.storage.store_machine import MACHINE
from tests.support.long_forms import IS_LONG

SHARED = settings(MACHINE, max_examples=20 if IS_LONG else 4, stateful_step_count=30)

names = st.sampled_from("ABC")
numbers = st.integers(1, 4)


class SharedStore:
    """A resource of which every step is committed to a store and read again."""

    def __init__(self, store: Store, names: str, key: Key, label: Callable[[Key], str]) -> None:
        self.store = store
        self.led = Resource(names, key=key, label=label)
        self.stored: dict[str, Memory] = {}
        # of each thread: itself and the shared log, as some process may still hold them
        self.held: dict[str, tuple[Memory, Memory]] = {}
        self.stale: list[tuple[Memory, Memory]] = []

    def wanted(self, name: str) -> Memory:
        memory = self.led.shared_log if name == RESOURCE_THREAD else self.led.voices[name].memory
        stored = self.stored.get(name) or Memory(key=memory.key)
        return replace(memory, version=stored.version, row_id=stored.row_id)

    async def commit(self, name: str) -> None:
        """Commit the changes of this thread and of the shared log in one transaction."""
        before, shared_log = self._before(name), self._before(RESOURCE_THREAD)
        after, shared_log_after = self.wanted(name), self.wanted(RESOURCE_THREAD)
        if name in self.stored and RESOURCE_THREAD in self.stored:
            self.stale.append((before, shared_log))
        changed = (
            Change(shared_log, shared_log_after)
            if shared_log_after != shared_log or not shared_log.version
            else None
        )
        thread, log = await self.store.commit_shared(Change(before, after), changed)
        assert thread == replace(after, version=thread.version, row_id=thread.row_id)
        assert thread.row_id == before.row_id or not before.version
        self.stored[name] = thread
        if log:
            self.stored[RESOURCE_THREAD] = log

    def _before(self, name: str) -> Memory:
        key = self.led.shared_log.key._replace(thread=name)
        return self.stored.get(name) or Memory(
            key=key, scope="thread" if name == RESOURCE_THREAD else "resource"
        )

    async def commit_shared_log(self) -> None:
        if self.wanted(RESOURCE_THREAD) != self.stored[RESOURCE_THREAD]:
            self.stored[RESOURCE_THREAD] = await self.store.commit(
                self.stored[RESOURCE_THREAD], self.wanted(RESOURCE_THREAD)
            )

    async def commit_too_late(self, number: int) -> None:
        """Commit after either of the two has changed: nothing of either is written."""
        thread, shared_log = self.stale[number % len(self.stale)]
        now = self._before(thread.key.thread), self._before(RESOURCE_THREAD)
        if (now[0].version, now[1].version) == (thread.version, shared_log.version):
            return
        late = (
            Change(thread, replace(thread, title="too late")),
            Change(shared_log, replace_log(shared_log, unproductive_tokens=7)),
        )
        with pytest.raises(Conflict):
            await self.store.commit_shared(*late)
        for memory in now:
            assert (
                replace(await self.store.load(memory.key), due_at=None, scope=memory.scope)
                == memory
            )

    async def refresh(self, name: str) -> None:
        """Refresh what was held of the thread and of the shared log since the last refresh."""
        log_key = self.led.shared_log.key
        unknown = Memory(key=log_key._replace(thread=name)), Memory(key=log_key)
        held = self.held.get(name, unknown)
        refreshed = await self.store.refresh_shared(*held)
        newest = await self.store.load(held[0].key), await self.store.load(log_key)
        for before, after, loaded in zip(held, refreshed, newest, strict=True):
            assert replace(after, due_at=None) == replace(loaded, due_at=None)
            assert (after is before) == (before.version == loaded.version)
            assert after.due_at == loaded.due_at or after is before
        self.held[name] = refreshed

    async def forget(self, name: str) -> None:
        rows = len(self.led.voices[name].rows)
        self.led.forget(name)
        forgotten = await self.store.forget(self.led.voices[name].memory.key)
        assert forgotten[:2] == ((1, rows) if name in self.stored else (0, 0))
        self.stored.pop(name, None)
        for other in list(self.stored):
            found = await self.store.load(self.stored[other].key)
            if other == RESOURCE_THREAD and not found.version:
                del self.stored[RESOURCE_THREAD]  # nobody shares it any more
                self.led.shared_log, self.led.past = Memory(key=self.led.shared_log.key), []
            else:
                self.stored[other] = replace(found, due_at=None)
                if other == RESOURCE_THREAD:
                    self._take_beginning(found)
                assert self.stored[other] == self.wanted(other)

    def _take_beginning(self, found: Memory) -> None:
        """Take the store's own time at which the generation without the thread began."""
        expected, began = self.led.shared_log.log.began, found.log.began
        assert expected is not None
        assert began is not None
        assert expected.why == began.why == "forgotten"
        self.led.shared_log = replace_log(self.led.shared_log, began=began)

    async def compare(self) -> None:
        """Compare everything that a store returns about the threads."""
        for name, memory in self.stored.items():
            assert (
                replace(await self.store.load(memory.key), due_at=None)
                == memory
                == self.wanted(name)
            )
            assert await self.store.version(memory.key) == memory.version
        led, shared_log = self.led, self.led.shared_log.key
        assert await self.store.generations(shared_log, led.shared_log.log.generation) == tuple(
            led.past
        )
        listed = [info.key.thread for info in await self.store.threads(shared_log.tenant)]
        assert listed == sorted(set(self.stored) - {RESOURCE_THREAD})
        waiting = await self.store.resource_backlog(shared_log)
        sharing = {
            n: v.memory
            for n, v in led.voices.items()
            if n in self.stored and led.shares(n) and v.memory.tail
        }
        assert [(w.key.thread, w.pending_tokens) for w in waiting] == [
            (n, m.pending_tokens)
            for n, m in sorted(sharing.items(), key=lambda one: one[1].turn_at or 0)
        ]
        for name in self.stored:
            told = await self.store.other_thread_tails(shared_log._replace(thread=name), 2, 3)
            latest = sorted(
                (n for n in sharing if n != name), key=lambda n: -(sharing[n].turn_at or 0)
            )[:2]
            assert [(k.thread, ms) for k, ms in told] == [(n, sharing[n].tail[-3:]) for n in latest]


async def share_log(store: Store, names: str = "AB", *, reflected: bool = False) -> SharedStore:
    """Store two messages of each thread in a shared log, twice; A has the latest turn."""
    secret = await store.secret()
    s = SharedStore(store, names, resource_key(KEY), lambda key: label_thread(secret, key))
    for name in [*names, *reversed(names)]:
        s.led.say(name, 3)
        await s.commit(name)
        s.led.observe(name, 2)
        s.led.activate(name)
        await s.commit(name)
    if reflected:
        s.led.reflect()
        s.led.swap("A")
        await s.commit("A")
    return s


class SharedMachine(RuleBasedStateMachine):
    """Three threads of one resource, in a store that all examples share."""

    def __init__(self, runner: asyncio.Runner, store: list[Store], number: int) -> None:
        super().__init__()
        self.runner = runner
        secret = runner.run(store[0].secret())
        key = Key(f"shared {number}", "r", RESOURCE_THREAD)
        self.s = SharedStore(store[0], "ABC", key, lambda key: label_thread(secret, key))

    def _step(self, name: str) -> None:
        self.s.led.check()
        self.runner.run(self.s.commit(name))

    def _knows(self, name: str) -> bool:
        return name in self.s.stored and self.s.led.shares(name)

    @initialize(reflected=st.booleans())
    def begin(self, reflected: bool) -> None:
        for name in "ABAB":
            self.cover(name, 2)
        if reflected:
            self.reflect_at_once("A", 9)

    @rule(name=names, number=numbers)
    def say(self, name: str, number: int) -> None:
        self.s.led.say(name, number)
        self._step(name)

    @rule(name=names, number=numbers)
    def cover(self, name: str, number: int) -> None:
        self.say(name, number)
        if self.s.led.shares(name):
            self.s.led.observe(name, number)
            self._step(name)
            self.s.led.activate(name)
            self._step(name)

    @rule(name=names, number=numbers)
    def observe(self, name: str, number: int) -> None:
        if self._knows(name):
            self.s.led.observe(name, number)
            self._step(name)

    @rule(number=st.integers(1, 9), start=st.integers(0, 3))
    def reflect(self, number: int, start: int = 0) -> None:
        if RESOURCE_THREAD in self.s.stored:
            self.s.led.reflect(number, start)
            self.runner.run(self.s.commit_shared_log())

    @rule(name=names, number=st.integers(1, 9), start=st.integers(0, 3))
    def reflect_at_once(self, name: str, number: int, start: int = 0) -> None:
        self.reflect(number, start)
        if self._knows(name):
            self.s.led.swap(name)
            self._step(name)

    @rule(name=names, back=st.integers(1, 9))
    def fork(self, name: str, back: int) -> None:
        live = self.s.led.voices[name].live
        if self._knows(name) and live:
            self.s.led.fork(name, live[-back - 1] if back < len(live) else 0)
            self._step(name)

    @rule(name=names)
    def leave_or_join(self, name: str) -> None:
        if name in self.s.stored and RESOURCE_THREAD in self.s.stored:
            (self.s.led.leave if self.s.led.shares(name) else self.s.led.join)(name)
            self._step(name)

    @rule(name=names)
    def refresh(self, name: str) -> None:
        self.runner.run(self.s.refresh(name))

    @rule(name=names)
    def forget(self, name: str) -> None:
        self.runner.run(self.s.forget(name))

    @precondition(lambda self: self.s.stale)
    @rule(number=st.integers(0, 9))
    def commit_too_late(self, number: int) -> None:
        self.runner.run(self.s.commit_too_late(number))

    def teardown(self) -> None:
        self.runner.run(self.s.compare())
        for memory in self.s.stored.values():
            if memory.key.thread != RESOURCE_THREAD:
                self.runner.run(self.s.store.forget(memory.key))
        assert (
            self.runner.run(self.s.store.load(resource_key(self.s.led.shared_log.key))).version == 0
        )
