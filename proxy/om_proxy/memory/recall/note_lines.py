"""Find the lines of notes that have words of a query."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from om_proxy.memory.model import Observation
from om_proxy.memory.recall.words import words


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
