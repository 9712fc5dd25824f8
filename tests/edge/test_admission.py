"""Places for requests, and what their bodies may hold."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from starlette.types import Message, Scope

from proxy.edge.admission import Admission, Held, Passing
from proxy.errors import Overloaded, TooLarge
from proxy.settings.service import LimitSettings


def admission(**limits: int) -> Admission:
    settings = LimitSettings.model_validate(limits)
    return Admission(lambda: settings)


def scope(*headers: tuple[bytes, bytes]) -> Scope:
    return {"type": "http", "headers": list(headers)}


class Client:
    """Sends these pieces of a body, then leaves."""

    def __init__(self, *pieces: bytes) -> None:
        self._messages: list[Message] = [
            {"type": "http.request", "body": piece, "more_body": n < len(pieces)} for n, piece in enumerate(pieces, 1)
        ]
        self.asked = 0

    async def receive(self) -> Message:
        self.asked += 1
        return self._messages.pop(0) if self._messages else {"type": "http.disconnect"}


def counts(of: Admission) -> Sequence[int]:
    return of.in_flight, of.uploads, of.held


async def test_a_body_that_is_read() -> None:
    """It has its place from its end on, and holds its bytes till then; both are given back, also when the client leaves."""
    site, client = admission(), Client(b"12", b"3")
    with Held(site, scope(), client.receive) as held:
        await held.receive()
        assert counts(site) == (0, 0, 2)
        await held.receive()
        assert counts(site) == (1, 0, 3)
        assert await held.receive() == {"type": "http.disconnect"}
        assert counts(site) == (1, 0, 3)
    assert counts(site) == (0, 0, 0)


async def test_one_that_fails() -> None:
    """Whatever ends it, nothing is kept."""
    site = admission()

    async def failing() -> None:
        with Held(site, scope(), Client(b"x").receive) as held:
            await held.receive()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await failing()
    assert counts(site) == (0, 0, 0)


async def test_no_place_at_all() -> None:
    """It is refused before its body is read."""
    site, client = admission(in_flight=1), Client(b"x")
    with Held(site, scope(), Client(b"x").receive) as first, Held(site, scope(), client.receive) as second:
        await first.receive()
        with pytest.raises(Overloaded, match=r"limits\.in_flight"):
            await second.receive()
        assert client.asked == 0
        with pytest.raises(Overloaded):
            Passing(site, scope(), client.receive)
        assert counts(site) == (1, 0, 1)


async def test_no_place_any_more() -> None:
    """Two bodies come at once, and there is one place: the first that is complete has it."""
    site = admission(in_flight=1)
    with (
        Held(site, scope(), Client(b"x", b"y").receive) as first,
        Held(site, scope(), Client(b"x", b"y").receive) as second,
    ):
        await first.receive()
        await second.receive()
        await second.receive()
        with pytest.raises(Overloaded):
            await first.receive()
    assert counts(site) == (0, 0, 0)


async def test_an_announced_body() -> None:
    """One that says itself that it is too large is not waited for."""
    site, client = admission(body=10), Client(b"x" * 11)
    with (
        Held(site, scope((b"content-length", b"11")), client.receive) as held,
        pytest.raises(TooLarge, match=r"limits\.body \(10 bytes\)"),
    ):
        await held.receive()
    assert client.asked == 0


async def test_bodies_together() -> None:
    """No body is too large, and all together are."""
    site = admission(body=10)
    with Held(site, scope(), Client(b"x" * 10).receive) as last:
        held = [Held(site, scope(), Client(b"x" * 10).receive) for _ in range(16)]
        for one in held:
            await one.receive()
        with pytest.raises(Overloaded, match="large"):
            await last.receive()
        for one in held:
            one.__exit__()
    assert counts(site) == (0, 0, 0)


async def test_uploads_have_half_of_the_places() -> None:
    """A body that is passed on takes one of theirs until it has come; other requests have the rest."""
    site, upload = admission(in_flight=4), scope((b"transfer-encoding", b"chunked"))
    one, two = (Passing(site, upload, Client(b"x", b"y").receive) for _ in range(2))
    with one, two:
        assert counts(site) == (2, 2, 0)
        with pytest.raises(Overloaded, match="uploads"):
            Passing(site, upload, Client(b"").receive)
        with Passing(site, scope((b"content-length", b"0")), Client(b"").receive):
            assert counts(site) == (3, 2, 0)
        await one.receive()
        assert counts(site) == (2, 2, 0)
        await one.receive()
        assert counts(site) == (2, 1, 0)
        await one.receive()
        with Passing(site, upload, Client(b"").receive):
            assert counts(site) == (3, 2, 0)
    assert counts(site) == (0, 0, 0)


@pytest.mark.parametrize(("served", "busy"), [(0, False), (7, False), (8, True), (10, True)])
def test_busy(served: int, busy: bool) -> None:
    """From four fifths on."""
    site = admission(in_flight=10)
    site.in_flight = served
    assert site.busy() is busy


def test_a_limit_that_is_changed() -> None:
    """The next request meets the limit that holds then."""
    limits = [LimitSettings(in_flight=1), LimitSettings(in_flight=2)]
    site = Admission(lambda: limits[0])
    site.in_flight = 1
    with pytest.raises(Overloaded):
        site.check()
    del limits[0]
    site.check()
