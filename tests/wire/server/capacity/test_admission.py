"""Slots for requests, and the memory of their bodies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import cast

import pytest
from starlette.types import Message, Scope

from om_proxy.common.errors import Overloaded, TooLarge
from om_proxy.settings.config.sections.service import LimitSettings
from om_proxy.wire.server.capacity import admission as admission_module
from om_proxy.wire.server.capacity.admission import (
    MAX_STALLED_CHECKS,
    Admission,
    BufferedBodyPermit,
    StreamedBodyPermit,
)
from om_proxy.wire.server.capacity.budget import BODY_WEIGHT
from om_proxy.wire.server.protocol import DISCONNECT_EXTENSION

HELD = 16  # of the largest bodies that have room together here
# times its bytes: large ones have three quarters, and each is charged three times
BODY_IN_MEMORY = 4


def make_admission(**limits: float) -> Admission:
    if "body" in limits:
        limits.setdefault("memory", HELD * BODY_IN_MEMORY * limits["body"])
    settings = LimitSettings.model_validate(limits)
    return Admission(lambda: settings)


def make_scope(*headers: tuple[bytes, bytes]) -> Scope:
    return {"type": "http", "headers": list(headers)}


class Client:
    """A client that sends these pieces of a body, then leaves."""

    def __init__(self, *pieces: bytes) -> None:
        self._messages: list[Message] = [
            {"type": "http.request", "body": piece, "more_body": n < len(pieces)}
            for n, piece in enumerate(pieces, 1)
        ]
        self.asked = 0

    async def receive(self) -> Message:
        self.asked += 1
        return self._messages.pop(0) if self._messages else {"type": "http.disconnect"}


def read_counts(of: Admission) -> Sequence[int]:
    return of.in_flight, of.uploads, of.held_bytes


async def test_a_body_that_is_read() -> None:
    """A request takes its slot at the end of its body, and its bytes are charged until then. Both
    are released, even if the client leaves."""
    site, client = make_admission(), Client(b"12", b"3")
    with BufferedBodyPermit(site, make_scope(), client.receive) as held:
        await held.receive()
        assert read_counts(site) == (0, 0, 2)
        await held.receive()
        assert read_counts(site) == (1, 0, 3)
        assert await held.receive() == {"type": "http.disconnect"}
        assert read_counts(site) == (1, 0, 3)
    assert read_counts(site) == (0, 0, 0)


async def test_a_failed_request_releases_all() -> None:
    """A request that fails in any way releases everything."""
    site = make_admission()

    async def failing() -> None:
        with BufferedBodyPermit(site, make_scope(), Client(b"x").receive) as held:
            await held.receive()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await failing()
    assert read_counts(site) == (0, 0, 0)


async def test_without_a_slot_no_body_is_read() -> None:
    """The request is refused before its body is read."""
    site, client = make_admission(in_flight=1), Client(b"x")
    with (
        BufferedBodyPermit(site, make_scope(), Client(b"x").receive) as first,
        BufferedBodyPermit(site, make_scope(), client.receive) as second,
    ):
        await first.receive()
        with pytest.raises(Overloaded, match=r"limits\.in_flight"):
            await second.receive()
        assert client.asked == 0
        with pytest.raises(Overloaded):
            StreamedBodyPermit(site, client.receive)
        assert read_counts(site) == (1, 0, 1)


async def test_the_last_slot_goes_to_the_first_complete_body() -> None:
    """The first complete one of two bodies that arrive at once takes the last slot."""
    site = make_admission(in_flight=1)
    with (
        BufferedBodyPermit(site, make_scope(), Client(b"x", b"y").receive) as first,
        BufferedBodyPermit(site, make_scope(), Client(b"x", b"y").receive) as second,
    ):
        await first.receive()
        await second.receive()
        await second.receive()
        with pytest.raises(Overloaded):
            await first.receive()
    assert read_counts(site) == (0, 0, 0)


async def test_an_announced_body_that_is_too_large() -> None:
    """A body that announces too many bytes is refused before it is read."""
    site, client = make_admission(body=10), Client(b"x" * 11)
    with (
        BufferedBodyPermit(site, make_scope((b"content-length", b"11")), client.receive) as held,
        pytest.raises(TooLarge, match=r"limits\.body \(10 bytes\)"),
    ):
        await held.receive()
    assert client.asked == 0


class Waiting(Client):
    """A client that sends these pieces, then nothing more."""

    async def receive(self) -> Message:
        if not self._messages:
            await asyncio.Event().wait()
        return {**await super().receive(), "more_body": True}


async def run_until_idle() -> None:
    """Run the loop until no task can go on."""
    for _ in range(10):
        await asyncio.sleep(0)


class Crowd:
    """Requests of one server, each in a task that reads its body and is then served until
    `leave`."""

    def __init__(self, **limits: float) -> None:
        self.site = make_admission(**limits)
        self.tasks: list[asyncio.Task[str]] = []
        self._leave = asyncio.Event()

    def start(self, receive: Callable[[], Awaitable[Message]]) -> int:
        """Start a request, and return its number."""
        self.tasks.append(asyncio.create_task(self._request(receive)))
        return len(self.tasks) - 1

    async def _request(self, receive: Callable[[], Awaitable[Message]]) -> str:
        try:
            with BufferedBodyPermit(self.site, make_scope(), receive) as held:
                while (await held.receive()).get("more_body"):
                    pass
                await self._leave.wait()
                return "served"
        except Overloaded as exc:
            return str(exc)

    async def list_refused(self) -> list[int]:
        """List the numbers of the refused requests."""
        await run_until_idle()
        return [
            n for n, task in enumerate(self.tasks) if task.done() and "too many" in task.result()
        ]

    async def end(self) -> None:
        self._leave.set()
        await run_until_idle()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        assert read_counts(self.site) == (0, 0, 0)


BODY = 6_400
SMALL = BODY // 64


async def test_whole_bodies_together() -> None:
    """No body is too large, but together they are: the next large one is refused, a small one is
    not."""
    crowd = Crowd(body=BODY)
    for _ in range(HELD):
        crowd.start(Client(b"x" * BODY).receive)
    assert await crowd.list_refused() == []
    large = crowd.start(Client(b"x" * (SMALL + 1)).receive)
    crowd.start(Client(b"x" * SMALL).receive)
    crowd.start(Client(b"x" * (SMALL // 2), b"x" * (SMALL // 2)).receive)
    assert await crowd.list_refused() == [large]
    assert crowd.site.held_bytes == HELD * BODY + 2 * SMALL
    await crowd.end()


async def test_bodies_that_stop_short() -> None:
    """Of the bodies that stopped, one is evicted for each body that goes on, even if it came
    first."""
    crowd = Crowd(body=BODY)
    for _ in range(HELD):
        crowd.start(Waiting(b"x" * (BODY - 1)).receive)
    assert await crowd.list_refused() == []
    crowd.start(Client(*[b"x" * 200] * 32).receive)
    assert await crowd.list_refused() == [0]
    crowd.start(Client(b"x" * BODY).receive)
    assert await crowd.list_refused() == [0, 1]
    assert crowd.site.held_bytes == (HELD - 2) * (BODY - 1) + 2 * BODY
    await crowd.end()


async def test_the_body_with_least_progress_is_evicted() -> None:
    """Progress counts in whole small-body sizes: a byte now and then does not keep the room."""
    crowd, begun = Crowd(body=BODY), b"x" * (BODY - 2 * SMALL)
    queues = [asyncio.Queue[Message]() for _ in range(HELD)]
    for queue in queues:
        crowd.start(queue.get)
        queue.put_nowait({"type": "http.request", "body": begun, "more_body": True})
    await run_until_idle()
    for size, of in ((SMALL, 0), (1, 1), (SMALL, 3)):
        queues[of].put_nowait({"type": "http.request", "body": b"x" * size, "more_body": True})
        await run_until_idle()
    for _ in range(2):
        crowd.start(Client(b"x" * BODY).receive)
    assert await crowd.list_refused() == [1, 2]
    await crowd.end()


async def test_a_newcomer_with_least_progress_is_refused() -> None:
    """The newcomer is refused, and no other body is evicted."""
    crowd = Crowd(body=BODY)
    queue = asyncio.Queue[Message]()
    crowd.start(queue.get)
    queue.put_nowait({"type": "http.request", "body": b"x" * (SMALL + 1), "more_body": True})
    await run_until_idle()
    for _ in range(HELD - 1):
        crowd.start(Waiting(b"x" * BODY).receive)
    crowd.start(Waiting(b"x" * (BODY - SMALL - 1)).receive)
    assert await crowd.list_refused() == []
    queue.put_nowait({"type": "http.request", "body": b"x", "more_body": True})
    assert await crowd.list_refused() == [0]
    await crowd.end()


async def test_a_body_that_becomes_large() -> None:
    """One byte more moves a body from the small ones to the large ones."""
    crowd = Crowd(body=BODY, in_flight=4)
    crowd.start(Waiting(b"x" * SMALL, b"x").receive)
    await run_until_idle()
    assert (crowd.site.small_bodies.held_bytes, crowd.site.large_bodies.held_bytes) == (
        0,
        SMALL + 1,
    )
    for _ in range(5):
        crowd.start(Waiting(b"x" * (SMALL - 1)).receive)
    assert await crowd.list_refused() == [1]
    await crowd.end()


async def test_small_bodies_that_stop_short() -> None:
    """Small bodies may hold one small body's size for each slot. Beyond it they are evicted for
    whole bodies and for newcomers."""
    crowd = Crowd(body=BODY, in_flight=4)
    for _ in range(5):
        crowd.start(Waiting(b"x" * (SMALL - 20)).receive)
    assert await crowd.list_refused() == []
    crowd.start(Waiting(b"x").receive)
    assert await crowd.list_refused() == [0]
    for _ in range(4):
        crowd.start(Client(b"x" * (SMALL // 2), b"x" * (SMALL // 2)).receive)
    assert await crowd.list_refused() == list(range(6))
    assert read_counts(crowd.site) == (4, 0, 4 * SMALL)
    await crowd.end()


@pytest.mark.parametrize("later", [0, 1])
async def test_an_evicted_request_can_be_cancelled(later: int) -> None:
    """A cancellation from outside and an eviction in the same moment are not confused, in either
    order."""
    crowd = Crowd(body=BODY)
    for _ in range(HELD):
        crowd.start(Waiting(b"x" * BODY).receive)
    await run_until_idle()
    crowd.start(Client(b"x" * BODY).receive)
    for _ in range(later):
        await asyncio.sleep(0)
    crowd.tasks[0].cancel()
    await asyncio.wait(crowd.tasks[:1])
    assert crowd.tasks[0].cancelled()
    await crowd.end()


async def test_a_piece_that_comes_too_late() -> None:
    """A piece arrives in the same moment in which its body is evicted."""
    crowd, queue = Crowd(body=BODY), asyncio.Queue[Message]()
    crowd.start(queue.get)
    queue.put_nowait({"type": "http.request", "body": b"x" * (BODY - 1), "more_body": True})
    await run_until_idle()
    for _ in range(HELD):
        crowd.start(Client(b"x" * BODY).receive)
    queue.put_nowait({"type": "http.request", "body": b"x"})
    assert await crowd.list_refused() == [0]
    await crowd.end()


# ── a large body that says how long it is ─────────────────────────────────────────────────────────


class Feeding:
    def __init__(self, queue: asyncio.Queue[Message]) -> None:
        self.receive = queue.get


class Announcing(Crowd):
    """Clients that announce the lengths of their bodies."""

    def announce(self, size: int, *pieces: bytes) -> int:
        self.tasks.append(
            asyncio.create_task(
                self._announced(size, Waiting(*pieces) if pieces else Client(b"x" * size))
            )
        )
        return len(self.tasks) - 1

    async def _announced(self, size: int, client: Client) -> str:
        try:
            with BufferedBodyPermit(
                self.site, make_scope((b"content-length", b"%d" % size)), client.receive
            ) as held:
                while (await held.receive()).get("more_body"):
                    pass
                held.set_copies(3)
                await self._leave.wait()
                return "served"
        except Overloaded as exc:
            return str(exc)

    @property
    def served(self) -> int:
        return self.site.in_flight


async def test_large_bodies_wait_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large body without room is not read until it has room. A later one waits for its turn, even
    if it would fit. A small one is read at once. No body is refused, and a body that waits holds
    nothing."""
    monkeypatch.setattr(admission_module, "CHECK_INTERVAL_S", 3_600.0)
    crowd = Announcing(body=BODY)
    for _ in range(HELD - 1):
        crowd.announce(BODY)
    await run_until_idle()
    crowd.announce(BODY, b"x" * (BODY - SMALL - 1))  # all of it has room, and most has come
    await run_until_idle()
    waits = crowd.announce(BODY)
    later = crowd.announce(SMALL + 1)
    crowd.announce(SMALL)
    await run_until_idle()
    assert crowd.served == HELD  # the whole ones, and the small one
    assert crowd.site.budget.held_bytes == BODY_WEIGHT * (HELD * BODY + SMALL)
    crowd.tasks[0].cancel()
    await run_until_idle()
    assert crowd.served == HELD - 1  # the small one has taken of its room
    crowd.tasks[1].cancel()
    await run_until_idle()
    assert crowd.served == HELD
    assert not crowd.tasks[waits].done()
    assert not crowd.tasks[later].done()
    await crowd.end()
    assert crowd.site.budget.held_bytes == 0


