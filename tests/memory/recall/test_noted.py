"""Notes lift the messages that they tell of."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest

from om_proxy.memory.model import Key, Memory, Observation, ObservationLog
from om_proxy.memory.recall.found import Found, FoundPassage, RankedMessage
from om_proxy.memory.recall.noted import NotedRange, lift_noted, list_noted_ranges
from om_proxy.memory.recall.passages import Passage

RARITY = {"kayak": 3.0, "blue": 1.0}


class Hit(NamedTuple):
    """A message that was found, with the words of its one passage."""

    seq: int
    score: float
    words: str = "blue kayak"
    day: int = 8
    hour: int = 12
    thread: str = "t"

    @property
    def at(self) -> float:
        return datetime(2023, 5, self.day, self.hour, tzinfo=UTC).timestamp()

    def rank(self) -> RankedMessage:
        return RankedMessage(self.thread, self.seq, self.score, 0, self.at, "user", ())

    def find(self) -> FoundPassage:
        words = tuple(self.words.split())
        passage = Passage(self.seq, 0, self.seq, 1, "user", self.at, len(words), words, ())
        return FoundPassage(self.thread, passage)


def lift(notes: str, *hits: Hit, zone: str = "UTC") -> list[tuple[int, float]]:
    noted = [NotedRange("t", 2, 6, notes, ZoneInfo(zone))]
    found = Found(len(hits), {}, tuple([hit.find() for hit in hits]), ())
    lifted = lift_noted([hit.rank() for hit in hits], found, noted, RARITY)
    return [(message.seq, round(message.score, 6)) for message in lifted]


def test_a_line_lifts_the_messages_of_its_day_in_its_range() -> None:
    """A line with every word of the query lifts by half of the best score."""
    notes = "Date: May 8, 2023\n* 🔴 Bought a blue kayak.\nDate: May 9, 2023\n* 🟡 Rain."
    hits = [Hit(1, 2.0), Hit(3, 1.0), Hit(4, 1.0, day=9), Hit(7, 1.0), Hit(5, 1.9)]
    assert lift(notes, *hits) == [(5, 2.9), (1, 2.0), (3, 2.0), (4, 1.0), (7, 1.0)]


def test_the_best_line_counts_by_the_rarity_of_its_words() -> None:
    notes = "Date: May 8, 2023\n* 🔴 A kayak.\n* 🟡 Blue.\n* 🟡 The kayaks."
    assert lift(notes, Hit(3, 1.0)) == [(3, 1.375)]


@pytest.mark.parametrize(
    ("told", "less", "other"),
    [
        ("paddl", "good", "rain"),  # a word of the line that the query lacks
        ("paddl", "river", "river"),  # a rarer one
        ("paddl river", "paddl river and so on", "rain"),  # the same ones, in fewer words
    ],
)
def test_the_message_that_shares_most_with_a_line_is_lifted_most(
    told: str, less: str, other: str
) -> None:
    notes = "* 🔴 Paddles a blue kayak on the river."
    first, *others = lift(notes, Hit(3, 1.0, less), Hit(4, 1.0, told), Hit(5, 1.0, other))
    assert first == (4, 1.5)
    assert dict(others)[3] < 1.5


def test_a_message_without_a_word_of_the_line_is_not_lifted() -> None:
    assert lift("* 🔴 A blue kayak.", Hit(3, 1.0, "rain"), Hit(4, 1.0)) == [(4, 1.5), (3, 1.0)]


def test_what_a_filter_leaves_out_keeps_its_lines() -> None:
    """The line was made from a message that is not asked for: others do not get its lift."""
    left_out, asked = Hit(3, 1.0, "blue kayak paddl"), Hit(4, 1.0, "blue sky above")
    noted = [NotedRange("t", 2, 6, "* 🔴 Paddles a blue kayak.", UTC)]
    found = Found(2, {}, (left_out.find(), asked.find()), ())
    (lifted,) = lift_noted([asked.rank()], found, noted, RARITY)
    assert 1.0 < lifted.score < 1.1


@pytest.mark.parametrize("heading", ["", "Date: on or before May 15, 2023, times not known\n"])
def test_a_line_without_a_day_lifts_its_range(heading: str) -> None:
    assert lift(f"{heading}* 🔴 A blue kayak.", Hit(3, 1.0, day=2)) == [(3, 1.5)]


def test_the_day_is_that_of_the_thread() -> None:
    notes = "Date: May 9, 2023\n* 🔴 A blue kayak."
    late = Hit(3, 1.0, hour=20)
    assert lift(notes, late, zone="Asia/Tokyo") == [(3, 1.5)]
    assert lift(notes, late, zone="UTC") == [(3, 1.0)]


def test_notes_find_nothing_by_themselves() -> None:
    assert lift("* 🔴 A blue kayak.") == []
    assert lift("* 🔴 Rain.", Hit(3, 1.0)) == [(3, 1.0)]
    assert lift("* 🔴 A blue kayak.", Hit(3, 1.0, thread="other")) == [(3, 1.0)]


def test_a_time_that_is_no_date_is_of_no_day() -> None:
    noted = [NotedRange("t", 2, 6, "Date: May 9, 2023\n* 🔴 A blue kayak.", UTC)]
    thread, passage = Hit(3, 1.0).find()
    found = Found(1, {}, (FoundPassage(thread, passage._replace(at=1e300)),), ())
    assert lift_noted([Hit(3, 1.0).rank()], found, noted, RARITY) == [Hit(3, 1.0).rank()]


def test_entries_stand_for_ranges_of_the_thread() -> None:
    """Withdrawn entries and notes of a rollback stand for none; an entry of a shared log for what
    it covers of this thread."""
    memory = Memory(
        key=Key("tenant", "resource", "t"),
        log=ObservationLog(
            entries=(
                entry(1, 0, 4, "own"),
                entry(2, 4, 6, ""),
                entry(3, 6, 6, "taken back", kind="note"),
            )
        ),
    )
    assert list(list_noted_ranges(memory, UTC)) == [NotedRange("t", 0, 4, "own", UTC)]


def entry(number: int, after: int, last: int, text: str, kind: str = "observation") -> Observation:
    return Observation(
        id=number,
        after=after,
        last=last,
        chain=b"",
        text=text,
        tokens=1,
        source_tokens=1,
        at=0.0,
        kind=kind,  # type: ignore[arg-type]  # a literal
    )
