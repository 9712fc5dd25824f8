"""The parts of a reply's rounds that splices of both kinds put together: what a round came to, the
usage of all, and the events of a streamed one."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from msgspec import Raw

from om_proxy.memory.recall.offering import OwnNames
from om_proxy.wire.apis.api import RoundEnd, ToolCall, UsageRule
from om_proxy.wire.apis.chat.deltas import StreamedCall
from om_proxy.wire.apis.chat.reply import read_usage
from om_proxy.wire.apis.json_text import replace_lone_surrogates

# The end of a round that has more to read takes milliseconds.
LONG_END_BYTES = 1 << 17
# a reply that has none of it calls no tool
CALLS_HINT = b"tool_calls"
NULL, CALLED, STOPPED = Raw(b"null"), Raw(b'"tool_calls"'), Raw(b'"stop"')  # finish reasons
EMPTY_LINE = rb"\n\n"  # as JSON
# Of the first round; later rounds get them too.
IDENTITY_MEMBERS = ("id", "created")

members_decoder = msgspec.json.Decoder(dict[str, Raw])
list_decoder = msgspec.json.Decoder(list[Raw])
any_decoder = msgspec.json.Decoder()

_STRING = re.compile(rb'"((?:[^"\\]|\\.)*+)"', re.DOTALL)
# of a usage: what is about the prompt alone, by the names that servers use (memory/token_prices.py)
_PROMPT_MEMBERS = (
    "prompt_tokens",
    "prompt_tokens_details",
    "prompt_cache_hit_tokens",
    "prompt_cache_miss_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)
# members of a message that a client shows
_VISIBLE_MEMBERS = ("content", "refusal", "audio", "function_call")


def describe_round(
    message: Mapping[str, Any] | None,
    own: Collection[int],
    tool: str,
    *,
    usage: Any,
    is_finished: bool = True,
) -> RoundEnd:
    """Return what a round came to. `own`: which calls of the message are calls of the proxy's
    `tool`."""
    if message is None:
        return RoundEnd(is_finished=is_finished, usage=read_usage(usage))
    calls = message.get("tool_calls")
    calls = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    own_calls = [
        complete_call(call, place, tool) for place, call in enumerate(calls) if place in own
    ]
    return RoundEnd(
        calls=tuple(ToolCall(call["id"], call["function"]["arguments"]) for call in own_calls),
        message=msgspec.json.encode({**message, "tool_calls": own_calls}) if own else None,
        is_shared=bool(own) and len(own) < len(calls),
        is_visible=any(message.get(name) for name in _VISIBLE_MEMBERS) or len(own) < len(calls),
        is_finished=is_finished,
        usage=read_usage(usage),
    )


def complete_call(call: Mapping[str, Any], place: int, tool: str) -> dict[str, Any]:
    """Return a call of the proxy's tool as servers take it back: with an id, the tool's name and
    arguments."""
    function = call.get("function")
    function = {**(function if isinstance(function, dict) else {}), "name": tool}
    arguments = function.get("arguments")
    if not isinstance(arguments, str) or not arguments.strip():
        function["arguments"] = "{}"
    id_ = call.get("id")
    has_id = isinstance(id_, str) and bool(id_)
    return {
        **call,
        "id": id_ if has_id else f"call_om_{place}",
        "type": "function",
        "function": function,
    }


def is_own_call(call: Any, names: OwnNames) -> bool:
    """Return whether a whole call calls the proxy's tool."""
    if not isinstance(call, dict) or call.get("type", "function") != "function":
        return False
    function = call.get("function")
    return isinstance(function, dict) and names.has(function.get("name"))


