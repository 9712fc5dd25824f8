"""Messages as the text an observer reads.

Everything of ours starts at the left edge, everything of theirs is either behind a speaker or indented by two blanks, and
all of it is escaped: so no text can pass for a message of another speaker, a date, or the end of the transcript.

    <transcript>
    Date: on or before Monday, May 22, 2023, times not known
    User: Uploads fail for some.
    Date: Monday, May 22, 2023
    User (09:14): The limit is 40 MB.
    Tool call read_file #1 (09:14): path: limits.toml
    Tool call read_file #2 (09:14), no result: path: old/limits.toml
    Tool result read_file #1 (09:14):
      upload = "32 MB"
    </transcript>

The weekday is there because people say "on Friday" and models count badly. Calls that one message makes in parallel are numbered,
for their results carry only an id.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from om_proxy.agents.arguments import render_arguments
from om_proxy.agents.attachments import Attachments
from om_proxy.agents.clipping import clipped, fair_share
from om_proxy.agents.llm import Image
from om_proxy.memory.dates import WEEKDAY_NAMES
from om_proxy.memory.escaping import escape
from om_proxy.memory.model import Message

ARGUMENTS = 2_000  # tokens of a tool call's arguments that are shown
RESULT = 5_000  # tokens of a tool's result; both as in the reference implementation

NAME = 100  # characters of a speaker

_message = msgspec.json.Decoder(dict[str, Any])
_ENDS_A_SPEAKER = str.maketrans("():", "___")


@dataclass(frozen=True, slots=True)
class Rendered:
    """`images` with the numbers they have in the text; one without an address has a number only."""

    text: str = field(repr=False)
    images: tuple[tuple[int, Image], ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """One speaker's text; `at` is unix seconds."""

    speaker: str
    text: str = field(repr=False)
    at: float
    most: int | None = None  # tokens of it that are shown; None: all
    number: str = ""  # ` #2` of parallel calls and of their results
    remark: str = ""  # ours, behind the time
    is_timed: bool = True  # False: said at `at` or at any time before


class CallPlace(NamedTuple):
    """A tool call by the seq of its message and its place in it: ids may come again, some models number from 0 in every message."""

    seq: int
    place: int


@dataclass(frozen=True, slots=True)
class ToolPairs:
    """Which result belongs to which call."""

    calls: Mapping[int, tuple[str, str]]  # tool name and number, by the seq of the result
    unanswered: Collection[CallPlace]


def render(
    messages: Sequence[Message],
    timezone: ZoneInfo,
    *,
    tokens: Callable[[str], int],
    clip_tokens: int | None = None,
    undated_to: int = 0,
) -> Rendered:
    """The transcript in its fence. With `clip_tokens`, the longest texts are shortened until all fit in about as many tokens.

    `undated_to`: of messages up to this seq nobody knows when they were said, only that it was not later than they came.
    """
    attachments = Attachments()
    pairs = _pair_tools(messages)
    lines = [
        replace(line, is_timed=message.seq > undated_to)
        for message in messages
        for line in _lines(message, pairs, attachments)
    ]
    lines = _fitted(lines, tokens, clip_tokens)
    body = "\n".join(_dated(lines, timezone))
    return Rendered(f"<transcript>\n{body}\n</transcript>", tuple(attachments.images))


def _lines(message: Message, pairs: ToolPairs, attachments: Attachments) -> Iterator[Line]:
    """A message's text, then its tool calls; nothing for an empty one. What a model thought before it spoke is not shown."""
    said = _read(message)
    if said is None:
        yield Line(message.item.role.capitalize(), message.item.raw.decode("utf-8", "replace"), message.at)
        return
    text = _text(said, attachments)
    if message.item.role in ("tool", "function"):
        called, number = pairs.calls.get(message.seq, ("", ""))
        yield Line(f"Tool result {said.get('name') or called}", text or "[empty]", message.at, RESULT, number)
    elif text.strip():
        yield Line(_speaker(message.item.role, said.get("name")), text, message.at)
    calls = list(_calls(said))
    for place, (_, name, arguments) in enumerate(calls, 1):
        shown = render_arguments(arguments) or "[no arguments]"
        remark = ", no result" if CallPlace(message.seq, place) in pairs.unanswered else ""
        yield Line(f"Tool call {name}", shown, message.at, ARGUMENTS, _number(place, calls), remark)


