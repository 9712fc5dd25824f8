"""A scripted model server: an OpenAI-compatible ASGI application that needs no key and answers by
rules.

Models:
- `scripted-actor` says the script's next line. Its place is found by the newest message it is
  shown: the text of a user's message, the `tool_call_id` of a tool's result. Where the script knows
  nothing, it answers a question from the prompt it received and from nothing else
  (testing/recollect.py), or notes what it was told.
- `scripted-observer` and `scripted-reflector` write and shorten observations by rule
  (testing/notes.py).
- any other name is an actor too.

`usage` is counted, not invented: prompt tokens of what came, cached tokens by comparing prefixes
with the prompts before.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count as counting
from typing import Any

import orjson

from om_proxy.testing import asgi, notes, recollect
from om_proxy.testing.asgi import Receive, Scope, Send
from om_proxy.testing.faults import ANSWERS, Fault, Faults
from om_proxy.testing.prompt_cache import PromptCache

ACTOR = "scripted-actor"
OBSERVER = "scripted-observer"
REFLECTOR = "scripted-reflector"
UNKNOWN_ANSWER = "I don't know: nothing I have been shown says that."
STREAMED_DELTA_CHARS = 24  # characters of a streamed delta

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One chat request as it arrived, and what it was answered."""

    body: bytes
    model: str
    messages: tuple[Message, ...]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    answer: Message
    headers: tuple[tuple[bytes, bytes], ...]


