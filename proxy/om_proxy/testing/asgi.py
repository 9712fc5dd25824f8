"""Read and send the few ASGI messages that a small server needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


async def read_body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    has_more = True
    while has_more:
        message = await receive()
        has_more = message.get("more_body", False)
        parts.append(message.get("body", b""))
    return b"".join(parts)


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def start_response(
    send: Send, status: int, content_type: bytes, *extra_headers: tuple[bytes, bytes]
) -> None:
    headers = [(b"content-type", content_type), (b"x-request-id", b"scripted"), *extra_headers]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def send_json(
    send: Send, status: int, value: Any, retry_after_s: float | None = None
) -> None:
    body = orjson.dumps(value)
    headers = [(b"content-length", str(len(body)).encode())]
    if retry_after_s is not None:
        headers.append((b"retry-after", f"{retry_after_s:g}".encode()))
    await start_response(send, status, b"application/json", *headers)
    await end_response(send, body)


async def send_event(send: Send, value: Any) -> None:
    await send(
        {
            "type": "http.response.body",
            "body": b"data: " + orjson.dumps(value) + b"\n\n",
            "more_body": True,
        }
    )


async def end_response(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body})
