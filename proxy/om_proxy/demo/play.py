"""Play the story twice, with memory and without, and show what each turn cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence

import httpx
from rich.console import Console

from om_proxy.demo.client import Client, ReplyWithReceipt
from om_proxy.demo.figures import Bill, Performance
from om_proxy.demo.stage import Stage, open_stage
from om_proxy.demo.story import Story, Turn
from om_proxy.demo.table import Board, Row
from om_proxy.errors import OmError
from om_proxy.models import encodings
from om_proxy.testing import notes
from om_proxy.testing.scripted import (
    ACTOR,
    OBSERVER,
    REFLECTOR,
    RecordedRequest,
    ScriptedServer,
    message_text,
)

TOKENIZER_MODEL = "gpt-4o"  # the model whose tokens are counted
# two credentials, so that neither client warms the other's prompt cache
HEADERS_WITHOUT_MEMORY = {"authorization": "Bearer demo-without"}
HEADERS_WITH_MEMORY = {"authorization": "Bearer demo-with", "x-om-thread": "van-planner"}


async def perform(story: Story, console: Console, *, pace: float = 0.0) -> Performance:
    """Play every turn, without memory and with it, and print a row for each. Raises OmError if a
    model answers anything else than the story."""
    await encodings.load_ranks(TOKENIZER_MODEL)
    count = encodings.create_encoder(TOKENIZER_MODEL)
    async with (
        open_stage(story, count) as stage,
        httpx.AsyncClient(base_url=f"{stage.url}/v1", timeout=60) as http,
    ):
        without, with_memory = (
            Client(http, story.tools, headers)
            for headers in (HEADERS_WITHOUT_MEMORY, HEADERS_WITH_MEMORY)
        )
        players = Players(stage, without, with_memory, count)
        rows = []
        with Board(console) as board:
            for number, turn in enumerate(story.turns, start=1):
                rows.append(await players.play(turn, number))
                board.add(rows[-1])
                await asyncio.sleep(pace)
        return await players.ask_trimmed(story.turns[-1].said, rows)


class Players:
    """Two clients on one stage."""

    def __init__(
        self, stage: Stage, without: Client, with_memory: Client, count: Callable[[str], int]
    ) -> None:
        self._stage = stage
        self._count = count
        self._without = without
        self._with = with_memory
        self._receipt: Mapping[str, str] = {}

    async def play(self, turn: Turn, number: int) -> Row:
        """Play a turn both ways, and wait for memory's work after the reply: in the story, minutes
        pass until the next turn."""
        models, before = self._stage.models, len(self._stage.models.requests)
        self._stage.clock.now = turn.at
        self._check_followed_script(turn, await self._without.say(turn))
        answered = await self._with.say(turn)
        self._check_followed_script(turn, answered)
        await self._stage.app.background.wait_idle()
        new = models.requests[before:]
        events = tuple(self._describe_events(answered, new))
        return Row(
            turn.day,
            number,
            turn.said,
            _sum_prompt_tokens(new, HEADERS_WITHOUT_MEMORY),
            _sum_prompt_tokens(new, HEADERS_WITH_MEMORY),
            events,
        )

    def _check_followed_script(self, turn: Turn, answered: Sequence[ReplyWithReceipt]) -> None:
        """Check that the models' replies are the story's: if not, a prompt did not show the model
        enough."""
        due = [m.get("content") or "" for m in turn.follows if m["role"] == "assistant"]
        if due and due != [a.message.get("content") or "" for a in answered]:
            raise OmError(
                "the conversation left the story: a model did not find its line in its prompt"
            )

    def _describe_events(
        self, answered: Sequence[ReplyWithReceipt], new: Sequence[RecordedRequest]
    ) -> Iterator[str]:
        for answer in answered:
            yield from describe_changes(self._receipt, answer.receipt)
            self._receipt = answer.receipt
        for seen in new:
            prompt = "\n".join(message_text(m) for m in seen.messages[1:])
            if seen.model == OBSERVER:
                yield f"observed {self._count(notes.extract_transcript(prompt)):,} → {seen.completion_tokens:,}"
            elif seen.model == REFLECTOR:
                yield f"condensed {self._count(prompt):,} → {seen.completion_tokens:,}"

    async def ask_trimmed(self, question: str, rows: Sequence[Row]) -> Performance:
        """Ask the last question again, with the newest messages only, and return all results."""
        models = self._stage.models
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
        return Performance(
            rows=tuple(rows),
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


def describe_changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    """Describe what memory did between two receipts."""
    if after.get("status") == "degraded":
        yield f"degraded: {after.get('reason', 'no reason given')}"
        return
    log, earlier = (int(receipt.get("observation-tokens", 0)) for receipt in (after, before))
    if int(after.get("generation", 0)) > int(before.get("generation", 0)):
        yield f"reflected, log {log:,}"
    elif log > earlier:
        yield f"activated, log {log:,}"


def trim_history(
    models: ScriptedServer, messages: Sequence[Mapping[str, object]], budget: int
) -> list[Mapping[str, object]]:
    """Keep the instructions and the newest messages, as many as cost at most `budget` tokens. The
    first kept message is a user's, so that no tool result loses its call."""
    instructions, *rest = messages
    kept: list[Mapping[str, object]] = []
    for message in reversed(rest):
        if models.count_prompt_tokens([instructions, message, *kept]) > budget:
            break
        kept.insert(0, message)
    first = next((i for i, m in enumerate(kept) if m["role"] == "user"), 0)
    return [instructions, *kept[first:]]


def _select_requests(
    requests: Sequence[RecordedRequest], headers: Mapping[str, str]
) -> list[RecordedRequest]:
    """Select the requests of one client to the actor."""
    credential = (b"authorization", headers["authorization"].encode())
    return [seen for seen in requests if seen.model == ACTOR and credential in seen.headers]


def _sum_prompt_tokens(requests: Sequence[RecordedRequest], headers: Mapping[str, str]) -> int:
    return sum(seen.prompt_tokens for seen in _select_requests(requests, headers))
