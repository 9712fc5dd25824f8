"""Name the messages that a note stands for: `[m12-m40]`, or `[3f9c2a77.m1-m7]` of another
conversation. The actor reads the ranges and looks those messages up; no memory model sees them.

A range is made of what an entry covers, so it never changes.
"""

from __future__ import annotations

import re

from om_proxy.memory.model import Observation

LABEL_DIGITS = 8  # of a thread's label: the actor writes them
# Of the threads that a text without tags is about; the others are named by their sections.
MAX_RANGES_IN_LINE = 8

_ID = r"(?:[0-9a-f]{6,16}\.)?m\d{1,18}"
_RANGE = rf"{_ID}(?:-m\d{{1,18}})?"
# possessive: a long answer must stay linear to read
_RANGE_LINE = re.compile(
    rf"^[ \t]*+\[{_RANGE}(?:, {_RANGE})*+\][ \t]*+(?:\n|\Z)?", re.MULTILINE | re.IGNORECASE
)


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
    thread = f"{label[:LABEL_DIGITS]}." if label else ""
    first = after + 1
    return f"{thread}m{first}" if first == last else f"{thread}m{first}-m{last}"


def remove_range_lines(answer: str) -> str:
    """Remove what looks like a range from the beginnings of lines: a model that writes one has
    copied it from somewhere, and it would pass for the proxy's own."""
    return _RANGE_LINE.sub("", answer)
