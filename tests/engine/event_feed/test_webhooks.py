"""Events to webhooks: in order, none lost while the receiver is away, none twice, one sender."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from om_proxy.common.errors import StorageError
from om_proxy.engine.event_feed import webhooks as webhooks_module
from om_proxy.engine.event_feed.envelope import compute_pause_s, name_hook
from om_proxy.engine.event_feed.webhooks import (
    CHECK_INTERVAL_S,
    LEASE_S,
    REQUEST_TIMEOUT_S,
    HttpPost,
    Webhooks,
)
from om_proxy.memory.model import Key, Memory
from om_proxy.settings.config import WebhookSettings
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.values.records import MAX_EVENT_AGE_S, EventPage
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.wire.upstream import AiohttpTransport
from tests.storage.event_contract import NOW, TITLE, activation
from tests.storage.memory_builder import KEY, MemoryBuilder

URL = "http://127.0.0.1/hook?key=canary"
NAME = name_hook(URL)
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "om.db")
    await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    yield store
    await store.close()


def make_hook(**more: Any) -> WebhookSettings:
    return WebhookSettings.model_validate({"url": URL, "secret": SECRET, **more})


class Receiver:
    """A receiver on a clock that a test moves: away until `back_at`."""

    def __init__(self) -> None:
        self.now = NOW
        self.back_at = NOW
        self.answer: Callable[[], int] = lambda: 200
        self.taken: list[dict[str, Any]] = []
        self.attempts = 0

    async def post(self, url: str, body: bytes, headers: dict[str, str]) -> int:
        assert url == URL
        self.attempts += 1
        if self.now < self.back_at:
            raise ConnectionRefusedError
        status = self.answer()
        if 200 <= status < 300:
            self.taken.append(json.loads(body))
            assert headers["webhook-id"] == self.taken[-1]["id"]
        return status

    @property
    def cycles(self) -> list[str]:
        return [event["data"]["cycleId"] for event in self.taken]

    def open(self, store: Any, **more: Any) -> Webhooks:
        return Webhooks(store, list, self.post, clock=lambda: self.now, jitter=lambda: 0.0, **more)


async def send_for(receiver: Receiver, hooks: Webhooks, seconds: float, **more: Any) -> None:
    """Let the time pass in which the sender tries, as its pauses have it."""
    until = receiver.now + seconds
    while receiver.now < until:
        receiver.now += max(await hooks.send_page(make_hook(**more), NAME), 0.01)


async def test_ten_minutes_away(store: SqliteStore) -> None:
    """All events of that time come once it is back: each once, in order, and soon."""
    receiver = Receiver()
    hooks = receiver.open(store)
    await hooks.send_page(make_hook(), NAME)
    receiver.back_at = receiver.now + 600
    for number in range(250):
        await store.add_events(KEY, [activation(str(number))])
        if not number % 50:
            await send_for(receiver, hooks, 60)
    await send_for(receiver, hooks, receiver.back_at - receiver.now)
    assert receiver.taken == []
    assert receiver.attempts < 50
    await send_for(receiver, hooks, 80)
    assert receiver.cycles == [str(number) for number in range(250)]


async def test_a_new_hook_gets_what_happens_from_now_on(store: SqliteStore) -> None:
    await store.add_events(KEY, [activation("before")])
    receiver = Receiver()
    hooks = receiver.open(store)
    await hooks.send_page(make_hook(), NAME)
    await store.add_events(KEY, [activation("after")])
    await hooks.send_page(make_hook(), NAME)
    assert receiver.cycles == ["after"]
    assert receiver.taken[0]["data"]["observations"] is None


async def test_another_process_goes_on_from_there(store: SqliteStore) -> None:
    """The place is stored after each event: nothing is sent again that was taken."""
    receiver = Receiver()
    hooks = receiver.open(store)
    await hooks.send_page(make_hook(), NAME)
    await store.add_events(KEY, [activation(str(n)) for n in range(5)])
    statuses = iter([200, 200, 500])
    receiver.answer = lambda: next(statuses)
    await hooks.send_page(make_hook(), NAME)
    assert receiver.cycles == ["0", "1"]
    state = await store.webhook_state(NAME)
    assert state is not None
    assert (state.failures, state.cause) == (1, "status 500")
    receiver.answer = lambda: 200
    await store.release(Key("", "webhook", NAME), hooks._holder)  # it ends
    await receiver.open(store).send_page(make_hook(), NAME)
    assert receiver.cycles == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("status", [199, 301, 307, 400, 404, 410, 500])
async def test_what_is_no_success_is_tried_again(store: SqliteStore, status: int) -> None:
    """A redirect is not followed, and no refusal loses an event."""
    receiver = Receiver()
    hooks = receiver.open(store)
    await hooks.send_page(make_hook(), NAME)
    await store.add_events(KEY, [activation("one")])
    receiver.answer = lambda: status
    await hooks.send_page(make_hook(), NAME)
    assert receiver.taken == []
    receiver.answer = lambda: 204
    await hooks.send_page(make_hook(), NAME)
    assert receiver.cycles == ["one"]


async def test_types_and_texts(store: SqliteStore) -> None:
    """Types that are not asked for are passed over once; texts are sent where they should be."""
    receiver = Receiver()
    hooks = receiver.open(store)
    await hooks.send_page(make_hook(), NAME)
    await store.add_events(KEY, [activation("one")])
    await hooks.send_page(make_hook(events=["data-om-edited"]), NAME)
    assert receiver.taken == []
    await store.add_events(KEY, [activation("two")])
    await hooks.send_page(make_hook(events=["data-om-activation"], text=True), NAME)
    assert receiver.cycles == ["two"]
    assert receiver.taken[0]["data"]["observations"] == "* noted"


EDITS_ONLY = ["data-om-edited"]


async def test_what_is_passed_over_is_read_once(store: SqliteStore) -> None:
    """Also by the next process: the stored place is behind all that the hook does not ask for."""
    receiver = Receiver()
    await receiver.open(store).send_page(make_hook(events=EDITS_ONLY), NAME)
    for number in range(250):
        await store.add_events(KEY, [activation(str(number))])
    hooks = receiver.open(store)
    await send_for(receiver, hooks, 0.05, events=EDITS_ONLY)
    await store.release(Key("", "webhook", NAME), hooks._holder)  # the process ends
    read_after: list[int | None] = []
    real_events = store.events

    async def events(*args: Any) -> EventPage:
        read_after.append(args[2])
        return await real_events(*args)

    store.events = events  # type: ignore[method-assign] # it is watched
    await receiver.open(store).send_page(make_hook(events=EDITS_ONLY), NAME)
    assert read_after == [await store.event_position()]
    assert receiver.attempts == 0


async def test_what_is_passed_over_is_no_gap(store: SqliteStore) -> None:
    """While a receiver is away, events that it never asked for may go. It has lost nothing."""
    receiver = Receiver()
    hooks = receiver.open(store)
    await hooks.send_page(make_hook(), NAME)
    receiver.back_at = NOW + 1
    await store.add_events(KEY, [activation("old")._replace(at=NOW - MAX_EVENT_AGE_S), TITLE])
    await hooks.send_page(make_hook(events=[TITLE.part.TYPE]), NAME)
    await store.prune(NOW + 1)
    receiver.now += 1
    await hooks.send_page(make_hook(events=[TITLE.part.TYPE]), NAME)
    assert [event["type"] for event in receiver.taken] == [TITLE.part.TYPE]


async def test_a_sender_that_stood_still_passes_over_nothing(store: SqliteStore) -> None:
    """Its hook asks for fewer types than that of the process which has the lease since: the place
    is moved by the holder alone."""
    receiver = Receiver()
    old, new = receiver.open(store), receiver.open(store)
    await old.send_page(make_hook(events=EDITS_ONLY), NAME)
    await store.add_events(KEY, [activation(str(number)) for number in range(3)])
    assert await old._take_lease(NAME)
    real_events = store.events

    async def events(*args: Any) -> EventPage:
        page = await real_events(*args)
        await store.release(Key("", "webhook", NAME), old._holder)  # its lease ends
        assert await new._take_lease(NAME)
        return page

    store.events = events  # type: ignore[method-assign] # the old process stands still there
    pause_s = await old.send_page(make_hook(events=EDITS_ONLY), NAME)
    store.events = real_events  # type: ignore[method-assign] # as it was
    assert pause_s == CHECK_INTERVAL_S
    await new.send_page(make_hook(), NAME)
    assert receiver.cycles == ["0", "1", "2"]


async def test_two_senders_pass_over_types_together(store: SqliteStore) -> None:
    """Whichever process holds the lease goes on where the other one was: each event that is asked
    for comes once, and none is read from the beginning."""
    receiver = Receiver()
    hook = make_hook(events=[TITLE.part.TYPE])
    senders = [receiver.open(store), receiver.open(store)]
    await senders[0].send_page(hook, NAME)
    for number in range(6):
        sender, other = senders[number % 2], senders[(number + 1) % 2]
        await store.release(Key("", "webhook", NAME), other._holder)  # its lease ends
        await store.add_events(KEY, [activation(str(number))] * 40 + [TITLE])
        await sender.send_page(hook, NAME)
        await other.send_page(hook, NAME)  # it finds nothing to do
        state = await store.webhook_state(NAME)
        assert state is not None
        assert state.cursor == await store.event_position()
        assert len(receiver.taken) == number + 1


async def test_what_is_no_longer_kept_is_told(store: SqliteStore) -> None:
    """A gap is an event of its own, once."""
    receiver = Receiver()
    hooks = receiver.open(store)
    await hooks.send_page(make_hook(), NAME)
    await store.add_events(KEY, [activation("lost")._replace(at=NOW - MAX_EVENT_AGE_S)])
    await store.add_events(KEY, [activation("kept")._replace(at=NOW + 1)])
    await store.prune(NOW + 1)
    await hooks.send_page(make_hook(), NAME)
    await hooks.send_page(make_hook(), NAME)
    assert [event["type"] for event in receiver.taken] == ["om-gap", "data-om-activation"]


async def test_one_process_sends(store: SqliteStore) -> None:
    """While one holds the lease, another sends nothing; a hook that is taken out gives it back."""
    key = Key("", "webhook", NAME)
    receiver, hooks = Receiver(), [make_hook()]
    ticks = asyncio.Event()

    async def sleep(seconds: float) -> None:
        ticks.set()
        await asyncio.sleep(0.005)

    sender = Webhooks(store, lambda: hooks, receiver.post, sleep=sleep)
    await store.lease(key, "another", LEASE_S)
    running = asyncio.create_task(sender.run_forever())
    await store.add_events(KEY, [activation("one")])
    await asyncio.wait_for(ticks.wait(), 20)
    assert await store.webhook_state(NAME) is None
    await store.release(key, "another")
    async with asyncio.timeout(20):
        while await store.webhook_state(NAME) is None:  # noqa: ASYNC110 # the store has no event for it
            await asyncio.sleep(0.005)
        await store.add_events(KEY, [activation("two")])
        while not receiver.taken:  # noqa: ASYNC110 # as above
            await asyncio.sleep(0.005)
        hooks.clear()
        while not await store.lease(key, "another", LEASE_S):  # noqa: ASYNC110 # as above
            await asyncio.sleep(0.005)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert receiver.cycles == ["two"]


@pytest.mark.parametrize("is_taken", [True, False])
async def test_a_page_ends_where_the_lease_is_lost(store: SqliteStore, is_taken: bool) -> None:
    """A page may take longer than a lease: it is renewed before each event, and once another
    process has it, that one sends the rest."""
    key = Key("", "webhook", NAME)
    receiver = Receiver()
    hooks = receiver.open(store)
    await hooks.send_page(make_hook(), NAME)
    await store.add_events(KEY, [activation(str(n)) for n in range(3)])
    real_lease, held_by = store.lease, []

    async def lease(key: Key, holder: str, seconds: float) -> bool:
        if receiver.attempts and is_taken:
            return False  # another process has it
        held_by.append((key, holder, seconds))
        return await real_lease(key, holder, seconds)

    store.lease = lease  # type: ignore[method-assign] # the one method that a test answers
    pause_s = await hooks.send_page(make_hook(), NAME)
    assert receiver.cycles == (["0"] if is_taken else ["0", "1", "2"])
    assert held_by == [(key, hooks._holder, LEASE_S)] * len(receiver.taken)
    assert pause_s == CHECK_INTERVAL_S
    state = await store.webhook_state(NAME)
    assert state is not None
    assert state.failures == 0


@pytest.mark.parametrize("is_taken", [True, False])
async def test_a_sender_that_stood_still_repeats_nothing(
    store: SqliteStore, is_taken: bool
) -> None:
    """While it hangs in a request, its lease ends, and another process sends all. When it wakes,
    with the answer or without, nothing is sent again."""
    receiver, late = Receiver(), Receiver()
    other = receiver.open(store)
    await other.send_page(make_hook(), NAME)
    await store.add_events(KEY, [activation(str(number)) for number in range(5)])

    async def post_late(url: str, body: bytes, headers: dict[str, str]) -> int:
        await store.release(Key("", "webhook", NAME), hanging._holder)  # its lease ends
        await other.send_page(make_hook(), NAME)
        await store.release(Key("", "webhook", NAME), other._holder)  # the other process ends
        hanging._post = late.post
        return 200 if is_taken else 504

    hanging = Webhooks(store, list, post_late, clock=lambda: receiver.now, jitter=lambda: 0.0)
    await hanging.send_page(make_hook(), NAME)
    assert receiver.cycles == ["0", "1", "2", "3", "4"]
    await hanging.send_page(make_hook(), NAME)
    assert late.cycles == []


class SlowReceiver(Receiver):
    """It takes an event when it comes, and answers when `may_answer` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = asyncio.Event()
        self.has_taken = asyncio.Event()

    async def post(self, url: str, body: bytes, headers: dict[str, str]) -> int:
        status = await super().post(url, body, headers)
        self.has_taken.set()
        await self.may_answer.wait()
        return status


