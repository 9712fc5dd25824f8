"""Read a request's body, up to a limit."""

from __future__ import annotations

from starlette.types import Receive

from om_proxy.errors import TooLarge


class ClientDisconnected(Exception):
    """The client left before its request was complete. It waits for no response."""


async def read_body(receive: Receive, limit: int) -> bytes:
    """Return the whole body. Raises TooLarge as soon as it exceeds `limit` bytes."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise make_too_large(limit)
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


def make_too_large(limit: int) -> TooLarge:
    """The error for a body above limits.body."""
    return TooLarge(
        f"the request body is larger than limits.body ({limit} bytes); send less or raise it"
    )
