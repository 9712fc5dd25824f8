"""A message as a look-up shows it: its header's words, and its parts as texts."""

from __future__ import annotations

import re
from datetime import tzinfo
from typing import Literal, NamedTuple

from om_proxy.common.apis import ApiName
from om_proxy.memory.dates import format_day, format_moment, read_time
from om_proxy.memory.escaping import escape
from om_proxy.memory.recall.message_ids import write_message_id

PartKind = Literal["text", "tool-call", "tool-result", "image", "file"]
MAX_TITLE_CHARS = 60
MAX_NAME_CHARS = 60  # of a tool or a file
# a role is a client's word, too
KNOWN_ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function"))
UNKNOWN_ROLE = "unknown"
# what the header says of a message that is not live
STATE_REMARKS = {"superseded": " (taken back)", "interrupted": " (broken off)"}


class QuotedPart(NamedTuple):
    """One part of a message. A text is cleaned (`clean_text`)."""

    kind: PartKind
    text: str = ""
    name: str = ""  # of a tool, an image or a file
    is_hidden: bool = False  # the look-up asks for other parts; it keeps its number


class QuotedMessage(NamedTuple):
    """One message that a look-up shows."""

    seq: int
    role: str
    at: float  # unix seconds
    parts: tuple[QuotedPart, ...]
    state: str = "live"  # as in StoredMessage
    is_dated: bool = True  # False: said at `at` or at any time before
    label: str = ""  # of its conversation, if that is another one than the current
    title: str | None = None  # of that
    api: ApiName = "chat"

    @property
    def id(self) -> str:
        return write_message_id(self.seq, self.label)


def write_message_header(message: QuotedMessage, zone: tzinfo, *, title_chars: int = 0) -> str:
    """Write the line above a quoted message: `[m12] user, May 8, 2023 13:56`. `title_chars`: of its
    conversation's title; 0: without one."""
    role = message.role if message.role in KNOWN_ROLES else UNKNOWN_ROLE
    at = read_time(message.at, zone)
    when = format_moment(at) if message.is_dated else f"on or before {format_day(at)}"
    where = (
        f', in "{clean_line(message.title, title_chars)}"' if title_chars and message.title else ""
    )
    return f"[{message.id}] {role}, {when}{where}{STATE_REMARKS.get(message.state, '')}"


def write_attachment(part: QuotedPart, name_chars: int = MAX_NAME_CHARS) -> str:
    """Write what stands for an image or a file: `[image: cat.png]`; 0 characters: `[image]`."""
    name = clean_line(part.name, name_chars) if name_chars else ""
    return f"[{part.kind}: {name}]" if name else f"[{part.kind}]"


# Quote text of messages so that nothing in it can pass for a line of ours.
#
# Our lines begin at the left edge. Each line of a quote is indented by two spaces, and tags of ours
# and of chat templates in it are escaped. Of control characters, only line feed and tab stay.


INDENT = "  "
# other line ends that a model or a terminal may take for one
_LINE_END_PATTERN = re.compile("\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_CONTROL_PATTERN = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f]")
_LONE_SURROGATE_PATTERN = re.compile("[\ud800-\udfff]")


def clean_text(text: str) -> str:
    """Return the text with line feeds as its only line ends, without control characters. Offsets
    into a part count the characters of this text."""
    text = _CONTROL_PATTERN.sub("", _LINE_END_PATTERN.sub("\n", text))
    return _LONE_SURROGATE_PATTERN.sub("\ufffd", text)


def quote(text: str) -> str:
    """Return a cleaned text as a quote: escaped, each line indented."""
    return INDENT + escape(text).replace("\n", f"\n{INDENT}")


def clean_line(text: str, max_chars: int) -> str:
    """Return a name or a title in one line of ours: at most `max_chars` characters, without double
    quotes and square brackets, which close what it is in."""
    words = " ".join(clean_text(text[: 8 * max_chars]).split())
    words = words.replace('"', "'").replace("[", "(").replace("]", ")")
    return escape(words if len(words) <= max_chars else f"{words[: max_chars - 1].rstrip()}…")
