"""Answer a question from the text of a prompt alone.

The rule: split everything shown into statements, and take the one that shares the most rare words
with the question. A statement must share at least half of the question's words and every name in
it, and must not be a question itself. So an answer proves that the prompt held the fact; without
the fact, there is no answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

MIN_SHARED_WORDS_SHARE = 0.5  # of the question's words

_WORD = re.compile(r"[\w°]+(?:[.'’-]\w+)*")
_NAME = re.compile(r"(?<=[a-z,;:] )[A-Z]\w+(?: [A-Z]\w+)*")  # capitals inside a sentence
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"'“`*(])")
_HEADING = re.compile(r"^\W*date:\s*(\w+\.? \d{1,2}, \d{4})", re.IGNORECASE)
_BULLET = re.compile(r"^\s*[*\-•]\s*(?:[🔴🟡🟢✅]\s*)?(?:\(\d{1,2}:\d{2}\)\s*)?")
_SPEAKER = re.compile(r"^(?:User|Assistant)(?: \w+)?:\s*")
# words that carry no meaning of their own in a question
_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a about again all am an and any are as at be been beginning but by can could day did do does exactly first for from gave "
        "give had has have how i if in into is it its just last let many may me more most much my need no not of off on one or our "
        "out over own please remember said say should so some still tell than thank thanks that the their them then there these "
        "they thing this to told two under up us very was we were what when where which who will with would write you your",
    )
)


@dataclass(frozen=True, slots=True)
class Statement:
    text: str
    date: str | None  # of the `Date:` heading it stands under, in an observation block


def find_answer(question: str, shown: Sequence[str]) -> Statement | None:
    """Find the statement of `shown` that answers the question; None: nothing does."""
    asked = frozenset(content_words(question))
    candidates = [(s, asked.intersection(content_words(s.text))) for s in split_statements(shown)]
    rarity = Counter(word for _, shared in candidates for word in shared)
    names = asked.intersection(content_words(" ".join(_NAME.findall(question))))
    fit = [
        (s, shared)
        for s, shared in candidates
        if shared >= names and len(shared) >= max(1, MIN_SHARED_WORDS_SHARE * len(asked))
    ]
    # the first of equal statements wins: it is the source, the others repeat it
    best = max(fit, key=lambda pair: sum(1 / rarity[word] for word in pair[1]), default=None)
    return best[0] if best else None


def split_statements(shown: Iterable[str]) -> Iterator[Statement]:
    """Split texts into sentences and bullet lines, without the questions."""
    for text in shown:
        date = None
        for line in text.splitlines():
            heading = _HEADING.match(line)
            date = heading[1] if heading else date
            if "🟡" in line:
                continue
            bare = _SPEAKER.sub("", _BULLET.sub("", line)).strip()
            for sentence in _SENTENCE_END.split(bare):
                if sentence and not sentence.endswith("?"):
                    yield Statement(sentence, date)


def content_words(text: str) -> Iterator[str]:
    """Yield the words that carry meaning, in lower case and without a plural's "s"."""
    for word in _WORD.findall(text.lower()):
        if word not in _STOP_WORDS and (len(word) > 2 or word[0].isdigit()):
            yield word[:-1] if len(word) > 3 and word.endswith("s") else word
