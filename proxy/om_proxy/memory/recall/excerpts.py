"""Cut a text for people, and mark the words that a search found in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from om_proxy.memory.recall.snippets import CHARS_A_TOKEN, FindWords, cut_snippet, find_hits


class Excerpt(NamedTuple):
    """A part of a text, and where it has words of a search: [start, end) in characters."""

    text: str
    marks: tuple[tuple[int, int], ...] = ()


def cut_excerpt(text: str, words: Sequence[str], find_words: FindWords, max_chars: int) -> Excerpt:
    """Return about `max_chars` of the text: around the words, or from its beginning on if it has
    none of them. What is left out is told by dots."""
    hits = find_hits(text, words, find_words) if words else []
    if not hits:
        is_whole = len(text) <= max_chars
        return Excerpt(text if is_whole else f"{text[: max_chars - 1]}…")
    shown = cut_snippet(text, hits, max_chars // CHARS_A_TOKEN, _count_quarters)
    marks = tuple((hit.start, hit.end) for hit in find_hits(shown, words, find_words))
    return Excerpt(shown, marks)


def _count_quarters(text: str) -> int:
    return -(-len(text) // CHARS_A_TOKEN)
