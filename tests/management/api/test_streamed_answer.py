"""Answers that are sent piece by piece, and clients that leave before the first piece."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from starlette.types import Message

from om_proxy.management.api.streamed_answer import StreamedAnswer, send_streamed
from om_proxy.wire.server.capacity.work_kinds import EXPORT
from om_proxy.wire.server.protocol import DISCONNECT_EXTENSION

PIECES = [b"one ", b"", b"two"]


class Source:
    """Pieces, and whether their generator was closed."""

    def __init__(self) -> None:
        self.is_closed = False

    async def give(self) -> AsyncGenerator[bytes, None]:
        try:
            for piece in PIECES:
                yield piece
        finally:
            self.is_closed = True


def make_scope(
    disconnect: asyncio.Future[None], create_shutdown: Callable[[], asyncio.Future[None]]
) -> dict[str, Any]:
    extension = {"future": disconnect, "create_shutdown_future": create_shutdown}
    return {"type": "http", "method": "GET", "extensions": {DISCONNECT_EXTENSION: extension}}


async def never() -> Message:
    raise AssertionError("the server's own future tells that the client has left")


@pytest.mark.parametrize("is_endless", [False, True])
@pytest.mark.parametrize("who_leaves", ["nobody", "client", "server"])
async def test_pieces(is_endless: bool, who_leaves: str) -> None:
    """All are sent; none, and without a warning, to a client that has left already, nor of an
    endless answer once the server ends."""
    disconnect, shutdown = (asyncio.get_running_loop().create_future() for _ in range(2))
    if who_leaves != "nobody":
        (disconnect if who_leaves == "client" else shutdown).set_result(None)
    source, sent = Source(), list[Message]()

    async def send(message: Message) -> None:
        sent.append(message)

    answer = StreamedAnswer(b"text/plain", source.give(), EXPORT, is_endless=is_endless)
    await send_streamed(answer, make_scope(disconnect, lambda: shutdown), never, send)
    gc.collect()  # a coroutine that was never started warns here, and a warning is an error
    body = b"".join(message.get("body", b"") for message in sent)
    is_cut = who_leaves == "client" or (who_leaves == "server" and is_endless)
    assert body == (b"" if is_cut else b"one two")
    assert source.is_closed
    is_ended = sent[-1]["type"] == "http.response.body" and not sent[-1].get("more_body")
    assert is_ended == (who_leaves != "client")
