"""Forgetting what nobody uses: what goes, what stays, and what a turn that comes meanwhile keeps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from om_proxy.agents.models import TokenCounter
from om_proxy.common.errors import Conflict, StorageError
from om_proxy.engine.background import retention
from om_proxy.engine.background.retention import (
    BATCH_THREADS,
    CLOCK_PAUSE_S,
    LEASE_S,
    RETENTION_KEY,
    WHOLE_WALK_INTERVAL_S,
    Retention,
)
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.turns.block_renderer import BlockRenderer
from om_proxy.engine.turns.engine import Engine
from om_proxy.memory.events.parts import Event
from om_proxy.memory.lifecycle.edits import undo_newest_change
from om_proxy.memory.model import Key, Memory, replace_log, resource_key
from om_proxy.memory.rounds import LookedUp, Round
from om_proxy.memory.transcript.reconcile import Hints
from om_proxy.observability.facts import LogRetired, Retired
from om_proxy.settings.identity.callers import Caller
from om_proxy.settings.identity.keyed_hashes import label_thread
from om_proxy.storage.base import Store
from om_proxy.storage.forwarding_store import ForwardingStore
from om_proxy.storage.sqlite.removal import MAX_BATCH_THREADS
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.values.changes import ForgetBatch
from om_proxy.storage.values.listing import IdleThread, ThreadPlace
from om_proxy.storage.values.records import ForgetResult
from om_proxy.wire.apis.api import Reply
from om_proxy.wire.apis.registry import CHAT
from tests.storage.memory_builder import MemoryBuilder
from tests.storage.records_contract import add_threads
from tests.support.performing import Parts, open_parts

DAY = 86_400.0
NOW = 1_800_000_000.0
RAW = b'{"role":"user","content":"old"}'
WEEK = "retention: {ttl_days: 7}"
BY_RESOURCE = """retention: {ttl_days: 7}
resources:
  "guest-*": {retention: {ttl_days: 1}}
  "archive": {retention: {ttl_days: null}}
"""


async def do_nothing(_: Key) -> None:
    pass


async def wait_for_nothing() -> None:
    pass


async def let_batch_go(_: int) -> None:
    pass


class WatchedStore(ForwardingStore):
    """A store with a clock that a test sets, which counts what is asked."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.now = NOW
        self.listed: list[int] = []
        self.forgotten: list[Key] = []
        self.after_listing: Callable[[], Awaitable[None]] = wait_for_nothing
        self.before_dropping: Callable[[], Awaitable[None]] = wait_for_nothing
        self.before_forgetting: Callable[[Key], Awaitable[None]] = do_nothing
        self.before_batch: Callable[[int], Awaitable[None]] = let_batch_go
        self.batches = 0

    @classmethod
    async def open(cls, path: str) -> WatchedStore:
        return cls(await SqliteStore.open(path))

    @property
    def inner(self) -> Store:
        return self._store

    async def clock(self) -> float:
        return self.now

    async def idle_threads(
        self, before: float, after: ThreadPlace | None = None, limit: int = 100
    ) -> tuple[IdleThread, ...]:
        page = await super().idle_threads(before, after, limit)
        self.listed.append(len(page))
        if page:
            await self.after_listing()
        return page

    async def forget(
        self,
        key: Key,
        expected_version: int | None = None,
        event: Event | None = None,
        *,
        defers_erasure: bool = False,
    ) -> ForgetResult:
        await self.before_forgetting(key)
        self.forgotten.append(key)
        return await super().forget(key, expected_version, event, defers_erasure=defers_erasure)

    async def forget_batch(
        self,
        tenant: str,
        resource: str | None = None,
        describe_forgotten: Callable[[Key], Event] | None = None,
        active_before: float | None = None,
    ) -> ForgetBatch:
        self.batches += 1
        await self.before_batch(self.batches)
        return await super().forget_batch(tenant, resource, describe_forgotten, active_before)

    async def drop_generations(
        self, key: Key, expected_version: int, numbers: Sequence[int]
    ) -> int:
        await self.before_dropping()
        return await super().drop_generations(key, expected_version, numbers)


