"""One conversation changes its API from request to request, with an image, a PDF and tools."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Hashable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest

from om_proxy.testing.scripted import ACTOR, ScriptedServer
from om_proxy.wire.apis.split import Split, Splits
from tests.e2e.playing import TurnEvents, collect_turn_events
from tests.e2e.running import Running, run_with_scripted_models
from tests.support.published_apis import find_refusal
from tests.support.three_apis import (
    APIS,
    PATHS,
    Api,
    Json,
    read_prompt,
    read_reply,
    write_body,
)

ORDER: tuple[Api, ...] = ("chat", "responses", "messages", "chat", "messages", "responses")
MEMORY = "observation: {{message_tokens: {}, buffer_tokens: false}}, retrieval: false"
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
IMAGE = {
    "type": "image_url",
    "image_url": {"url": f"data:image/png;base64,{base64.b64encode(PNG).decode()}"},
}
PDF = {
    "type": "file",
    "file": {
        "filename": "plan.pdf",
        "file_data": f"data:application/pdf;base64,{base64.b64encode(b'%PDF-1.4 plan').decode()}",
    },
}
TOOL = {
    "type": "function",
    "function": {
        "name": "weigh",
        "description": "Weigh a crate.",
        "parameters": {"type": "object", "properties": {"crate": {"type": "integer"}}},
    },
}
FACT = "The dock at Quarry Steps takes no van higher than 2.85 m."
QUESTION = "What height does the dock at Quarry Steps take?"
REMARK = "Crate {n} weighs {n} kilos, is painted red and goes to dock {n}. " * 3


def call(number: int) -> Json:
    arguments = f'{{"crate":{number}}}'
    return {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": "weigh", "arguments": arguments},
    }


SCRIPT: Mapping[str, Json] = {
    f"Weigh {n}": {
        "role": "assistant",
        "content": f"I weigh crate {n}." if n % 2 else None,
        "tool_calls": [call(10 * n), call(10 * n + 1)],
    }
    for n in range(8)
}


@dataclass
class Speaker:
    """A client that holds its conversation, and sends it by the API that a turn names."""

    running: Running
    turn_events: TurnEvents
    window: int = 0  # newest turns that it sends; 0: all
    headers: dict[str, str] = field(
        default_factory=lambda: {"authorization": "Bearer sk-a", "x-om-thread": "t"}
    )
    history: list[Json] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)  # where each turn begins
    status: str = ""  # of the newest request
    cases: list[str] = field(default_factory=list)  # of its requests

    async def say(self, api: Api, content: Any, *, stream: bool) -> str:
        """Perform a turn, with its tool calls. Return the text of the last reply."""
        self.turns.append(len(self.history))
        self.history.append({"role": "user", "content": content})
        reply = await self.ask(api, stream=stream)
        while reply.get("tool_calls"):
            for made in reply["tool_calls"]:
                text = f"{made['function']['arguments']} weighs 7 kilos."
                result = {"role": "tool", "tool_call_id": made["id"], "content": text}
                self.history.append(result)
            reply = await self.ask(api, stream=stream)
        return str(reply["content"])

    async def ask(self, api: Api, *, stream: bool) -> Json:
        shown = self.history[self.turns[-self.window :][0] if self.window else 0 :]
        system = {"role": "system", "content": "Be brief."}
        more: Json = {"model": ACTOR, "tools": [TOOL], "stream": stream}
        body = write_body(api, [system, *shown], **more)
        assert find_refusal(api, body) is None
        answer = await self.running.http.post(
            self.running.base + PATHS[api],
            json=body,
            headers=self.headers,
        )
        assert answer.status_code == 200, answer.text
        self.cases.append((await self.turn_events.next())["case"])
        self.status = answer.headers["x-om-status"]
        self.check_forwarded(api)
        reply = read_reply(api, answer.content, stream=stream)
        self.history.append(reply)
        await self.running.app.background.wait_idle()
        return reply

    def check_forwarded(self, api: Api) -> None:
        """The provider takes the body, and it is one of the API that was asked."""
        body = self.prompt_body()
        assert find_refusal(api, orjson.loads(body)) is None

    def prompt_body(self) -> bytes:
        return self.running.models.requests_to(ACTOR)[-1].body

    def prompt(self, api: Api) -> str:
        return str(read_prompt(api, self.prompt_body()))


@asynccontextmanager
async def speak(folder: Path, message_tokens: int, window: int = 0) -> AsyncIterator[Speaker]:
    memory, models = MEMORY.format(message_tokens), ScriptedServer(SCRIPT)
    async with run_with_scripted_models(folder, memory, models=models) as running:
        with collect_turn_events() as turn_events:
            yield Speaker(running, turn_events, window)


async def test_a_conversation_changes_its_api(tmp_path: Path) -> None:
    """Each request after the first extends, and the notes of a covered turn reach each prompt."""
    async with speak(tmp_path, message_tokens=900) as speaker:
        await speaker.say("chat", FACT, stream=False)
        for number, api in enumerate(ORDER):
            stream = number % 2 == 0
            remark = {"type": "text", "text": REMARK.format(n=number)}
            await speaker.say(api, [remark, IMAGE if number % 2 else PDF], stream=stream)
            await speaker.say(api, f"Weigh {number}", stream=not stream)
        memory = await speaker.running.memory()
        assert memory.count == len(speaker.history)
        for api in ORDER:
            assert "2.85 m" in await speaker.say(api, QUESTION, stream=False)
            assert speaker.status == "applied"
            assert "User said: " + FACT in speaker.prompt(api)
    first, *others = speaker.cases
    assert (first, set(others)) == ("first", {"extend"})


async def test_a_window_is_filled_across_apis(tmp_path: Path) -> None:
    """A client that shows its newest turn only gets what stands before it, whatever API it came by:
    words, calls with their results, the image and the PDF."""
    async with speak(tmp_path, message_tokens=100_000, window=1) as speaker:
        for number, api in enumerate(ORDER[:3]):
            remark = {"type": "text", "text": f"Remark {number}."}
            await speaker.say(api, [remark, IMAGE if number else PDF], stream=True)
            await speaker.say(api, f"Weigh {number}", stream=False)
        for api in APIS:
            await speaker.say(api, f"Goes on by {api}.", stream=False)
            prompt, body = speaker.prompt(api), speaker.prompt_body()
            for number in range(3):
                assert f"Remark {number}." in prompt
                assert prompt.count(f"'call_{10 * number + 1}'") == 2  # the call and its result
            assert base64.b64encode(PNG) in body
            assert base64.b64encode(b"%PDF-1.4 plan") in body
        assert (await speaker.running.memory()).count == len(speaker.history)


@pytest.mark.parametrize(
    ("api", "headers"),
    [
        ("messages", {"x-claude-code-agent-id": "a"}),
        ("responses", {"x-codex-parent-thread-id": "p", "thread-id": "a"}),
    ],
)
async def test_a_sub_agent_is_known_by_its_last_request(
    api: Api, headers: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread is its own, and so is what is known of its history, which is not read anew."""
    found: list[Split | None] = []
    get = Splits.get

    def watch(splits: Splits, key: Hashable) -> Split | None:
        found.append(get(splits, key))
        return found[-1]

    monkeypatch.setattr(Splits, "get", watch)
    async with speak(tmp_path, message_tokens=100_000) as speaker:
        speaker.headers |= headers
        for remark in (REMARK.format(n=1) * 100, "One.", "Two.", "Three."):
            await speaker.say(api, remark, stream=False)
        assert (await speaker.running.memory()).key.thread == "t/a"
    assert found[-1] is not None
