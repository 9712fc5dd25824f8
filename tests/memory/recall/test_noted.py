"""Notes lift the messages that they tell of."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from om_proxy.memory.model import Key, Memory, Observation, ObservationLog
from om_proxy.memory.recall.found import RankedMessage
from om_proxy.memory.recall.noted import NotedRange, lift_noted, list_noted_ranges

RARITY = {"kayak": 3.0, "blue": 1.0}


def hit(seq: int, score: float, day: int = 8, hour: int = 12, thread: str = "t") -> RankedMessage:
    at = datetime(2023, 5, day, hour, tzinfo=UTC).timestamp()
    return RankedMessage(thread, seq, score, 0, at, "user", ())


def lift(notes: str, *ranked: RankedMessage, zone: str = "UTC") -> list[tuple[int, float]]:
    noted = [NotedRange("t", 2, 6, notes, ZoneInfo(zone))]
    return [(message.seq, round(message.score, 6)) for message in lift_noted(ranked, noted, RARITY)]


def test_a_line_lifts_the_messages_of_its_day_in_its_range() -> None:
    """A line with every word of the query lifts by 0.3 of the best score."""
    notes = "Date: May 8, 2023\n* 🔴 Bought a blue kayak.\nDate: May 9, 2023\n* 🟡 Rain."
    ranked = [hit(1, 2.0), hit(3, 1.0), hit(4, 1.0, day=9), hit(7, 1.0), hit(5, 1.9)]
    found = lift(notes, *ranked)
    assert found == [(5, 2.5), (1, 2.0), (3, 1.6), (4, 1.0), (7, 1.0)]


def test_the_best_line_counts_by_the_rarity_of_its_words() -> None:
    notes = "Date: May 8, 2023\n* 🔴 A kayak.\n* 🟡 Blue.\n* 🟡 The kayaks."
    assert lift(notes, hit(3, 1.0)) == [(3, 1.225)]


@pytest.mark.parametrize("heading", ["", "Date: on or before May 15, 2023, times not known\n"])
def test_a_line_without_a_day_lifts_its_range(heading: str) -> None:
    assert lift(f"{heading}* 🔴 A blue kayak.", hit(3, 1.0, day=2)) == [(3, 1.3)]


def test_the_day_is_that_of_the_thread() -> None:
    notes = "Date: May 9, 2023\n* 🔴 A blue kayak."
    late = hit(3, 1.0, day=8, hour=20)
    assert lift(notes, late, zone="Asia/Tokyo") == [(3, 1.3)]
    assert lift(notes, late, zone="UTC") == [(3, 1.0)]


def test_notes_find_nothing_by_themselves() -> None:
    assert lift("* 🔴 A blue kayak.") == []
    assert lift("* 🔴 Rain.", hit(3, 1.0)) == [(3, 1.0)]
    other = hit(3, 1.0, thread="other")
    assert lift("* 🔴 A blue kayak.", other) == [(3, 1.0)]


def test_a_time_that_is_no_date_is_of_no_day() -> None:
    notes = "Date: May 9, 2023\n* 🔴 A blue kayak."
    assert lift(notes, hit(3, 1.0)._replace(at=1e300)) == [(3, 1.0)]


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
