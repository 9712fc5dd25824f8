"""Fail in words of the conversation: model servers whose errors repeat what they were sent, and
exceptions of ours that hold a text. None of it may get out."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from starlette.types import Receive, Send

from om_proxy.agents.observer import Observer
from om_proxy.engine.event_feed.inline import InlineEvents
from om_proxy.engine.turns.engine import Engine
from om_proxy.testing import loopback
from om_proxy.testing.scripted import OBSERVER, Fault, ScriptedServer
from tests.e2e.running import Chat


class RepeatingServer(ScriptedServer):
    """A scripted model server whose errors repeat the whole request: its key and its messages."""

    async def act_out_fault(
        self, receive: Receive, send: Send, fault: Fault | None, model: str, *more: Any
    ) -> bool:
        if fault is None or fault.kind != "http":
            return await super().act_out_fault(receive, send, fault, model, *more)
        asked = self.requests[-1]
        key = dict(asked.headers).get(b"authorization", b"").decode()
        text = orjson.dumps(asked.messages).decode()
        said = f"{key} may not say: {text}"
        error = {"message": said, "type": said, "param": said, "code": said}
        await loopback.send_json(send, fault.status, {"error": error})
        return True


async def fail_in_words(chat: Chat, text: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let everything fail with `text` in its error: the model server, memory's work in the
    background, the opening of a turn, and the comments before a stream. Return the statuses that
    the client saw, in order."""
    statuses: list[int] = []

    async def say() -> None:
        headers = {**chat.headers, "x-om-events": "inline"}
        message = {"role": "user", "content": f"{text} {len(statuses)} " * 40}
        body = {"model": "scripted-actor", "messages": [message], "stream": True}
        run = chat.running
        url = f"{run.base}/v1/chat/completions"
        answer = await run.http.post(url, json=body, headers=headers)
        statuses.append(answer.status_code)
        await run.app.background.wait_idle()
        run.clock.now += 7_200  # memory's work is tried again

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"a fault of ours that holds {text}")

    faults = chat.running.models.faults
    await say()
    for status in (400, 401, 429, 500):
        faults.switch(Fault(kind="http", model="scripted-actor", status=status))
        await say()
        faults.switch(Fault(kind="http", model=OBSERVER, status=status))
        await say()
    faults.switch()
    for owner, method in ((Observer, "observe"), (Engine, "open_turn"), (InlineEvents, "write")):
        with monkeypatch.context() as patched:
            patched.setattr(owner, method, fail)
            for _ in range(3):
                await say()
    await say()
    return statuses
