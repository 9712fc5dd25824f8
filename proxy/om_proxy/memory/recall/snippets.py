"""Cut the part of a text that fits a query best."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from om_proxy.memory.recall.clipping import CountTokens, find_fitting_chars, move_to_word_end

# of a text, so many characters are looked through: more than the index holds of a message
MAX_FIRST_CHARS = 60_000
MAX_LAST_CHARS = 10_000
CHARS_A_TOKEN = 4
CUT = "…"


class WordPlace(Protocol):
    """A run of a text, and its index words."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def words(self) -> Sequence[str]: ...


FindWords = Callable[[str], Iterable[WordPlace]]


class Hit(NamedTuple):
    """A place of a text that has a word of the query."""

    start: int
    end: int
    words: frozenset[str]


def find_hits(text: str, words: Sequence[str], find_words: FindWords) -> list[Hit]:
    """Return the places that have any of the words, in order."""
    wanted = frozenset(words)
    tail_start = max(MAX_FIRST_CHARS, len(text) - MAX_LAST_CHARS)
    hits = []
    for start, piece in ((0, text[:MAX_FIRST_CHARS]), (tail_start, text[tail_start:])):
        for place in find_words(piece):
            if found := wanted.intersection(place.words):
                hits.append(Hit(start + place.start, start + place.end, found))
    return hits


def cut_snippet(text: str, hits: Sequence[Hit], max_tokens: int, count_tokens: CountTokens) -> str:
    """Return about `max_tokens` of the text, around as many different words as possible. What is
    left out before and after is told by dots."""
    chars = find_fitting_chars(text, max_tokens, count_tokens)
    if chars == len(text):
        return text
    width = max_tokens * CHARS_A_TOKEN
    start = _find_best_start(text, hits, width)
    if start == 0:
        return f"{text[: move_to_word_end(text, chars)].rstrip()} {CUT}"
    rest = text[start:]
    chars = find_fitting_chars(rest, max_tokens, count_tokens)
    is_end = chars == len(rest)
    shown = rest[: move_to_word_end(rest, chars)].strip()
    return f"{CUT} {shown}" if is_end else f"{CUT} {shown} {CUT}"


def _find_best_start(text: str, hits: Sequence[Hit], width: int) -> int:
    """Return the beginning of the stretch of `width` characters with the most different words, a
    quarter of it before the first of them. Of equals, the first."""
    best, best_count, end = 0, 0, 0
    for first, hit in enumerate(hits):
        end = max(end, first)
        while end < len(hits) and hits[end].end - hit.start <= width * 3 // 4:
            end += 1
        count = len(
            frozenset[str]().union(*(each.words for each in hits[first : max(end, first + 1)]))
        )
        if count > best_count:
            best, best_count = hit.start, count
    start = best - width // 4
    if start <= 0:
        return 0
    # from the beginning of a word on
    space = next((at for at in range(start, best) if text[at].isspace()), start - 1)
    return space + 1