async def sleep_briefly(seconds: float) -> None:
    await asyncio.sleep(0.005)


@asynccontextmanager
async def run_senders(
    store: SqliteStore, read_settings: Callable[[], list[WebhookSettings]], receiver: Receiver
) -> AsyncIterator[asyncio.Task[None]]:
    """Run the senders until the block ends. The place of the hook is stored before it begins."""
    senders = Webhooks(store, read_settings, receiver.post, sleep=sleep_briefly)
    running = asyncio.create_task(senders.run_forever())
    try:
        async with asyncio.timeout(20):
            while await store.webhook_state(NAME) is None:  # noqa: ASYNC110 # the store has no event for it
                await asyncio.sleep(0.005)
            yield running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def wait_for_cursor(store: SqliteStore, cursor: int) -> None:
    while (state := await store.webhook_state(NAME)) is None or state.cursor < cursor:  # noqa: ASYNC110 # the store has no event for it
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("is_removed", [False, True])
async def test_a_changed_hook_sends_nothing_twice(store: SqliteStore, is_removed: bool) -> None:
    """A request under way ends first, and its event is noted; the next one has the new settings.
    A hook that was taken out for a moment loses nothing either."""
    receiver, hooks = SlowReceiver(), [make_hook()]
    async with run_senders(store, lambda: hooks, receiver):
        await store.add_events(KEY, [activation(str(number)) for number in range(3)])
        await receiver.has_taken.wait()
        if is_removed:
            hooks.clear()
            await asyncio.sleep(0.05)  # some looks at the settings
        hooks[:] = [make_hook(text=True)]
        await asyncio.sleep(0.05)
        assert receiver.cycles == ["0"]
        receiver.may_answer.set()
        await wait_for_cursor(store, await store.event_position())
    assert receiver.cycles == ["0", "1", "2"]
    assert [e["data"]["observations"] for e in receiver.taken] == [None, "* noted", "* noted"]


