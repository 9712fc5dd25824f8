"""Render messages as the text that an observer reads.

The proxy's own words start at the left edge. A message's text follows its speaker or is indented by
two blanks, and is escaped: no text can pass for a message of another speaker, a date, or the end of
the transcript.

    <transcript>
    Date: on or before Monday, May 22, 2023, times not known
    User: Uploads fail for some.
    Date: Monday, May 22, 2023 (last week May 15-21, this week May 22-28, next week May 29 to Jun 4)
    User (09:14): The limit is 40 MB.
    Tool call read_file #1 (09:14): path: limits.toml
    Tool call read_file #2 (09:14), no result: path: old/limits.toml
    Tool result read_file #1 (09:14):
      upload = "32 MB"
    User (09:20), corrects what was noted: Uploads fail for all.
    </transcript>

Weekday and weeks are there because people say "on Friday" and "last week", and models count badly. Parallel calls of one
message are numbered, because their results carry only an id.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from msgspec import UNSET

from om_proxy.agents.model_access.llm import Image
from om_proxy.agents.transcript_parts import Attachments, render_arguments
from om_proxy.memory.dates import WEEKDAY_NAMES, read_time
from om_proxy.memory.escaping import escape
from om_proxy.memory.message_view import MessageView
from om_proxy.memory.model import Message
from om_proxy.wire.apis.json_text import show_arguments
from om_proxy.wire.apis.registry import view_message

# of a tool call's arguments, and of a result; both as in the reference implementation
MAX_ARGUMENT_TOKENS = 2_000
MAX_RESULT_TOKENS = 5_000
MAX_SPEAKER_CHARS = 100
CORRECTION_REMARK = ", corrects what was noted"

_SPEAKER_ESCAPES = str.maketrans("():", "___")


# of the kept text; the tail is kept too, because the end of a log tells how the work ended
HEAD_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class RenderedTranscript:
    """The text of a transcript, and its images with their numbers in the text. An image without an
    address has a number only."""

    text: str = field(repr=False)
    images: tuple[tuple[int, Image], ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """One speaker's text. `at` is in unix seconds."""

    speaker: str
    text: str = field(repr=False)
    at: float
    max_tokens: int | None = None  # None: all
    number: str = ""  # ` #2` of parallel calls and of their results
    remark: str = ""  # the proxy's own, after the time
    is_timed: bool = True  # False: said at `at` or at any time before


class CallPlace(NamedTuple):
    """The seq of a tool call's message, and the call's place in it. They identify the call: ids may
    repeat, because some models number from 0 in every message."""

    seq: int
    place: int


@dataclass(frozen=True, slots=True)
class ToolPairs:
    """The calls that results belong to, and the calls without one."""

    calls: Mapping[int, tuple[str, str]]  # tool name and number, by the seq of the result
    unanswered: Collection[CallPlace]


def render_transcript(
    messages: Sequence[Message],
    timezone: ZoneInfo,
    *,
    tokens: Callable[[str], int],
    clip_tokens: int | None = None,
    undated_to: int = 0,
    corrections: Collection[int] = (),
) -> RenderedTranscript:
    """Render the transcript in its fence. With `clip_tokens`, shorten the longest texts until all
    fit into about as many tokens.

    `undated_to`: messages up to this seq may have been said at any time before they came.
    `corrections`: seqs of messages that replace an earlier text, which may be noted already.
    """
    attachments = Attachments()
    pairs = _pair_tools(messages)
    lines = [
        replace(
            line,
            is_timed=message.seq > undated_to,
            remark=line.remark + CORRECTION_REMARK * (message.seq in corrections),
        )
        for message in messages
        for line in _render_message(message, pairs, attachments)
    ]
    lines = _clip_lines(lines, tokens, clip_tokens)
    body = "\n".join(_write_lines(lines, timezone))
    return RenderedTranscript(f"<transcript>\n{body}\n</transcript>", tuple(attachments.images))