async def test_stalled_bodies_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stalled body loses the room for its rest. If that is not enough, as many are refused as
    needed. A body with progress keeps its room."""
    monkeypatch.setattr(admission_module, "CHECK_INTERVAL_S", 3_600.0)
    crowd = Announcing(body=BODY)
    queue = asyncio.Queue[Message]()
    for _ in range(HELD - 1):
        crowd.announce(BODY, b"x" * (BODY - 1))
    crowd.tasks.append(asyncio.create_task(crowd._announced(BODY, cast(Client, Feeding(queue)))))
    await run_until_idle()
    waiting = crowd.announce(BODY)
    await run_until_idle()
    for look in range(MAX_STALLED_CHECKS + 1):
        assert not crowd.tasks[waiting].done()
        assert crowd.served == 0
        queue.put_nowait({"type": "http.request", "body": b"x" * SMALL, "more_body": True})
        await run_until_idle()
        assert await crowd.list_refused() == [], look
        crowd.site._check_unfinished()
    assert await crowd.list_refused() == [0]
    assert crowd.served == 1
    queue.put_nowait(
        {"type": "http.request", "body": b"x" * (BODY - (MAX_STALLED_CHECKS + 1) * SMALL)}
    )
    await run_until_idle()
    assert crowd.served == 2
    await crowd.end()


async def test_room_that_is_lent_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that is announced but not sent blocks no other one, and still completes when there is
    room."""
    monkeypatch.setattr(admission_module, "CHECK_INTERVAL_S", 3_600.0)
    crowd = Announcing(body=BODY)
    for _ in range(HELD):
        crowd.announce(BODY, b"x")
    await run_until_idle()
    crowd.announce(BODY)
    for _ in range(2):
        crowd.site._check_unfinished()
        await run_until_idle()
    assert (crowd.served, await crowd.list_refused()) == (1, [])
    await crowd.end()