class Run:
    """A store with threads, and what forgets them."""

    def __init__(self, parts: Parts, store: WatchedStore) -> None:
        self.parts, self.store = parts, store
        self.machine_now = 0.0
        self.audited: list[Key] = []
        self.facts: list[Retired] = []
        parts.memories.facts.subscribe(self.facts.append, Retired)
        self.retention = self.create_retention()

    @property
    def memories(self) -> Memories:
        return self.parts.memories

    def create_retention(self) -> Retention:
        return Retention(
            self.memories,
            self.parts.policies,
            self._record,
            machine_clock=lambda: self.machine_now,
        )

    async def _record(self, retired: Sequence[tuple[Key, Mapping[str, int]]]) -> None:
        self.audited += [key for key, _ in retired]

    def pass_time(self, seconds: float) -> None:
        self.machine_now += seconds
        self.store.now += seconds

    async def add(self, key: Key, age_days: float) -> Memory:
        memory = MemoryBuilder(key).chat(2).memory()
        tail = [replace(m, item=replace(m.item, raw=RAW)) for m in memory.tail]
        turn_at = self.store.now - age_days * DAY
        memory = replace(memory, tail=tuple(tail), turn_at=turn_at)
        return await self.store.commit(Memory(key=key), memory)

    async def share(self, resource: str, *ages_days: float) -> list[Key]:
        """Store threads that share a log."""
        keys = await add_threads(self.store, "s", resource, len(ages_days), RAW)
        for key, age_days in zip(keys, ages_days, strict=True):
            memory = await self.store.load(key)
            turn_at = self.store.now - age_days * DAY
            await self.store.commit(memory, replace(memory, turn_at=turn_at))
        return keys

    async def names(self) -> list[str]:
        return [info.key.thread for info in await self.store.threads(None, limit=1_000)]


@asynccontextmanager
async def open_run(settings: str = WEEK) -> AsyncIterator[Run]:
    async with open_parts(settings=settings, opener=WatchedStore) as parts:
        assert isinstance(parts.store, WatchedStore)
        parts.clock.now = NOW
        yield Run(parts, parts.store)


def key_of(name: str, resource: str = "r") -> Key:
    return Key("s", resource, name)


async def test_threads_go_by_their_age() -> None:
    """Those without a turn for as long as the setting says, of all tenants. The audit, a fact and
    an event tell each."""
    async with open_run() as run:
        for name, age_days in {"old": 7.1, "older": 70.0, "young": 6.9}.items():
            await run.add(key_of(name), age_days)
        await run.retention.run_once()
        assert await run.names() == ["young"]
        gone = [key_of("older"), key_of("old")]
        assert run.audited == gone
        assert [(fact.key, fact.why, fact.threads, fact.messages) for fact in run.facts] == [
            (key, "ttl", 1, 2) for key in gone
        ]
        events = (await run.store.events("s", None, None, 10)).events
        assert len(events) == len(gone)
        assert await run.store.lease(RETENTION_KEY, "another process", 1), "the lease is back"


async def test_threads_go_at_once_that_quote_each_other() -> None:
    """Forgetting the first takes what the second looked up in it, which is no use of the second."""
    async with open_run() as run:
        run.memories.label = partial(label_thread, await run.store.secret())
        older, old = key_of("older"), key_of("old")
        await run.add(older, 9.0)
        before = await run.add(old, 8.0)
        shown = run.memories.label(older)[:8].encode()
        quote = LookedUp((Round(b"call", (b"[" + shown + b".m1] old",)),))
        tail = (replace(before.tail[0], look_ups=quote), *before.tail[1:])
        await run.store.commit(before, replace(before, tail=tail))
        await run.retention.run_once()
        assert run.audited == [older, old]
        assert await run.names() == []


async def test_nothing_goes_by_default() -> None:
    async with open_run("") as run:
        await run.add(key_of("old"), 9_999)
        await run.retention.run_once()
        assert await run.names() == ["old"]
        assert not run.store.listed, "nobody looks either"


async def test_resource_may_have_a_lifetime_of_its_own() -> None:
    async with open_run(BY_RESOURCE) as run:
        for resource in ("guest-1", "r", "archive"):
            for age_days in (2.0, 9.0):
                await run.add(key_of(f"{resource} {age_days:.0f}", resource), age_days)
        await run.retention.run_once()
        assert sorted(await run.names()) == ["archive 2", "archive 9", "r 2"]


async def test_shared_log_goes_as_a_whole() -> None:
    """The newest turn of any of its threads keeps all of them. Then all go, and the log with
    them."""
    async with open_run() as run:
        keys = await run.share("r", 9.0, 6.9, 30.0)
        await run.retention.run_once()
        assert len(await run.names()) == len(keys)
        assert run.audited == []
        run.pass_time(DAY)
        await run.retention.run_once()
        assert await run.names() == []
        assert await run.store.version(resource_key(keys[0])) == 0
        assert run.audited == [resource_key(keys[0])]
        assert [(fact.key, fact.threads) for fact in run.facts] == [(resource_key(keys[0]), 3)]


