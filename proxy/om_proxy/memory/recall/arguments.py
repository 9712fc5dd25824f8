"""Read what the model asks of a look-up; and what it is told of one that cannot be carried out.

Models write arguments by habit: numbers as texts, `null` for what they leave out, an id with its
brackets. What can mean only one thing is taken so; anything else is a fault that says what to do.
Parameters of other names are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, tzinfo
from typing import get_args

from msgspec import Struct

from om_proxy.memory.recall.message_ids import (
    MAX_SHOWN_ID_CHARS,
    MessageId,
    parse_label,
    parse_message_id,
    write_message_id,
)
from om_proxy.memory.recall.quoted_message import PartKind, clean_line
from om_proxy.memory.rounds import LookUpMode

MAX_LIMIT = 20
MAX_PAGE = 50
MAX_QUERY_CHARS = 100_000
CURRENT_THREAD = "current"
MODES: tuple[LookUpMode, ...] = ("search", "messages", "threads")
# as the model may write a kind of part; the reference has one word for calls and results
PART_KINDS_BY_NAME: Mapping[str, frozenset[PartKind]] = {
    "text": frozenset(("text",)),
    "tool-call": frozenset(("tool-call",)),
    "tool-result": frozenset(("tool-result",)),
    "tool-invocation": frozenset(("tool-call", "tool-result")),
    "image": frozenset(("image",)),
    "file": frozenset(("file",)),
}
ALL_PART_KINDS: frozenset[PartKind] = frozenset(get_args(PartKind))

# what the model is told
NOT_AN_OBJECT = "recall: the arguments are not a JSON object"
UNKNOWN_MODE = "recall: mode must be search, messages or threads"
NO_QUERY = "recall: search needs a query"
ONLY_THIS_CONVERSATION = "recall: only this conversation can be read"
NO_CURSOR_FOR_PART = "recall: partIndex needs a cursor, one message id such as m12"
LOOKED_UP_ALREADY = "recall: you have looked this up already; see above"
CANNOT_READ_NOW = "recall: earlier messages cannot be read now; answer from the notes"
TOO_MANY_LOOK_UPS = (
    "recall: too many look-ups are under way; ask once more, or answer from the notes"
)
NO_LOOK_UPS_LEFT = "recall: no look-ups are left; answer with what you have"


class LookUp(Struct, frozen=True, kw_only=True):
    """A look-up that can be carried out, if what it names is there. Equal ones ask the same."""

    mode: LookUpMode
    query: str = ""  # of a search: not empty
    cursor: MessageId | None = None
    thread: str | None = None  # as the model wrote it; None: the current one, or the cursor's
    page: int = 1  # never 0; below 0: backward
    limit: int = MAX_LIMIT
    part: int | None = None  # show this part in full
    char_offset: int = 0
    before: float | None = None  # unix seconds: only what is older
    # of `threads`, the beginning of a label: of those that end at `before`, only what is listed
    # behind this conversation
    behind: str | None = None
    after: float | None = None  # unix seconds: only what is not older
    part_kinds: frozenset[PartKind] = ALL_PART_KINDS
    tool_name: str | None = None  # only calls of this tool and their results

    @property
    def is_about_parts(self) -> bool:
        """Whether it asks for some kinds of parts only."""
        return self.tool_name is not None or self.part_kinds != ALL_PART_KINDS


def read_look_up(fields: Mapping[str, object], zone: tzinfo) -> LookUp:
    """Read the members of the call's arguments. `zone`: of dates without one. Raise LookUpFault."""
    mode = _read_mode(fields)
    query = _read_text(fields, "query") or ""
    if mode == "search" and not query.strip():
        raise LookUpFault(NO_QUERY)
    cursor = _read_cursor(fields)
    part = _read_number(fields, "partIndex")
    is_high = _read_choice(fields, "detail", ("low", "high")) == "high"
    if mode == "messages" and (part is not None or is_high) and cursor is None:
        raise LookUpFault(NO_CURSOR_FOR_PART)
    page = _clamp(_read_number(fields, "page"), -MAX_PAGE, MAX_PAGE, 1) or 1
    kind = _read_choice(fields, "partType", tuple(PART_KINDS_BY_NAME))
    before, behind = _read_place(fields, mode, zone)
    return LookUp(
        mode=mode,
        query=query[:MAX_QUERY_CHARS],
        cursor=cursor,
        thread=_read_text(fields, "threadId") or None,
        page=page if mode == "messages" else abs(page),
        limit=_clamp(_read_number(fields, "limit"), 1, MAX_LIMIT, MAX_LIMIT),
        part=max(part or 0, 0) if part is not None or is_high else None,
        char_offset=max(_read_number(fields, "charOffset") or 0, 0),
        before=before,
        behind=behind,
        after=_read_time(fields, "after", zone),
        part_kinds=PART_KINDS_BY_NAME[kind] if kind else ALL_PART_KINDS,
        tool_name=_read_text(fields, "toolName") or None,
    )


def find_mode(fields: Mapping[str, object]) -> LookUpMode:
    """Return the mode that is asked for; `messages` if that cannot be told."""
    try:
        return _read_mode(fields)
    except LookUpFault:
        return "messages"


