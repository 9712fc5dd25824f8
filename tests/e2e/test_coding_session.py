"""A long conversation with tools, every call of it, through a live proxy with default thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from proxy.app import App, create_app
from proxy.demo.scripted import Scripted
from proxy.memory.model import Key
from proxy.settings import parse
from tests.e2e.replay import (
    Inspector,
    Recorded,
    ask,
    assert_complete,
    calls_of,
    client_of,
    coding_session,
    serving,
)


def settings_for(tmp_path: Path, upstream: str, observer: str, memory: str = "") -> Any:
    return parse(
        f"""
        upstream: [{{name: recorded, match: ["*"], base_url: "{upstream}/v1", layout: blocks}}]
        storage: {{url: "sqlite:///{tmp_path}/om.db"}}
        memory: {{model: openai/scripted-observer, api_base: "{observer}/v1", api_key: sk-observer{memory}}}
        telemetry: {{log: "off"}}
        """
    )


async def thread_key(app: App) -> Key:
    return (await app.store.threads(None))[0].key


async def replayed(
    tmp_path: Path, conversation: Sequence[dict[str, Any]], memory: str = "", **inspected: int
) -> Inspector:
    calls = calls_of(conversation)
    recorded, inspector, key = Recorded(calls), Inspector(**inspected), None
    async with serving(recorded, lifespan="off") as upstream, serving(Scripted(), lifespan="off") as observer:
        app = create_app(settings_for(tmp_path, upstream, observer, memory))
        async with serving(app) as base, client_of(base, "session") as client:
            for call in calls:
                reply, receipt = await ask(client, call, stream=call.index % 2 == 0)
                assert (reply.get("content") or "") == (call.reply.get("content") or "")
                assert [c["id"] for c in reply.get("tool_calls", [])] == [
                    c["id"] for c in call.reply.get("tool_calls") or ()
                ]
                assert receipt["status"] in ("raw", "applied"), receipt
                assert len(recorded.bodies[call.index]) == 1
                inspector.inspect(call, recorded.bodies[call.index][0], receipt)
                key = key or await thread_key(app)
                assert_complete(await app.store.load(key), call.sent, call.reply)
            await app.background.wait_idle()
    return inspector


@pytest.mark.slow
async def test_the_coding_session(tmp_path: Path) -> None:
    """439 calls: every prompt valid and bounded, nothing lost, nothing twice, the prefix stable between activations."""
    conversation = coding_session()
    if conversation is None:
        pytest.skip("the shared coding session is not here: ../shared/data/coding-session.jsonl")
    assert len(calls_of(conversation)) == 439
    inspector = await replayed(tmp_path, conversation)
    assert 3 <= inspector.breaks <= 20
