"""Take the ranges of messages out of a memory model's answer: only the proxy writes them
(memory/prompt/ranges.py)."""

from __future__ import annotations

import re

_ID = r"(?:[0-9a-f]{6,16}\.)?m\d{1,18}"
_RANGE = rf"{_ID}(?:-m\d{{1,18}})?"
# possessive: a long answer must stay linear to read
_RANGE_LINE = re.compile(
    rf"^[ \t]*+\[{_RANGE}(?:, {_RANGE})*+\][ \t]*+(?:\n|\Z)?", re.MULTILINE | re.IGNORECASE
)


def remove_range_lines(answer: str) -> str:
    """Remove what looks like a range from the beginnings of lines: a model that writes one has
    copied it from somewhere, and it would pass for the proxy's own."""
    return _RANGE_LINE.sub("", answer)
