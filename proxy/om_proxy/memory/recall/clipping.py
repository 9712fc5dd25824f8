"""Cut a text to a number of tokens, or to the part of it that fits a query best, for a model or
for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from om_proxy.memory.recall.words import find_words

# of a text, so many characters are looked through: more than the index holds of a message
MAX_FIRST_CHARS = 60_000
MAX_LAST_CHARS = 10_000
CHARS_A_TOKEN = 4
CUT = "…"


class Hit(NamedTuple):
    """A place of a text that has a word of the query."""

    start: int
    end: int
    words: frozenset[str]


def find_hits(text: str, words: Sequence[str]) -> list[Hit]:
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


# more characters than this a token are not tried: an ordinary token has about four
MAX_CHARS_A_TOKEN = 8
MAX_CHARS_BACK = 24  # to the end of a word

CountTokens = Callable[[str], int]


def find_fitting_chars(text: str, max_tokens: int, count_tokens: CountTokens) -> int:
    """Return a number of characters, at most all, whose beginning of the text has at most
    `max_tokens`. `count_tokens` may count what the text becomes when it is written."""
    chars = min(len(text), max(max_tokens, 0) * MAX_CHARS_A_TOKEN)
    while chars and (size := count_tokens(text[:chars])) > max_tokens:
        # towards the goal by proportion, and always by a step that ends soon
        chars = min(chars - 1 - chars // 64, chars * max_tokens // size)
        chars = max(chars, 0)
    return chars


def move_to_word_end(text: str, chars: int) -> int:
    """Return `chars`, or a little less where that does not cut a word in two."""
    if chars >= len(text) or not chars or text[chars].isspace() or text[chars - 1].isspace():
        return chars
    for end in range(chars - 1, max(chars - MAX_CHARS_BACK, 0), -1):
        if text[end - 1].isspace():
            return end
    return chars


class Excerpt(NamedTuple):
    """A part of a text, and where it has words of a search: [start, end) in characters."""

    text: str
    marks: tuple[tuple[int, int], ...] = ()


def cut_excerpt(text: str, words: Sequence[str], max_chars: int) -> Excerpt:
    """Return about `max_chars` of the text: around the words, or from its beginning on if it has
    none of them. What is left out is told by dots."""
    hits = find_hits(text, words) if words else []
    if not hits:
        is_whole = len(text) <= max_chars
        return Excerpt(text if is_whole else f"{text[: max_chars - 1]}…")
    shown = cut_snippet(text, hits, max_chars // CHARS_A_TOKEN, _count_quarters)
    marks = tuple((hit.start, hit.end) for hit in find_hits(shown, words))
    return Excerpt(shown, marks)


def _count_quarters(text: str) -> int:
    return -(-len(text) // CHARS_A_TOKEN)
