"""What every store promises about events. `StoreContract` inherits it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from om_proxy.common.errors import Conflict
from om_proxy.memory.events.parts import (
    Activation,
    BufferingEnd,
    BufferingStart,
    Event,
    Forgotten,
    MarkerConfig,
    ObservationEnd,
    ThreadUpdate,
)
from om_proxy.memory.model import Key, Memory, resource_key
from om_proxy.settings.identity.keyed_hashes import label_thread
from om_proxy.storage.base import Store
from om_proxy.storage.shared.event_encoding import remove_texts
from om_proxy.storage.values.changes import Change, NoteErasure
from om_proxy.storage.values.records import (
    MAX_EVENT_AGE_S,
    MAX_EVENTS,
    ForgetResult,
    StoredEvent,
    WebhookState,
)
from tests.storage.memory_builder import KEY, MemoryBuilder

OTHER_TENANT_KEY = Key("other tenant", KEY.resource, KEY.thread)
ODD_TEXTS = {
    "nul": "a\0b",
    "lone surrogate": "a\ud800b",
    "two halves": "\ud83d\ude00",
    "emoji": "🔴 – ✅",
    "empty": "",
}
NOW = 1_000_000.0
TITLE = Event(
    NOW,
    ThreadUpdate(record_id="", thread_id="", cycle_id="title", new_title="t", timestamp=""),
)


def moved_fingerprint(raw: bytes, api: str) -> bytes:
    """Return the fingerprint of a message under another tenant."""
    return hashlib.blake2b(raw, key=b"moved", digest_size=16).digest()


def activation(cycle: str, text: str = "* noted", record: str = "label.g0") -> Event:
    part = Activation(
        record_id=record,
        thread_id="thread",
        cycle_id=cycle,
        operation_type="observation",
        activated_at="now",
        chunks_activated=1,
        tokens_activated=1,
        observation_tokens=1,
        messages_activated=1,
        generation_count=0,
        observations=text,
        config=MarkerConfig(1, 1, "thread"),
    )
    return Event(NOW, part)


def started(cycle: str, threads: tuple[str, ...]) -> Event:
    """Return the start of a call that reads these threads."""
    part = BufferingStart(
        record_id="label.g0",
        thread_id="",
        cycle_id=cycle,
        operation_type="observation",
        started_at="now",
        tokens_to_buffer=1,
        thread_ids=threads,
        config=MarkerConfig(1, 1, "resource"),
    )
    return Event(NOW, part)


async def commit(store: Store, before: Memory, after: Memory, events: Sequence[Event]) -> Memory:
    return await store.commit(before, after, (), events)


class EventContract:
    durable: bool

    async def test_events_are_stored_with_their_commit(
        self, store: Store, another: Callable[[], Awaitable[Store]]
    ) -> None:
        """Events of a commit are there after it, in order, and nothing of them before."""
        thread = MemoryBuilder()
        thread.chat(2)
        before = await commit(store, Memory(key=KEY), thread.memory(), [activation("one")])
        await commit(store, before, replace(before, turns=1), [activation("two"), TITLE])
        page = await store.events(None, None, None, 100)
        assert [e.type for e in page.events] == [*["data-om-activation"] * 2, TITLE.part.TYPE]
        assert [json.loads(e.data).get("cycleId") for e in page.events] == ["one", "two", "title"]
        assert all(e.key == KEY and e.at == NOW for e in page.events)
        ids = [e.id for e in page.events]
        assert ids == sorted(set(ids))
        assert page.cursor == ids[-1] == await store.event_position()
        assert not page.has_gap
        if self.durable:
            assert await (await another()).events(None, None, None, 100) == page

    async def test_a_commit_that_conflicts_has_no_events(self, store: Store) -> None:
        """A commit that does not happen tells nothing, alone or with a shared log."""
        first = await commit(store, Memory(key=KEY), MemoryBuilder().chat(2).memory(), [])
        await commit(store, first, replace(first, turns=1), [])
        with pytest.raises(Conflict):
            await commit(store, first, replace(first, turns=2), [activation("lost")])
        shared_log = Memory(key=resource_key(KEY))
        with pytest.raises(Conflict):
            await store.commit_shared(
                Change(first, replace(first, turns=2), (), [activation("lost")]),
                Change(shared_log, shared_log, (), [activation("lost too")]),
            )
        assert (await store.events(None, None, None, 100)).events == ()

    async def test_events_of_a_thread_and_its_shared_log(self, store: Store) -> None:
        """Each of the two has its own events, and both are stored by the one commit."""
        thread = replace(MemoryBuilder().chat(2).memory(), scope="resource")
        shared_log = Memory(key=resource_key(KEY))
        await store.commit_shared(
            Change(Memory(key=KEY), thread, (), [activation("thread")]),
            Change(shared_log, shared_log, (), [activation("log")]),
        )
        page = await store.events(None, None, None, 100)
        told = {json.loads(e.data)["cycleId"]: e.key for e in page.events}
        assert told == {"thread": KEY, "log": resource_key(KEY)}

    async def test_events_of_their_own(self, store: Store) -> None:
        """An event without a commit changes no version, and needs a stored thread."""
        await store.add_events(KEY, [activation("unknown")])
        first = await commit(store, Memory(key=KEY), MemoryBuilder().chat(2).memory(), [])
        await store.add_events(KEY, [activation("start")])
        page = await store.events(None, None, None, 100)
        assert [json.loads(e.data)["cycleId"] for e in page.events] == ["start"]
        assert await store.version(KEY) == first.version

    @pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS.keys())
    async def test_odd_text_survives_in_an_event(self, store: Store, text: str) -> None:
        """The JSON of an event is ASCII without a line break, whatever was said."""
        event = activation("odd", text + "\r\n\u2028")
        await commit(store, Memory(key=KEY), MemoryBuilder().chat(2).memory(), [event])
        [stored] = (await store.events(None, None, None, 100)).events
        assert stored.data.isascii()
        assert not set(stored.data) & {"\n", "\r"}
        said = json.loads(stored.data)["observations"].encode("utf-16", "surrogatepass")
        assert said == (text + "\r\n\u2028").encode("utf-16", "surrogatepass")

    async def test_events_page_by_page(self, store: Store) -> None:
        """Pages of any size give every event once; the cursor of the last one stays."""
        first = await commit(store, Memory(key=KEY), MemoryBuilder().chat(2).memory(), [])
        for number in range(7):
            await store.add_events(KEY, [activation(str(number))])
        for size in (1, 2, 3, 7, 8):
            told, cursor = [], None
            while (page := await store.events(None, None, cursor, size)).events:
                told += [json.loads(e.data)["cycleId"] for e in page.events]
                cursor = page.cursor
            assert told == [str(number) for number in range(7)]
            assert page.cursor == await store.event_position()
        assert first.version

    async def test_place_before_the_newest_events(self, store: Store) -> None:
        """So many events come after it, or all that there are. Ids need not be without gaps."""
        assert await store.event_position(3) == 0
        await commit(store, Memory(key=KEY), MemoryBuilder().chat(2).memory(), [activation("0")])
        for number in range(1, 7):
            await store.add_events(KEY, [activation(str(number))])
        for count in (0, 1, 3, 6, 7, 99):
            page = await store.events(None, None, await store.event_position(count), 99)
            told = [json.loads(e.data)["cycleId"] for e in page.events]
            assert told == [str(number) for number in range(7)][max(0, 7 - count) :]
            assert not page.has_gap

    async def test_events_of_tenants_and_threads(self, store: Store) -> None:
        """A tenant reads its own events, whatever names the other one uses."""
        for key in (KEY, OTHER_TENANT_KEY, KEY._replace(thread="second")):
            await commit(
                store, Memory(key=key), MemoryBuilder(key).chat(2).memory(), [activation("made")]
            )
        assert {e.key for e in (await store.events(None, None, None, 9)).events} == {
            KEY,
            OTHER_TENANT_KEY,
            KEY._replace(thread="second"),
        }
        own = (await store.events(OTHER_TENANT_KEY.tenant, None, None, 9)).events
        assert [e.key for e in own] == [OTHER_TENANT_KEY]
        assert [e.key for e in (await store.events(None, [KEY], None, 9)).events] == [KEY]
        assert (await store.events(OTHER_TENANT_KEY.tenant, [KEY], None, 9)).events == ()
        assert (await store.events(KEY.tenant, [], None, 9)).events == ()
        page = await store.events(OTHER_TENANT_KEY.tenant, None, own[0].id, 9)
        assert page.events == ()
        assert page.cursor == await store.event_position()

    async def test_a_cursor_of_what_is_gone(self, store: Store) -> None:
        """A cursor before what was pruned, or beyond what there ever was, is told of the gap and
        goes on with the oldest that is kept."""
        await commit(store, Memory(key=KEY), MemoryBuilder().chat(2).memory(), [])
        old = activation("old")._replace(at=NOW - MAX_EVENT_AGE_S - 1)
        await store.add_events(KEY, [old])
        [kept] = (await store.events(None, None, None, 9)).events
        await store.add_events(KEY, [activation("new")])
        await store.prune(NOW)
        page = await store.events(None, None, 0, 9)
        assert [json.loads(e.data)["cycleId"] for e in page.events] == ["new"]
        assert page.has_gap
        assert not (await store.events(None, None, None, 9)).has_gap
        assert not (await store.events(None, None, kept.id, 9)).has_gap
        beyond = await store.events(None, None, page.cursor + 1, 9)
        assert (beyond.events, beyond.has_gap) == (page.events, True)

    async def test_events_are_pruned_by_age(self, store: Store) -> None:
        """Nothing has to be written for old events to go."""
        first = await commit(store, Memory(key=KEY), MemoryBuilder().chat(2).memory(), [])
        await store.add_events(KEY, [activation("kept")])
        await store.prune(NOW + MAX_EVENT_AGE_S)
        assert len((await store.events(None, None, None, 9)).events) == 1
        await store.prune(NOW + MAX_EVENT_AGE_S + 1)
        page = await store.events(None, None, 0, 9)
        assert (page.events, page.has_gap) == ((), True)
        assert page.cursor == await store.event_position() > 0
        assert await store.version(KEY) == first.version

    async def test_a_later_event_removes_none_by_age(self, store: Store) -> None:
        """Another process may write with a clock that is far ahead: a command beside a kept demo, or
        a machine whose clock is wrong. What it writes removes no event of the others."""
        await commit(store, Memory(key=KEY), MemoryBuilder().chat(2).memory(), [])
        await store.add_events(KEY, [activation("story")])
        ahead = activation("ahead")._replace(at=NOW + 100 * MAX_EVENT_AGE_S)
        await store.add_events(KEY, [ahead])
        await store.add_events(KEY, [activation("story goes on")])
        await store.prune(NOW)
        page = await store.events(None, None, 0, 9)
        told = [json.loads(event.data)["cycleId"] for event in page.events]
        assert (told, page.has_gap) == (["story", "ahead", "story goes on"], False)

    async def test_events_are_pruned_by_number(self, store: Store) -> None:
        """The newest MAX_EVENTS stay."""
        await commit(store, Memory(key=KEY), MemoryBuilder().chat(2).memory(), [])
        await store.add_events(KEY, [activation(str(n)) for n in range(MAX_EVENTS + 2)])
        page = await store.events(None, None, None, MAX_EVENTS + 2)
        assert len(page.events) == MAX_EVENTS
        assert json.loads(page.events[0].data)["cycleId"] == "2"

    async def test_events_of_tenants_go_with_their_thread(self, store: Store) -> None:
        """Of a forgotten thread one event stays: it names no thread. The events of the log that it
        shared go too, for they may hold its words."""
        thread = replace(MemoryBuilder().chat(2).memory(), scope="resource")
        shared_log, second = Memory(key=resource_key(KEY)), KEY._replace(thread="second")
        await store.commit_shared(
            Change(Memory(key=KEY), thread, (), [activation("thread")]),
            Change(shared_log, shared_log, (), [activation("log")]),
        )
        await commit(
            store,
            Memory(key=second),
            MemoryBuilder(second).chat(2).memory(),
            [activation("stays")],
        )
        # another tenant's resource of the same name
        memory = MemoryBuilder(OTHER_TENANT_KEY).chat(2).memory()
        await commit(store, Memory(key=OTHER_TENANT_KEY), memory, [activation("their")])
        gone = Event(NOW, Forgotten(label="f" * 16, forgotten_at="now"))
        position = await store.event_position()
        assert (await store.forget(KEY, None, gone)).events == 2
        page = await store.events(KEY.tenant, None, position, 9)
        assert [(e.key, e.type) for e in page.events] == [
            (Key(KEY.tenant, "", ""), "data-om-forgotten")
        ]
        assert not page.has_gap
        left = (await store.events(None, None, None, 9)).events
        assert [e.key for e in left] == [second, OTHER_TENANT_KEY, Key(KEY.tenant, "", "")]
        await store.forget(KEY, None, gone)
        assert len((await store.events(None, None, None, 9)).events) == 3
        await store.forget(second)
        assert len((await store.events(None, None, None, 9)).events) == 2

    async def test_events_of_a_log_outlive_one_of_its_threads(self, store: Store) -> None:
        """They keep their places, without texts and without its name. What tells of a call that
        read this thread alone goes."""
        second = KEY._replace(thread="second")
        log = resource_key(KEY)
        both, own = (KEY.thread, "second"), (KEY.thread,)
        for key, thread_events, log_events in (
            (KEY, [activation("thread")], [started("own", own), activation("own")]),
            (second, [activation("second")], [started("both", both), activation("both")]),
        ):
            thread = replace(MemoryBuilder(key).chat(2).memory(), scope="resource")
            shared_log = await store.load(log)
            await store.commit_shared(
                Change(Memory(key=key), thread, (), thread_events),
                Change(shared_log, replace(shared_log, turns=shared_log.turns + 1), (), log_events),
            )
        before: tuple[StoredEvent, ...] = ()
        async with asyncio.timeout(60):
            while len(before) < 6:  # a PostgreSQL holds them back while anybody else writes
                before = (await store.events(None, None, None, 9)).events
        assert len(before) == 6
        gone = Event(NOW, Forgotten(label="f" * 16, forgotten_at="now"))
        # two of the shared log's went, and two only lost their texts
        assert (await store.forget(KEY, None, gone)).events == 3
        page = await store.events(None, None, before[0].id - 1, 9)
        assert not page.has_gap
        *left, _ = page.events
        assert sorted(e.key for e in left) == sorted([second, log, log])
        assert {e.id for e in left} < {e.id for e in before}
        told = {e.type: json.loads(e.data) for e in left if e.key == log}
        start, end = told[BufferingStart.TYPE], told[Activation.TYPE]
        assert (start["cycleId"], start["threadIds"]) == ("both", ["second"])
        assert (end["cycleId"], end["observations"]) == ("both", None)
        [own_event] = [json.loads(e.data) for e in left if e.key == second]
        assert own_event["observations"] == "* noted"
        await store.forget(second)
        assert len((await store.events(None, None, None, 9)).events) == 1

    @pytest.mark.parametrize("resource", [None, KEY.resource], ids=["tenant", "resource"])
    async def test_events_go_with_their_resource_and_tenant(
        self, store: Store, resource: str | None
    ) -> None:
        """What tells of forgotten threads stays, one event a thread: it holds no name."""

        def describe_forgotten(key: Key) -> Event:
            return Event(NOW, Forgotten(label=f"label of {key.thread}", forgotten_at="now"))

        same_resource = KEY._replace(tenant=OTHER_TENANT_KEY.tenant)
        for key in (KEY, same_resource, KEY._replace(thread="second")):
            memory = MemoryBuilder(key).chat(2).memory()
            await commit(store, Memory(key=key), memory, [activation("made")])
        await store.forget(KEY, None, describe_forgotten(KEY))
        for count in (1, 0):  # the second time, nothing is there
            is_last, result = False, ForgetResult()
            while not is_last:
                batch = await store.forget_batch(KEY.tenant, resource, describe_forgotten)
                is_last, result = batch.is_last, result.add(batch.result)
            assert result.events == count
        left = (await store.events(None, None, None, 9)).events
        assert [e.key for e in left] == [same_resource, *[Key(KEY.tenant, "", "")] * 2]
        labels = [json.loads(e.data)["label"] for e in left[1:]]
        assert labels == [f"label of {KEY.thread}", "label of second"]

    @pytest.mark.parametrize("is_shared", [False, True], ids=["own log", "shared log"])
    async def test_events_of_erased_notes_lose_their_texts(
        self, store: Store, is_shared: bool
    ) -> None:
        """An event may hold the words that are erased; those of other resources keep theirs, and so
        does what tells of the erasure. Every event keeps its place."""
        other = Key(KEY.tenant, "another resource", KEY.thread)
        log = resource_key(KEY) if is_shared else KEY
        for key in {KEY, OTHER_TENANT_KEY, other, log}:
            memory = MemoryBuilder(key).chat(2).memory()
            await commit(store, Memory(key=key), memory, [activation("made")])
        memory = await store.load(log)
        change = Change(memory, replace(memory, turns=9), events=[activation("after")])
        before = (await store.events(None, None, None, 9)).events
        await store.commit_erasing(change, [NoteErasure(log, memory.version, [])])
        page = await store.events(None, None, before[0].id - 1, 9)
        assert not page.has_gap
        *events, newest = page.events
        assert (newest.key, "after" in newest.data) == (log, True)
        assert {e.key for e in events if "noted" in e.data} == {OTHER_TENANT_KEY, other}
        assert events == [
            e
            if e.key in {OTHER_TENANT_KEY, other}
            else e._replace(data=remove_texts(e.type, e.data))
            for e in before
        ]

    async def test_texts_of_every_type_are_erased(self, store: Store) -> None:
        """Whatever they hold. All other fields stay as they were written, to the byte."""
        texts = [*ODD_TEXTS.values(), '","observations":"x', '{"currentTask":"x"}', "\\\\", '"']
        fields = {"record_id": "r", "thread_id": "t", "operation_type": "observation"}
        events = [TITLE, started("\ud800", ("thread", '"', "\0")), *map(activation, texts)]
        for text in texts:
            ended: dict[str, Any] = {
                **fields,
                "cycle_id": text,
                "completed_at": "now",
                "duration_ms": 1,
                "observations": text,
                "current_task": text or None,
            }
            buffered = BufferingEnd(tokens_buffered=1, buffered_tokens=1, **ended)
            observed = ObservationEnd(tokens_observed=1, observation_tokens=1, **ended)
            title = ThreadUpdate(
                record_id="",
                thread_id="",
                cycle_id=text,
                new_title=None,
                old_title=text,
                timestamp="",
            )
            events += [Event(NOW, part) for part in (buffered, observed, title)]
            events.append(activation("c", text))
        memory = await commit(store, Memory(key=KEY), MemoryBuilder().chat(2).memory(), events)
        before = (await store.events(None, None, None, 99)).events
        assert len(before) == len(events)
        for _ in range(2):  # the second time, nothing is left to do
            change = Change(memory, replace(memory, turns=memory.turns + 1))
            erasure = NoteErasure(KEY, memory.version, [])
            memory, _ = await store.commit_erasing(change, [erasure])
            assert (await store.events(None, None, None, 99)).events == tuple(
                e._replace(data=remove_texts(e.type, e.data)) for e in before
            )

    async def test_webhooks_keep_their_place(self, store: Store) -> None:
        """Each has its own; a later state replaces it."""
        assert await store.webhook_state("one") is None
        await store.set_webhook_state("one", WebhookState(1, 0, "", 1.0))
        await store.set_webhook_state("two", WebhookState(5, 0, "", 1.0))
        await store.set_webhook_state("one", WebhookState(2, 3, "timeout", 2.0))
        assert await store.webhook_state("one") == WebhookState(2, 3, "timeout", 2.0)
        assert await store.webhook_state("two") == WebhookState(5, 0, "", 1.0)

    async def test_webhooks_never_go_back(self, store: Store) -> None:
        """A sender that stood still writes its old place late: nothing of it is recorded."""
        await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
        await store.add_events(KEY, [activation(str(number)) for number in range(5)])
        newest = await store.event_position()
        state = WebhookState(newest, 0, "", 2.0)
        await store.set_webhook_state("one", state)
        await store.set_webhook_state("one", WebhookState(newest - 1, 1, "timeout", 3.0))
        assert await store.webhook_state("one") == state
        failed = WebhookState(newest, 1, "timeout", 4.0)
        await store.set_webhook_state("one", failed)
        assert await store.webhook_state("one") == failed

    async def test_webhooks_come_back_from_a_place_that_no_event_has(self, store: Store) -> None:
        """A place of another database, written while the databases changed, can be left."""
        await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
        await store.add_events(KEY, [activation("one")])
        newest = await store.event_position()
        await store.set_webhook_state("one", WebhookState(newest + 900, 0, "", 1.0))
        state = WebhookState(newest, 0, "", 2.0)
        await store.set_webhook_state("one", state)
        assert await store.webhook_state("one") == state

    async def test_events_move_with_their_tenant(self, store: Store) -> None:
        """Moved events are the new tenant's, and call threads and logs by its labels."""
        secret = await store.secret()
        new = KEY._replace(tenant="new")
        thread = replace(MemoryBuilder().chat(2).memory(), scope="resource")
        shared_log = Memory(key=resource_key(KEY))
        third = KEY._replace(thread="third")
        await commit(store, Memory(key=third), MemoryBuilder(third).chat(2).memory(), [])
        await store.forget(third, None, Event(NOW, Forgotten(label="f" * 16, forgotten_at="now")))
        labels = [label_thread(secret, key) for key in (KEY, resource_key(KEY))]
        await store.commit_shared(
            Change(Memory(key=KEY), thread, (), [activation("thread", record=labels[0] + ".g0")]),
            Change(shared_log, shared_log, (), [activation("log", record=labels[1] + ".g0")]),
        )
        await commit(
            store,
            Memory(key=OTHER_TENANT_KEY),
            MemoryBuilder(OTHER_TENANT_KEY).chat(2).memory(),
            [activation("their")],
        )
        other_third = OTHER_TENANT_KEY._replace(thread="third")
        memory = MemoryBuilder(other_third).chat(2).memory()
        await commit(store, Memory(key=other_third), memory, [])
        gone = Event(NOW, Forgotten(label="e" * 16, forgotten_at="now"))
        await store.forget(other_third, None, gone)
        await store.move_tenant(KEY.tenant, "new", moved_fingerprint)
        assert (await store.events(KEY.tenant, None, None, 9)).events == ()
        moved = (await store.events("new", None, None, 9)).events
        assert {e.key for e in moved} == {new, resource_key(new), Key("new", "", "")}
        records = {e.key: json.loads(e.data).get("recordId") for e in moved}
        for key in (new, resource_key(new)):
            assert records[key] == label_thread(secret, key) + ".g0"
        left = (await store.events(OTHER_TENANT_KEY.tenant, None, None, 9)).events
        assert [e.key for e in left] == [OTHER_TENANT_KEY, Key(OTHER_TENANT_KEY.tenant, "", "")]