class ScriptedServer:
    """The server. `requests` holds what it got, in order; `faults.switch(…)` changes them at any
    time."""

    def __init__(
        self,
        script: Mapping[str, Message] | None = None,
        *,
        faults: Iterable[Fault] = (),
        count: Callable[[str], int] | None = None,
        clock: Callable[[], float] = time.time,
        cache_lifetime: float = 3600.0,
        window: int | Mapping[str, int] | None = None,
        introduction: str = "",
    ) -> None:
        """`script`: cue → assistant message; `count`: tokens of a text; `window`: tokens a prompt
        may have, of all models or by model; `introduction`: what an actor adds to an unscripted
        reply to a conversation's first message."""
        self.script = dict(script or {})
        self.faults = Faults(faults)
        self.requests: list[RecordedRequest] = []
        self._count = _remembering(count or (lambda text: -(-len(text) // 4)))
        self._clock = clock
        self._cache_lifetime = cache_lifetime
        self._window = window
        self._introduction = introduction
        self._caches: dict[tuple[bytes, str], PromptCache] = {}
        self._ids = counting(1)

    def requests_to(self, model: str) -> list[RecordedRequest]:
        """The requests one model got."""
        return [seen for seen in self.requests if seen.model == model]

    def count_prompt_tokens(self, messages: Sequence[Message]) -> int:
        """Tokens these messages cost in a prompt."""
        return sum(self._count(_canonical(m)) for m in messages)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"].removeprefix("/v1")
        if path == "/models" and scope["method"] == "GET":
            await asgi.reply(send, 200, _models())
        elif path == "/chat/completions" and scope["method"] == "POST":
            await self._chat(scope, receive, send)
        else:
            await asgi.reply(send, 404, _error("no such route", "not_found"))

    async def _chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await asgi.whole_body(receive)
        try:
            request = orjson.loads(body)
            messages = tuple(request["messages"])
            model = str(request.get("model", ACTOR)).rpartition("/")[2]
            fault = self.faults.next_for(model)
            answer = self._answer(model, messages, fault)
            usage = self._usage(
                scope, model, [*_tools(request), *map(_canonical, messages)], answer
            )
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            await asgi.reply(
                send, 400, _error("the body is no chat request", "invalid_request_error")
            )
            return
        self.requests.append(
            RecordedRequest(body, model, messages, *usage, answer, tuple(scope["headers"]))
        )
        if not await self._refused(receive, send, fault, model, usage[0]):
            cut = fault is not None and fault.kind == "cut"
            await (
                self._stream(send, request, answer, usage, cut=cut)
                if request.get("stream")
                else asgi.reply(send, 200, self._completion(model, answer, usage))
            )

    async def _refused(
        self, receive: Receive, send: Send, fault: Fault | None, model: str, prompt_tokens: int
    ) -> bool:
        """Act out the faults that come before an answer; True when there is to be none."""
        if fault and fault.kind == "slow":
            await asyncio.sleep(fault.seconds)
        elif fault and fault.kind == "hang":
            await asgi.hang_up(receive)
            return True
        elif fault and fault.kind == "http":
            await asgi.reply(
                send, fault.status, _error("scripted fault", fault.code), fault.retry_after
            )
            return True
        window = self._window.get(model) if isinstance(self._window, Mapping) else self._window
        if window and prompt_tokens > window:
            text = f"This model's maximum context length is {window} tokens; your messages have {prompt_tokens}."
            await asgi.reply(send, 400, _error(text, "context_length_exceeded"))
            return True
        return False

    def _answer(self, model: str, messages: Sequence[Message], fault: Fault | None) -> Message:
        if fault and fault.kind in ANSWERS:
            return _says(ANSWERS[fault.kind])
        if model == OBSERVER:
            return _says(notes.observe(message_text(messages[-1])))
        if model == REFLECTOR:
            return _says(notes.reflect(message_text(messages[-1]), self._count))
        scripted = self.script.get(cue(messages[-1])) if messages else None
        if scripted:
            return scripted
        is_first = not any(
            m.get("role") == "assistant" or "<observations>" in message_text(m) for m in messages
        )
        introduction = f"\n\n{self._introduction}" if self._introduction and is_first else ""
        return _says(improvise(messages) + introduction)

    def _usage(
        self, scope: Scope, model: str, prompt: Sequence[str], answer: Message
    ) -> tuple[int, int, int]:
        credential = dict(scope["headers"]).get(b"authorization", b"")
        cache = self._caches.setdefault(
            (credential, model), PromptCache(self._count, self._cache_lifetime)
        )
        cached = cache.hit(prompt, self._clock())
        return sum(map(self._count, prompt)), cached, self._count(_canonical(answer))

    def _completion(
        self, model: str, answer: Message, usage: tuple[int, int, int]
    ) -> dict[str, Any]:
        choice = {"index": 0, "message": answer, "logprobs": None, "finish_reason": _reason(answer)}
        return {
            **self._head(model, "chat.completion"),
            "choices": [choice],
            "usage": _usage_object(usage),
        }

    def _head(self, model: str, kind: str) -> dict[str, Any]:
        return {
            "id": f"scripted-{next(self._ids)}",
            "object": kind,
            "created": int(self._clock()),
            "model": model,
        }

    async def _stream(
        self,
        send: Send,
        request: Message,
        answer: Message,
        usage: tuple[int, int, int],
        *,
        cut: bool,
    ) -> None:
        head = self._head(str(request.get("model", ACTOR)), "chat.completion.chunk")
        await asgi.start(send, 200, b"text/event-stream")
        pieces = list(deltas(answer))
        for delta in pieces[: len(pieces) // 2] if cut else pieces:
            await asgi.event(
                send, {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
            )
        if cut:
            return  # a body without its end: the server closes the connection
        await asgi.event(
            send, {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _reason(answer)}]}
        )
        if (request.get("stream_options") or {}).get("include_usage"):
            await asgi.event(send, {**head, "choices": [], "usage": _usage_object(usage)})
        await asgi.end(send, b"data: [DONE]\n\n")


def cue(message: Message) -> str:
    """What a script is keyed by: a result's call, else the message's text."""
    return (
        str(message["tool_call_id"])
        if message.get("role") == "tool"
        else message_text(message).strip()
    )


def improvise(messages: Sequence[Message]) -> str:
    """An answer to what no script foresaw: a question from the prompt alone, anything else is
    noted."""
    told = message_text(messages[-1]).strip() if messages else ""
    questions = [s for s in notes.sentences(told) if s.endswith("?")]
    if not questions:
        return f"Noted: {notes.clipped(told, 80)}"
    found = recollect.answer(questions[-1], [message_text(m) for m in messages[:-1]])
    if found is None:
        return UNKNOWN_ANSWER
    when = f"On {found.date} you said" if found.date else "You said"
    return f"{when}: {found.text}"


def message_text(message: Message) -> str:
    """The plain text of a message: its content, or its content's text parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))


def deltas(answer: Message) -> Iterator[dict[str, Any]]:
    """The answer in pieces, as a stream brings them: role, text, then each tool call's name and its
    arguments."""
    yield {"role": "assistant", "content": "" if answer.get("content") else None}
    for piece in _pieces(answer.get("content") or ""):
        yield {"content": piece}
    for index, call in enumerate(answer.get("tool_calls") or ()):
        function = call["function"]
        named = {"name": function["name"], "arguments": ""}
        yield {
            "tool_calls": [
                {"index": index, "id": call["id"], "type": "function", "function": named}
            ]
        }
        for piece in _pieces(function["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _pieces(text: str) -> Iterator[str]:
    return (text[i : i + STREAMED_DELTA_CHARS] for i in range(0, len(text), STREAMED_DELTA_CHARS))


def _says(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _reason(answer: Message) -> str:
    return "tool_calls" if answer.get("tool_calls") else "stop"


def _canonical(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _tools(request: Message) -> list[str]:
    # providers put the tools before the messages, so they are part of the cached prefix
    return [_canonical(request["tools"])] if request.get("tools") else []


def _remembering(count: Callable[[str], int]) -> Callable[[str], int]:
    """Count a text once: a client sends the same messages again and again."""
    known: dict[str, int] = {}

    def counted(text: str) -> int:
        if text not in known:
            known[text] = count(text)
        return known[text]

    return counted


def _usage_object(usage: tuple[int, int, int]) -> dict[str, Any]:
    prompt, cached, completion = usage
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _models() -> dict[str, Any]:
    owned = {"object": "model", "created": 0, "owned_by": "scripted"}
    return {
        "object": "list",
        "data": [{"id": name, **owned} for name in (ACTOR, OBSERVER, REFLECTOR)],
    }


def _error(message: str, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "scripted_error", "param": None, "code": code}}
