"""Lift the messages that notes describe: a line that fits the query lifts those of its day, inside
the range of its entry, by what they share with it.

A line was made from a few messages of its day, and it shares words with them that the query lacks.
The one that shares most gets the whole lift. A rare word counts more, and a long message shares
words with every line, so what it shares counts less. Nothing is found by a note alone: what was
found changes its order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, tzinfo
from math import sqrt
from typing import NamedTuple

from om_proxy.memory.dates import read_bound, read_heading
from om_proxy.memory.model import Memory
from om_proxy.memory.recall.found import Found, RankedMessage
from om_proxy.memory.recall.passages import Passage
from om_proxy.memory.recall.ranking import weigh_word
from om_proxy.memory.recall.words import words

# of the best score: for the message that shares most with a line that has every word of the query
NOTE_WEIGHT = 0.5


class NotedRange(NamedTuple):
    """Notes, and the messages of one thread that they cover."""

    thread: str
    after: int
    last: int  # after < seq <= last
    text: str
    zone: tzinfo  # of the days in the text


class _Line(NamedTuple):
    """A line of notes that has words of the query."""

    words: tuple[str, ...]  # each once
    share: float  # of the query that it has, 0 to 1


class _Stretch(NamedTuple):
    """Messages that lines of a note tell of. `day` None: of the whole range."""

    noted: NotedRange
    day: date | None
    lines: Sequence[_Line]


def list_noted_ranges(memory: Memory, zone: tzinfo) -> Iterator[NotedRange]:
    """Yield the notes that cover messages of the thread."""
    for entry in memory.log.entries:
        if entry.is_withdrawn or entry.is_rollback_note:
            continue
        ranges = (
            [(part.after, part.last) for part in entry.parts if part.label == memory.thread_label]
            if entry.parts
            else [(entry.after, entry.last)]
        )
        for after, last in ranges:
            if after < last:
                yield NotedRange(memory.key.thread, after, last, entry.text, zone)


def lift_noted(
    ranked: Sequence[RankedMessage],
    found: Found,
    notes: Iterable[NotedRange],
    rarity: Mapping[str, float],
) -> list[RankedMessage]:
    """Return the messages in their new order. `found`: what they were ranked from; `rarity`: of
    each word of the query."""
    by_thread: defaultdict[str, list[Passage]] = defaultdict(list)
    passages = (*found.matches, *found.neighbours)
    for thread, passage in sorted(passages, key=lambda each: each.passage.seq):
        by_thread[thread].append(passage)
    shares: defaultdict[tuple[str, int], float] = defaultdict(float)
    for noted, day, lines in _list_stretches(notes, rarity):
        told_of = list(_choose(by_thread[noted.thread], noted, day))
        for seq, share in _share_lines(lines, told_of):
            shares[noted.thread, seq] = max(shares[noted.thread, seq], share)
    weight = NOTE_WEIGHT * max((message.score for message in ranked), default=0.0)
    lifted = [
        message._replace(score=message.score + weight * shares[message.thread, message.seq])
        for message in ranked
    ]
    return sorted(lifted, key=lambda message: -message.score)  # of equals, as before


def _list_stretches(notes: Iterable[NotedRange], rarity: Mapping[str, float]) -> Iterator[_Stretch]:
    # an entry of a shared log stands for messages of several threads
    read: dict[str, dict[date | None, list[_Line]]] = {}
    for noted in notes:
        if noted.text not in read:
            read[noted.text] = _read_days(noted.text, rarity)
        for day, lines in read[noted.text].items():
            yield _Stretch(noted, day, lines)


def _read_days(text: str, rarity: Mapping[str, float]) -> dict[date | None, list[_Line]]:
    """Return the lines that have words of the query, for each day of the text."""
    total = sum(rarity.values()) or 1.0
    day: date | None = None
    days: defaultdict[date | None, list[_Line]] = defaultdict(list)
    for line in text.split("\n"):
        if heading := read_heading(line):
            day = heading
        elif read_bound(line):
            day = None
        elif rarity.keys() & (line_words := words(line)):
            # in the order of the query: sums are the same in every process
            share = sum(weight for word, weight in rarity.items() if word in line_words) / total
            days[day].append(_Line(tuple(dict.fromkeys(line_words)), share))
    return days


def _choose(passages: Sequence[Passage], noted: NotedRange, day: date | None) -> Iterator[Passage]:
    begin = bisect_right(passages, noted.after, key=lambda passage: passage.seq)
    end = bisect_right(passages, noted.last, key=lambda passage: passage.seq)
    for passage in passages[begin:end]:
        if day is None or day == _find_day(passage.at, noted.zone):
            yield passage


def _share_lines(
    lines: Sequence[_Line], passages: Sequence[Passage]
) -> Iterator[tuple[int, float]]:
    """Yield the seq of each passage that has words of a line, and what it gets of the lift: 1 if it
    shares most with a line that has every word of the query."""
    wanted = frozenset[str]().union(*(line.words for line in lines))
    having: defaultdict[str, list[int]] = defaultdict(list)  # numbers of passages, by word
    roots = []
    for number, passage in enumerate(passages):
        own = {*passage.words, *passage.side_words}
        roots.append(sqrt(len(own)))
        for word in wanted & own:
            having[word].append(number)
    rarity = {word: weigh_word(len(numbers), len(passages)) for word, numbers in having.items()}
    for line in lines:
        fits: defaultdict[int, float] = defaultdict(float)
        for word in line.words:
            for number in having.get(word, ()):
                fits[number] += rarity[word] / roots[number]
        most = max(fits.values(), default=0.0)
        for number, fit in fits.items():
            yield passages[number].seq, line.share * fit / most


def _find_day(at: float, zone: tzinfo) -> date | None:
    try:
        return datetime.fromtimestamp(at, zone).date()
    except (ValueError, OverflowError, OSError):
        return None