def _render_message(message: Message, pairs: ToolPairs, attachments: Attachments) -> Iterator[Line]:
    """Render a message's text, then its tool calls. An empty message gives nothing. A model's
    reasoning is not shown."""
    view = _view_message(message)
    if view is None:
        yield Line(
            message.item.role.capitalize(), message.item.raw.decode("utf-8", "replace"), message.at
        )
        return
    text = _join_parts(view, attachments)
    if message.item.role in ("tool", "function"):
        called_name, number = pairs.calls.get(message.seq, ("", ""))
        yield Line(
            f"Tool result {view.name or called_name}",
            text or "[empty]",
            message.at,
            MAX_RESULT_TOKENS,
            number,
        )
    elif text.strip():
        yield Line(_name_speaker(message.item.role, view.name), text, message.at)
    calls = list(_list_calls(view))
    for place, (_, name, arguments) in enumerate(calls, 1):
        shown_arguments = render_arguments(arguments) or "[no arguments]"
        remark = ", no result" if CallPlace(message.seq, place) in pairs.unanswered else ""
        yield Line(
            f"Tool call {name}",
            shown_arguments,
            message.at,
            MAX_ARGUMENT_TOKENS,
            _number_call(place, calls),
            remark,
        )


def _view_message(message: Message) -> MessageView | None:
    """Return the message's view, or None if it is unreadable: with numbers beyond all bounds, or too
    many levels."""
    return view_message(message.item.raw, message.item.api)


def _name_speaker(role: str, name: object) -> str:
    return f"{role.capitalize()} {name}" if isinstance(name, str) and name else role.capitalize()


def _join_parts(view: MessageView, attachments: Attachments) -> str:
    parts = [*view.parts()]
    if isinstance(view.refusal, str) and not view.has_list:
        parts.append(view.refusal)
    return "\n".join(filter(None, map(attachments.render_part, parts)))


def _list_calls(view: MessageView) -> Iterator[tuple[str, str, str]]:
    """Yield id, name and arguments of each tool call."""
    for call in view.calls():
        if call.kind != "empty":
            name = "" if call.name is UNSET else str(call.name)
            yield str(call.id), name, show_arguments(call.arguments)


def _number_call(place: int, calls: Sequence[object]) -> str:
    return f" #{place}" if len(calls) > 1 else ""


def _pair_tools(messages: Sequence[Message]) -> ToolPairs:
    """Pair each result with the newest call of its id before it. A call of the newest message that
    is no result may get its result later."""
    newest_calls: dict[str, tuple[CallPlace, str, str]] = {}
    unanswered: set[CallPlace] = set()
    calls_by_result: dict[int, tuple[str, str]] = {}
    for message in messages:
        if message.item.role in ("tool", "function"):
            view = None if message.item.answers else _view_message(message)
            key = message.item.answers or _make_function_key(view.name if view else None)
            if call := newest_calls.get(key):
                calls_by_result[message.seq] = call[1:]
                unanswered.discard(call[0])
        elif view := _view_message(message):
            calls = list(_list_calls(view))
            for place, (call_id, name, _) in enumerate(calls, 1):
                call_place = CallPlace(message.seq, place)
                key = call_id or _make_function_key(name)
                newest_calls[key] = call_place, name, _number_call(place, calls)
                unanswered.add(call_place)
    return ToolPairs(calls_by_result, unanswered - _find_open_calls(messages))


def _make_function_key(name: object) -> str:
    """Return the key of a call in the older `function_call` form, which has no ids: its result names
    the function."""
    return f"function {name}"


def _find_open_calls(messages: Sequence[Message]) -> set[CallPlace]:
    """Find the calls of the newest message that is no result."""
    newest = next((m for m in reversed(messages) if m.item.role not in ("tool", "function")), None)
    view = _view_message(newest) if newest else None
    if newest is None or view is None:
        return set()
    return {CallPlace(newest.seq, place) for place, _ in enumerate(_list_calls(view), 1)}


