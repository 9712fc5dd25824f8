"""Send an answer of the admin API piece by piece, as its source gives it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import structlog
from starlette.types import Receive, Scope, Send

from om_proxy.common.errors import OmError
from om_proxy.memory.model import Key
from om_proxy.wire.server.capacity.work_kinds import WorkKind
from om_proxy.wire.server.disconnect import (
    DisconnectWatch,
    get_shutdown_future,
    run_unless_disconnected,
)
from om_proxy.wire.server.headers import Header

logger = structlog.get_logger("admin")


@dataclass(frozen=True, slots=True, eq=False)
class StreamedAnswer:
    """An answer whose length is not known. An error before the first piece is answered as any
    other. One after it cuts the connection, so that no client takes the answer for whole."""

    content_type: bytes
    pieces: AsyncGenerator[bytes, None]
    work: WorkKind  # whose slot it takes until it ends
    headers: Sequence[Header] = ()
    about: Key | None = None  # for the audit, as in `AuditLog.record`; None: what the path names
    # a stream without an end: it ends when the server does
    is_endless: bool = False


async def send_streamed(answer: StreamedAnswer, scope: Scope, receive: Receive, send: Send) -> None:
    """Send the pieces until there are no more, the client leaves, or the server ends. After an
    error, return without the end of the answer: the server then cuts the connection."""
    async with aclosing(answer.pieces) as pieces:
        first = await anext(pieces, b"")
        headers = [(b"content-type", answer.content_type), *answer.headers]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if scope["method"] != "HEAD":
            async with DisconnectWatch(scope, receive) as disconnect:
                shutdown = get_shutdown_future(scope) if answer.is_endless else None
                sending = _send_pieces(first, pieces, send, shutdown)
                try:
                    await run_unless_disconnected(disconnect, sending)
                except OmError as exc:
                    logger.error("answer.cut", error=type(exc).__name__)
                    return
                if disconnect.done():
                    return
        await send({"type": "http.response.body", "body": b""})


async def _send_pieces(
    first: bytes,
    pieces: AsyncGenerator[bytes, None],
    send: Send,
    shutdown: asyncio.Future[None] | None,
) -> None:
    """Send all pieces, or those until the server ends (`shutdown`)."""

    async def send_all() -> None:
        await send({"type": "http.response.body", "body": first, "more_body": True})
        async for piece in pieces:
            if piece:
                await send({"type": "http.response.body", "body": piece, "more_body": True})

    await run_unless_disconnected(shutdown, send_all())
