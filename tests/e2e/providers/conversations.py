"""Conversations of clients of three kinds, each with a server of its own key, and what came of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import httpx
import orjson

from tests.e2e.providers.fake_server import (
    CLIENT_TOOL,
    Exchange,
    FakeServers,
    Mishap,
    find_markers,
    find_refusal,
    make_text,
)
from tests.e2e.providers.servers import Server
from tests.e2e.providers.voices import Json

Style = Literal["thin", "window", "full"]
STYLES: tuple[Style, ...] = ("thin", "window", "full")
TURNS = 13
WINDOW_MESSAGES = 6
MARKED_MESSAGES = 2
MISHAPS: dict[int, Mishap] = {4: "busy", 8: "stopped", 9: "empty"}  # of these turns
WISHES = ("", "TOOL", "LOOK", "TOOL LOOK")  # of each four turns
TOOLS = [{"type": "function", "function": {"name": CLIENT_TOOL, "parameters": {"type": "object"}}}]
STOP_TIMEOUT_S = 10.0
INSTRUCTIONS = {"role": "system", "content": "Be kind."}


@dataclass
class Conversation:
    """One client's conversation, and what it met."""

    server: Server
    style: Style
    streams: bool
    history: list[Json] = field(default_factory=list)
    results_due: list[Json] = field(default_factory=list)
    receipts: list[str] = field(default_factory=list)  # `status` or `status/reason`, in order
    faults: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.server.name}-{self.style}{'-stream' if self.streams else ''}"

    def begin_turn(self, number: int) -> list[Json]:
        """Return the new messages of a turn: the results that are due, or a question."""
        if self.results_due:
            news, self.results_due = self.results_due, []
        else:
            news = [{"role": "user", "content": make_text(WISHES[number % len(WISHES)])}]
        self.history += news
        return news

    def build_body(self, news: Sequence[Json]) -> Json:
        shown = list(news)
        if self.style == "window":
            shown = self._cut_window()
        elif self.style == "full":
            shown = list(self.history)
        if self.server.has_marks:
            shown = _mark_newest(shown)
        instructions = [INSTRUCTIONS] if self.server.has_system else []
        return {
            "model": self.server.name,
            "messages": [*instructions, *shown],
            **({"tools": TOOLS} if self.server.has_tools else {}),
            **({"stream": True} if self.streams else {}),
        }

    def _cut_window(self) -> list[Json]:
        """Return the newest messages from a user's on, as a client that knows the rules does."""
        start = max(0, len(self.history) - WINDOW_MESSAGES)
        while start and self.history[start]["role"] != "user":
            start -= 1
        return self.history[start:]

    async def ask(self, http: httpx.AsyncClient, fakes: FakeServers, number: int) -> None:
        """Perform one request, and note what is wrong with it."""
        if number in MISHAPS and not self.results_due:
            await self._ask_in_vain(http, fakes, MISHAPS[number])
            return
        body = self.build_body(self.begin_turn(number))
        begun = len(fakes.exchanges)
        answer = await self._post(http, body)
        words = [answer.headers.get(f"x-om-{name}") for name in ("status", "reason")]
        self.receipts.append("/".join(filter(None, words)))
        mine = [each for each in fakes.exchanges[begun:] if each.conversation == self.name]
        prompts = [each for each in mine if not each.is_memory_call]
        if answer.status_code != 200:
            is_ours = find_refusal(self.server, body) is None or self.style != "full"
            self.faults.append(f"{'failed' if is_ours else 'refused'}: {prompts[-1].complaint}")
            self.history.append({"role": "assistant", "content": "none"})
            return
        self._look_for_lost_messages(prompts)
        self._take_reply(answer, fakes.said[self.name])

    async def _post(self, http: httpx.AsyncClient, body: Json) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.name}", "x-om-thread": self.name}
        return await http.post("/v1/chat/completions", json=body, headers=headers)

    async def _ask_in_vain(
        self, http: httpx.AsyncClient, fakes: FakeServers, mishap: Mishap
    ) -> None:
        """Ask a question that gets no answer. A client that sends its history drops it; of one that
        does not, memory has it."""
        question = {"role": "user", "content": make_text()}
        self.history.append(question)
        trouble = fakes.begin_trouble(self.name, mishap)
        asking = asyncio.create_task(self._post(http, self.build_body([question])))
        if mishap == "stopped":
            asking.add_done_callback(lambda _: trouble.begun.set())  # it was refused
            await trouble.begun.wait()
            if asking.cancel():
                await asyncio.wait_for(trouble.ended.wait(), STOP_TIMEOUT_S)
        answer = (await asyncio.gather(asking, return_exceptions=True))[0]
        came = read_outcome(answer)
        if came != mishap:
            self.faults.append(f"not {mishap}: {came}")
        fakes.end_trouble(self.name)
        if self.style != "thin":
            self.history.remove(question)

    def _look_for_lost_messages(self, prompts: Sequence[Exchange]) -> None:
        lost = find_markers(self.history) - find_markers(prompts[-1].body["messages"])
        if lost:
            self.faults.append(f"lost: {sorted(lost)} of {len(self.history)} messages")

    def _take_reply(self, answer: httpx.Response, said: Json) -> None:
        """Add the reply to the history. It must be what the server said last, without the proxy's
        calls; what it said beside a look-up stands before it."""
        calls = said.get("tool_calls") or ()
        own_calls = [call for call in calls if call["function"]["name"] == CLIENT_TOOL]
        text, ids = read_reply(answer)
        if not text.endswith(read_content(said)) or ids != [call["id"] for call in own_calls]:
            self.faults.append(f"changed: {read_content(said)} came as {text} {ids}")
        message = self.server.voice.recall({**said, "tool_calls": own_calls})
        self.history.append({**message, "content": text or message["content"]})
        self.results_due = [
            {"role": "tool", "tool_call_id": call["id"], "content": make_text()}
            for call in own_calls
        ]


def read_outcome(answer: httpx.Response | BaseException) -> str:
    """Return in one word what became of a question: a mishap's, or what else came."""
    if isinstance(answer, asyncio.CancelledError):
        return "stopped"
    if isinstance(answer, BaseException):
        return repr(answer)
    if answer.status_code == 200 and read_reply(answer) == ("", []):
        return "empty"
    return "busy" if answer.status_code == 429 else answer.text


def read_reply(answer: httpx.Response) -> tuple[str, list[str]]:
    """Return the text of a reply, and the ids of its calls."""
    if "event-stream" not in answer.headers["content-type"]:
        message = orjson.loads(answer.content)["choices"][0]["message"]
        return read_content(message), [call["id"] for call in message.get("tool_calls") or ()]
    text, ids = "", list[str]()
    events = [line[6:] for line in answer.content.splitlines() if line.startswith(b"data: ")]
    assert events[-1] == b"[DONE]"
    for event in events[:-1]:
        for choice in orjson.loads(event)["choices"]:
            text += read_content(choice["delta"])
            ids += [call["id"] for call in choice["delta"].get("tool_calls") or ()]
    return text, ids


def read_content(message: Json) -> str:
    """Return the texts of a message or a piece of it, without its thoughts."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


def _mark_newest(messages: list[Json]) -> list[Json]:
    """Mark the newest messages of the user for the prompt cache, as clients do anew each time."""
    users = [i for i, message in enumerate(messages) if message["role"] == "user"]
    return [
        {
            **message,
            "content": [
                {"type": "text", "text": message["content"], "cache_control": {"type": "ephemeral"}}
            ],
        }
        if i in users[-MARKED_MESSAGES:]
        else message
        for i, message in enumerate(messages)
    ]