async def test_a_changed_hook_does_not_wait_out_its_pause(store: SqliteStore) -> None:
    """Whoever mends a hook sees at once whether it works."""
    receiver, hooks = Receiver(), [make_hook()]
    receiver.answer = lambda: 401
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0.005 if seconds == CHECK_INTERVAL_S else 3_600)

    senders = Webhooks(store, lambda: hooks, receiver.post, sleep=sleep, jitter=lambda: 0.5)
    running = asyncio.create_task(senders.run_forever())
    async with asyncio.timeout(20):
        while await store.webhook_state(NAME) is None:  # noqa: ASYNC110 # the store has no event for it
            await asyncio.sleep(0.005)
        await store.add_events(KEY, [activation("one")])
        while compute_pause_s(1, 0.5) not in pauses:  # noqa: ASYNC110 # the sender has no event for it
            await asyncio.sleep(0.005)
        receiver.answer = lambda: 200
        hooks[:] = [make_hook(secret="whsec_YW5vdGhlciBrZXkgb2YgMjQgYnl0ZXMh")]
        await wait_for_cursor(store, await store.event_position())
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert receiver.cycles == ["one"]


async def test_the_end_lets_a_request_end(store: SqliteStore) -> None:
    """What was taken is noted, and the lease is free: the next process sends the rest, at once."""
    receiver = SlowReceiver()
    async with run_senders(store, lambda: [make_hook()], receiver) as running:
        await store.add_events(KEY, [activation(str(number)) for number in range(3)])
        await receiver.has_taken.wait()
        running.cancel()
        await asyncio.sleep(0.05)
        assert not running.done()
        receiver.may_answer.set()
        await asyncio.gather(running, return_exceptions=True)
    assert receiver.cycles == ["0"]
    assert await store.lease(Key("", "webhook", NAME), "next", LEASE_S)
    await receiver.open(store).send_page(make_hook(), NAME)
    assert receiver.cycles == ["0"]  # the next one has the lease
    await store.release(Key("", "webhook", NAME), "next")
    await receiver.open(store).send_page(make_hook(), NAME)
    assert receiver.cycles == ["0", "1", "2"]


