"""Keep the lines of notes that a later reader cannot do without: those marked 🔴 or ✅.

A line belongs to the line above it that is further left, and a line without a mark is as
important as the line that it belongs to. What 🔴 and ✅ lines belong to is kept with them: their
`Date:` heading, and the line that they are a sub-line of.
"""

from __future__ import annotations

import re
from typing import NamedTuple

KEPT_MARKS = "🔴✅"

_BULLET = r"(?:[*+•‣◦–—-]|\d{1,3}[.)])"
_NOTE_LINE_PATTERN = re.compile(
    rf"(?P<indent>[ \t]*)(?P<bullet>{_BULLET}[ \t]*)?(?P<mark>[🔴🟡🟢✅])?"
)
_DATE_HEADING = re.compile(r"\W*date:\s*\S", re.IGNORECASE)
_HEADING = re.compile(r"\s*(?:#|\*\*|<)|.*:\s*$")
_DATE_LEVEL, _HEADING_LEVEL = -2, -1  # further left than any line
TAB_COLUMNS = 4


class _Line(NamedTuple):
    """A line of notes. `level`: how far right it is; `mark`: its own, if any."""

    level: int
    mark: str | None


def keep_important_lines(text: str) -> str:
    """Return the notes without 🟢 and 🟡 lines and their sub-lines, and without lines that nothing
    says the importance of. Return the very text if nothing of it goes."""
    texts = text.split("\n")
    kept = _find_kept([_read_line(line) for line in texts], texts)
    if len(kept) == sum(1 for line in texts if line.strip()):
        return text
    return "\n".join(texts[index] for index in sorted(kept))


def _find_kept(lines: list[_Line], texts: list[str]) -> set[int]:
    kept: set[int] = set()
    above: list[tuple[int, int, bool]] = []  # level, index, and whether it is important
    can_continue = False  # whether a line without a bullet goes on with the line before it
    for index, (line, text) in enumerate(zip(lines, texts, strict=True)):
        if not text.strip():
            can_continue = False
            continue
        level = line.level
        if level == _HEADING_LEVEL and can_continue and not _HEADING.match(text):
            level = above[-1][0] + 1
        while above and above[-1][0] >= level:
            above.pop()
        is_important = line.mark in KEPT_MARKS if line.mark else bool(above) and above[-1][2]
        # an emoji inside a line without a mark: rather too much than too little
        is_important |= line.mark is None and any(mark in text for mark in KEPT_MARKS)
        above.append((level, index, is_important))
        can_continue = level >= 0
        if is_important:
            kept.update(parent for _, parent, _ in above)
    return kept


def _read_line(text: str) -> _Line:
    if _DATE_HEADING.match(text):
        return _Line(_DATE_LEVEL, None)
    found = _NOTE_LINE_PATTERN.match(text)
    assert found is not None  # every part may be missing
    level = len(found["indent"].expandtabs(TAB_COLUMNS))
    if not (level or found["bullet"] or found["mark"]):
        level = _HEADING_LEVEL
    return _Line(level, found["mark"])
