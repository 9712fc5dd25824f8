"""Find the passages that match some words, of passages that are at hand, for stores without an
index; and the lines of notes that have words of a query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from om_proxy.memory.model import Observation
from om_proxy.memory.recall.found import MAX_MATCHES, Found, FoundPassage, PassageFilter
from om_proxy.memory.recall.words import words

NO_FILTER = PassageFilter()


def match_passages(
    passages: Sequence[FoundPassage],
    words: Sequence[str],
    passage_filter: PassageFilter = NO_FILTER,
    *,
    unread: int = 0,
    limit: int = MAX_MATCHES,
) -> Found:
    """Return what a store finds whose index holds these passages, the newest of them last.
    `unread`: messages of the resource that they do not cover."""
    wanted = frozenset(words)
    counts: Counter[str] = Counter()
    matching: dict[str, list[int]] = {word: [] for word in words}
    for number, found in enumerate(passages):
        for word in wanted.intersection((*found.passage.words, *found.passage.side_words)):
            counts[word] += 1
            matching[word].append(number)
    chosen, left_out = choose_matches(
        {
            word: [number for number in numbers if lets_pass(passage_filter, passages[number])]
            for word, numbers in matching.items()
        },
        limit,
    )
    matches = [passages[number] for number in sorted(chosen, reverse=True)]
    return Found(
        messages=sum(1 for found in passages if not found.passage.place),
        counts={word: counts[word] for word in words},
        matches=tuple(matches),
        neighbours=tuple(_find_neighbours(passages, matches)),
        left_out=left_out,
        unread=unread,
    )


def choose_matches(matching: Mapping[str, Sequence[int]], limit: int) -> tuple[set[int], bool]:
    """Return the numbers of at most `limit` passages, and whether any are left out. `matching` has
    the numbers of each word's passages, the newest last; numbers tell their order.

    The rarest word comes first. A word that would pass the limit gives its newest passages.
    """
    chosen: set[int] = set()
    for word in sorted(matching, key=lambda word: (len(matching[word]), word)):
        added = [number for number in reversed(matching[word]) if number not in chosen]
        room = limit - len(chosen)
        chosen.update(added[:room])
        if len(added) > room:
            return chosen, True
    return chosen, False


class FilteredMessage(Protocol):
    """The fields of a message that a filter reads."""

    @property
    def thread(self) -> str: ...
    @property
    def at(self) -> float: ...
    @property
    def role(self) -> str: ...


def lets_pass(passage_filter: PassageFilter, found: FoundPassage) -> bool:
    passage = found.passage
    return _lets_through(passage_filter, found.thread, passage.at, passage.role)


def lets_message_pass(passage_filter: PassageFilter, message: FilteredMessage) -> bool:
    return _lets_through(passage_filter, message.thread, message.at, message.role)


def _lets_through(passage_filter: PassageFilter, thread: str, at: float, role: str) -> bool:
    return (
        (passage_filter.thread is None or thread == passage_filter.thread)
        and (passage_filter.before is None or at < passage_filter.before)
        and (passage_filter.after is None or at >= passage_filter.after)
        and (not passage_filter.roles or role in passage_filter.roles)
    )


def _find_neighbours(
    passages: Iterable[FoundPassage], matches: Sequence[FoundPassage]
) -> Iterable[FoundPassage]:
    places = {(found.thread, found.passage.position) for found in matches}
    beside = {(thread, position + step) for thread, position in places for step in (-1, 1)} - places
    for found in passages:
        if not found.passage.place and (found.thread, found.passage.position) in beside:
            yield found


class NoteLine(NamedTuple):
    """A line of an entry of a log."""

    entry: Observation
    number: int  # of the line in the entry's text, from 1 on
    text: str
    found: int  # different index words of the query that it has


def find_note_lines(entries: Iterable[Observation], query: Collection[str]) -> list[NoteLine]:
    """Return the lines of the entries that have one of the index words, in their order."""
    wanted = frozenset(query)
    return [
        NoteLine(entry, number, line.strip(), found)
        for entry in entries
        for number, line in enumerate(entry.text.split("\n"), 1)
        if (found := len(wanted.intersection(words(line))))
    ]


def order_by_fit(line: NoteLine) -> tuple[int, float, int]:
    """Return the sort key, the best last: more of the words, then newer."""
    return line.found, line.entry.at, line.entry.id
