"""Cut the log to the excerpt that the observer reads: its newest lines, and the most important ones
of the older part.

The newest lines count whatever their mark: in a chat, what one of the two persons tells of
themselves is 🟡, and would be noted again and again if only 🔴 were shown. A quarter of the budget
is for 🔴 and ✅ lines of the older part, newest first, each with its `Date:` heading. The newest
part also takes what the older part leaves over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

NEWEST_SHARE = 0.75  # of the budget, for the newest lines before any older one

_IMPORTANT_LINE = re.compile(r"\s*[*+•‣◦–—-]?\s*[🔴✅]")
DATE_HEADING = re.compile(r"\W*date:\s*\S", re.IGNORECASE)
_GAP_TEMPLATE = "[{count} {lines} left out]"


def excerpt_log(entries: Sequence[str], budget: int | None, tokens: Callable[[str], int]) -> str:
    """Return at most `budget` tokens of the entries, gaps marked with their line count. `budget`:
    None keeps everything, 0 nothing."""
    log_text = "\n\n".join(entries)
    if budget is None or (budget > 0 and tokens(log_text) <= budget):
        return log_text
    if budget <= 0:
        return ""
    lines = log_text.split("\n")
    gap = tokens(_format_gap(len(lines))) + 1
    order = _order_by_worth(lines, [tokens(line) + 1 for line in lines], budget, gap)
    return _fit_to_budget(lines, order, budget, tokens)


def _order_by_worth(lines: Sequence[str], costs: Sequence[int], budget: int, gap: int) -> list[int]:
    """Return the indices of the lines to keep, the most wanted first, as many as fit by the sum of
    their costs.

    `gap`: tokens of a gap's mark. Each kept line opens a gap if the line after it is not kept.
    """
    headings = _find_headings(lines)
    kept: dict[int, None] = {}
    left = budget - gap

    def take(*wanted: int | None, leave: float = 0) -> bool:
        nonlocal left
        fresh = [i for i in wanted if i is not None and i not in kept]
        price = sum(
            costs[i] + (0 if i + 1 in kept or i + 1 in fresh or i + 1 == len(lines) else gap)
            for i in fresh
        )
        if left - price < leave:
            return False
        kept.update(dict.fromkeys(fresh))
        left -= price
        return True

    newest = len(lines)
    while newest and take(newest - 1, leave=budget * (1 - NEWEST_SHARE)):
        newest -= 1
    if newest < len(lines):
        take(headings[newest])
    for i in reversed(range(newest)):
        if _IMPORTANT_LINE.match(lines[i]):
            take(headings[i], i)
    while newest and take(newest - 1):
        newest -= 1
    return list(kept)


def _find_headings(lines: Sequence[str]) -> list[int | None]:
    """Find the index of the `Date:` heading above each line."""
    headings: list[int | None] = []
    heading = None
    for i, line in enumerate(lines):
        heading = i if DATE_HEADING.match(line) else heading
        headings.append(heading)
    return headings


def _fit_to_budget(
    lines: Sequence[str], order: list[int], budget: int, tokens: Callable[[str], int]
) -> str:
    """Return the kept lines in their order with gaps marked. The sum of costs was an estimate, so
    the least wanted lines may still be dropped."""
    while order:
        text = "\n".join(_mark_gaps(lines, sorted(order)))
        if tokens(text) <= budget:
            return text
        del order[-max(1, len(order) // 10) :]
    return ""


def _mark_gaps(lines: Sequence[str], kept: Sequence[int]) -> Iterator[str]:
    """Yield the kept lines, and for each gap a line with the number of lines left out."""
    expected = 0
    for i in [*kept, len(lines)]:
        if missing := sum(1 for line in lines[expected:i] if line.strip()):
            yield _format_gap(missing)
        yield from lines[i : i + 1]
        expected = i + 1


def _format_gap(count: int) -> str:
    return _GAP_TEMPLATE.format(count=count, lines="line" if count == 1 else "lines")
