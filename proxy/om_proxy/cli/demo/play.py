"""Play the story twice, with memory and without, and show the tokens of each turn."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
from rich.console import Console

from om_proxy.agents.models import encodings
from om_proxy.cli.demo.stage import ACTOR_NAME, open_stage
from om_proxy.cli.demo.story import INSTRUCTIONS, Story, Turn
from om_proxy.cli.demo.summary import Bill, DemoResult
from om_proxy.cli.demo.table import Board, Row
from om_proxy.common.errors import OmError
from om_proxy.proof.stage import Stage, read_receipt
from om_proxy.testing import look_ups, notes
from om_proxy.testing.scripted import (
    ACTOR,
    OBSERVER,
    REFLECTOR,
    RecordedRequest,
    ScriptedServer,
    message_text,
)
from om_proxy.wire.apis.registry import CHAT

TOKENIZER_MODEL = "gpt-4o"  # the model whose tokens are counted
# One client sends a key and the other none, so that neither warms the other's prompt cache. The
# dashboard shows the memory of clients without a key to a visitor without one.
HEADERS_WITHOUT_MEMORY = {"authorization": "Bearer demo-without"}
HEADERS_WITH_MEMORY = {"x-om-thread": "van-planner"}


async def play_story(
    story: Story, console: Console, *, pace: float = 0.0, kept_folder: Path | None = None
) -> DemoResult:
    """Play every turn, without memory and with it, print a row for each, and return the result.
    `kept_folder`: keep there what the proxy stored. Raises OmError if a model answers anything else
    than the story."""
    await encodings.load_ranks(TOKENIZER_MODEL)
    count = encodings.create_encoder(TOKENIZER_MODEL)
    async with (
        open_stage(story, count, kept_folder) as (stage, models),
        httpx.AsyncClient(base_url=f"{stage.url}/v1", timeout=60) as http,
    ):
        without, with_memory = (
            Client(http, story.tools, headers)
            for headers in (HEADERS_WITHOUT_MEMORY, HEADERS_WITH_MEMORY)
        )
        players = Players(stage, models, without, with_memory, count)
        rows = []
        with Board(console) as board:
            for number, turn in enumerate(story.turns, start=1):
                rows.append(await players.play(turn, number))
                board.add(rows[-1])
                await asyncio.sleep(pace)
        return await players.ask_trimmed(story.turns[-1].said, rows)


class Players:
    """Two clients of one stage, without memory and with it."""

    def __init__(
        self,
        stage: Stage,
        models: ScriptedServer,
        without: Client,
        with_memory: Client,
        count: Callable[[str], int],
    ) -> None:
        self._stage = stage
        self._models = models
        self._count = count
        self._without = without
        self._with = with_memory
        self._receipt: Mapping[str, str] = {}

    async def play(self, turn: Turn, number: int) -> Row:
        """Play a turn both ways, wait for memory's work after the reply, and return the turn's row.
        In the story, minutes pass until the next turn."""
        models = self._models
        earlier_count = len(models.requests)
        self._stage.clock.now = turn.at
        self._check_replies(turn, await self._without.say(turn))
        replies = await self._with.say(turn)
        self._check_replies(turn, replies)
        await self._stage.app.background.wait_idle()
        new_requests = models.requests[earlier_count:]
        events = tuple(self._describe_events(replies, new_requests))
        return Row(
            turn.day,
            number,
            turn.said,
            _sum_prompt_tokens(new_requests, HEADERS_WITHOUT_MEMORY),
            _sum_prompt_tokens(new_requests, HEADERS_WITH_MEMORY),
            events,
        )

    def _check_replies(self, turn: Turn, replies: Sequence[ReplyWithReceipt]) -> None:
        """Raise OmError if the replies are not the story's: a prompt did not show the model
        enough."""
        expected_texts = [m.get("content") or "" for m in turn.follows if m["role"] == "assistant"]
        texts = [reply.message.get("content") or "" for reply in replies]
        if expected_texts and texts != expected_texts:
            raise OmError(
                "the conversation left the story: a model did not find its line in its prompt"
            )

    def _describe_events(
        self, replies: Sequence[ReplyWithReceipt], requests: Sequence[RecordedRequest]
    ) -> Iterator[str]:
        for reply in replies:
            yield from describe_changes(self._receipt, reply.receipt)
            self._receipt = reply.receipt
        for request in requests:
            prompt = "\n".join(message_text(message) for message in request.messages[1:])
            if request.model == OBSERVER:
                source_tokens = self._count(notes.extract_transcript(prompt))
                yield f"observed {source_tokens:,} → {request.completion_tokens:,}"
            elif request.model == REFLECTOR:
                yield f"condensed {self._count(prompt):,} → {request.completion_tokens:,}"
            elif request.messages and look_ups.is_result(request.messages[-1]):
                yield describe_look_up(message_text(request.messages[-1]))

    async def ask_trimmed(self, question: str, rows: Sequence[Row]) -> DemoResult:
        """Ask the last question again, with the newest messages only, and return all results."""
        models = self._models
        last_without, last_with = (
            _select_requests(models.requests, headers)[-1]
            for headers in (HEADERS_WITHOUT_MEMORY, HEADERS_WITH_MEMORY)
        )
        without, with_memory = (
            Bill.of(_select_requests(models.requests, headers))
            for headers in (HEADERS_WITHOUT_MEMORY, HEADERS_WITH_MEMORY)
        )
        trimmed = trim_history(models, self._without.history[:-1], last_with.prompt_tokens)
        answer = await self._without.complete(trimmed)
        return DemoResult(
            rows=tuple(rows),
            turns=len(_select_requests(models.requests, HEADERS_WITH_MEMORY)),
            without=without,
            with_memory=with_memory,
            memory=Bill.of([*models.requests_to(OBSERVER), *models.requests_to(REFLECTOR)]),
            question=question,
            answer_without=message_text(last_without.answer),
            answer_with=message_text(last_with.answer),
            answer_trimmed=message_text(answer.message),
            last_without=last_without,
            last_with=last_with,
        )


def describe_look_up(result: str) -> str:
    """Describe what the proxy answered to the model: `8 of 31 messages for "roof"` is its header."""
    header = re.match(r"\d+ of \d+ messages", result)
    return f"looked up: {header[0]}" if header else "looked up: nothing found"


def describe_changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    """Describe what memory did between two receipts."""
    if after.get("status") == "degraded":
        yield f"degraded: {after.get('reason', 'no reason given')}"
        return
    log_tokens = int(after.get("observation-tokens", 0))
    if int(after.get("generation", 0)) > int(before.get("generation", 0)):
        yield f"reflected, log {log_tokens:,}"
    elif log_tokens > int(before.get("observation-tokens", 0)):
        yield f"activated, log {log_tokens:,}"


def trim_history(
    models: ScriptedServer, messages: Sequence[Mapping[str, object]], max_tokens: int
) -> list[Mapping[str, object]]:
    """Return the instructions and the newest messages, as many as cost at most `max_tokens`. The
    first of these messages is a user's, so that no tool result loses its call."""
    instructions, *turns = messages
    newest: list[Mapping[str, object]] = []
    for message in reversed(turns):
        if models.count_prompt_tokens([instructions, message, *newest]) > max_tokens:
            break
        newest.insert(0, message)
    roles = [message["role"] for message in newest]
    first_user_index = roles.index("user") if "user" in roles else 0
    return [instructions, *newest[first_user_index:]]


