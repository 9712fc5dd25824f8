"""Write ranges: of the messages that a note covers, and of numbers in error messages.

A note covers `[m12-m40]`, or `[3f9c2a77.m1-m7]` of another conversation. The actor reads the ranges
and looks those messages up; no memory model sees them. A range is made of what an entry covers, so
it never changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from om_proxy.memory.model import Observation
from om_proxy.memory.recall.message_ids import write_message_id

# of a text that is about no single thread; sections name the other threads
MAX_RANGES_IN_LINE = 8


_ID = r"(?:[0-9a-f]{6,16}\.)?m\d{1,18}"
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


# Take the ranges of messages out of what a memory model wrote, where a prompt shows the proxy's own
# (memory/prompt/ranges.py). Notes are stored as they were written: without `retrieval` no byte of a
# prompt differs.


def remove_range_lines(text: str) -> str:
    """Remove what looks like a range from the beginnings of lines: a model that writes one has
    copied it from somewhere, and it would pass for the proxy's own."""
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
