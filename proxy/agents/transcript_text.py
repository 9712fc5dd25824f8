"""Messages as the text an observer reads.

Everything of ours starts at the left edge, everything of theirs is either behind a speaker or indented by two blanks, and
all of it is escaped: so no text can pass for a message of another speaker, a date, or the end of the transcript.

    <transcript>
    Date: May 22, 2023
    User (09:14): The limit is 40 MB.
    Tool call read_file (09:14): {"path": "limits.toml"}
    Tool result read_file (09:14):
      upload = "32 MB"
    </transcript>
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from proxy.agents.attachments import Attachments
from proxy.agents.clipping import clipped, fair_share
from proxy.agents.llm import Image
from proxy.memory.escaping import escape
from proxy.memory.model import Message

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


def render(
    messages: Sequence[Message],
    timezone: ZoneInfo,
    *,
    tokens: Callable[[str], int],
    clip_tokens: int | None = None,
) -> Rendered:
    """The transcript in its fence. With `clip_tokens`, the longest texts are shortened until all fit in about as many tokens."""
    attachments = Attachments()
    tools = _tool_names(messages)
    lines = [line for message in messages for line in _lines(message, tools, attachments)]
    lines = _fitted(lines, tokens, clip_tokens)
    body = "\n".join(_dated(lines, timezone))
    return Rendered(f"<transcript>\n{body}\n</transcript>", tuple(attachments.images))


def _lines(message: Message, tools: Mapping[str, str], attachments: Attachments) -> Iterator[Line]:
    """A message's text, then its tool calls; nothing for an empty one. What a model thought before it spoke is not shown."""
    said = _read(message)
    if said is None:
        yield Line(message.item.role.capitalize(), message.item.raw.decode("utf-8", "replace"), message.at)
        return
    text = _text(said, attachments)
    if message.item.role in ("tool", "function"):
        name = said.get("name") or tools.get(message.item.answers or "") or ""
        yield Line(f"Tool result {name}", text or "[empty]", message.at, RESULT)
    elif text.strip():
        yield Line(_speaker(message.item.role, said.get("name")), text, message.at)
    for _, name, arguments in _calls(said):
        yield Line(f"Tool call {name}", arguments or "[no arguments]", message.at, ARGUMENTS)


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


def _tool_names(messages: Sequence[Message]) -> dict[str, str]:
    """Names of the called tools by the call's id: results carry only the id."""
    said = (_read(message) for message in messages if message.item.calls)
    return {call: name for message in said if message for call, name, _ in _calls(message)}


def _fitted(lines: Sequence[Line], tokens: Callable[[str], int], clip_tokens: int | None) -> list[Line]:
    """Each text cut to what its kind may take, and all of them to what the whole may take: the longest give first."""
    own = [clipped(line.text, line.most, tokens) for line in lines]
    share = None if clip_tokens is None else fair_share([tokens(text) for text in own], clip_tokens)
    return [replace(line, text=clipped(text, share, tokens)) for line, text in zip(lines, own, strict=True)]


def _dated(lines: Sequence[Line], timezone: ZoneInfo) -> Iterator[str]:
    day = ""
    for line in lines:
        at = datetime.fromtimestamp(line.at, timezone)
        if (today := f"{at:%b} {at.day}, {at.year}") != day:
            day = today
            yield f"Date: {day}"
        yield f"{_named(line.speaker)} ({at:%H:%M}):{_indented(escape(line.text))}"


def _named(speaker: str) -> str:
    """On one line, and without what ends a speaker: names come from outside too."""
    return escape(" ".join(speaker.translate(_ENDS_A_SPEAKER).split())[:NAME])


def _indented(text: str) -> str:
    """Behind the speaker if it is one line, else below and indented. Whatever Python or a model takes for a line end is one."""
    lines = text.splitlines()
    if len(lines) == 1:
        return f" {lines[0]}"
    return "".join(f"\n  {line}" for line in lines)
