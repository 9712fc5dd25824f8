"""A scripted model server: an ASGI application that needs no key and answers by rules. It speaks chat
completions (testing/chat_form.py), the Responses API and the Messages API.

Models:
- `scripted-actor` says the script's next line. The newest message of the prompt is the line's key:
  the text of a user's message, or the `tool_call_id` of a tool's result. If the script has no such
  line, the model answers a question from the prompt alone (testing/look_ups.py), or notes the
  message. What the prompt does not hold, it looks up, if the request offers the proxy's tool.
- `scripted-observer` and `scripted-reflector` write and shorten observations by rule
  (testing/notes.py).
- any other name is an actor too.

`usage` is counted: the tokens of the prompt, and cached tokens by comparing the prompt with earlier
prompts.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import count as counting
from itertools import takewhile
from typing import Any, Literal

import orjson

from om_proxy.testing import chat_form, look_ups, loopback, messages_form, notes, responses_form
from om_proxy.testing.chat_form import Form, Message, Turn
from om_proxy.testing.loopback import Receive, Scope, Send
from om_proxy.wire.server.disconnect import wait_for_disconnect

Kind = Literal["nothing", "prose", "refusal", "loop", "http", "hang", "slow", "cut"]

ANSWERS_BY_KIND: dict[str, str] = {
    "nothing": "",
    "prose": "There is nothing here that I would call worth noting, so I will leave it at that.",
    "refusal": "I'm sorry, but I can't help with that request.",
    "loop": "<observations>\n"
    + "* 🟢 (09:00) The same line over and over\n" * 400
    + "</observations>",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault that strikes `times` requests to the matching models; None: every request."""

    kind: Kind
    model: str = "*"  # a glob
    times: int | None = None
    status: int = 503  # of "http"
    code: str = "overloaded"  # of "http": the error's `code`
    retry_after: float | None = None  # of "http", in seconds
    seconds: float = 0.05  # of "slow": the delay before the first byte


class Faults:
    """The faults of one server, each with the number of requests that it still strikes."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._remaining: list[tuple[Fault, int | None]] = []
        self.switch(*faults)

    def switch(self, *faults: Fault) -> None:
        """Replace all faults by these. Without arguments, the server is healthy."""
        self._remaining = [(fault, fault.times) for fault in faults]

    def take_next(self, model: str) -> Fault | None:
        """Take the first fault that strikes a request to this model, and count it."""
        for index, (fault, times) in enumerate(self._remaining):
            if fnmatchcase(model, fault.model) and times != 0:
                self._remaining[index] = (fault, None if times is None else times - 1)
                return fault
        return None


ACTOR = "scripted-actor"
OBSERVER = "scripted-observer"
REFLECTOR = "scripted-reflector"
UNKNOWN_ANSWER = "I don't know: nothing I have been shown says that."
# by path, behind `/v1`
FORMS: Mapping[str, Form] = {
    "/chat/completions": chat_form,
    "/responses": responses_form,
    "/messages": messages_form,
}

# cached prefixes grow in such steps, at the providers that publish theirs
CACHE_STEP_TOKENS = 128
MIN_CACHED_TOKENS = 1024  # shorter prefixes are not cached
MAX_REMEMBERED_PROMPTS = 16


def find_scripted_model(name: str) -> str:
    """Return the model that a name means: `openai/scripted-observer/gpt-4o` is the observer, by a
    name whose end has a list price."""
    steps = name.split("/")
    return next((step for step in steps if step in (ACTOR, OBSERVER, REFLECTOR)), steps[-1])


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request as it arrived, and its answer. Both are chat messages, whatever the API."""

    body: bytes
    model: str
    messages: tuple[Message, ...]  # instructions first
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    answer: Message
    headers: tuple[tuple[bytes, bytes], ...]


