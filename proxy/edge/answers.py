"""What we answer ourselves, and how a request's body is read: raw ASGI."""

from __future__ import annotations

from collections.abc import Sequence

import orjson
from starlette.types import Receive, Send

from proxy.edge.headers import Header
from proxy.errors import OmError, Overloaded, TooLarge


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
    param = getattr(exc, "param", None)
    body = {"error": {"message": str(exc), "type": "om_error", "param": param, "code": exc.code}}
    headers = [(b"x-should-retry", b"true" if exc.retryable else b"false"), *receipt]
    if isinstance(exc, Overloaded):
        headers.append((b"retry-after", b"1"))
    await as_json(send, exc.status, body, headers)


async def as_json(send: Send, status: int, body: object, headers: Sequence[Header] = ()) -> None:
    content = orjson.dumps(body)
    framing = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*framing, *headers]})
    await send({"type": "http.response.body", "body": content})
