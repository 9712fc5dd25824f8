"""Replay a conversation through a proxy that is killed by SIGKILL on the way, and started again on
the same store."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai

from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.testing.scripted import ScriptedServer
from tests.e2e.process import Process
from tests.e2e.replay import (
    Call,
    Inspector,
    Recorded,
    ask,
    assert_complete,
    client_of,
    configuration,
    serve_on_loopback,
)
from tests.support.free_port import free_port

PHASES = ("before the upstream answers", "in the middle of the reply")


class Killing(Recorded):
    """Kills the proxy at some calls, once each, in the phase it is told."""

    def __init__(self, calls: Sequence[Call], at: dict[int, str]) -> None:
        super().__init__(calls)
        self.at = at
        self.kill: Callable[[], Coroutine[Any, Any, None]]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        phase = self.at.pop(int(dict(scope["headers"])[b"x-test-call"]), None)
        if phase == PHASES[0]:
            await self.kill()

        async def sending(message: Any) -> None:
            await send(message)
            if phase == PHASES[1] and message["type"] == "http.response.start":
                await self.kill()

        await super().__call__(scope, receive, sending)


async def killed_and_restarted(
    tmp_path: Path, calls: Sequence[Call], kills: int, seed: int, memory: str = "", **inspected: int
) -> Inspector:
    """Every call in order, as in `replayed`, through a proxy that is killed at some of them; the
    client then tries again."""
    dice = random.Random(seed)
    at = {n: dice.choice(PHASES) for n in dice.sample(range(1, len(calls)), kills)}
    expected_retries = len(at)
    recorded, inspector, retries = Killing(calls, at), Inspector(**inspected), 0
    async with (
        serve_on_loopback(recorded, lifespan="off") as upstream,
        serve_on_loopback(ScriptedServer(), lifespan="off") as observer,
    ):
        port, file = free_port(), tmp_path / "om-proxy.yaml"
        file.write_text(
            f"server: {{port: {port}}}\n{configuration(tmp_path, upstream, observer, memory)}"
        )
        process = Process(file, port)
        recorded.kill = process.kill
        await process.start()
        store = await SqliteStore.open(tmp_path / "om.db")
        try:
            async with client_of(process.base, "session") as client:
                for call in calls:
                    while True:
                        try:
                            _, receipt = await ask(client, call, stream=call.index % 2 == 0)
                            break
                        except (
                            openai.APIError,
                            ConnectionError,
                            httpx.TransportError,
                        ):  # the last, where a stream breaks
                            retries += 1
                            await process.kill()
                            await process.start()
                    assert receipt["status"] in ("raw", "applied"), receipt
                    inspector.inspect(call, recorded.bodies[call.index][-1], receipt)
                    (info,) = await store.threads(None)
                    assert_complete(await store.load(info.key), call.sent, call.reply)
        finally:
            await store.close()
            assert await process.terminate() == 0
    assert retries == expected_retries
    return inspector
