"""`X-OM-Events: inline` over real sockets: comments before the first byte of a stream, and nowhere
else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from om_proxy.engine.event_feed.inline import InlineEvents
from om_proxy.testing.scripted import Fault, ScriptedServer
from tests.e2e.running import CRATE_REMARK, SMALL_LOG_MEMORY, Running, run_with_scripted_models

AUTH = {"authorization": "Bearer sk-a", "x-om-thread": "t"}


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Running]:
    async with run_with_scripted_models(tmp_path, SMALL_LOG_MEMORY) as running:
        yield running


async def ask(
    run: Running, events: str | None = "inline", *, stream: bool = True, text: str = "Where?"
) -> httpx.Response:
    body = {
        "model": "scripted-actor",
        "messages": [{"role": "user", "content": text}],
        "stream": stream,
    }
    headers = AUTH | ({} if events is None else {"x-om-events": events})
    return await run.http.post(f"{run.base}/v1/chat/completions", json=body, headers=headers)


def split(answer: httpx.Response) -> tuple[list[dict[str, Any]], bytes]:
    """Return the comments, and the bytes after them."""
    rest, comments = answer.content, []
    while rest.startswith(b": om "):
        comment, _, rest = rest.partition(b"\n\n")
        comments.append(json.loads(comment[5:]))
    return comments, rest


async def play_to_activation(run: Running, events: str) -> list[dict[str, Any]]:
    """Talk until a request activates notes; return that reply's comments."""
    for number in range(12):
        comments, rest = split(await ask(run, events, text=CRATE_REMARK.format(n=number)))
        assert b": om" not in rest
        assert comments[0]["type"] == "data-om-status"
        run.clock.now += 1
        await run.app.background.wait_idle()
        if len(comments) > 1:
            return comments
    raise AssertionError("no request activated notes")


async def test_the_state_and_what_happened(run: Running) -> None:
    """The state is that of the prompt; an activation that the request caused is told once."""
    comments = await play_to_activation(run, "inline")
    assert {comment["type"] for comment in comments[1:]} == {"data-om-activation"}
    assert {comment["data"]["observations"] for comment in comments[1:]} == {None}
    status = comments[0]["data"]
    assert status["threadId"] == "t"
    assert status["windows"]["active"]["observations"]["tokens"] == sum(
        comment["data"]["observationTokens"] for comment in comments[1:]
    )


async def test_texts_on_request(run: Running) -> None:
    comments = await play_to_activation(run, "inline,text")
    assert all("Crate" in comment["data"]["observations"] for comment in comments[1:])


@pytest.mark.parametrize("events", [None, "sidecar", "inline,everything", ""])
async def test_no_other_value_changes_anything(run: Running, events: str | None) -> None:
    """The bytes are those of a request without the header, and so is the receipt."""
    answer = await ask(run, events)
    assert b": om" not in answer.content
    assert answer.headers["x-om-status"] == "raw"
    asked = await ask(run, "inline")
    assert {n for n in answer.headers if n.startswith("x-om-")} == {
        n for n in asked.headers if n.startswith("x-om-")
    }
    assert b"x-om-events" not in str(run.models.requests[-1]).encode().lower()


async def test_not_in_json(run: Running) -> None:
    answer = await ask(run, stream=False)
    assert answer.json()["choices"]


async def test_not_before_an_error(tmp_path: Path) -> None:
    """An error is what the model server sent, to the byte."""
    models = ScriptedServer()
    async with run_with_scripted_models(tmp_path, SMALL_LOG_MEMORY, models=models) as run:
        models.faults.switch(Fault(kind="http", status=429))
        answer = await ask(run)
        assert answer.status_code == 429
        assert b": om" not in answer.content
        assert run.app.chat._inline.memories.events.watchers == {}


async def test_a_fault_costs_nothing_but_the_comments(
    run: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply is whole, and the turn is stored."""

    def fail(*args: object, **more: object) -> bytes:
        raise RuntimeError("a fault of ours")

    await ask(run)
    monkeypatch.setattr(InlineEvents, "write", fail)
    comments, rest = split(await ask(run, text="And then?"))
    assert comments == []
    assert rest.endswith(b"data: [DONE]\n\n")
    assert (await run.memory()).turns == 2
    assert run.app.chat._inline.memories.events.watchers == {}


async def test_the_sdk_reads_it_unharmed(run: Running) -> None:
    """openai-python passes comments over, and finds the same reply."""
    client = openai.AsyncOpenAI(
        base_url=f"{run.base}/v1",
        api_key="sk-a",
        default_headers={"x-om-thread": "sdk", "x-om-events": "inline,text"},
    )
    async with client:
        for number in range(10):
            stream = await client.chat.completions.create(
                model="scripted-actor",
                messages=[{"role": "user", "content": CRATE_REMARK.format(n=number)}],
                stream=True,
            )
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
            assert "".join(pieces).startswith("Noted")
            await run.app.background.wait_idle()
