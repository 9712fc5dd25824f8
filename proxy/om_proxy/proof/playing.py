"""Play one recorded conversation through the real proxy: each call at its recorded time, answered by
the recorded reply, with notes of a given length; and bill what went upstream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from om_proxy.agents.models import Price, create_encoder, find_small_model
from om_proxy.agents.models.encodings import count_message
from om_proxy.memory.model import MESSAGE_FRAMING_TOKENS
from om_proxy.memory.notes.redaction import redact_secrets
from om_proxy.observability.facts import Fact, MemoryCallEnded
from om_proxy.proof.billing import (
    BilledTokens,
    CacheRules,
    Segment,
    SentPrompt,
    bill_calls,
    sum_tokens,
)
from om_proxy.proof.conversation import Call, Conversation, Message, Prefix
from om_proxy.proof.recorder import AnswerFunction
from om_proxy.proof.scripted_notes import ScriptedNotes
from om_proxy.proof.stage import Stage, Turn

THREAD = "replay"
THINKING_TOKENS = 215  # that a memory model writes beside each answer, as measured
SERVED_STATUSES = ("raw", "applied")
# of a settings file; nothing else, so that nothing leads to another machine
PLAYED_SECTIONS = ("memory", "context")
UNPLAYED_KEYS = frozenset(
    ("model", "api_base", "api_key", "retrieval", "extra_body", "model_settings")
)

SERVERS_BY_PREFIX = {
    "claude": "https://api.anthropic.com/v1",
    "gemini": "https://generativelanguage.googleapis.com/v1beta/openai",
    "deepseek": "https://api.deepseek.com/v1",
}
OPENAI_SERVER = "https://api.openai.com/v1"

# gets the messages that were sent, what came of them, and the reply
TurnListener = Callable[[Sequence[bytes], Turn, bytes], None]


@dataclass(frozen=True, slots=True)
class Rates:
    """How short notes are: tokens of source for one token of notes."""

    name: str
    text: float
    results: float


@dataclass(frozen=True, slots=True)
class Meter:
    """How the actor's provider counts: tokens of o200k by `scale`, and `fixed_tokens` (tools) in front
    that no message holds."""

    scale: float = 1.0
    fixed_tokens: int = 0

    def measure(
        self, at: float, messages: Iterable[bytes], output: int = 0, tools: bytes = b""
    ) -> SentPrompt:
        """`tools`: the proxy's own, as JSON; they stand behind the client's."""
        own = self.scale_tokens(_encode(tools.decode()))
        prompt: list[Segment] = [(("tools", bool(own)), self.fixed_tokens + own)]
        # equal messages of all prompts are one object: a long session sends each a hundred times
        shared = (_messages.setdefault(raw, raw) for raw in messages)
        prompt += [(raw, self.scale_tokens(count_tokens(raw))) for raw in shared]
        return SentPrompt(at, prompt, output)

    def scale_tokens(self, tokens: int) -> int:
        return round(tokens * self.scale)


@dataclass(frozen=True, slots=True)
class Subject:
    """A conversation, and how it is billed."""

    conversation: Conversation
    calls: Sequence[Call]
    actor: str
    price: Price | None
    meter: Meter
    rules: CacheRules
    lost: frozenset[int]
    has_usage: bool
    settings: Mapping[str, Any]

    @property
    def memory_models(self) -> dict[str, str]:
        """The models that make notes: by `memory.model: auto`, the default, and by `inherit`."""
        server = next(
            (url for name, url in SERVERS_BY_PREFIX.items() if name in self.actor), OPENAI_SERVER
        )
        small = find_small_model(self.actor, server) or self.actor
        return {"inherit": self.actor} if small == self.actor else {
            "auto": small, "inherit": self.actor,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Play:
    """A conversation with what it is played with. It can be sent to another process."""

    subject: Subject
    memory_model: str
    rates: Rates


@dataclass(frozen=True, slots=True)
class Outcome:
    actor: BilledTokens
    memory: BilledTokens
    notes_calls: int = 0
    degraded_calls: int = 0  # that memory left as they were, because of a fault
    refused_calls: int = 0  # of the memory model, whose answer was not usable


def list_main_calls(conversation: Conversation) -> list[Call]:
    return [call for call in conversation.calls if call.kind == "main" and call.reply is not None]


def list_full_prompts(conversation: Conversation) -> list[Sequence[Message]]:
    """Return what each main call would have sent without the client's compaction: all messages
    before its reply."""
    if not is_compacted(conversation):
        return [call.sent for call in list_main_calls(conversation)]
    places = {id(message): place for place, message in enumerate(conversation.messages)}
    return [
        Prefix(conversation.messages, places[id(call.reply)])
        if id(call.reply) in places
        else call.sent
        for call in list_main_calls(conversation)
    ]


def is_compacted(conversation: Conversation) -> bool:
    return any(call.kind == "compaction" for call in conversation.calls)


def write_message(message: Message) -> bytes:
    return orjson.dumps({key: value for key, value in message.items() if key != "created_at"})


def redact_strings(value: Any) -> Any:
    """Return the value with the secrets in its texts replaced, as `observation.redact` does in
    notes."""
    if isinstance(value, str):
        return redact_secrets(value)
    if isinstance(value, dict):
        return {name: redact_strings(inner) for name, inner in value.items()}
    return [redact_strings(inner) for inner in value] if isinstance(value, list) else value


class MessageWriter:
    """Writes each message of a conversation once."""

    def __init__(self, *, redacts: bool = False) -> None:
        self._redacts = redacts
        self._written: dict[int, tuple[Message, bytes]] = {}  # holding it keeps its id its own

    def write(self, messages: Iterable[Message]) -> list[bytes]:
        return [self.write_one(message) for message in messages]

    def write_one(self, message: Message) -> bytes:
        if id(message) not in self._written:
            kept = redact_strings(dict(message)) if self._redacts else message
            self._written[id(message)] = message, write_message(kept)
        return self._written[id(message)][1]


async def play(
    task: Play,
    memory_model: AnswerFunction | None = None,
    on_turn: TurnListener | None = None,
) -> Outcome:
    """Play every main call in order, as fast as it goes. A `memory_model` takes the script's place,
    gets no message whose secrets are not replaced, and is not billed."""
    subject, calls = task.subject, task.subject.calls
    writer = MessageWriter(redacts=memory_model is not None)
    notes = ScriptedNotes(task.rates.text, _encode, task.rates.results)
    sent: list[SentPrompt] = []
    degraded_count = 0
    asked: list[Call] = []

    async def answer(_request: Mapping[str, Any]) -> Mapping[str, Any]:
        (call,) = asked[-1:]
        stage.clock.now = max(stage.clock.now, call.replied_at)
        return orjson.loads(writer.write_one(call.reply or {}))  # type: ignore[no-any-return] # an object

    stage = Stage(
        build_settings(task),
        actor=answer,
        memory_model=memory_model or notes,
        now=calls[0].asked_at,
        secret=bytes(32),
    )
    async with stage:
        refused = count_refused(stage)
        for call, prompt in zip(calls, list_full_prompts(subject.conversation), strict=True):
            await stage.advance(max(stage.clock.now, call.asked_at))
            asked.append(call)
            written = writer.write(prompt)
            messages = map(orjson.Fragment, written)
            turn = await stage.chat(THREAD, messages, model=subject.actor)  # type: ignore[arg-type] # written JSON
            if on_turn:
                on_turn(written, turn, writer.write_one(call.reply or {}))
            degraded_count += turn.receipt["status"] not in SERVED_STATUSES
            raws = [orjson.dumps(message) for message in turn.prompt]
            tools = orjson.dumps(turn.request["tools"]) if "tools" in turn.request else b""
            output = count_output(call, subject.meter)
            sent.append(subject.meter.measure(call.asked_at, raws, output, tools))
    return Outcome(
        sum_tokens(bill_calls(sent, subject.rules, subject.lost)),
        sum_tokens(
            BilledTokens(
                fresh=subject.meter.scale_tokens(asked_for.read),
                output=subject.meter.scale_tokens(asked_for.written) + THINKING_TOKENS,
            )
            for asked_for in notes.calls
        ),
        len(notes.calls),
        degraded_count,
        refused.total(),
    )


def count_refused(stage: Stage) -> Counter[str]:
    """Count, from now on, the tries of memory models whose answer was not usable, by kind of work."""
    refused: Counter[str] = Counter()

    def add(fact: Fact) -> None:
        if isinstance(fact, MemoryCallEnded):
            refused[fact.work] += fact.calls - (fact.outcome == "answered")

    stage.app.facts.subscribe(add, MemoryCallEnded)
    return refused


def keep_thresholds(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rules of a configuration, without the models and addresses it names."""

    def keep(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {key: keep(inner) for key, inner in value.items() if key not in UNPLAYED_KEYS}

    return {name: keep(settings[name]) for name in PLAYED_SECTIONS if settings.get(name)}


def build_settings(task: Play) -> dict[str, Any]:
    settings = task.subject.settings
    memory = dict(settings.get("memory") or {}) | {"model": f"openai/{task.memory_model}"}
    own = {
        "memory": memory,
        "upstream": [{"name": "recorded", "layout": "blocks"}],
        "telemetry": {"log": "off", "metrics": False},
    }
    return dict(settings) | own


def count_output(call: Call, meter: Meter) -> int:
    if call.usage is not None:
        return call.usage.output_tokens
    return meter.scale_tokens(count_tokens(write_message(call.reply or {})))


def count_tokens(raw: bytes) -> int:
    """Count a message's tokens in a prompt (o200k); each text is counted once."""
    if raw not in _counts:
        _counts[raw] = count_message(raw, _encode, "", "chat") + MESSAGE_FRAMING_TOKENS
    return _counts[raw]


_encode = create_encoder("")
_counts: dict[bytes, int] = {}
_messages: dict[bytes, bytes] = {}
