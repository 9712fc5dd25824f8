"""Read what the model asks of a look-up.

Models write arguments by habit: numbers as texts, `null` for what they leave out, an id with its
brackets. What can mean only one thing is taken so; anything else is a fault that says what to do.
Parameters of other names are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, tzinfo

from msgspec import Struct

from om_proxy.memory.recall import faults
from om_proxy.memory.recall.faults import LookUpFault
from om_proxy.memory.recall.look_ups import LookUpMode
from om_proxy.memory.recall.message_ids import (
    IdRange,
    MessageId,
    parse_label,
    parse_message_id,
    write_message_id,
)
from om_proxy.memory.recall.quoted_message import PartKind

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
ALL_PART_KINDS: frozenset[PartKind] = frozenset(
    ("text", "tool-call", "tool-result", "image", "file")
)


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
        raise LookUpFault(faults.NO_QUERY)
    cursor = _read_cursor(fields)
    part = _read_number(fields, "partIndex")
    is_high = _read_choice(fields, "detail", ("low", "high")) == "high"
    if mode == "messages" and (part is not None or is_high) and cursor is None:
        raise LookUpFault(faults.NO_CURSOR_FOR_PART)
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
    raise LookUpFault(faults.UNKNOWN_MODE)


def _read_cursor(fields: Mapping[str, object]) -> MessageId | None:
    """Read the cursor. Of a range, `anchor` takes an end."""
    written = fields.get("cursor")
    text = str(written) if type(written) is int else _read_text(fields, "cursor")
    anchor = _read_choice(fields, "anchor", ("start", "end"))
    if not text or not text.strip():
        return None
    parsed = parse_message_id(text[:100])
    if parsed is None:
        raise faults.wrong_type("cursor", "one message id, such as m12")
    if isinstance(parsed, MessageId):
        return parsed
    if anchor is None:
        raise faults.range_as_cursor(*_write_range(parsed))
    return parsed.last if anchor == "end" else parsed.first


def _write_range(parsed: IdRange) -> tuple[str, str]:
    return (
        write_message_id(parsed.first.seq, parsed.first.label),
        write_message_id(parsed.last.seq, parsed.last.label),
    )


def _read_text(fields: Mapping[str, object], name: str) -> str | None:
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return value
    raise faults.wrong_type(name, "a text")


def _read_choice(fields: Mapping[str, object], name: str, choices: tuple[str, ...]) -> str | None:
    value = fields.get(name)
    if value is None or value == "":
        return None
    if isinstance(value, str) and value in choices:
        return value
    raise faults.wrong_type(name, f"{', '.join(choices[:-1])} or {choices[-1]}")


def _read_number(fields: Mapping[str, object], name: str) -> int | None:
    value = fields.get(name)
    if isinstance(value, str):
        value = _parse_number(value.strip())
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None:
        return None
    if type(value) is not int:
        raise faults.wrong_type(name, "a whole number")
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
        raise faults.wrong_type(name, "an ISO date, such as 2023-05-08") from exc