class ScriptedServer:
    """The scripted model server, an ASGI application. `requests` holds the requests that it got, in
    order. `faults.switch(…)` changes its faults at any time."""

    def __init__(
        self,
        script: Mapping[str, Message] | None = None,
        *,
        faults: Iterable[Fault] = (),
        count: Callable[[str], int] | None = None,
        clock: Callable[[], float] = time.time,
        cache_lifetime_s: float = 3600.0,
        window: int | Mapping[str, int] | None = None,
        introduction: str = "",
    ) -> None:
        """`script`: assistant messages by cue. `count`: counts a text's tokens. `window`: the most
        tokens of a prompt, for all models or by model. `introduction`: an actor adds it to an
        unscripted reply to a conversation's first message."""
        self.script = dict(script or {})
        self.faults = Faults(faults)
        self.requests: list[RecordedRequest] = []
        self._count = _cache_counts(count or (lambda text: -(-len(text) // 4)))
        self._clock = clock
        self._cache_lifetime_s = cache_lifetime_s
        self._window = window
        self._introduction = introduction
        self._caches: dict[tuple[bytes, str], PromptCache] = {}
        self._ids = counting(1)

    def requests_to(self, model: str) -> list[RecordedRequest]:
        """Return the requests that one model got."""
        return [request for request in self.requests if request.model == model]

    def count_prompt_tokens(self, messages: Sequence[Message]) -> int:
        """Count the tokens of these messages in a prompt."""
        return sum(self._count(_write_json(message)) for message in messages)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"].removeprefix("/v1")
        if path == "/models" and scope["method"] == "GET":
            await loopback.send_json(send, 200, _list_models())
        elif path in FORMS and scope["method"] == "POST":
            await self._answer(scope, receive, send, FORMS[path])
        else:
            error = chat_form.build_error("no such route", "not_found")
            await loopback.send_json(send, 404, error)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, form: Form) -> None:
        body = await loopback.read_body(receive)
        try:
            request = orjson.loads(body)
            messages = tuple(form.read_messages(request))
            model = find_scripted_model(str(request.get("model", ACTOR)))
            fault = self.faults.take_next(model)
            answer = self._choose_with_look_ups(request, model, messages, fault)
            usage = self._count_usage(
                scope, model, [*_write_tools(request), *map(_write_json, messages)], answer
            )
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            text = f"the body is no {form.REQUEST_NAME}"
            await loopback.send_json(send, 400, form.build_error(text, "invalid_request_error"))
            return
        self.requests.append(
            RecordedRequest(body, model, messages, *usage, answer, tuple(scope["headers"]))
        )
        if await self.act_out_fault(receive, send, fault, model, usage[0], form):
            return
        turn = Turn(request, model, next(self._ids), int(self._clock()), answer, *usage)
        if request.get("stream"):
            is_cut = fault is not None and fault.kind == "cut"
            await _stream(send, form, turn, is_cut=is_cut)
        else:
            await loopback.send_json(send, 200, form.build_reply(turn))

    async def act_out_fault(
        self,
        receive: Receive,
        send: Send,
        fault: Fault | None,
        model: str,
        prompt_tokens: int,
        form: Form,
    ) -> bool:
        """Act out the faults that come before an answer. Return whether the request gets no
        answer."""
        if fault and fault.kind == "slow":
            await asyncio.sleep(fault.seconds)
        elif fault and fault.kind == "hang":
            await wait_for_disconnect(receive)
            return True
        elif fault and fault.kind == "http":
            await loopback.send_json(
                send,
                fault.status,
                form.build_error("scripted fault", fault.code),
                fault.retry_after,
            )
            return True
        window = self._window.get(model) if isinstance(self._window, Mapping) else self._window
        if window and prompt_tokens > window:
            text = f"This model's maximum context length is {window} tokens; your messages have {prompt_tokens}."
            await loopback.send_json(send, 400, form.build_error(text, "context_length_exceeded"))
            return True
        return False

    def _choose_with_look_ups(
        self, request: Message, model: str, messages: Sequence[Message], fault: Fault | None
    ) -> Message:
        """Choose the answer. An actor that does not know one looks it up once, if it may."""
        if messages and look_ups.is_result(messages[-1]) and fault is None:
            asked = [m for m in messages if m.get("role") == "user"]
            question = find_question(message_text(asked[-1])) if asked else None
            results = list(takewhile(look_ups.is_result, reversed(messages)))
            found = look_ups.find_answer(question, results) if question else None
            return _assistant_message(found or UNKNOWN_ANSWER)
        answer = self.choose_answer(model, messages, fault)
        tool = look_ups.find_tool(request)
        if tool is None or answer.get("content") != UNKNOWN_ANSWER:
            return answer
        question = find_question(message_text(messages[-1]))
        return look_ups.call_tool(tool, question, next(self._ids)) if question else answer

    def choose_answer(
        self, model: str, messages: Sequence[Message], fault: Fault | None
    ) -> Message:
        if fault and fault.kind in ANSWERS_BY_KIND:
            return _assistant_message(ANSWERS_BY_KIND[fault.kind])
        if model == OBSERVER:
            return _assistant_message(notes.observe(message_text(messages[-1])))
        if model == REFLECTOR:
            return _assistant_message(notes.reflect(message_text(messages[-1]), self._count))
        scripted = self.script.get(cue(messages[-1])) if messages else None
        if scripted:
            return scripted
        is_first = not any(
            m.get("role") == "assistant" or "<observations>" in message_text(m) for m in messages
        )
        introduction = f"\n\n{self._introduction}" if self._introduction and is_first else ""
        return _assistant_message(improvise(messages) + introduction)

    def _count_usage(
        self, scope: Scope, model: str, prompt: Sequence[str], answer: Message
    ) -> tuple[int, int, int]:
        headers = dict(scope["headers"])
        credential = headers.get(b"authorization") or headers.get(b"x-api-key", b"")
        cache = self._caches.setdefault(
            (credential, model), PromptCache(self._count, self._cache_lifetime_s)
        )
        cached = cache.match_and_remember(prompt, self._clock())
        return sum(map(self._count, prompt)), cached, self._count(_write_json(answer))


async def _stream(send: Send, form: Form, turn: Turn, *, is_cut: bool) -> None:
    await loopback.start_response(send, 200, b"text/event-stream")
    events, end = form.build_stream(turn)
    for event in events[: len(events) // 2] if is_cut else [*events, *end[:-1]]:
        await loopback.send_piece(send, event)
    if not is_cut:  # else a body without its end: the server closes the connection
        await loopback.end_response(send, end[-1])


def cue(message: Message) -> str:
    """Return the script's key for this message: the call id of a tool's result, else the text."""
    if message.get("role") == "tool":
        return str(message["tool_call_id"])
    return message_text(message).strip()


def improvise(messages: Sequence[Message]) -> str:
    """Answer a message that is not in the script: answer a question from the prompt alone, and note
    anything else."""
    text = message_text(messages[-1]).strip() if messages else ""
    question = find_question(text)
    if question is None:
        return f"Noted: {notes.clip(text, 80)}"
    earlier_texts = [message_text(message) for message in messages[:-1]]
    statement = look_ups.find_statement(question, earlier_texts)
    if statement is None:
        return UNKNOWN_ANSWER
    when = f"On {statement.date} you said" if statement.date else "You said"
    return f"{when}: {statement.text}"


def find_question(text: str) -> str | None:
    """Return the last question of a text; None if it asks nothing."""
    sentences = notes.split_sentences(text.strip())
    return next((sentence for sentence in reversed(sentences) if sentence.endswith("?")), None)


def message_text(message: Message) -> str:
    """Return the plain text of a message: its content, or its content's text parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))


def _assistant_message(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _write_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _write_tools(request: Message) -> list[str]:
    # providers put the tools before the messages, so they are part of the cached prefix
    return [_write_json(request["tools"])] if request.get("tools") else []


def _cache_counts(count: Callable[[str], int]) -> Callable[[str], int]:
    """Cache the count of each text: a client sends the same messages again and again."""
    counts: dict[str, int] = {}

    def count_cached(text: str) -> int:
        if text not in counts:
            counts[text] = count(text)
        return counts[text]

    return count_cached


def _list_models() -> dict[str, Any]:
    fields = {"object": "model", "created": 0, "owned_by": "scripted"}
    models = [{"id": name, **fields} for name in (ACTOR, OBSERVER, REFLECTOR)]
    return {"object": "list", "data": models}


class PromptCache:
    """The newest prompts of one client and model. Each is forgotten `lifetime_s` seconds after its
    last use."""

    def __init__(self, count: Callable[[str], int], lifetime_s: float) -> None:
        self._count = count
        self._lifetime_s = lifetime_s
        self._prompts: deque[tuple[float, tuple[str, ...]]] = deque(maxlen=MAX_REMEMBERED_PROMPTS)

    def match_and_remember(self, prompt: Sequence[str], now: float) -> int:
        """Return the tokens of the prompt's longest remembered prefix, and remember the prompt."""
        earlier_prompts = [text for at, text in self._prompts if now - at <= self._lifetime_s]
        shared_tokens = max(
            (self._count_shared_tokens(prompt, earlier) for earlier in earlier_prompts), default=0
        )
        self._prompts.append((now, tuple(prompt)))
        if shared_tokens < MIN_CACHED_TOKENS:
            return 0
        return shared_tokens // CACHE_STEP_TOKENS * CACHE_STEP_TOKENS

    def _count_shared_tokens(self, prompt: Sequence[str], earlier: Sequence[str]) -> int:
        for index, (text, earlier_text) in enumerate(zip(prompt, earlier, strict=False)):
            if text != earlier_text:
                prefix = find_common_prefix(text, earlier_text)
                return sum(map(self._count, prompt[:index])) + self._count(prefix)
        return sum(map(self._count, prompt[: len(earlier)]))


def find_common_prefix(one: str, other: str) -> str:
    low = 0  # one[:low] == other[:low] always holds
    high = min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return one[:low]
