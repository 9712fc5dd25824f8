"""A proxy whose process stood still, with its machine, serves what came meanwhile: its clients were
not slow."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from tests.e2e.bounds.serving import proxied
from tests.e2e.raw_upstream import COMPLETION, chat_body, script_completion
from tests.support.raw_client import RawClient
from tests.support.upstream_server import run_upstream_server

LIMITS = "{header_timeout: 1s, body_timeout: 1s}"
CHECKED_S = 0.4  # each connection is checked once in a quarter of the limits
PAUSE_S = 1.5
BODY = chat_body("hi")
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)


async def test_what_came_meanwhile(tmp_path: Path) -> None:
    """Nothing, a part of the head, the head, or most of the body had come before."""
    sent_before = [0, 20, len(REQUEST) - len(BODY), len(REQUEST) - 5]
    async with (
        run_upstream_server(script_completion()) as server,
        proxied(tmp_path, server, LIMITS) as proxy,
        asyncio.timeout(60),
    ):
        clients = [await RawClient.connect(proxy.port) for _ in sent_before]
        for client, size in zip(clients, sent_before, strict=True):
            client.writer.write(REQUEST[:size])
        await asyncio.sleep(CHECKED_S)
        os.kill(proxy.pid, signal.SIGSTOP)
        for client, size in zip(clients, sent_before, strict=True):
            client.writer.write(REQUEST[size:])
        await asyncio.sleep(PAUSE_S)
        os.kill(proxy.pid, signal.SIGCONT)
        answers = [await client.answer() for client in clients]
        assert [(answer.status, answer.body) for answer in answers] == [(200, COMPLETION)] * 4
        for client in clients:
            await client.close()
