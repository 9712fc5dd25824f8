"""The fake model servers: one ASGI application, in which each server has a path of its own."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

import orjson

from om_proxy.testing import loopback
from om_proxy.testing.chat_form import encode_event
from om_proxy.wire.server.disconnect import wait_for_disconnect
from tests.e2e.providers.rules import read_text
from tests.e2e.providers.servers import SERVERS, Server
from tests.e2e.providers.voices import Json

# How a memory model is asked (agents/prompts/*.md).
MEMORY_PROMPT_START = "You keep the memory of an assistant."
MARKER = re.compile(r"zq\d{5}")
CLIENT_TOOL = "look"
LOOK_UP_TOOL = "recall"
LOOK_UP_ARGUMENTS = '{"mode":"search","query":"river"}'
WORDS = ("river", "lantern", "copper", "meadow", "harbour", "pencil", "winter", "garden")
_markers = count(1)


def make_text(more: str = "") -> str:
    """Make a text of 40 words that begins with a marker of its own. The order of its words is the
    marker's own, too."""
    number = next(_markers)
    words = (WORDS[(number * 3 + k * k + number // 8) % len(WORDS)] for k in range(40))
    return " ".join((f"zq{number:05}", more, *words))


def find_markers(value: Any) -> set[str]:
    return set(MARKER.findall(orjson.dumps(value).decode()))


@dataclass
class Exchange:
    """A request that a server got, and what it did with it."""

    conversation: str
    body: Json
    complaint: str | None
    is_memory_call: bool


# A question that is answered with 429, one that its client takes back before a word of the reply, and
# one whose reply has no text and no calls.
Mishap = Literal["busy", "stopped", "empty"]


@dataclass
class Trouble:
    """What a conversation meets until it is ended. A stopped question sets both events."""

    mishap: Mishap
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class FakeServers:
    """All servers. A conversation is named in the credential of its requests."""

    exchanges: list[Exchange] = field(default_factory=list)
    said: dict[str, Json] = field(default_factory=dict)  # conversation → its newest whole reply
    _numbers: Any = field(default_factory=lambda: count(1))
    _troubles: dict[str, Trouble] = field(default_factory=dict)

    def begin_trouble(self, conversation: str, mishap: Mishap) -> Trouble:
        self._troubles[conversation] = trouble = Trouble(mishap)
        return trouble

    def end_trouble(self, conversation: str) -> None:
        del self._troubles[conversation]

    async def __call__(
        self, scope: loopback.Scope, receive: loopback.Receive, send: loopback.Send
    ) -> None:
        name = scope["path"].split("/")[1]
        server = next(server for server in SERVERS if server.name == name)
        body = orjson.loads(await loopback.read_body(receive))
        headers = dict(scope["headers"])
        conversation = headers[b"authorization"].decode().removeprefix("Bearer ")
        refused = find_refusal(server, body)
        is_memory_call = is_asked_for_notes(body)
        self.exchanges.append(
            Exchange(conversation, body, refused[1] if refused else None, is_memory_call)
        )
        if refused:
            status, complaint = refused
            error = {"message": complaint, "type": "invalid_request_error", "code": None}
            await loopback.send_json(send, status, {"error": error})
            return
        number = next(self._numbers)
        trouble = self._troubles.get(conversation)
        if is_memory_call:
            message: Json = {"role": "assistant", "content": write_notes(body)}
        elif trouble is not None and trouble.mishap == "busy":
            await loopback.send_json(send, 429, {"error": {"message": "Too many requests"}})
            return
        elif trouble is not None and trouble.mishap == "stopped":
            await _wait_in_vain(receive, send, body, trouble)
            return
        elif trouble is not None:
            message = server.voice.write_message(number, "", [])
        else:
            message = answer(server, number, body)
            self.said[conversation] = message
        await self._send(send, server, number, body, message)

    async def _send(
        self, send: loopback.Send, server: Server, number: int, body: Json, message: Json
    ) -> None:
        if body.get("stream"):
            await loopback.start_response(send, 200, b"text/event-stream")
            events = b"".join(server.voice.write_stream(number, message))
            await loopback.end_response(send, events)
            return
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        await loopback.send_json(
            send, 200, {"id": "c", "object": "chat.completion", "choices": [choice]}
        )


async def _wait_in_vain(
    receive: loopback.Receive, send: loopback.Send, body: Json, trouble: Trouble
) -> None:
    """Begin a reply, if it is a stream, and wait until nobody waits for it."""
    if body.get("stream"):
        await loopback.start_response(send, 200, b"text/event-stream")
        opening = {"choices": [{"index": 0, "delta": {"role": "assistant"}}]}
        await loopback.send_piece(send, encode_event(opening))
    trouble.begun.set()
    await wait_for_disconnect(receive)
    trouble.ended.set()


def find_refusal(server: Server, body: Json) -> tuple[int, str] | None:
    """Return the status and the complaint of the first rule that refuses the request."""
    for rule in server.rules:
        if complaint := rule.check(body):
            return rule.status, complaint
    return None


def is_asked_for_notes(body: Json) -> bool:
    return read_text(body["messages"][0]).startswith(MEMORY_PROMPT_START)


def is_asked_with_results(body: Json) -> bool:
    """Return whether the newest messages are results of the look-up tool."""
    newest = next((m for m in reversed(body["messages"]) if m["role"] != "tool"), {})
    names = [call["function"]["name"] for call in newest.get("tool_calls") or ()]
    return LOOK_UP_TOOL in names


def answer(server: Server, number: int, body: Json) -> Json:
    """Return the reply: calls of the tools that the newest message asks for, or a text."""
    newest = body["messages"][-1]
    offered = [tool["function"]["name"] for tool in body.get("tools", ())]
    tools: list[tuple[str, str]] = []
    if newest["role"] == "user":
        wish = read_text(newest)
        if "TOOL" in wish and CLIENT_TOOL in offered:
            tools += [(CLIENT_TOOL, '{"at":"it"}')] * server.voice.call_count
        if "LOOK" in wish and LOOK_UP_TOOL in offered:
            tools.append((LOOK_UP_TOOL, LOOK_UP_ARGUMENTS))
    return server.voice.write_message(number, "" if tools else make_text(), tools)


def write_notes(body: Json) -> str:
    """Return notes that hold every marker of what is to be noted. Those of a reflection are shorter."""
    # without a system message, its text comes first
    _, fence, transcript = read_text(body["messages"][-1]).rpartition("<transcript>\n")
    markers = sorted(set(MARKER.findall(transcript)))
    more = " was told in this talk, at some length, beside the river" if fence else ""
    lines = "\n".join(f"* 🔴 (10:00) {marker}{more}" for marker in markers)
    return (
        f"<observations>\nDate: Jan 5, 2026\n{lines or '* 🔴 (10:00) they talked'}\n</observations>"
    )