async def test_work_under_way_is_waited_for() -> None:
    """A thread that a process works on stays until a later run."""
    async with open_run() as run:
        await run.add(key_of("t"), 8)
        [shared] = await run.share("shared", 8)
        for key in (key_of("t"), resource_key(shared)):
            assert await run.store.lease(key, "worker", 60)
        await run.retention.run_once()
        assert len(await run.names()) == 2
        for key in (key_of("t"), resource_key(shared)):
            await run.store.release(key, "worker")
        await run.retention.run_once()
        assert await run.names() == []


async def test_one_process_at_a_time() -> None:
    async with open_run() as run:
        await run.add(key_of("t"), 8)
        assert await run.store.lease(RETENTION_KEY, "another process", LEASE_S)
        await run.retention.run_once()
        assert await run.names() == ["t"]
        await run.store.release(RETENTION_KEY, "another process")
        await run.retention.run_once()
        assert await run.names() == []


async def test_each_thread_has_a_step_of_its_own() -> None:
    """However many are old: pages are short, and no step removes more than one thread. So nobody
    waits for longer than that takes."""
    async with open_run() as run:
        count = 2 * BATCH_THREADS + 7
        for number in range(count):
            await run.add(key_of(f"{number:03}"), 8 + number)
        await run.retention.run_once()
        assert run.store.listed == [BATCH_THREADS, BATCH_THREADS, 7, 0]
        assert sorted(run.store.forgotten) == [key_of(f"{number:03}") for number in range(count)]
        assert len(run.audited) == count


async def test_what_stays_is_not_looked_at_again() -> None:
    """A run begins where the one before ended; once a day, and with other settings, one looks at
    everything."""
    async with open_run(BY_RESOURCE) as run:
        for number in range(3):
            await run.add(key_of(str(number), "archive"), 8 + number)
        await run.retention.run_once()
        assert sum(run.store.listed) == 6, "for each of both lifetimes"
        run.store.listed.clear()
        run.pass_time(600)
        await run.retention.run_once()
        assert sum(run.store.listed) == 0
        run.pass_time(WHOLE_WALK_INTERVAL_S)
        await run.retention.run_once()
        assert sum(run.store.listed) == 6


@pytest.mark.parametrize("stop", [StorageError("cut"), asyncio.CancelledError()], ids=type)
async def test_a_run_that_is_cut_off_is_finished_by_the_next(stop: BaseException) -> None:
    """What went is in the audit. Another process goes on."""
    async with open_run() as run:
        for number in range(5):
            await run.add(key_of(str(number)), 20 - number)

        async def fail(key: Key) -> None:
            if key.thread == "2":
                raise stop

        run.store.before_forgetting = fail
        with pytest.raises(type(stop)):
            await run.retention.run_once()
        assert run.audited == [key_of("0"), key_of("1")]
        assert await run.names() == ["2", "3", "4"]
        run.store.before_forgetting = do_nothing
        await run.create_retention().run_once()
        assert await run.names() == []


@pytest.mark.parametrize(
    "stop", [Conflict("in use"), StorageError("cut"), asyncio.CancelledError()], ids=type
)
async def test_what_went_of_a_resource_is_told(stop: BaseException) -> None:
    """A resource goes in several transactions. If one of its threads is in use before the last, or
    the store fails, the audit and a fact tell what went."""
    async with open_run() as run:
        keys = await run.share("r", *(8.0 for _ in range(MAX_BATCH_THREADS + 2)))

        async def stop_second(number: int) -> None:
            if number == 2:
                raise stop

        run.store.before_batch = stop_second
        with nullcontext() if isinstance(stop, Conflict) else pytest.raises(type(stop)):
            await run.retention.run_once()
        gone = len(keys) - len(await run.names())
        assert 0 < gone < len(keys)
        assert run.audited == [resource_key(keys[0])]
        assert [fact.threads for fact in run.facts] == [gone]


async def test_process_that_is_killed_holds_the_others_up_for_its_lease_only() -> None:
    async with open_run() as run:
        await run.add(key_of("t"), 8)
        assert await run.store.lease(RETENTION_KEY, "killed", 0.0)
        await run.retention.run_once()
        assert await run.names() == []


@pytest.mark.parametrize("step_s", [9_999 * DAY, -2 * DAY])
async def test_clock_that_jumps_forgets_nothing(step_s: float) -> None:
    """For a day, and the log says why. Then the store's clock is believed."""
    async with open_run() as run:
        await run.retention.run_once()
        await run.add(key_of("t"), 6)
        run.machine_now += 600
        run.store.now += step_s
        with capture_logs() as lines:
            await run.retention.run_once()
        assert [line["event"] for line in lines] == ["retention.clock_jumped"]
        await run.retention.run_once()
        assert await run.names() == ["t"]
        run.pass_time(CLOCK_PAUSE_S)
        await run.retention.run_once()
        assert await run.names() == ([] if step_s > 0 else ["t"])


