"""Read a request's body, up to a limit."""

from __future__ import annotations

from starlette.types import Receive

from om_proxy.common.errors import TooLarge


class ClientDisconnected(Exception):
    """The client left before its request was complete. No response is sent."""


async def read_body(receive: Receive, limit_bytes: int) -> bytes:
    """Return the whole body. Raises TooLarge as soon as the body exceeds `limit` bytes, and
    ClientDisconnected."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        part = message.get("body", b"")
        size += len(part)
        if size > limit_bytes:
            raise make_too_large(limit_bytes)
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


def make_too_large(limit_bytes: int) -> TooLarge:
    """Make the error for a body above limits.body."""
    return TooLarge(
        f"the request body is larger than limits.body ({limit_bytes} bytes); send less or raise it"
    )
