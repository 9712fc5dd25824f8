"""How servers say a reply: whole or in the pieces of a stream, and what a client that knows its server
sends back of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

THOUGHT = ("I think of ", "the harbour, ", "and go on.")
DONE = b"data: [DONE]\n\n"
# members of an assistant's message that every client sends back
COMMON_MEMBERS = ("role", "content", "tool_calls")

Json = dict[str, Any]


def make_plain_id(number: int) -> str:
    return f"call_{number}"


@dataclass(frozen=True)
class Voice:
    """What is peculiar in a server's replies."""

    # the member, or the kind of part, that has the thoughts; empty: it tells none
    thoughts: str = ""
    passes_back: tuple[str, ...] = ()  # more members that its clients send back
    remarks: Mapping[str, Any] = field(default_factory=dict)  # in every message, whatever it says
    make_call_id: Callable[[int], str] = make_plain_id
    has_call_index: bool = True  # whether a streamed call says its index
    signs_calls: bool = False  # the first one of a message
    has_object_arguments: bool = False
    talks_beside_calls: bool = False
    opening: bytes = b""  # of every stream
    beat: bytes = b""  # between the events of a stream
    call_count: int = 1  # of the client's tool at once

    def write_message(self, number: int, text: str, tools: Sequence[tuple[str, str]]) -> Json:
        """Return the whole message. `tools`: the names and arguments of its calls."""
        message: Json = {"role": "assistant", "content": text or None}
        if tools:
            message["content"] = "I look." if self.talks_beside_calls else None
            message["tool_calls"] = [
                self._write_call(10 * number + i, *tool) for i, tool in enumerate(tools)
            ]
            if self.signs_calls:
                signature = {"thought_signature": f"SIG{10 * number}"}
                message["tool_calls"][0]["extra_content"] = {"google": signature}
        remarks = {name: value for name, value in self.remarks.items() if name not in message}
        return {**message, **remarks, **self._write_thoughts(number, message)}

    def _write_call(self, number: int, name: str, arguments: str) -> Json:
        return {
            "id": self.make_call_id(number),
            "type": "function",
            "function": {
                "name": name,
                "arguments": orjson.loads(arguments) if self.has_object_arguments else arguments,
            },
        }

    def _write_thoughts(self, number: int, message: Json) -> Json:
        thought = "".join(THOUGHT)
        match self.thoughts:
            case "":
                return {}
            case "reasoning_details":
                return {self.thoughts: [_detail(text=thought, signature=f"S{number}")]}
            case "thinking_blocks":
                return {self.thoughts: [_block(thinking=thought, signature=f"S{number}")]}
            case "parts":
                said = message["content"] or ""
                return {"content": [_thinking(thought), {"type": "text", "text": said}]}
            case _:
                return {self.thoughts: thought}

    def write_stream(self, number: int, message: Json) -> Iterator[bytes]:
        """Yield the message as a stream's bytes."""
        yield self.opening
        for delta in self._split(number, message):
            yield self.beat + _event([{"index": 0, "delta": delta, "finish_reason": None}])
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        yield _event([{"index": 0, "delta": {}, "finish_reason": reason}])
        yield DONE

    def _split(self, number: int, message: Json) -> Iterator[Json]:
        yield {"role": "assistant", "content": "", **self.remarks}  # what is null says nothing
        yield from self._split_thoughts(number)
        said = message["content"]
        text = said[1]["text"] if isinstance(said, list) else said or ""
        for word in re.findall(r"\S+\s*", text):
            yield {"content": word}
        for index, call in enumerate(message.get("tool_calls") or ()):
            placed = {"index": index, **call} if self.has_call_index else call
            yield {"tool_calls": [placed]}

    def _split_thoughts(self, number: int) -> Iterator[Json]:
        if not self.thoughts:
            return
        for piece in THOUGHT:
            match self.thoughts:
                case "reasoning_details":
                    yield {"reasoning": piece, self.thoughts: [_detail(text=piece)]}
                case "thinking_blocks":
                    yield {self.thoughts: [_block(thinking=piece)]}
                case "parts":
                    yield {"content": [_thinking(piece)]}
                case _:
                    yield {"content": None, self.thoughts: piece}
        if self.thoughts == "reasoning_details":
            yield {self.thoughts: [_detail(signature=f"S{number}")]}
        elif self.thoughts == "thinking_blocks":
            yield {self.thoughts: [_block(thinking="", signature=f"S{number}")]}

    def recall(self, message: Json) -> Json:
        """Return the message as a client that knows its server sends it back."""
        names = (*COMMON_MEMBERS, *self.passes_back)
        kept = {name: value for name, value in message.items() if name in names and value != []}
        if isinstance(kept["content"], list):
            kept["content"] = kept["content"][1]["text"]
        if self.has_object_arguments and "tool_calls" in kept:
            kept["tool_calls"] = [
                call | {"function": _with_text_arguments(call["function"])}
                for call in kept["tool_calls"]
            ]
        return kept


def _with_text_arguments(function: Json) -> Json:
    return function | {"arguments": orjson.dumps(function["arguments"]).decode()}


def _detail(**members: str) -> Json:
    return {"type": "reasoning.text", "index": 0, "format": "anthropic-claude-v1", **members}


def _block(**members: str) -> Json:
    return {"type": "thinking", **members}


def _thinking(text: str) -> Json:
    return {"type": "thinking", "thinking": [{"type": "text", "text": text}]}


def _event(choices: list[Json], **members: Any) -> bytes:
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: " + orjson.dumps({**chunk, "choices": choices, **members}) + b"\n\n"


# Azure sends what its filter found before the reply, in an event without choices.
FILTER_EVENT = _event(
    [], prompt_filter_results=[{"prompt_index": 0, "content_filter_results": {"hate": {}}}]
)
