"""What is answered by ourselves, and how a body is read."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import orjson
import pytest

from om_proxy.edge import answers
from om_proxy.errors import (
    BadRequest,
    OmError,
    Overloaded,
    StorageError,
    TooLarge,
    Unauthorized,
    Unsupported,
    UpstreamError,
    UpstreamTimeout,
)


class Client:
    """The other end of an ASGI call: it sends these pieces, and keeps what it got."""

    def __init__(self, *pieces: bytes, leaves: bool = False) -> None:
        more = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
        end = {"type": "http.disconnect"} if leaves else {"type": "http.request", "body": b""}
        self.messages: list[MutableMapping[str, Any]] = [*more, end]
        self.got: list[MutableMapping[str, Any]] = []

    async def receive(self) -> MutableMapping[str, Any]:
        return self.messages.pop(0)

    async def send(self, message: MutableMapping[str, Any]) -> None:
        self.got.append(message)

    @property
    def status(self) -> int:
        return int(self.got[0]["status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.got[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.got[1:])


@pytest.mark.parametrize(
    "pieces", [(), (b"",), (b"abc",), (b"a", b"", b"bc"), tuple(b"%d" % (n % 10) for n in range(50))]
)
async def test_a_body_in_pieces(pieces: tuple[bytes, ...]) -> None:
    """The whole body, however it was cut."""
    assert await answers.read_body(Client(*pieces).receive, 100) == b"".join(pieces)


@pytest.mark.parametrize(("size", "fits"), [(9, True), (10, True), (11, False)])
async def test_a_body_at_its_limit(size: int, fits: bool) -> None:
    """The limit itself is allowed."""
    client = Client(*[b"x"] * size)
    if fits:
        assert len(await answers.read_body(client.receive, 10)) == size
        return
    with pytest.raises(TooLarge, match=r"limits\.body \(10 bytes\)"):
        await answers.read_body(client.receive, 10)


async def test_a_body_beyond_its_limit_is_not_read_on() -> None:
    """It is refused where the limit is passed, not at its end."""
    client = Client(*[b"x" * 10] * 1_000)
    with pytest.raises(TooLarge):
        await answers.read_body(client.receive, 25)
    assert len(client.messages) == 1_001 - 3


async def test_a_client_that_leaves() -> None:
    """There is nobody left to answer."""
    with pytest.raises(answers.Disconnected):
        await answers.read_body(Client(b"half", leaves=True).receive, 100)


@pytest.mark.parametrize(
    ("exc", "status", "code", "retry"),
    [
        (BadRequest("name a thread", "om_bad_header", "x-om-thread"), 400, "om_bad_header", b"false"),
        (Unauthorized("send a key"), 401, "om_unauthorized", b"false"),
        (TooLarge("send less"), 413, "om_too_large", b"false"),
        (Unsupported("use HTTP"), 501, "om_unsupported", b"false"),
        (UpstreamError("ConnectError"), 502, "om_upstream_unreachable", b"true"),
        (Overloaded("come again"), 503, "om_overloaded", b"true"),
        (UpstreamTimeout("ReadTimeout"), 504, "om_upstream_timeout", b"true"),
        (StorageError("disk full"), 500, "om_storage", b"true"),
    ],
)
async def test_errors(exc: OmError, status: int, code: str, retry: bytes) -> None:
    """OpenAI's shape, our own type, and whether trying again can help."""
    client = Client()
    await answers.error(client.send, exc, [(b"x-om-status", b"off")])
    assert client.status == status
    param = "x-om-thread" if status == 400 else None
    assert orjson.loads(client.body) == {
        "error": {"message": str(exc), "type": "om_error", "param": param, "code": code}
    }
    assert client.headers[b"x-should-retry"] == retry
    assert client.headers[b"x-om-status"] == b"off"
    assert (b"retry-after" in client.headers) == (status == 503)


async def test_json() -> None:
    """Framed by its length, so the connection lives on."""
    client = Client()
    await answers.as_json(client.send, 200, {"status": "gut · 好"})
    assert orjson.loads(client.body) == {"status": "gut · 好"}
    assert client.headers == {b"content-type": b"application/json", b"content-length": str(len(client.body)).encode()}