class UsageSum:
    """The usage of the rounds before the last one."""

    def __init__(self, rule: UsageRule) -> None:
        self._rule = rule
        self._first: dict[str, Any] | None = None
        self._sum: dict[str, Any] | None = None

    def add(self, usage: Any) -> None:
        """Add the usage of a round; a round without usage adds nothing."""
        if not isinstance(usage, dict):
            return
        self._first = usage if self._first is None else self._first
        self._sum = usage if self._sum is None else _add_numbers(self._sum, usage)

    def include(self, usage: Any) -> Any:
        """Return the usage that the client is told, where the last round reports this one."""
        if self._sum is None or self._first is None or not isinstance(usage, dict):
            return usage
        whole = _add_numbers(self._sum, usage)
        if self._rule == "sum":
            return whole
        prompt = {name: self._first[name] for name in _PROMPT_MEMBERS if name in self._first}
        told = {name: value for name, value in whole.items() if name not in _PROMPT_MEMBERS}
        counts = (
            whole.get("total_tokens"),
            whole.get("prompt_tokens"),
            prompt.get("prompt_tokens"),
        )
        total, all_prompts, first_prompt = (c if type(c) is int else None for c in counts)
        if total is not None and all_prompts is not None and first_prompt is not None:
            told["total_tokens"] = total - all_prompts + first_prompt
        return {**prompt, **told}

    def __bool__(self) -> bool:
        return self._sum is not None


def _add_numbers(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Add up every number, also those of nested objects. Of any other value the later one stays."""
    added = {**earlier, **later}
    for name, value in later.items():
        before = earlier.get(name)
        if type(value) in (int, float) and type(before) in (int, float):
            added[name] = before + value
        elif isinstance(value, dict) and isinstance(before, dict):
            added[name] = _add_numbers(before, value)
        elif value is None and before is not None:
            added[name] = before
    return added


@dataclass(slots=True)
class Chunk:
    """An event of a round, taken apart as far as it may have to change."""

    raw: bytes
    members: dict[str, Raw] | None = None  # None: not read, so it goes out as it came
    choices: list[Raw] = field(default_factory=list)
    place: int = -1  # of the first choice of the reply among the event's choices; -1: none
    choice: dict[str, Raw] = field(default_factory=dict)
    delta: dict[str, Raw] | None = None
    calls: list[StreamedCall | None] = field(default_factory=list)  # of the delta's tool calls
    is_done: bool = False  # whether it is `[DONE]`
    odd_data: bytes | None = None  # as it came, if half characters were replaced for reading

    @property
    def has_finish(self) -> bool:
        return self.choice.get("finish_reason", NULL) != NULL

    @property
    def usage(self) -> Raw | None:
        raw = (self.members or {}).get("usage", NULL)
        return None if raw == NULL else raw


def change_choice(chunk: Chunk, **members: Raw) -> Chunk:
    """Return the chunk with these members in its choice."""
    choice = {**chunk.choice, **members}
    choices = [*chunk.choices]
    choices[chunk.place] = encode(choice)
    return replace(chunk, choices=choices, choice=choice)


def without_end(chunk: Chunk) -> Chunk:
    """Return the chunk without its finish and its usage."""
    members = {**(chunk.members or {}), "usage": NULL}
    return replace(change_choice(chunk, finish_reason=NULL), members=members)


def without_delta(chunk: Chunk) -> Chunk:
    """Return the chunk with an empty delta."""
    return replace(change_choice(chunk, delta=Raw(b"{}")), delta=None, calls=[])


def encode(value: Any) -> Raw:
    return Raw(msgspec.json.encode(value))


def put_back_halves(data: bytes, original: bytes) -> bytes:
    """Return `data` with the half characters of `original`, whose strings it has with U+FFFD in
    their place; an empty line may be in front of one."""
    repaired = replace_lone_surrogates(original) or original
    before = {
        match[1]: original[match.start(1) : match.end(1)] for match in _STRING.finditer(repaired)
    }

    def put_back(match: re.Match[bytes]) -> bytes:
        text = match[1]
        gap = EMPTY_LINE if text not in before and text.startswith(EMPTY_LINE) else b""
        text = text[len(gap) :]
        return b'"' + gap + before.get(text, text) + b'"'

    return _STRING.sub(put_back, data)


def write_error_event(error: bytes) -> bytes:
    """Return the end of a stream that fails, as model servers write it. `error`: the body of an
    error's response; one that is no JSON object has no words for the client."""
    try:
        body = msgspec.json.decode(error, type=dict[str, Any])
    except (ValueError, RecursionError):
        body = {}
    if "error" not in body:
        message = body.get("message") or "the model server refused a later request of this reply"
        body = {"error": {"message": message, "type": "upstream_error", "code": None}}
    return b"data: " + msgspec.json.encode(body) + b"\n\ndata: [DONE]\n\n"