async def test_the_end_waits_only_so_long(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver that does not answer keeps no process from ending. Its event comes again."""
    monkeypatch.setattr(webhooks_module, "STOP_GRACE_S", 0.05)
    receiver = SlowReceiver()
    async with run_senders(store, lambda: [make_hook()], receiver) as running:
        await store.add_events(KEY, [activation("one")])
        await receiver.has_taken.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert await store.lease(Key("", "webhook", NAME), "next", LEASE_S)
    await store.release(Key("", "webhook", NAME), "next")
    receiver.may_answer.set()
    await receiver.open(store).send_page(make_hook(), NAME)
    assert receiver.cycles == ["one", "one"]


async def test_a_look_that_finds_nothing_writes_nothing(store: SqliteStore) -> None:
    """The lease is written once for many looks: every write would take the store's writer lock."""
    receiver, looks, written = Receiver(), 0, 0
    real_events, real_lease = store.events, store.lease

    async def events(*args: Any) -> EventPage:
        nonlocal looks
        looks += 1
        return await real_events(*args)

    async def lease(*args: Any) -> bool:
        nonlocal written
        written += 1
        return await real_lease(*args)

    store.events, store.lease = events, lease  # type: ignore[method-assign] # they are counted
    async with run_senders(store, lambda: [make_hook()], receiver), asyncio.timeout(20):
        while looks < 20:  # noqa: ASYNC110 # the sender has no event for it
            await asyncio.sleep(0.005)
        assert written == 1
        await store.add_events(KEY, [activation("one")])
        await wait_for_cursor(store, await store.event_position())
    assert receiver.cycles == ["one"]
    assert written == 2


async def test_a_failure_of_ours_ends_no_sender(store: SqliteStore) -> None:
    """An exception that nobody foresaw is logged, and the sender begins again."""
    receiver = Receiver()
    real_events, failures = store.events, iter([RuntimeError("unforeseen")])

    async def events(*args: Any) -> EventPage:
        for failure in failures:
            raise failure
        return await real_events(*args)

    store.events = events  # type: ignore[method-assign] # the one method that fails
    with capture_logs() as lines:
        async with run_senders(store, lambda: [make_hook()], receiver):
            await store.add_events(KEY, [activation("one")])
            await wait_for_cursor(store, await store.event_position())
    assert receiver.cycles == ["one"]
    assert [line["task"] for line in lines if line["event"] == "task.failed"] == ["webhook"]


async def test_the_log_tells_two_hooks_on_one_host_apart(store: SqliteStore) -> None:
    """By their place in the settings; the rest of the address may hold a key."""
    receiver = Receiver()
    receiver.back_at = NOW + 1
    other = make_hook(url="http://127.0.0.1:8080/canary")
    hooks = Webhooks(store, lambda: [other, make_hook()], receiver.post, clock=lambda: receiver.now)
    await hooks.send_page(make_hook(), NAME)
    await store.add_events(KEY, [activation("one")])
    with capture_logs() as lines:
        await hooks.send_page(make_hook(), NAME)
        receiver.now += 1
        await hooks.send_page(make_hook(), NAME)
    assert [line["event"] for line in lines] == ["webhook.failing", "webhook.recovered"]
    for line in lines:
        assert (line["hook"], line["host"]) == ("telemetry.webhooks[1]", "127.0.0.1:80")
    assert "canary" not in str(lines)


def test_a_lease_outlasts_a_pause_and_a_request() -> None:
    """So a holder that waits for its receiver to come back stays the holder."""
    assert compute_pause_s(99, 1.0) + REQUEST_TIMEOUT_S < LEASE_S


async def test_a_store_that_is_away_ends_no_sender(store: SqliteStore) -> None:
    receiver = Receiver()
    is_away = [True]
    real_events = store.events

    async def events(*args: Any) -> EventPage:
        if is_away[0]:
            raise StorageError("away")
        return await real_events(*args)

    store.events = events  # type: ignore[method-assign] # the one method that fails

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(0.005)

    sender = Webhooks(store, lambda: [make_hook()], receiver.post, sleep=sleep)
    running = asyncio.create_task(sender.run_forever())
    async with asyncio.timeout(20):
        while await store.webhook_state(NAME) is None:  # noqa: ASYNC110 # the store has no event for it
            await asyncio.sleep(0.005)
        await store.add_events(KEY, [activation("one")])
        is_away[0] = False
        while not receiver.taken:  # noqa: ASYNC110 # as above
            await asyncio.sleep(0.005)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert receiver.cycles == ["one"]


async def test_over_a_real_socket() -> None:
    """Redirects are not followed, and an endless answer is not read."""
    seen: list[str] = []

    async def receive(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["path"])
        await receive()
        redirect = [(b"location", b"/elsewhere")]
        status = 302 if scope["path"] == "/moved" else 200
        await send({"type": "http.response.start", "status": status, "headers": redirect})
        for _ in range(100):
            await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
        await asyncio.Event().wait()  # never ends

    post = HttpPost(AiohttpTransport())
    async with serve_on_loopback(receive, lifespan="off") as base:
        async with asyncio.timeout(20):
            assert await post(f"{base}/hook", b"{}", {"x-om-event": "x"}) == 200
            assert await post(f"{base}/moved", b"{}", {}) == 302
        await post.aclose()
    assert seen == ["/hook", "/moved"]
