"""Each thing that is done beside a turn fails alone: the client gets its whole reply, the turn is
stored, and the fault is told of without a word of anyone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
import pytest_asyncio

from om_proxy.memory.model import Key, Memory
from om_proxy.observability.facts import (
    TURN_EXTRAS,
    ExtraFailed,
    Facts,
    TurnEnded,
    TurnExtra,
    Uncommitted,
)
from om_proxy.testing.scripted import Fault, Message, ScriptedServer
from tests.e2e.running import SMALL, Running, read_streamed_text, run_with_scripted_models

MEMORY = f"retrieval: {{enabled: true, offer: always, scope: resource}}, {SMALL}"
QUESTION, ANSWER = "Where is the blue van?", "It is at Quarry Steps."
# without these nothing is known of the reply
OF_THE_REPLY = ("reply_copy", "reply_item")
OF_STREAMS = ("inline",)
OF_SIDE_REQUESTS = ("title",)
TITLE_TASK = "### Task:\nGenerate a concise title of it."
OF_LOOK_UPS = ("rounds", "look_up_tokens", "look_ups")


class Searching(ScriptedServer):
    """An actor that looks its question up, and answers."""

    def choose_answer(
        self, model: str, messages: Sequence[Message], fault: Fault | None
    ) -> Message:
        if messages[-1]["role"] == "tool" or messages[-1]["content"] != QUESTION:
            return {"role": "assistant", "content": ANSWER}
        function = {"name": "recall", "arguments": json.dumps({"query": "blue van"})}
        call = {"id": "own", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    folder = tmp_path_factory.mktemp("extras")
    async with run_with_scripted_models(folder, MEMORY, models=Searching()) as running:
        await say(running, "other", "The blue van is at Quarry Steps.")
        yield running


async def say(run: Running, thread: str, text: str, *, stream: bool = True) -> str:
    """Say one message, and return the reply."""
    headers = {
        "authorization": "Bearer sk-a",
        "x-om-thread": thread,
        "x-om-resource": "r",
        "x-om-events": "inline",
    }
    message = {"role": "user", "content": text}
    body = {"model": "scripted-actor", "messages": [message], "stream": stream}
    answer = await run.http.post(f"{run.base}/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200
    if stream:
        return read_streamed_text(answer.content)
    return str(answer.json()["choices"][0]["message"]["content"])


async def load(run: Running, thread: str) -> Memory:
    (key,) = [info.key for info in await run.app.store.threads(None) if info.key.thread == thread]
    return await run.app.store.load(key)


async def count_failures(run: Running) -> float:
    page = (await run.http.get(f"{run.base}/metrics")).text
    lines = [line for line in page.splitlines() if 'om_failures_total{cause="turn-extra"}' in line]
    return float(lines[0].split()[-1]) if lines else 0.0


def break_extra(monkeypatch: pytest.MonkeyPatch, broken: TurnExtra) -> None:
    try_extra, await_extra = Facts.try_extra, Facts.await_extra

    def fail(*_: Any) -> Any:
        raise RuntimeError(QUESTION)

    async def fail_later(*_: Any) -> Any:
        raise RuntimeError(QUESTION)

    def try_broken(
        self: Facts,
        extra: TurnExtra,
        key: Key | None,
        fallback: Any,
        run: Callable[..., Any],
        *args: Any,
    ) -> Any:
        return try_extra(self, extra, key, fallback, fail if extra == broken else run, *args)

    async def await_broken(
        self: Facts,
        extra: TurnExtra,
        key: Key | None,
        fallback: Any,
        run: Callable[..., Awaitable[Any]],
        *args: Any,
    ) -> Any:
        run = fail_later if extra == broken else run
        return await await_extra(self, extra, key, fallback, run, *args)

    monkeypatch.setattr(Facts, "try_extra", try_broken)
    monkeypatch.setattr(Facts, "await_extra", await_broken)


@pytest.mark.parametrize(
    ("broken", "stream"),
    [
        (extra, s)
        for extra in TURN_EXTRAS
        for s in (True, False)
        if (s or extra not in OF_STREAMS) and extra not in OF_SIDE_REQUESTS
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_it_fails_alone(
    run: Running, monkeypatch: pytest.MonkeyPatch, broken: TurnExtra, stream: bool
) -> None:
    thread = f"{broken}-{stream}"
    failed: list[ExtraFailed] = []
    lost: list[Uncommitted] = []
    run.app.facts.subscribe(failed.append, ExtraFailed)
    run.app.facts.subscribe(lost.append, Uncommitted)
    is_broken = broken == "facts"

    def refuse_fact(_: Any) -> None:
        if is_broken:
            raise RuntimeError(QUESTION)

    run.app.facts.subscribe(refuse_fact, TurnEnded)
    counted = await count_failures(run)
    with monkeypatch.context() as patch:
        break_extra(patch, broken)
        assert await say(run, thread, QUESTION, stream=stream) == ANSWER
    is_broken = False
    memory = await load(run, thread)
    stored = [json.loads(message.item.raw)["content"] for message in memory.tail]
    assert stored == ([QUESTION] if broken in OF_THE_REPLY else [QUESTION, ANSWER])
    is_kept = memory.tail[-1].look_ups is not None
    assert is_kept == (broken not in (*OF_THE_REPLY, *OF_LOOK_UPS))
    assert {fact.extra for fact in failed} == {broken}
    assert {fact.error for fact in failed} == {"RuntimeError"}
    assert QUESTION not in repr(failed)
    assert lost == []
    assert await count_failures(run) - counted >= len(failed) > 0
    assert await say(run, thread, "And the red one?", stream=stream) == ANSWER
    assert (await load(run, thread)).count == len(stored) + 2


@pytest.mark.asyncio(loop_scope="module")
async def test_a_title_fails_alone(run: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer has reached the client, and the thread stays as it was."""
    failed: list[ExtraFailed] = []
    await say(run, "titled", QUESTION, stream=False)
    before = await load(run, "titled")
    run.app.facts.subscribe(failed.append, ExtraFailed)
    with monkeypatch.context() as patch:
        break_extra(patch, "title")
        assert await say(run, "titled", TITLE_TASK, stream=False)
        await run.app.background.wait_idle()
        assert {fact.extra for fact in failed} == {"title"}
    assert await load(run, "titled") == before
