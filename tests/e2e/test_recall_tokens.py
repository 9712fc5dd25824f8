"""A user whose token names one thread looks up that thread alone, whatever the settings say."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from om_proxy.settings.identity.user_token import Claims, sign_claims
from om_proxy.testing.scripted import Fault, Message, ScriptedServer
from tests.e2e.running import SMALL, Running, run_with_scripted_models

SECRET = "0123456789abcdef0123456789abcdef"
MEMORY = f"retrieval: {{enabled: true, offer: always, scope: resource}}, {SMALL}"
AUTH = {"authorization": "Bearer sk-a"}
LATER = 4_000_000_000.0


class Curious(ScriptedServer):
    """An actor that looks up what it is set to, and answers with what it is told."""

    look_up: Mapping[str, Any] | None = None

    def choose_answer(
        self, model: str, messages: Sequence[Message], fault: Fault | None
    ) -> Message:
        if self.look_up is None or messages[-1]["role"] == "tool":
            return {"role": "assistant", "content": str(messages[-1]["content"])}
        function = {"name": "recall", "arguments": json.dumps(self.look_up)}
        call = {"id": "own", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Running]:
    auth = f'auth: {{token_secret: "{SECRET}"}}'
    async with run_with_scripted_models(tmp_path, MEMORY, models=Curious(), more=auth) as running:
        for thread in ("other", "own", "own"):
            await ask(running, thread, "The serial number is QX-4417-K.", Claims("r", LATER))
        yield running


async def ask(
    run: Running, thread: str, text: str, claims: Claims, look_up: Mapping[str, Any] | None = None
) -> str:
    """Send one message as a user with these claims. Return the reply."""
    assert isinstance(run.models, Curious)
    run.models.look_up = look_up
    headers = {
        **AUTH,
        "x-om-token": sign_claims(claims, SECRET.encode()),
        "x-om-thread": thread,
    }
    body = {"model": "scripted-actor", "messages": [{"role": "user", "content": text}]}
    answer = await run.http.post(f"{run.base}/v1/chat/completions", json=body, headers=headers)
    assert answer.headers["x-om-status"] in ("raw", "applied"), answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


@pytest.mark.parametrize("named", [True, False], ids=["for one thread", "for the resource"])
async def test_what_a_token_reads(run: Running, named: bool) -> None:
    """Neither searched, nor listed, nor opened by its id."""
    claims = Claims("r", LATER, "own" if named else None)
    threads = (await run.http.get(f"{run.base}/om/v1/threads", headers=AUTH)).json()["threads"]
    (other,) = [thread["label"][:8] for thread in threads if thread["thread"] == "other"]
    told = [
        await ask(run, "own", f"{number}?", claims, look_up)
        for number, look_up in enumerate(
            (
                {"mode": "threads"},
                {"mode": "messages", "threadId": other},
                {"mode": "messages", "cursor": f"{other}.m1"},
                {"mode": "search", "query": "serial number"},
            )
        )
    ]
    tools = [tool for body in bodies(run)[-8:] for tool in body.get("tools", ())]
    assert len(tools) == 8
    assert ("threadId" not in json.dumps(tools)) == named
    assert (other not in "".join(told)) == named
    assert ("QX-4417" not in "".join(told[:3])) == named


def bodies(run: Running) -> list[dict[str, Any]]:
    return [json.loads(request.body) for request in run.models.requests_to("scripted-actor")]
