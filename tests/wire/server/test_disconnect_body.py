"""A request's body is read whole, up to its limit."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import pytest

from om_proxy.common.errors import TooLarge
from om_proxy.wire.server.disconnect import ClientDisconnected, read_body


class Client:
    """A client that sends a body in pieces."""

    def __init__(self, *pieces: bytes, leaves: bool = False) -> None:
        more = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
        end = {"type": "http.disconnect"} if leaves else {"type": "http.request", "body": b""}
        self.messages: list[MutableMapping[str, Any]] = [*more, end]

    async def receive(self) -> MutableMapping[str, Any]:
        return self.messages.pop(0)


@pytest.mark.parametrize(
    "pieces",
    [(), (b"",), (b"abc",), (b"a", b"", b"bc"), tuple(b"%d" % (n % 10) for n in range(50))],
)
async def test_a_body_in_pieces(pieces: tuple[bytes, ...]) -> None:
    """The body is whole, in any pieces."""
    assert await read_body(Client(*pieces).receive, 100) == b"".join(pieces)


@pytest.mark.parametrize(("size", "fits"), [(9, True), (10, True), (11, False)])
async def test_a_body_at_its_limit(size: int, fits: bool) -> None:
    """The limit itself is allowed."""
    client = Client(*[b"x"] * size)
    if fits:
        assert len(await read_body(client.receive, 10)) == size
        return
    with pytest.raises(TooLarge, match=r"limits\.body \(10 bytes\)"):
        await read_body(client.receive, 10)


async def test_a_body_beyond_its_limit_is_not_read_on() -> None:
    """It is refused when it passes the limit, not at its end."""
    client = Client(*[b"x" * 10] * 1_000)
    with pytest.raises(TooLarge):
        await read_body(client.receive, 25)
    assert len(client.messages) == 1_001 - 3


async def test_a_client_that_leaves() -> None:
    """There is no client to answer."""
    with pytest.raises(ClientDisconnected):
        await read_body(Client(b"half", leaves=True).receive, 100)