# ── turns that come meanwhile ──


class Client:
    """A client that sends its newest message only."""

    def __init__(self, run: Run) -> None:
        parts = run.parts
        self.parts = parts
        self.engine = Engine(
            parts.memories,
            parts.background,
            BlockRenderer(),
            TokenCounter(),
            b"s" * 32,
            clock=parts.clock,
        )

    async def open(self, key: Key) -> Callable[[], Awaitable[object]]:
        """Begin a turn. Return what ends it."""
        message = {"role": "user", "content": "do not lose this"}
        request = CHAT.parse_request(orjson.dumps({"model": "actor", "messages": [message]}))
        turn = await self.engine.open_turn(
            Caller(key, key.tenant), request, self.parts.context(), Hints()
        )
        reply = Reply(orjson.dumps({"role": "assistant", "content": "kept"}), complete=True)
        return lambda: self.engine.close_turn(turn, reply)


async def read_texts(run: Run, key: Key) -> bytes:
    return b" ".join(message.item.raw for message in (await run.store.load(key)).tail)


async def test_turn_under_way_keeps_its_thread() -> None:
    """Its request came while the thread was old, and its reply ends after the run."""
    async with open_run() as run:
        await run.add(key_of("t"), 8)
        end_turn = await Client(run).open(key_of("t"))
        await run.retention.run_once()
        assert await run.names() == ["t"]
        await end_turn()
        texts = await read_texts(run, key_of("t"))
        assert b"do not lose this" in texts
        assert len((await run.store.load(key_of("t"))).tail) == 4


async def test_turn_that_ends_after_its_thread_went_old_keeps_it() -> None:
    async with open_run() as run:
        await run.add(key_of("t"), 6.9)
        end_turn = await Client(run).open(key_of("t"))
        run.pass_time(0.2 * DAY)
        await run.retention.run_once()
        await end_turn()
        assert b"do not lose this" in await read_texts(run, key_of("t"))


async def test_turn_that_comes_between_looking_and_forgetting_wins() -> None:
    async with open_run() as run:
        await run.add(key_of("t"), 8)
        client = Client(run)
        turns: list[Callable[[], Awaitable[object]]] = []

        async def begin_turn() -> None:
            run.store.after_listing = wait_for_nothing
            turns.append(await client.open(key_of("t")))

        run.store.after_listing = begin_turn
        await run.retention.run_once()
        assert (await run.names(), run.audited) == (["t"], [])
        await turns[0]()
        assert b"do not lose this" in await read_texts(run, key_of("t"))


