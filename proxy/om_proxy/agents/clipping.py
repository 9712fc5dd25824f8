"""Shorten long texts by leaving out their middle, and say how much."""

from __future__ import annotations

from collections.abc import Callable, Sequence

# of the kept text; the tail is kept too, because the end of a log tells how the work ended
HEAD_SHARE = 0.7


def clip_middle(text: str, max_tokens: int | None, tokens: Callable[[str], int]) -> str:
    """Shorten a text to about `max_tokens`, not counting the note about the gap. None: keep the
    whole text."""
    # a character has at most four bytes, a byte is at most one token
    if max_tokens is None or 4 * len(text) <= max_tokens:
        return text
    size = tokens(text)
    if size <= max_tokens:
        return text
    kept_chars = int(len(text) * max_tokens / size)
    head_chars = int(kept_chars * HEAD_SHARE)
    head = text[:head_chars]
    tail = text[len(text) - (kept_chars - head_chars) :]
    return f"{head}\n[… about {size - max_tokens} tokens left out …]\n{tail}"


def clip_end(text: str, max_tokens: int, tokens: Callable[[str], int]) -> str:
    """Return the beginning of a text: at most `max_tokens`, and an ellipsis if it was cut."""
    text = text.strip()
    beginning = text
    while beginning and (size := tokens(beginning)) > max_tokens:
        max_chars = min(len(beginning) - 1, len(beginning) * max_tokens // size)
        beginning = beginning[:max_chars].rstrip()
    return text if beginning == text else f"{beginning}…"


def compute_fair_share(sizes: Sequence[int], budget: int) -> int | None:
    """Return the cap under which all sizes fit the budget together. A size below the cap stays as
    it is. Return None if the sizes fit without a cap."""
    if sum(sizes) <= budget:
        return None
    remaining_budget = budget
    for index, size in enumerate(sorted(sizes)):
        share = remaining_budget // (len(sizes) - index)
        if size > share:
            return share
        remaining_budget -= size
    return None
