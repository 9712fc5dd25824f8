"""The loopback server that all models of a stage are asked through. It keeps each request with its
answer."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson

from om_proxy.agents.model_access.litellm_adapter import import_litellm
from om_proxy.testing import chat_form, loopback
from om_proxy.testing.chat_form import Turn as AnsweredTurn
from om_proxy.testing.loopback import Receive, Scope, Send

ChatMessage = Mapping[str, Any]
# From a chat request to the answer: its text, an assistant message, or a whole chat completion.
AnswerFunction = Callable[[ChatMessage], Awaitable["str | ChatMessage"]]
# `NAME@URL`, a name of litellm's, or a function
Model = str | AnswerFunction

CALL_HEADER = b"x-stage-call"  # on every request that a client sends to the stage's proxy
KEY_VARIABLE = "OPENAI_API_KEY"
ANSWER_TIMEOUT_S = 600.0
LOOPBACK_HOSTS = frozenset(("127.0.0.1", "localhost", "::1"))
UNSENT_HEADERS = frozenset((b"host", b"content-length", b"accept-encoding", CALL_HEADER))


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call of a model. `answer` is the whole answer in JSON, or the error's."""

    request: ChatMessage
    status: int
    answer: ChatMessage
    is_actors: bool  # else a memory model's


class Recorder:
    """The server as an ASGI application. `models`: by the beginning of the path."""

    def __init__(self, models: Mapping[str, Model]) -> None:
        self.calls: list[RecordedCall] = []
        self._client = httpx.AsyncClient(timeout=ANSWER_TIMEOUT_S, trust_env=False)
        self._models = models

    def take_calls(self) -> list[RecordedCall]:
        """Return the calls since the last time, and forget them: a long conversation's prompts are
        large."""
        calls, self.calls = self.calls, []
        return calls

    async def close(self) -> None:
        await self._client.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = next((path for path in self._models if scope["path"].startswith(path)), None)
        body = await loopback.read_body(receive)
        if path is None or not body:
            await loopback.send_json(send, 404, chat_form.build_error("no such route", "not_found"))
            return
        model, request = self._models[path], orjson.loads(body)
        is_actors = CALL_HEADER in dict(scope["headers"])
        if isinstance(model, str) and "@" in model:
            model_path = scope["path"].removeprefix(path)
            await self._relay(model, model_path, scope, body, send, is_actors=is_actors)
            return
        answer = _complete(await self._ask(model, request))
        self.calls.append(RecordedCall(request, 200, answer, is_actors))
        if request.get("stream"):
            await _stream(send, request, answer)
        else:
            await loopback.send_json(send, 200, answer)

    async def _relay(
        self, model: str, path: str, scope: Scope, body: bytes, send: Send, *, is_actors: bool
    ) -> None:
        """Send the request on as it is, and its answer back as it comes."""
        url = model.partition("@")[2].rstrip("/")
        headers = [(k, v) for k, v in scope["headers"] if k not in UNSENT_HEADERS]
        key = os.environ.get(KEY_VARIABLE)
        if key and urlsplit(url).hostname not in LOOPBACK_HOSTS:
            headers = [(k, v) for k, v in headers if k != b"authorization"]
            headers.append((b"authorization", f"Bearer {key}".encode()))
        try:
            response = await self._client.post(url + path, content=body, headers=headers)
        except httpx.HTTPError as exc:
            error = chat_form.build_error(f"{model}: {type(exc).__name__}", "unreachable")
            await loopback.send_json(send, 502, error)
            return
        kind = response.headers.get("content-type", "application/json")
        is_json = kind.startswith("application/json")
        answer = orjson.loads(response.content) if is_json else {"events": response.text}
        self.calls.append(RecordedCall(orjson.loads(body), response.status_code, answer, is_actors))
        await loopback.start_response(send, response.status_code, kind.encode())
        await loopback.end_response(send, response.content)

    async def _ask(self, model: Model, request: ChatMessage) -> str | ChatMessage:
        if callable(model):
            return await model(request)
        litellm = await asyncio.to_thread(import_litellm)
        whole = {**request, "model": model, "stream": False}
        completion: Any = await litellm.acompletion(**whole)
        answer: ChatMessage = completion.model_dump()
        return answer


def _complete(answer: str | ChatMessage) -> ChatMessage:
    """Return the chat completion that an answer means."""
    if isinstance(answer, str):
        answer = {"role": "assistant", "content": answer}
    if "choices" in answer:
        return answer
    usage = answer.get("usage") or {}
    message = {name: value for name, value in answer.items() if name != "usage"}
    turn = AnsweredTurn(
        {}, "stage", 1, int(time.time()), message,
        usage.get("prompt_tokens", 0), 0, usage.get("completion_tokens", 0),
    )  # fmt: skip
    completion = chat_form.build_reply(turn)
    return completion if usage else {k: v for k, v in completion.items() if k != "usage"}


async def _stream(send: Send, request: ChatMessage, answer: ChatMessage) -> None:
    message = answer["choices"][0]["message"]
    turn = AnsweredTurn(request, str(request.get("model")), 1, int(time.time()), message, 0, 0, 0)
    events, end = chat_form.build_stream(turn)
    await loopback.start_response(send, 200, b"text/event-stream")
    await loopback.end_response(send, b"".join([*events, *end]))
