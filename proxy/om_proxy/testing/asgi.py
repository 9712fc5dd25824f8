"""Read and send the few ASGI messages that a small server needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


async def read_body(receive: Receive) -> bytes:
    parts, more = [], True
    while more:
        message = await receive()
        more = message.get("more_body", False)
        parts.append(message.get("body", b""))
    return b"".join(parts)


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def start_response(
    send: Send, status: int, content_type: bytes, *more: tuple[bytes, bytes]
) -> None:
    headers = [(b"content-type", content_type), (b"x-request-id", b"scripted"), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def send_json(send: Send, status: int, value: Any, retry_after: float | None = None) -> None:
    body = orjson.dumps(value)
    length = (b"content-length", str(len(body)).encode())
    wait = [(b"retry-after", f"{retry_after:g}".encode())] if retry_after is not None else []
    await start_response(send, status, b"application/json", length, *wait)
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
