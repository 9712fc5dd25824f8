"""Shorten long texts by leaving out their middle, and say how much."""

from __future__ import annotations

from collections.abc import Callable, Sequence

# of the kept text; the tail stays too, because the end of a log tells how it ended
HEAD_SHARE = 0.7


def clip_middle(text: str, max_tokens: int | None, tokens: Callable[[str], int]) -> str:
    """Shorten a text to about `max_tokens`, not counting the note about the gap. None: keep it
    whole."""
    # a character has at most four bytes, a byte is at most one token
    if max_tokens is None or 4 * len(text) <= max_tokens:
        return text
    size = tokens(text)
    if size <= max_tokens:
        return text
    keep = int(len(text) * max_tokens / size)
    head, tail = text[: int(keep * HEAD_SHARE)], text[len(text) - (keep - int(keep * HEAD_SHARE)) :]
    return f"{head}\n[… about {size - max_tokens} tokens left out …]\n{tail}"


def clip_end(text: str, max_tokens: int, tokens: Callable[[str], int]) -> str:
    """Return the beginning of a text: at most `max_tokens`, and an ellipsis if it was cut."""
    kept = text = text.strip()
    while kept and (size := tokens(kept)) > max_tokens:
        kept = kept[: min(len(kept) - 1, len(kept) * max_tokens // size)].rstrip()
    return kept if kept == text else f"{kept}…"


def fair_share(sizes: Sequence[int], budget: int) -> int | None:
    """Return the cap under which all sizes fit the budget together: a smaller size keeps all it has.
    None: they fit uncapped."""
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
