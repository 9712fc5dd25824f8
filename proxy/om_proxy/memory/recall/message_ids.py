"""Read and write the ids by which the model names messages and conversations.

`m12` is message 12 of the conversation that is meant. `3f9c2a77.m12` is one of another
conversation: before the dot is the beginning of its label. No name that a client gave a thread
is ever shown.

A note covers a range, `[m12-m40]`, or `[3f9c2a77.m1-m7]` of another conversation. The actor reads
the ranges and looks those messages up; no memory model sees them. A range is made of what an entry
covers, so it never changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from om_proxy.memory.model import Observation

SHOWN_LABEL_DIGITS = 8
MIN_LABEL_DIGITS = 6
MAX_LABEL_DIGITS = 16
MAX_SHOWN_ID_CHARS = 40  # of what the model wrote in place of an id

_LABEL = rf"[0-9a-f]{{{MIN_LABEL_DIGITS},{MAX_LABEL_DIGITS}}}"
_LABEL_PATTERN = re.compile(_LABEL)
_ID_PATTERN = re.compile(
    rf"(?:(?P<label>{_LABEL})\.)?m?(?P<seq>-?[0-9]{{1,18}})"
    rf"(?:\s*[-–—]\s*(?:{_LABEL}\.)?m?(?P<last>[0-9]{{1,18}}))?"
)


class MessageId(NamedTuple):
    """The id of a message. Whether there is such a message is not known yet."""

    seq: int
    label: str = ""  # the beginning of a conversation's label; empty: of the one that is meant


class IdRange(NamedTuple):
    """Two ids, as the notes name a range."""

    first: MessageId
    last: MessageId


def parse_message_id(text: str) -> MessageId | IdRange | None:
    """Read an id or a range: `m12`, `12`, ` [M12] `, `m12-m40`. None: it is neither."""
    match = _ID_PATTERN.fullmatch(_strip_brackets(text))
    if match is None:
        return None
    first = MessageId(int(match["seq"]), match["label"] or "")
    return (
        first if match["last"] is None else IdRange(first, first._replace(seq=int(match["last"])))
    )


def parse_label(text: str) -> str | None:
    """Read the beginning of a conversation's label: 6 to 16 hexadecimal digits. None: it is
    none."""
    word = _strip_brackets(text)
    return word if _LABEL_PATTERN.fullmatch(word) else None


def write_message_id(seq: int, label: str = "") -> str:
    """Write the id of a message. `label`: of another conversation than the current one."""
    return f"{shorten_label(label)}.m{seq}" if label else f"m{seq}"


def shorten_label(label: str) -> str:
    """Return the beginning of a label, as it is shown."""
    return label[:SHOWN_LABEL_DIGITS]


def _strip_brackets(text: str) -> str:
    word = text.strip().lower()
    return word[1:-1].strip() if word.startswith("[") and word.endswith("]") else word


# ── ranges ────────────────────────────────────────────────────────────────────────────────────────

# of a text that is about no single thread; sections name the other threads
MAX_RANGES_IN_LINE = 8


_ID = rf"(?:{_LABEL}\.)?m\d{{1,18}}"
_RANGE = rf"{_ID}(?:-m\d{{1,18}})?"
# possessive: a long answer must stay linear to read
_RANGE_LINE = re.compile(
    rf"^[ \t]*+\[{_RANGE}(?:, {_RANGE})*+\][ \t]*+(?:\n|\Z)?", re.MULTILINE | re.IGNORECASE
)
MAX_RANGES = 20


def write_range_line(entry: Observation, label: str | None, own_label: str) -> str:
    """Return the line for a section of an entry; empty if it covers no message.

    `label`: of the section's thread, or None for a text about no single one. `own_label`: of the
    thread that the actor talks in; empty if the log is its own.
    """
    if not entry.parts:
        ranges = [_write_range("", entry.after, entry.last)] if entry.last > entry.after else []
    else:
        ranges = [
            _write_range("" if part.label == own_label else part.label, part.after, part.last)
            for part in entry.parts
            if part.last > part.after and label in (None, part.label)
        ]
    return f"[{', '.join(ranges[:MAX_RANGES_IN_LINE])}]" if ranges else ""


def _write_range(label: str, after: int, last: int) -> str:
    first = write_message_id(after + 1, label)
    return first if after + 1 == last else f"{first}-{write_message_id(last)}"


def remove_range_lines(text: str) -> str:
    """Remove what looks like a range from the beginnings of lines: a model that writes one has
    copied it from somewhere, and it would pass for the proxy's own. Notes are stored as they were
    written: without `retrieval` no byte of a prompt differs."""
    return _RANGE_LINE.sub("", text)


def describe_numbers(numbers: Iterable[int]) -> str:
    """Return the numbers in order, as `1-4, 7`; of many ranges the newest ones; `none` without
    numbers."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    if len(texts) > MAX_RANGES:
        texts = ["…", *texts[-MAX_RANGES:]]
    return ", ".join(texts) or "none"
