"""The values that a store finds for the words of a query, and those that ranking makes of them;
and the same search in passages or in lines of notes that are at hand, for stores without an index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from om_proxy.memory.model import Observation
from om_proxy.memory.recall.passages import Passage
from om_proxy.memory.recall.words import words

# so many passages match a query at most; the rarest words come first
MAX_MATCHES = 1_000


class PassageFilter(NamedTuple):
    """Which passages of a resource may be found. It narrows, and never reaches beyond the key."""

    thread: str | None = None  # only this thread
    before: float | None = None  # unix seconds: only older messages
    after: float | None = None  # unix seconds: only messages of this time or newer
    roles: tuple[str, ...] = ()  # only these; none: all

    def lets_pass(self, thread: str, at: float, role: str) -> bool:
        """Return whether a message may be found."""
        return (
            (self.thread is None or thread == self.thread)
            and (self.before is None or at < self.before)
            and (self.after is None or at >= self.after)
            and (not self.roles or role in self.roles)
        )


class FoundPassage(NamedTuple):
    """A passage of a thread of the caller's resource."""

    thread: str
    passage: Passage


class Found(NamedTuple):
    """The passages that a store found for some words, in the caller's resource."""

    messages: int  # messages of the resource that have passages
    # of each word, the number of passages that have it, their own or beside
    counts: Mapping[str, int]
    matches: tuple[FoundPassage, ...]  # that have one of the words, their own or beside
    # the first passages of the messages right before and after those, as far as they are none
    neighbours: tuple[FoundPassage, ...]
    left_out: bool = False  # whether more passages match than MAX_MATCHES
    # messages of the resource that the index lacks, or that are older than those that were read
    unread: int = 0

    @property
    def share_read(self) -> float:
        """The share of the resource's messages that could be found."""
        total = self.messages + self.unread
        return self.messages / total if total else 1.0


class RankedMessage(NamedTuple):
    """A message that fits a query."""

    thread: str
    seq: int
    score: float
    place: int  # of its best passage
    at: float  # unix seconds
    role: str
    words: tuple[str, ...]  # of the query, that its best passage has, the rarest first


# ── passages that are at hand ─────────────────────────────────────────────────────────────────────

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

    def lets_pass(number: int) -> bool:
        thread, passage = passages[number]
        return passage_filter.lets_pass(thread, passage.at, passage.role)

    wanted = frozenset(words)
    counts: Counter[str] = Counter()
    matching: dict[str, list[int]] = {word: [] for word in words}
    for number, found in enumerate(passages):
        for word in wanted.intersection((*found.passage.words, *found.passage.side_words)):
            counts[word] += 1
            matching[word].append(number)
    chosen, left_out = choose_matches(
        {word: [*filter(lets_pass, numbers)] for word, numbers in matching.items()}, limit
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