async def test_turn_whose_thread_goes_while_it_begins_starts_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread was loaded, and is gone before the turn could keep it."""
    async with open_run() as run:
        await run.add(key_of("t"), 8)
        update = run.memories.update

        async def forget_first(*arguments: Any, **more: Any) -> Memory:
            monkeypatch.setattr(run.memories, "update", update)
            await run.retention.run_once()
            return await update(*arguments, **more)

        monkeypatch.setattr(run.memories, "update", forget_first)
        end_turn = await Client(run).open(key_of("t"))
        assert await run.names() == []
        await end_turn()
        assert b"do not lose this" in await read_texts(run, key_of("t"))
        assert len((await run.store.load(key_of("t"))).tail) == 2


async def test_turn_under_way_keeps_its_whole_resource() -> None:
    async with open_run(f"memory: {{scope: resource}}\n{WEEK}") as run:
        keys = await run.share("r", 8, 9)
        end_turn = await Client(run).open(keys[1])
        await run.retention.run_once()
        assert len(await run.names()) == 2
        await end_turn()
        assert b"do not lose this" in await read_texts(run, keys[1])


async def test_first_turn_of_a_thread_under_way_starts_it_after_its_resource_went() -> None:
    async with open_run(f"memory: {{scope: resource}}\n{WEEK}") as run:
        await run.share("r", 8, 9)
        new = key_of("new")
        end_turn = await Client(run).open(new)
        await run.retention.run_once()
        assert await run.names() == []
        await end_turn()
        assert await run.names() == ["new"]
        assert b"do not lose this" in await read_texts(run, new)


async def test_turn_on_a_young_thread_writes_nothing_at_its_beginning() -> None:
    async with open_run() as run:
        before = await run.add(key_of("t"), 6)
        await Client(run).open(key_of("t"))
        assert await run.store.load(key_of("t")) == before


# ── older generations ──


async def condense(run: Run, key: Key, times: int) -> Memory:
    """Store a thread whose log has been condensed so often, each time all of it."""
    thread = MemoryBuilder(key).chat(2 + 2 * times)
    memory = await run.store.commit(Memory(key=key), replace(thread.memory(), turn_at=NOW - 5))
    memory = await run.store.commit(memory, replace(thread.cover(2).memory(), turn_at=NOW - 5))
    for _ in range(times):
        covered = replace(thread.cover(2).memory(), turn_at=NOW - 5)
        memory = await run.store.commit(memory, covered)
        sources = tuple(entry.id for entry in covered.log.entries)
        swapped = replace(thread.swap_reflection().memory(), turn_at=NOW - 5)
        [made] = swapped.log.entries
        thread.log = (replace(made, sources=sources),)
        memory = await run.store.commit(memory, replace_log(swapped, entries=thread.log))
    return memory


async def list_numbers(run: Run, memory: Memory) -> list[int]:
    found = await run.store.generations(memory.key, memory.log.generation)
    return [one.number for one in found]


async def test_older_generations_go() -> None:
    """Over all logs of a resource, also of its other threads; what the newest reflection was made
    from stays, so that a person can undo it. Each counts."""
    yaml = "resources: {r: {retention: {max_reflections: 3}}}"
    async with open_run(yaml) as run:
        told: list[LogRetired] = []
        run.memories.facts.subscribe(told.append, LogRetired)
        first = await condense(run, key_of("a"), 4)
        second = await condense(run, key_of("b"), 3)
        other = await condense(run, key_of("c", "other"), 4)
        await run.retention.run_once()
        kept = [await list_numbers(run, first), await list_numbers(run, second)]
        assert sum(map(len, kept)) == 3
        for memory in (first, second):
            older = await run.store.generations(memory.key, memory.log.generation)
            assert undo_newest_change(memory, older, NOW) is not None
        assert sum(fact.count for fact in told) == 4
        assert {fact.why for fact in told} == {"max_reflections"}
        assert await list_numbers(run, other) == [3, 2, 1, 0]
        assert await run.store.load(first.key) == first
        told.clear()
        run.pass_time(WHOLE_WALK_INTERVAL_S)
        await run.retention.run_once()
        assert told == []


async def test_each_tenant_has_a_number_of_its_own() -> None:
    """A resource of another tenant with the same name has its own."""
    async with open_run("retention: {max_reflections: 2}") as run:
        mine = await condense(run, Key("s", "r", "a"), 2)
        other = await condense(run, Key("z", "r", "b"), 2)
        await run.retention.run_once()
        assert await list_numbers(run, mine) == await list_numbers(run, other) == [1, 0]


async def test_generations_of_an_idle_log_go() -> None:
    """`retention.generations` was lowered since its last one began."""
    async with open_run("retention: {max_reflections: 1000}") as run:
        memory = await condense(run, key_of("a"), 4)
        retention = Retention(
            run.memories, run.parts.policies, run._record, lambda: False, lambda: 0.0, 2
        )
        await retention.run_once()
        assert await list_numbers(run, memory) == [3, 2]


async def test_log_that_changes_meanwhile_waits() -> None:
    """An undo that came first may need them; the next run finds them. Between runs, only who was
    active is looked at."""
    async with open_run("retention: {max_reflections: 1}") as run:
        memory = await condense(run, key_of("a"), 4)
        changes: list[Memory] = []

        async def change() -> None:
            if not changes:
                changes.append(memory)
                changes.append(await run.store.commit(memory, replace(memory, title="new")))

        run.store.before_dropping = change
        await run.retention.run_once()
        assert await list_numbers(run, memory) == [3, 2, 1, 0]
        await run.retention.run_once()
        assert await list_numbers(run, memory) == [3, 2, 1, 0], "nobody was active"
        run.pass_time(WHOLE_WALK_INTERVAL_S)
        await run.retention.run_once()
        assert await list_numbers(run, memory) == [3]


async def test_a_run_pauses_for_longer_than_it_worked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns have the store for three quarters of the time, however long each step takes."""
    now_s, slept_s = 0.0, []

    async def sleep(seconds: float) -> None:
        nonlocal now_s
        slept_s.append(seconds)
        now_s += seconds

    monkeypatch.setattr(retention, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(retention, "loop_time", lambda: now_s)
    pauses = retention._Pauses()
    for work_s in (0.04, 0.02, 0.5):
        now_s += work_s
        await pauses.rest_after_slice()
    assert slept_s == pytest.approx([0.18, 1.5])
