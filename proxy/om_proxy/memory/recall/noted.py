"""Lift the messages that notes tell of: a line that fits the query lifts those of its day, inside the
range of its entry.

Nothing is found by a note alone: what was found changes its order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, tzinfo
from typing import NamedTuple

from om_proxy.memory.dates import read_bound, read_heading
from om_proxy.memory.model import Memory
from om_proxy.memory.recall.found import RankedMessage
from om_proxy.memory.recall.words import words

NOTE_WEIGHT = 0.3  # of the best score, for a line with every word of the query


class NotedRange(NamedTuple):
    """Notes, and the messages of one thread that they stand for."""

    thread: str
    after: int
    last: int  # after < seq <= last
    text: str
    zone: tzinfo  # of the days in the text


class _Stretch(NamedTuple):
    """Messages that lines of a note tell of. `day` None: of the whole range."""

    noted: NotedRange
    day: date | None
    share: float  # of the query that the best of these lines has, 0 to 1


def list_noted_ranges(memory: Memory, zone: tzinfo) -> Iterator[NotedRange]:
    """Yield the notes that stand for messages of the thread."""
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
    ranked: Sequence[RankedMessage], notes: Iterable[NotedRange], rarity: Mapping[str, float]
) -> list[RankedMessage]:
    """Return the messages in their new order. `rarity`: of each word of the query."""
    by_thread: defaultdict[str, list[RankedMessage]] = defaultdict(list)
    for message in sorted(ranked, key=lambda message: message.seq):
        by_thread[message.thread].append(message)
    best_score = max((message.score for message in ranked), default=0.0)
    shares: dict[tuple[str, int], float] = {}
    for stretch in _list_stretches(notes, rarity):
        for message in _choose(by_thread[stretch.noted.thread], stretch):
            place = message.thread, message.seq
            shares[place] = max(shares.get(place, 0.0), stretch.share)
    lifted = [
        message._replace(
            score=message.score
            + NOTE_WEIGHT * best_score * shares.get((message.thread, message.seq), 0.0)
        )
        for message in ranked
    ]
    return sorted(lifted, key=lambda message: -message.score)  # of equals, as before


def _list_stretches(notes: Iterable[NotedRange], rarity: Mapping[str, float]) -> Iterator[_Stretch]:
    # an entry of a shared log stands for messages of several threads
    read: dict[str, dict[date | None, float]] = {}
    for noted in notes:
        if noted.text not in read:
            read[noted.text] = _read_days(noted.text, rarity)
        for day, share in read[noted.text].items():
            yield _Stretch(noted, day, share)


def _read_days(text: str, rarity: Mapping[str, float]) -> dict[date | None, float]:
    """Return the best line's share of the query, for each day of the text."""
    total = sum(rarity.values()) or 1.0
    day: date | None = None
    best: dict[date | None, float] = {}
    for line in text.split("\n"):
        if heading := read_heading(line):
            day = heading
        elif read_bound(line):
            day = None
        elif has := rarity.keys() & words(line):
            best[day] = max(best.get(day, 0.0), sum(rarity[word] for word in has) / total)
    return best


def _choose(messages: Sequence[RankedMessage], stretch: _Stretch) -> Iterator[RankedMessage]:
    noted, day, _ = stretch
    begin = bisect_right(messages, noted.after, key=lambda message: message.seq)
    end = bisect_right(messages, noted.last, key=lambda message: message.seq)
    for message in messages[begin:end]:
        if day is None or day == _find_day(message.at, noted.zone):
            yield message


def _find_day(at: float, zone: tzinfo) -> date | None:
    try:
        return datetime.fromtimestamp(at, zone).date()
    except (ValueError, OverflowError, OSError):
        return None
