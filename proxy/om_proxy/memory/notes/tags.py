"""Read the proxy's tags in a memory model's answer, and tell which of them are meant, not
quoted."""

from __future__ import annotations

import re
from typing import NamedTuple

# Quantifiers that could meet a run of blanks or marks twice are possessive: a model may write a
# long answer, and matching must stay linear.
TAG_PATTERN = re.compile(
    r"<\s*+(?P<close>/?)\s*+(?:(?P<observations>observations?)|(?P<task>current[-_ ]?task)"
    r"|(?P<suggestion>suggested[-_ ]?response)|(?P<title>thread[-_ ]?title))(?:\s[^<>\n]*)?/?>",
    re.IGNORECASE,
)
_DECORATION_BEFORE = re.compile(r"\s*+(?:>\s*+)*+(?:\*\*|#{1,6}\s++|```\w*\s*+)?")
_DECORATION_AFTER = re.compile(r"\s*+(?:\*\*|```)?\s*+")


class Tag(NamedTuple):
    """A tag of the proxy in a text; `placed`: only decoration shares its side of the line."""

    name: str
    closes: bool
    start: int
    end: int
    placed: bool


def read_tags(text: str) -> list[Tag]:
    """Read every tag of the proxy in a text, in order."""
    matches = list(TAG_PATTERN.finditer(text))
    ends = [0, *(tag.end() for tag in matches)]
    starts = [*(tag.start() for tag in matches[1:]), len(text)]
    return [
        Tag(
            tag.lastgroup or "",
            bool(tag["close"]),
            tag.start(),
            tag.end(),
            _is_placed(text, tag, before, after),
        )
        for tag, before, after in zip(matches, ends, starts, strict=False)
    ]


def _is_placed(text: str, tag: re.Match[str], previous_end: int, next_start: int) -> bool:
    """Return whether only decoration shares the tag's side of the line. A neighbouring tag on the
    same line counts as the line's end."""
    before = text[previous_end : tag.start()].rpartition("\n")[2]
    if _DECORATION_BEFORE.fullmatch(before):
        return True
    after = text[tag.end() : next_start].partition("\n")[0]
    return bool(tag["close"] and _DECORATION_AFTER.fullmatch(after))
