"""What we answer ourselves, and how a request's body is read: raw ASGI."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

import orjson
from starlette.types import Receive, Send

from om_proxy.edge.headers import Header
from om_proxy.errors import HttpInstead, OmError, Overloaded, TooLarge


class Disconnected(Exception):
    """The client left before its request was complete; there is nobody to answer."""


async def read_body(receive: Receive, limit: int) -> bytes:
    """The whole body. Raises TooLarge above `limit` bytes, as they are counted while they come."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise TooLarge(f"the request body is larger than limits.body ({limit} bytes); send less or raise it")
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


async def error(send: Send, exc: OmError, receipt: Sequence[Header] = ()) -> None:
    """An error of ours in OpenAI's shape; `x-should-retry` tells its SDKs whether trying again can help."""
    await as_json(send, exc.status, _body(exc), [*_headers(exc), *receipt])


def written(exc: OmError) -> bytes:
    """The same as it stands on the wire, for a connection that ends with it."""
    content = orjson.dumps(_body(exc))
    headers = [*_framing(content), *_headers(exc), (b"connection", b"close")]
    lines = [b"%s: %s" % header for header in headers]
    status = b"HTTP/1.1 %d %s" % (exc.status, HTTPStatus(exc.status).phrase.encode())
    return b"\r\n".join([status, *lines, b"", content])


async def as_json(send: Send, status: int, body: object, headers: Sequence[Header] = ()) -> None:
    content = orjson.dumps(body)
    await send({"type": "http.response.start", "status": status, "headers": [*_framing(content), *headers]})
    await send({"type": "http.response.body", "body": content})


def _body(exc: OmError) -> dict[str, object]:
    param = getattr(exc, "param", None)
    return {"error": {"message": str(exc), "type": "om_error", "param": param, "code": exc.code}}


def _headers(exc: OmError) -> list[Header]:
    retry = (b"x-should-retry", b"true" if exc.retryable else b"false")
    match exc:
        case Overloaded():
            return [retry, (b"retry-after", b"1")]
        case HttpInstead():  # RFC 9110 15.5.22: it must name the protocol that is spoken here
            return [retry, (b"upgrade", b"HTTP/1.1"), (b"connection", b"Upgrade")]
        case _:
            return [retry]


def _framing(content: bytes) -> list[Header]:
    return [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
