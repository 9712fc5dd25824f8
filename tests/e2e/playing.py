"""Play conversations in words through a live proxy: what to send, what the model answers, and what
came of it.

The words are those of tests/memory/clients.py: `u1 a1 cx rx` is a question, its answer, a call of
tool x and its result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson
import structlog
from structlog.typing import EventDict

from om_proxy.memory.model import Key, Memory
from om_proxy.settings.identity.tenants import LOCAL_TENANT
from om_proxy.testing.scripted import Fault, RecordedRequest, ScriptedServer, cue
from tests.e2e.running import Running, read_streamed_text
from tests.memory.clients import chat, message

INSTRUCTIONS = {"role": "system", "content": "Be brief."}
ACTOR = "scripted-actor"
REPLY = "aR"
FAILED = "!"  # in place of a reply: the upstream answers 500
CUT = "~"  # after a reply: the upstream breaks off in the middle of it


class Model(ScriptedServer):
    """A scripted model server that can also break off a whole answer, and hold answers back until
    several requests are there."""

    breaking = False
    together: asyncio.Barrier | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.together:
            await self.together.wait()
        breaking = self.breaking

        async def sending(event: Any) -> None:
            if breaking and event["type"] == "http.response.body" and not event.get("more_body"):
                event = {
                    **event,
                    "body": event["body"][: len(event["body"]) // 2],
                    "more_body": True,
                }
            await send(event)

        await super().__call__(scope, receive, sending)


@dataclass
class TurnEvents:
    """The `turn` events, one a request, in the order in which the requests ended."""

    queue: asyncio.Queue[EventDict] = field(default_factory=asyncio.Queue)

    def __call__(self, _: Any, __: str, event: EventDict) -> EventDict:
        if event["event"] == "turn":
            self.queue.put_nowait(dict(event))
        raise structlog.DropEvent

    async def next(self) -> EventDict:
        """Wait for the next event: it is logged after the client has its answer."""
        return await asyncio.wait_for(self.queue.get(), 30)


@contextmanager
def collect_turn_events() -> Iterator[TurnEvents]:
    """Collect the log events until the block ends. They go nowhere else."""
    found, processors = TurnEvents(), structlog.get_config()["processors"]
    before = processors[:]
    processors[:] = [found]  # in place: loggers that are bound already have this very list
    try:
        yield found
    finally:
        processors[:] = before


@dataclass(frozen=True)
class Turn:
    case: str | None
    status: int
    receipt: Mapping[str, str]
    prompt: (
        str | None
    )  # what the actor was sent after its instructions, in words; None: nothing was sent
    exact: bool  # it was sent the client's very bytes
    answer: str | None  # what the client got, in words; None: an error, or not the whole of it
    arrived: bytes  # all that came of its body


@dataclass
class Play:
    """One thread of one client. It has no credential, so its tenant is the local one."""

    running: Running
    turn_events: TurnEvents
    thread: str
    stream: bool = False

    @property
    def key(self) -> Key:
        return Key(LOCAL_TENANT, self.thread, self.thread)

    async def play_turns(self, conversation: str) -> None:
        """Play steps `sent > reply; …`, or words that a client with a whole history sends turn by
        turn."""
        for sent, reply in split_steps(conversation):
            await self.turn(sent, reply)
            await self.running.app.background.wait_idle()

    async def turn(self, sent: str, reply: str = REPLY, **headers: str) -> Turn:
        """Send one request with these words, answered with this reply."""
        return await self.send(chat(sent), reply, **headers)

    async def send(self, raws: Sequence[bytes], reply: str = REPLY, **headers: str) -> Turn:
        self._prepare(raws, reply)
        before = len(self.running.models.requests)
        body = write_body(raws, stream=self.stream)
        status, receipt, arrived, whole = await self._post(
            body, {"x-om-thread": self.thread, **headers}
        )
        answer = read_reply_words(arrived, self.stream) if status == 200 and whole else None
        story = await self.turn_events.next()
        if answer is None:
            await self.running.app.background.wait_idle()  # no client waited for its commit
        asked = [seen for seen in self.running.models.requests[before:] if seen.model == ACTOR]
        prompt = read_prompt_words(asked[-1]) if asked else None
        return Turn(
            story["case"],
            status,
            receipt,
            prompt,
            bool(asked) and asked[-1].body == body,
            answer,
            arrived,
        )

    def _prepare(self, raws: Sequence[bytes], reply: str) -> None:
        models = self.running.models
        assert isinstance(models, Model)
        models.faults.switch(
            *([Fault(kind="http", model=ACTOR, status=500)] if reply == FAILED else [])
        )
        models.breaking = reply.endswith(CUT) and not self.stream
        if reply.endswith(CUT) and self.stream:
            models.faults.switch(Fault(kind="cut", model=ACTOR))
        if reply != FAILED:
            models.script[cue(orjson.loads(raws[-1])) if raws else ""] = write_reply(
                reply.rstrip(CUT)
            )

    async def _post(
        self, body: bytes, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], bytes, bool]:
        url, arrived, whole = f"{self.running.base}/v1/chat/completions", b"", True
        async with self.running.http.stream("POST", url, content=body, headers=headers) as answer:
            try:
                async for piece in answer.aiter_raw():
                    arrived += piece
            except httpx.RemoteProtocolError:
                whole = False
        receipt = {n[5:]: v for n, v in answer.headers.items() if n.startswith("x-om-")}
        return answer.status_code, receipt, arrived, whole

    async def memory(self) -> Memory:
        return await self.running.app.store.load(self.key)

    async def live(self) -> str:
        """The live transcript as stored, in words."""
        found = await self.running.app.store.messages(self.key, 0)
        memory = await self.memory()
        assert len(found) == memory.count
        return " ".join(word(orjson.loads(m.item.raw)) for m in found)

    async def count_superseded(self) -> int:
        """Count the stored messages that are not live."""
        return len((await self.running.app.store.outline(self.key)).superseded)


def split_steps(conversation: str) -> Iterator[tuple[str, str]]:
    if ">" in conversation:
        for step in conversation.split(";"):
            sent, _, reply = step.partition(">")
            yield sent.strip(), reply.strip()
        return
    words = conversation.split()
    for n, each in enumerate(words):
        if each[0] in "ac":
            yield " ".join(words[:n]), each
    if words and words[-1][0] not in "ac":
        yield conversation, FAILED


def write_body(raws: Sequence[bytes], *, stream: bool, model: str = ACTOR) -> bytes:
    messages = b",".join([orjson.dumps(INSTRUCTIONS), *raws])
    return b'{"model": "%s", "messages": [%s], "stream": %s}' % (
        model.encode(),
        messages,
        b"true" if stream else b"false",
    )


def write_reply(reply: str) -> dict[str, Any]:
    made: dict[str, Any] = orjson.loads(message(reply[0], reply[1:]))
    return made


def read_prompt_words(seen: RecordedRequest) -> str:
    """Read what the actor was sent, without its instructions, which come first and unchanged. In
    the merged layout, notes follow them in the same message."""
    first, *rest = seen.messages
    notes = []
    if first != INSTRUCTIONS:
        assert first["content"].startswith(INSTRUCTIONS["content"] + "\n\n")
        assert "\n<observations>\n" in first["content"]
        notes = ["NOTES"]
    return " ".join([*notes, *(word(m) for m in rest)])


def word(told: Mapping[str, Any]) -> str:
    content = told.get("content")
    if isinstance(content, str) and "\n<observations>\n" in content:
        return "NOTES"
    if isinstance(content, str) and content.startswith("Note from the system"):
        return "HINT"
    if told.get("tool_calls"):
        return "c" + "+".join(call["id"] for call in told["tool_calls"])
    if call := told.get("tool_call_id"):
        return f"r{call}" if content == f"result of {call}" else f"r{call}={content}"
    return f"{told['role'][0]}{content}"


def read_reply_words(content: bytes, stream: bool) -> str:
    """Read a whole reply, in words."""
    if not stream:
        return word(orjson.loads(content)["choices"][0]["message"])
    text = read_streamed_text(content)
    calls = [
        c["id"]
        for delta in read_deltas(content)
        for c in delta.get("tool_calls") or ()
        if c.get("id")
    ]
    return "c" + "+".join(calls) if calls else f"a{text}"


def read_deltas(content: bytes) -> Iterator[dict[str, Any]]:
    """Read the deltas of as much of a stream as there is."""
    for line in content.split(b"\n"):
        if line.startswith(b"data: {"):
            yield from (choice["delta"] for choice in orjson.loads(line[6:])["choices"])
