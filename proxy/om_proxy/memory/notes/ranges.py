"""Take the ranges of messages out of what a memory model wrote, where a prompt shows the proxy's own
(memory/prompt/ranges.py). Notes are stored as they were written: without `retrieval` no byte of a
prompt differs."""

from __future__ import annotations

import re

_ID = r"(?:[0-9a-f]{6,16}\.)?m\d{1,18}"
_RANGE = rf"{_ID}(?:-m\d{{1,18}})?"
# possessive: a long answer must stay linear to read
_RANGE_LINE = re.compile(
    rf"^[ \t]*+\[{_RANGE}(?:, {_RANGE})*+\][ \t]*+(?:\n|\Z)?", re.MULTILINE | re.IGNORECASE
)


def remove_range_lines(text: str) -> str:
    """Remove what looks like a range from the beginnings of lines: a model that writes one has
    copied it from somewhere, and it would pass for the proxy's own."""
    return _RANGE_LINE.sub("", text)
