"""A client of the run writes down what it saw of an answer that breaks off."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.replicas.clients import Notebook, ReplicaClient
from tests.e2e.replicas.front import open_front
from tests.e2e.replicas.pausing import Pause

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\nx-om-status: %s\r\n\r\n"


@pytest.mark.parametrize(
    ("arrived", "has_receipt", "has_memory"),
    [
        pytest.param(b"", False, True, id="before its head"),
        pytest.param(HEAD % b"applied", True, True, id="behind its head"),
        pytest.param(HEAD % b"degraded", True, False, id="behind a head without memory"),
    ],
)
async def test_an_answer_that_breaks_off(
    arrived: bytes, *, has_receipt: bool, has_memory: bool
) -> None:
    ended, notebook = asyncio.Event(), Notebook()

    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended.set()
        await reader.readuntil(b"\r\n\r\n")
        writer.write(arrived)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(break_off, "127.0.0.1", 0)
    async with server, open_front([server.sockets[0].getsockname()[1]]) as front:
        client = ReplicaClient(0, "thin", front, Pause(), notebook, 0, 30.0, leaving_share=0.0)
        await client.talk_until(ended)
    turn = notebook.turns[0]
    assert turn.outcome == "unknown"
    assert (turn.has_receipt, turn.has_memory) == (has_receipt, has_memory)