def _clip_lines(
    lines: Sequence[Line], tokens: Callable[[str], int], clip_tokens: int | None
) -> list[Line]:
    """Clip each text to the limit of its kind, then the longest ones until all fit together."""
    texts = [clip_middle(line.text, line.max_tokens, tokens) for line in lines]
    share_tokens = (
        None if clip_tokens is None else compute_fair_share(list(map(tokens, texts)), clip_tokens)
    )
    return [
        replace(line, text=clip_middle(text, share_tokens, tokens))
        for line, text in zip(lines, texts, strict=True)
    ]


def _write_lines(lines: Sequence[Line], timezone: ZoneInfo) -> Iterator[str]:
    heading = ""
    for line in lines:
        at = read_time(line.at, timezone)
        day = f"{WEEKDAY_NAMES[at.weekday()]}, {at:%b} {at.day}, {at.year}"
        date = (
            f"{day} ({_list_weeks(at.date())})"
            if line.is_timed
            else f"on or before {day}, times not known"
        )
        if date != heading:
            heading = date
            yield f"Date: {date}"
        time = f" ({at:%H:%M})" if line.is_timed else ""
        yield f"{_clean_speaker(line.speaker)}{line.number}{time}{line.remark}:{_indent_text(escape(line.text))}"


@lru_cache(maxsize=256)
def _list_weeks(day: date) -> str:
    """Return the weeks around a day, from Monday to Sunday; nothing at the calendar's ends."""
    weeks: list[str] = []
    for name, days in (("last", -7), ("this", 0), ("next", 7)):
        first = day - timedelta(day.weekday() - days)
        last = first + timedelta(6)
        end = f"-{last.day}" if first.month == last.month else f" to {last:%b} {last.day}"
        weeks.append(f"{name} week {first:%b} {first.day}{end}")
    return ", ".join(weeks)


def _clean_speaker(speaker: str) -> str:
    """Put a speaker on one line, without the characters that end one: clients send names too."""
    return escape(" ".join(speaker.translate(_SPEAKER_ESCAPES).split())[:MAX_SPEAKER_CHARS])


def _indent_text(text: str) -> str:
    """Put a single line after the speaker, and several lines below it, indented. `splitlines` knows
    every line end that a model may see."""
    lines = text.splitlines()
    if len(lines) == 1:
        return f" {lines[0]}"
    return "".join(f"\n  {line}" for line in lines)


def clip_middle(text: str, max_tokens: int | None, tokens: Callable[[str], int]) -> str:
    """Shorten a text to about `max_tokens`, not counting the note about the gap. None: keep the
    whole text."""
    # a character has at most four bytes, a byte is at most one token
    if max_tokens is None or 4 * len(text) <= max_tokens:
        return text
    size = tokens(text)
    if size <= max_tokens:
        return text
    kept_chars = int(len(text) * max_tokens / size)
    head_chars = int(kept_chars * HEAD_SHARE)
    head = text[:head_chars]
    tail = text[len(text) - (kept_chars - head_chars) :]
    return f"{head}\n[… about {size - max_tokens} tokens left out …]\n{tail}"


def clip_end(text: str, max_tokens: int, tokens: Callable[[str], int]) -> str:
    """Return the beginning of a text: at most `max_tokens`, and an ellipsis if it was cut."""
    text = text.strip()
    beginning = text
    while beginning and (size := tokens(beginning)) > max_tokens:
        max_chars = min(len(beginning) - 1, len(beginning) * max_tokens // size)
        beginning = beginning[:max_chars].rstrip()
    return text if beginning == text else f"{beginning}…"


def compute_fair_share(sizes: Sequence[int], budget: int) -> int | None:
    """Return the cap under which all sizes fit the budget together. A size below the cap stays as
    it is. Return None if the sizes fit without a cap."""
    if sum(sizes) <= budget:
        return None
    remaining_budget = budget
    for index, size in enumerate(sorted(sizes)):
        share = remaining_budget // (len(sizes) - index)
        if size > share:
            return share
        remaining_budget -= size
    return None