def _read(message: Message) -> dict[str, Any] | None:
    """None for what cannot be read: numbers beyond all bounds, levels without end."""
    try:
        return _message.decode(message.item.raw)
    except (ValueError, RecursionError):
        return None


def _speaker(role: str, name: Any) -> str:
    return f"{role.capitalize()} {name}" if isinstance(name, str) and name else role.capitalize()


def _text(said: Mapping[str, Any], attachments: Attachments) -> str:
    content = said.get("content")
    parts = content if isinstance(content, list) else [content, said.get("refusal")]
    return "\n".join(filter(None, (attachments.text_of(part) for part in parts)))


def _calls(said: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Id, name and arguments of the tool calls, of those in the older `function_call` form too."""
    calls = said.get("tool_calls")
    for call in [*(calls if isinstance(calls, list) else ()), {"function": said.get("function_call")}]:
        function = call.get("function") or call.get("custom") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            arguments = function.get("arguments", function.get("input"))
            text = arguments if isinstance(arguments, str) else _json(arguments)
            yield str(call.get("id", "")), str(function.get("name", "")), text


def _json(value: Any) -> str:
    return "" if value is None else msgspec.json.encode(value).decode()


def _number(place: int, calls: Sequence[object]) -> str:
    return f" #{place}" if len(calls) > 1 else ""


def _pair_tools(messages: Sequence[Message]) -> ToolPairs:
    """Each result with the newest call of its id before it; a call whose block is still open at the end may get its result yet."""
    waiting: dict[str, tuple[CallPlace, str, str]] = {}
    unanswered: set[CallPlace] = set()
    results: dict[int, tuple[str, str]] = {}
    for message in messages:
        if message.item.role in ("tool", "function"):
            said = None if message.item.answers else _read(message)
            key = message.item.answers or _function_key(said.get("name") if said else None)
            if call := waiting.get(key):
                results[message.seq] = call[1:]
                unanswered.discard(call[0])
        elif said := _read(message):
            calls = list(_calls(said))
            for place, (call_id, name, _) in enumerate(calls, 1):
                found = CallPlace(message.seq, place)
                waiting[call_id or _function_key(name)] = found, name, _number(place, calls)
                unanswered.add(found)
    return ToolPairs(results, unanswered - _still_open(messages))


def _function_key(name: object) -> str:
    """The older `function_call` form has no ids: its result names the function."""
    return f"function {name}"


def _still_open(messages: Sequence[Message]) -> set[CallPlace]:
    """The calls of the newest message that is no result."""
    newest = next((m for m in reversed(messages) if m.item.role not in ("tool", "function")), None)
    said = _read(newest) if newest else None
    return {CallPlace(newest.seq, place) for place, _ in enumerate(_calls(said), 1)} if newest and said else set()


def _fitted(lines: Sequence[Line], tokens: Callable[[str], int], clip_tokens: int | None) -> list[Line]:
    """Each text cut to what its kind may take, and all of them to what the whole may take: the longest give first."""
    own = [clipped(line.text, line.most, tokens) for line in lines]
    share = None if clip_tokens is None else fair_share([tokens(text) for text in own], clip_tokens)
    return [replace(line, text=clipped(text, share, tokens)) for line, text in zip(lines, own, strict=True)]


def _dated(lines: Sequence[Line], timezone: ZoneInfo) -> Iterator[str]:
    heading = ""
    for line in lines:
        at = datetime.fromtimestamp(line.at, timezone)
        day = f"{WEEKDAY_NAMES[at.weekday()]}, {at:%b} {at.day}, {at.year}"
        told = day if line.is_timed else f"on or before {day}, times not known"
        if told != heading:
            heading = told
            yield f"Date: {told}"
        time = f" ({at:%H:%M})" if line.is_timed else ""
        yield f"{_named(line.speaker)}{line.number}{time}{line.remark}:{_indented(escape(line.text))}"


def _named(speaker: str) -> str:
    """On one line, and without what ends a speaker: names come from outside too."""
    return escape(" ".join(speaker.translate(_ENDS_A_SPEAKER).split())[:NAME])


def _indented(text: str) -> str:
    """Behind the speaker if it is one line, else below and indented. Whatever Python or a model takes for a line end is one."""
    lines = text.splitlines()
    if len(lines) == 1:
        return f" {lines[0]}"
    return "".join(f"\n  {line}" for line in lines)
