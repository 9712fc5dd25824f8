"""Make index words of a text: the one way, for messages and for queries, in every store.

A run is letters, digits and the marks on them. Each run gives its words by itself, so the words of
two texts joined by a space are the words of the one, then those of the other.

- Chinese, Japanese, Korean, Thai, Lao, Khmer and Burmese put no spaces between words, or hang
  endings on them: such a stretch of a run gives the pairs of neighbouring characters. A single
  character gives itself.
- Other words lose case and accents. English stop words are left out. Words in ASCII are stemmed
  (Porter). A word with inner capitals gives itself and its parts.
- A word of more than MAX_WORD_CHARS characters is a hash or a key, and left out.

Why no tokenizer of a database: SQLite's `unicode61` keeps a Chinese sentence as one word, `trigram`
makes the index 4.6 times as large, and PostgreSQL has other ones. The same words give the same
ranking everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from typing import NamedTuple
from unicodedata import normalize

import Stemmer

from om_proxy.common.late_patterns import compile_late

INDEX_VERSION = 1  # of the rules here and in passages.py; an older index is made anew
MAX_WORD_CHARS = 64
MAX_QUERY_WORDS = 64

# marks are no letters for `re`, and would tear the words of many scripts apart
_MARKS = (
    "\u0300-\u036f\u0483-\u0489"  # Latin, Greek, Cyrillic
    "\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed\u0711\u0730-\u074a\u07a6-\u07b0"
    "\u0900-\u0963\u0966-\u096f\u0971-\u0df3"  # of India and Sri Lanka
    "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece"  # Thai, Lao
    "\u0f18-\u0f39\u0f3e\u0f3f\u0f71-\u0f84\u0f90-\u0fbc"  # Tibetan
    "\u102b-\u103e\u1056-\u1059\u135d-\u135f\u17b4-\u17d3"  # Burmese, Ethiopic, Khmer
    "\u1ab0-\u1ace\u1dc0-\u1dff\u20d0-\u20f0\u302a-\u302f\u3099\u309a\ufe20-\ufe2f"
)
_SOFT_HYPHEN = "\u00ad"  # may stand inside a word, and says nothing
# `_` is a letter for `re`: `_separate` takes it out before. One class is twice as fast as two.
_WORD_RUN = compile_late(rf"[\w{_MARKS}{_SOFT_HYPHEN}]+")
_ASCII_SEPARATORS = {code: " " for code in range(128) if not chr(code).isalnum()}
_PAIRED = compile_late(
    "(["
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u1100-\u11ff\u3005-\u3007\u3031-\u3035\u3041-\u312f\u3130-\u318f\u31a0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
    "]+)"
)
_DROPPED_ACCENTS = compile_late(
    "[\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06ed]+"
)
_INNER_CAPITAL = compile_late(r"[a-z0-9][A-Z]|[A-Z][A-Z][a-z]")
_CAPITALISED_PARTS = compile_late(r"[A-Z]+(?![a-z])[0-9]*|[A-Z]?[a-z0-9]+|[0-9]+")

# without `may`, which is a month
STOP_WORDS = frozenset(
    """
    a about above after again against all also am an and any are aren as at be because been before
    being below between both but by can cannot could couldn d did didn do does doesn doing don down
    during each else ever few for from further get got had hadn has hasn have haven having he her
    here hers herself him himself his how i if in into is isn it its itself just let ll m me
    might more most much must my myself no nor not now o of off on once only or other our ours
    ourselves out over own re s same shall shan she should shouldn so some such t than that the
    their theirs them themselves then there these they this those through to too under until up
    upon us ve very was wasn we were weren what when where which while who whom whose why will with
    won would wouldn yes yet you your yours yourself yourselves
    """.split()  # noqa: SIM905 - a list of 170 quoted words is not readable
)

_stem = Stemmer.Stemmer("porter", 0).stemWord


class WordPlace(NamedTuple):
    """A run of a text, and the words that it gives."""

    start: int
    end: int
    words: tuple[str, ...]


def words(text: str) -> list[str]:
    """Return the index words of a text, in order, without stop words."""
    runs = _list_runs(text)
    is_short = max(map(len, runs), default=0) <= MAX_WORD_CHARS
    return [*chain.from_iterable(map(_read_short_run if is_short else _read_run, runs))]


def query_words(text: str) -> list[str]:
    """Return the different index words of a query, the first MAX_QUERY_WORDS. A query of stop words
    alone keeps them: no message has them, and the answer can name them."""
    found = words(text) or [_fold(run) for run in _list_runs(text[:1_000])]
    return [word for word in dict.fromkeys(found) if word][:MAX_QUERY_WORDS]


def find_words(text: str) -> Iterator[WordPlace]:
    """Yield the runs that have index words, with their places, for a caller that shows where words
    were found."""
    for run in _WORD_RUN.finditer(_separate(text)):
        if found := _read_run(run[0]):
            yield WordPlace(run.start(), run.end(), found)


def _list_runs(text: str) -> list[str]:
    if text.isascii():  # three times as fast as the expression
        return text.translate(_ASCII_SEPARATORS).split()
    return _WORD_RUN.findall(_separate(text))


def _separate(text: str) -> str:
    return text.replace("_", " ")


def _read_run(run: str) -> tuple[str, ...]:
    # a cache of long runs would hold whole texts
    return _read_short_run(run) if len(run) <= MAX_WORD_CHARS else tuple(_split_run(run))


@lru_cache(maxsize=20_000)
def _read_short_run(run: str) -> tuple[str, ...]:
    return tuple(_split_run(run))


drop_cached_words = _read_short_run.cache_clear  # people may have forgotten them


def _split_run(run: str) -> Iterator[str]:
    if run.isascii():
        yield from _split_word(run)
        return
    # the compatibility form of one character may be several with a separator between: ½
    for part in _list_runs(normalize("NFKC", run.replace(_SOFT_HYPHEN, ""))):
        for place, stretch in enumerate(_PAIRED.split(part)):
            if place % 2:
                yield from _pair_characters(stretch)
            elif stretch:
                yield from _split_word(stretch)


def _pair_characters(stretch: str) -> Iterator[str]:
    if len(stretch) == 1:
        yield stretch
    for place in range(len(stretch) - 1):
        yield stretch[place : place + 2]


def _split_word(word: str) -> Iterator[str]:
    """Yield the word and, if it has inner capitals, its parts."""
    if len(word) > MAX_WORD_CHARS:
        return
    yield from _finish_word(word)
    if _INNER_CAPITAL.search(word):
        for part in _CAPITALISED_PARTS.findall(word):
            yield from _finish_word(part)


def _finish_word(word: str) -> Iterator[str]:
    folded = _fold(word)
    if not folded or folded in STOP_WORDS:
        return
    yield _stem(folded) if folded.isascii() else folded


def _fold(word: str) -> str:
    """Return the word without case and accents."""
    if word.isascii():
        return word.lower()
    return normalize("NFC", _DROPPED_ACCENTS.sub("", normalize("NFKD", word.casefold())))
