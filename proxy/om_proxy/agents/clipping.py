"""Shorten long texts by leaving out their middle, and say how much."""

from __future__ import annotations

from collections.abc import Callable, Sequence

HEAD = 0.7  # of what is kept; the end of a log or a test run tells how it ended, so the tail is kept too


def clipped(text: str, most: int | None, tokens: Callable[[str], int]) -> str:
    """The text in about `most` tokens, the note about what was left out not counted. None: whole."""
    if most is None or 4 * len(text) <= most:  # a character is at most four bytes, a byte at most a token
        return text
    size = tokens(text)
    if size <= most:
        return text
    keep = int(len(text) * most / size)
    head, tail = text[: int(keep * HEAD)], text[len(text) - (keep - int(keep * HEAD)) :]
    return f"{head}\n[… about {size - most} tokens left out …]\n{tail}"


def cut_behind(text: str, most: int, tokens: Callable[[str], int]) -> str:
    """The beginning of a text: at most `most` tokens, and an ellipsis where it went on."""
    kept = text = text.strip()
    while kept and (size := tokens(kept)) > most:
        kept = kept[: min(len(kept) - 1, len(kept) * most // size)].rstrip()
    return kept if kept == text else f"{kept}…"


def fair_share(sizes: Sequence[int], budget: int) -> int | None:
    """The cap under which all sizes together fit the budget: the small ones keep all they have. None when they fit uncapped."""
    if sum(sizes) <= budget:
        return None
    left = budget
    ordered = sorted(sizes)
    for i, size in enumerate(ordered):
        share = left // (len(ordered) - i)
        if size > share:
            return share
        left -= size
    return None