async def test_a_byte_now_and_then_keeps_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that hardly arrives loses the room for its rest: a few such bodies would keep out all
    large ones for hours."""
    monkeypatch.setattr(admission_module, "CHECK_INTERVAL_S", 3_600.0)
    crowd, queues = Announcing(body=BODY), [asyncio.Queue[Message]() for _ in range(HELD)]
    for queue in queues:
        crowd.tasks.append(
            asyncio.create_task(crowd._announced(BODY, cast(Client, Feeding(queue))))
        )
    await run_until_idle()
    crowd.announce(BODY)
    for _ in range(2):
        await trickle(queues, crowd)
    assert (crowd.served, await crowd.list_refused()) == (1, [])
    await crowd.end()


async def test_a_trickling_body_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """If there is no room left to take back, bodies that trickle are evicted like those that
    stopped, and no more than needed."""
    monkeypatch.setattr(admission_module, "CHECK_INTERVAL_S", 3_600.0)
    large = 64 * 2_560
    crowd, queues = Announcing(body=large), [asyncio.Queue[Message]() for _ in range(HELD)]
    for queue in queues:
        crowd.tasks.append(
            asyncio.create_task(crowd._announced(large, cast(Client, Feeding(queue))))
        )
        queue.put_nowait({"type": "http.request", "body": b"x" * (large - 100), "more_body": True})
    await run_until_idle()
    crowd.announce(large)
    for _ in range(MAX_STALLED_CHECKS):
        await trickle(queues, crowd)
        assert (crowd.served, await crowd.list_refused()) == (0, [])
    await trickle(queues, crowd)
    assert (crowd.served, await crowd.list_refused()) == (1, [0])
    await crowd.end()


async def trickle(queues: Sequence[asyncio.Queue[Message]], crowd: Crowd) -> None:
    """Send a byte of each body, then check them."""
    for queue in queues:
        queue.put_nowait({"type": "http.request", "body": b"x", "more_body": True})
    await run_until_idle()
    crowd.site._check_unfinished()
    await run_until_idle()


async def test_room_that_does_not_come_in_time() -> None:
    """The 503 names the limit, and nothing stays charged."""
    crowd = Announcing(body=BODY, body_timeout=0.05)
    for _ in range(HELD):
        crowd.announce(BODY)
    await run_until_idle()
    late = crowd.announce(BODY)
    assert "limits.memory" in await asyncio.wait_for(crowd.tasks[late], 10)
    assert crowd.site.budget.held_bytes == BODY_WEIGHT * HELD * BODY
    await crowd.end()
    assert crowd.site.budget.held_bytes == 0


async def test_leaving_while_it_waits() -> None:
    """If the client leaves, the application is told at once, and the next body has its turn."""
    crowd = Announcing(body=BODY)
    for _ in range(HELD):
        crowd.announce(BODY)
    await run_until_idle()
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    leaving = make_scope((b"content-length", b"%d" % BODY)) | {
        "extensions": {DISCONNECT_EXTENSION: {"future": gone}}
    }
    client = Client(b"x" * BODY)
    with BufferedBodyPermit(crowd.site, leaving, client.receive) as held:
        receiving = asyncio.create_task(held.receive())
        await run_until_idle()
        gone.set_result(None)
        assert await receiving == {"type": "http.disconnect"}
    assert client.asked == 0
    assert not crowd.site.budget.has_waiters
    await crowd.end()


async def test_a_body_that_can_never_have_room() -> None:
    """The request is refused at once. (The configuration refuses such limits; the test changes them
    later.)"""
    limits = SimpleNamespace(body=BODY, in_flight=10, memory=BODY, body_timeout=3_600.0)
    with (
        BufferedBodyPermit(
            Admission(lambda: limits),
            make_scope((b"content-length", b"%d" % BODY)),
            Client(b"x").receive,
        ) as held,
        pytest.raises(TooLarge, match=r"limits\.memory"),
    ):
        await held.receive()


async def test_what_a_body_weighs() -> None:
    """A body is charged less once its need is known, and nothing after its request."""
    site = make_admission(body=BODY)
    with BufferedBodyPermit(site, make_scope(), Client(b"x" * BODY).receive) as held:
        await held.receive()
        for copies in (3, 2, 1, 0, 2):
            held.set_copies(copies)
            assert site.budget.held_bytes == copies * BODY
    assert site.budget.held_bytes == 0


async def test_copies_of_replies_leave_small_bodies_room() -> None:
    """Copies may take all but the last eighth. A small body still has room, and a large one waits
    for the copies."""
    site = make_admission(body=BODY)
    while site.budget.charge_copy(BODY):
        pass
    with BufferedBodyPermit(site, make_scope(), Client(b"x" * SMALL).receive) as held:
        await held.receive()
        assert site.in_flight == 1
    assert not site.budget.try_charge_large(SMALL)


async def test_uploads_have_half_of_the_slots() -> None:
    """A forwarded body takes one of these slots until it has arrived. The other slots stay free for
    other requests."""
    site = make_admission(in_flight=4)
    one, two = (StreamedBodyPermit(site, Client(b"x", b"y", b"z").receive) for _ in range(2))
    with one, two:
        assert read_counts(site) == (
            0,
            0,
            0,
        )  # their clients have said no more than that a body will come
        await one.receive()
        await two.receive()
        assert read_counts(site) == (2, 2, 0)
        with (
            StreamedBodyPermit(site, Client(b"x", b"y").receive) as upload,
            pytest.raises(Overloaded, match="uploads"),
        ):
            await upload.receive()
        with (
            StreamedBodyPermit(site, Client(b"x").receive) as whole,
            StreamedBodyPermit(site, Client(b"").receive) as bodiless,
        ):
            await whole.receive()
            await bodiless.receive()
            assert read_counts(site) == (4, 2, 0)
        await one.receive()
        assert read_counts(site) == (2, 2, 0)
        await one.receive()
        assert read_counts(site) == (2, 1, 0)
        await one.receive()
        with StreamedBodyPermit(site, Client(b"x", b"y").receive) as upload:
            await upload.receive()
            assert read_counts(site) == (3, 2, 0)
    assert read_counts(site) == (0, 0, 0)


async def test_without_a_slot_nothing_is_forwarded() -> None:
    """A request without a slot is refused before any of its body is forwarded."""
    site = make_admission(in_flight=1)
    with (
        StreamedBodyPermit(site, Client(b"x").receive) as first,
        StreamedBodyPermit(site, Client(b"x").receive) as second,
    ):
        await first.receive()
        with pytest.raises(Overloaded, match=r"limits\.in_flight"):
            await second.receive()
        assert read_counts(site) == (1, 0, 0)
    assert read_counts(site) == (0, 0, 0)


async def test_a_client_that_leaves_before_its_body() -> None:
    """It takes no slot."""
    site = make_admission()
    with StreamedBodyPermit(site, Client().receive) as passing:
        assert await passing.receive() == {"type": "http.disconnect"}
        assert read_counts(site) == (0, 0, 0)


@pytest.mark.parametrize(("served", "busy"), [(0, False), (7, False), (8, True), (10, True)])
def test_busy(served: int, busy: bool) -> None:
    """The server is busy from four fifths of its slots on."""
    site = make_admission(in_flight=10)
    site.in_flight = served
    assert site.is_busy() is busy


def test_a_limit_that_is_changed() -> None:
    """The next request meets the new limit."""
    limits = [LimitSettings(in_flight=1), LimitSettings(in_flight=2)]
    site = Admission(lambda: limits[0])
    site.in_flight = 1
    with pytest.raises(Overloaded):
        site.check_capacity()
    del limits[0]
    site.check_capacity()