def _read_mode(fields: Mapping[str, object]) -> LookUpMode:
    """Without a mode, a query alone can only mean a search."""
    written = fields.get("mode")
    if written is None:
        asks_words = fields.get("query") and fields.get("cursor") is None
        return "search" if asks_words else "messages"
    for mode in MODES:
        if written == mode:
            return mode
    raise LookUpFault(UNKNOWN_MODE)


def _read_cursor(fields: Mapping[str, object]) -> MessageId | None:
    """Read the cursor. Of a range, `anchor` takes an end."""
    written = fields.get("cursor")
    text = str(written) if type(written) is int else _read_text(fields, "cursor")
    anchor = _read_choice(fields, "anchor", ("start", "end"))
    if not text or not text.strip():
        return None
    parsed = parse_message_id(text[:100])
    if parsed is None:
        raise wrong_type("cursor", "one message id, such as m12")
    if isinstance(parsed, MessageId):
        return parsed
    if anchor is None:
        first, last = (write_message_id(end.seq, end.label) for end in parsed)
        text = f"recall: {first}-{last} is a range; give one id, {first} or {last}"
        raise LookUpFault(text)
    return parsed.last if anchor == "end" else parsed.first


def _read_text(fields: Mapping[str, object], name: str) -> str | None:
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return value
    raise wrong_type(name, "a text")


def _read_choice(fields: Mapping[str, object], name: str, choices: tuple[str, ...]) -> str | None:
    value = fields.get(name)
    if value is None or value == "":
        return None
    if isinstance(value, str) and value in choices:
        return value
    raise wrong_type(name, f"{', '.join(choices[:-1])} or {choices[-1]}")


def _read_number(fields: Mapping[str, object], name: str) -> int | None:
    value = fields.get(name)
    if isinstance(value, str):
        value = _parse_number(value.strip())
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None:
        return None
    if type(value) is not int:
        raise wrong_type(name, "a whole number")
    return value


def _parse_number(text: str) -> object:
    """Return the number that a short text of digits means; None of an empty one."""
    digits = text.removeprefix("-")
    if len(text) <= 18 and digits.isascii() and digits.isdecimal():
        return int(text)
    return text or None


def _clamp(value: int | None, least: int, most: int, default: int) -> int:
    return default if value is None else max(least, min(value, most))


def _read_place(
    fields: Mapping[str, object], mode: LookUpMode, zone: tzinfo
) -> tuple[float | None, str | None]:
    """Read `before`: a time and, as a list of conversations may say, the id of the one after
    which it goes on. Six digits after a date are a time, and after a time they are an id."""
    time, _, last_word = (_read_text(fields, "before") or "").strip().rpartition(" ")
    label = parse_label(last_word) if mode == "threads" and ":" in time else None
    if label is None:
        return _read_time(fields, "before", zone), None
    return _read_time({"before": time}, "before", zone), label


def _read_time(fields: Mapping[str, object], name: str, zone: tzinfo) -> float | None:
    """Read an ISO date or time as unix seconds; a date means its beginning."""
    text = _read_text(fields, name)
    if not text or not text.strip():
        return None
    try:
        read = datetime.fromisoformat(text.strip()[:40])
        return (read if read.tzinfo else read.replace(tzinfo=zone)).timestamp()
    except (ValueError, OverflowError) as exc:
        raise wrong_type(name, "an ISO date, such as 2023-05-08") from exc


# ── what cannot be carried out ────────────────────────────────────────────────────────────────────


class LookUpFault(Exception):
    """A look-up that is wrong as it stands. `text`: what the model is told."""

    def __init__(self, text: str, *, is_unknown: bool = False) -> None:
        super().__init__("a look-up that cannot be carried out")  # no word of a caller
        self.text = text
        self.is_unknown = is_unknown  # whether it names something that is not there


def wrong_type(name: str, expected: str) -> LookUpFault:
    """Return the fault of a parameter that is not what is `expected`: `a whole number`."""
    return LookUpFault(f"recall: {name} must be {expected}")


def unknown_message(
    message_id: str, bounds: tuple[int, int] | None, *, is_current: bool
) -> LookUpFault:
    """`bounds`: the seqs of the conversation's first and last message; None: it has none."""
    which = "this" if is_current else "that"
    has = f"m{bounds[0]} to m{bounds[1]}" if bounds else "no messages yet"
    return LookUpFault(
        f"recall: there is no message {message_id}; {which} conversation has {has}", is_unknown=True
    )


def unknown_conversation(written: str) -> LookUpFault:
    """The words are the same for a conversation that others have."""
    shown = clean_line(written, MAX_SHOWN_ID_CHARS) or "without an id"
    return LookUpFault(
        f'recall: no conversation {shown}; mode "threads" lists them', is_unknown=True
    )


def ambiguous_label(written: str, labels: list[str]) -> LookUpFault:
    """`labels`: whole ones, of which each begins with what was written."""
    return LookUpFault(
        f"recall: {written} begins several conversations' ids; give one of {', '.join(labels)}",
        is_unknown=True,
    )
