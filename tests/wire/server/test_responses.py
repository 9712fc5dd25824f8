"""The proxy's own responses."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import orjson
import pytest

from om_proxy.common.errors import (
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
from om_proxy.wire.server import responses


class Client:
    """A client that receives a response."""

    def __init__(self) -> None:
        self.got: list[MutableMapping[str, Any]] = []

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
    ("exc", "status", "code", "retry"),
    [
        (
            BadRequest("name a thread", "om_bad_header", "x-om-thread"),
            400,
            "om_bad_header",
            b"false",
        ),
        (Unauthorized("send a key"), 401, "om_unauthorized", b"false"),
        (TooLarge("send less"), 413, "om_too_large", b"false"),
        (Unsupported("use HTTP"), 501, "om_unsupported", b"false"),
        (UpstreamError("ConnectError"), 502, "om_upstream_unreachable", b"true"),
        (Overloaded("come again"), 503, "om_overloaded", b"true"),
        (UpstreamTimeout("ReadTimeout"), 504, "om_upstream_timeout", b"true"),
        (StorageError("disk full"), 503, "om_storage", b"true"),
    ],
)
async def test_errors(exc: OmError, status: int, code: str, retry: bytes) -> None:
    """An error has OpenAI's shape and our own type, and says whether a retry can help."""
    client = Client()
    await responses.send_error(client.send, exc, [(b"x-om-status", b"off")])
    assert client.status == status
    param = "x-om-thread" if status == 400 else None
    assert orjson.loads(client.body) == {
        "error": {"message": str(exc), "type": "om_error", "param": param, "code": code}
    }
    assert client.headers[b"x-should-retry"] == retry
    assert client.headers[b"x-om-status"] == b"off"
    assert (b"retry-after" in client.headers) == isinstance(exc, Overloaded)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, "invalid_request_error") for status in (400, 405, 426, 431, 501)),
        (401, "authentication_error"),
        (403, "permission_error"),
        *((status, "timeout_error") for status in (408, 504)),
        (413, "request_too_large"),
        *((status, "api_error") for status in (500, 502)),
        (503, "overloaded_error"),
    ],
)
async def test_error_of_messages(status: int, kind: str) -> None:
    """An error has Anthropic's shape and types there, with our code at the end of its words."""
    client, exc = Client(), OmError("do this")
    exc.status = status
    await responses.send_error(client.send, exc, api="messages")
    assert (client.status, client.headers[b"x-should-retry"]) == (status, b"true")
    assert orjson.loads(client.body) == {
        "type": "error",
        "error": {"type": kind, "message": "do this [om_internal]"},
    }


async def test_json() -> None:
    """The response has a length, so the connection stays open."""
    client = Client()
    await responses.send_json(client.send, 200, {"status": "gut · 好"})
    assert orjson.loads(client.body) == {"status": "gut · 好"}
    assert client.headers == {
        b"content-type": b"application/json",
        b"content-length": str(len(client.body)).encode(),
    }