def _select_requests(
    requests: Sequence[RecordedRequest], headers: Mapping[str, str]
) -> list[RecordedRequest]:
    """Select the requests of one client to the actor."""
    return [
        request
        for request in requests
        if request.model == ACTOR
        and dict(request.headers).get(b"authorization", b"").decode()
        == headers.get("authorization", "")
    ]


def _sum_prompt_tokens(requests: Sequence[RecordedRequest], headers: Mapping[str, str]) -> int:
    return sum(request.prompt_tokens for request in _select_requests(requests, headers))


# one request in so many is streamed
STREAMED_EVERY = 2

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReplyWithReceipt:
    """A reply, and the receipt that came with it: the `x-om-*` headers, without their prefix."""

    message: Message
    receipt: Mapping[str, str]


class Client:
    """A chat client. With memory and without, it differs only in its `headers`."""

    def __init__(
        self, http: httpx.AsyncClient, tools: Sequence[Message], headers: Mapping[str, str]
    ) -> None:
        self.history: list[Message] = [{"role": "system", "content": INSTRUCTIONS}]
        self._http = http
        self._tools = tools
        self._headers = headers
        self._request_count = 0

    async def say(self, turn: Turn) -> list[ReplyWithReceipt]:
        """Send the user's text, and the results of tools as long as the model calls them. Return
        every reply."""
        results = {m["tool_call_id"]: m for m in turn.follows if m["role"] == "tool"}
        self.history.append({"role": "user", "content": turn.said})
        replies = []
        while True:
            reply = await self.complete(self.history)
            replies.append(reply)
            self.history.append(reply.message)
            calls = reply.message.get("tool_calls") or ()
            if not calls:
                return replies
            self.history.extend(results[call["id"]] for call in calls)

    async def complete(self, messages: Sequence[Message]) -> ReplyWithReceipt:
        """Send one request and return the reply. Raises OmError unless the answer is a 200 with a
        complete message."""
        self._request_count += 1
        stream = self._request_count % STREAMED_EVERY == 0
        body = {
            "model": ACTOR_NAME,
            "messages": list(messages),
            "tools": self._tools,
            "stream": stream,
        }
        if stream:
            body["stream_options"] = {"include_usage": True}
        reader = CHAT.create_reply_reader(stream)
        async with self._http.stream(
            "POST", "/chat/completions", json=body, headers=dict(self._headers)
        ) as response:
            async for part in response.aiter_bytes():
                reader.feed(part)
        reply = reader.finish()
        if response.status_code != httpx.codes.OK or reply.message is None:
            raise OmError(
                f"the demo's request was answered {response.status_code}; run it again with a log to see why"
            )
        return ReplyWithReceipt(msgspec.json.decode(reply.message), read_receipt(response))
