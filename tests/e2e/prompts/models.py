"""The model server behind the proxy: the actor says what a test has laid ready, and keeps each prompt
for its oracle. The memory models note every id that they are shown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from om_proxy.testing import chat_form, loopback
from om_proxy.testing.chat_form import Form, Turn
from om_proxy.testing.loopback import Receive, Scope, Send
from om_proxy.testing.notes import extract_transcript
from om_proxy.testing.scripted import (
    FORMS,
    OBSERVER,
    REFLECTOR,
    find_scripted_model,
    message_text,
)
from tests.simulation.actor import streamed
from tests.simulation.words import ids_in, notes, numbered, ranges

# the header that names a request
NUMBER_HEADER = "x-number"
# how many ids a line of notes names
LINE_IDS = 6


class PromptModels:
    """An ASGI application. `replies`: the messages that a request is answered with, one a choice, by
    its number. `prompts`: the bodies that reached the actor for it."""

    def __init__(self) -> None:
        self.replies: dict[int, Sequence[Mapping[str, Any]]] = {}
        self.prompts: dict[int, list[bytes]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = await loopback.read_body(receive)
        request = orjson.loads(body)
        form = FORMS[scope["path"].removeprefix("/v1")]
        model = find_scripted_model(request["model"])
        if model in (OBSERVER, REFLECTOR):
            text = message_text(form.read_messages(request)[-1])
            answer = _observe(text) if model == OBSERVER else _reflect(text)
            await loopback.send_json(
                send, 200, _complete([{"role": "assistant", "content": answer}])
            )
            return
        number = int(dict(scope["headers"])[NUMBER_HEADER.encode()])
        self.prompts.setdefault(number, []).append(body)
        replies = self.replies[number]
        if form is not chat_form:
            await _answer_in_form(send, form, Turn(request, "m", number, 1, replies[0], 1, 0, 1))
            return
        if not request.get("stream"):
            await loopback.send_json(send, 200, _complete(replies))
            return
        await loopback.start_response(send, 200, b"text/event-stream")
        for event in streamed(orjson.dumps(replies[0])):
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await loopback.end_response(send, b"")


async def _answer_in_form(send: Send, form: Form, turn: Turn) -> None:
    if not turn.request.get("stream"):
        await loopback.send_json(send, 200, form.build_reply(turn))
        return
    await loopback.start_response(send, 200, b"text/event-stream")
    stream = form.build_stream(turn)
    for event in (*stream.events, *stream.end):
        await loopback.send_piece(send, event)
    await loopback.end_response(send, b"")


def _complete(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    choices = [
        {
            "index": index,
            "message": message,
            "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
        }
        for index, message in enumerate(messages)
    ]
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    head = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    return {**head, "choices": choices, "usage": usage}


def _observe(prompt: str) -> str:
    ids = numbered(ids_in(extract_transcript(prompt)))
    lines = [" ".join(ids[at : at + LINE_IDS]) for at in range(0, len(ids), LINE_IDS)]
    return notes([f"{line} were told of" for line in lines] or ["nothing was told"])


def _reflect(prompt: str) -> str:
    lines = re.findall(r"^\* .*$", prompt, re.MULTILINE)
    return notes([f"{ranges(ids_in(' '.join(lines)))} were told of, all in all"])
