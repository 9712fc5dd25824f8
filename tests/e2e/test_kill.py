"""The proxy killed in the middle of a long conversation: nothing acknowledged is lost, nothing is stored twice."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import openai
import pytest

from proxy.demo.scripted import Scripted
from proxy.storage.sqlite import SqliteStore
from tests.e2e.process import Process, free_port
from tests.e2e.replay import (
    Call,
    Inspector,
    Recorded,
    ask,
    assert_complete,
    calls_of,
    client_of,
    coding_session,
    serving,
)

KILLS = 10
PHASES = ("before the upstream answers", "in the middle of the reply")


class Killing(Recorded):
    """Kills the proxy at some calls, once each, in the phase it is told."""

    def __init__(self, calls: list[Call], at: dict[int, str]) -> None:
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


def config(tmp_path: Path, port: int, upstream: str, observer: str) -> Path:
    path = tmp_path / "om-proxy.yaml"
    path.write_text(
        f"""
server: {{port: {port}}}
upstream: [{{name: recorded, base_url: "{upstream}/v1", layout: blocks}}]
storage: {{url: "sqlite:///{tmp_path}/om.db"}}
memory: {{model: openai/scripted-observer, api_base: "{observer}/v1", api_key: sk-observer}}
telemetry: {{log: "off"}}
"""
    )
    return path


async def killed_and_restarted(tmp_path: Path, conversation: list[dict[str, Any]], kills: int, seed: int) -> Inspector:
    calls, dice = calls_of(conversation), random.Random(seed)
    at = {n: dice.choice(PHASES) for n in dice.sample(range(1, len(calls)), kills)}
    expected_retries = len(at)
    recorded, inspector, retries = Killing(calls, at), Inspector(), 0
    async with serving(recorded, lifespan="off") as upstream, serving(Scripted(), lifespan="off") as observer:
        port = free_port()
        process = Process(config(tmp_path, port, upstream, observer), port)
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
                        except (openai.APIError, ConnectionError):
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


@pytest.mark.slow
async def test_the_coding_session_with_ten_kills(tmp_path: Path) -> None:
    """SIGKILL at ten random calls: the client's own retry is all it takes, and every promise still holds."""
    conversation = coding_session()
    if conversation is None:
        pytest.skip("the shared coding session is not here: ../shared/data/coding-session.jsonl")
    inspector = await killed_and_restarted(tmp_path, conversation, KILLS, seed=20)
    assert inspector.breaks >= 3
