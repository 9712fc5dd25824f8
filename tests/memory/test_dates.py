"""How long ago: every vector as a table."""

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory.dates import (
    annotate_entries,
    format_distance,
    format_gap,
    read_heading,
    read_span,
)

TODAY = date(2023, 5, 29)


def annotate(text: str, today: date) -> str:
    return next(annotate_entries([text], today))


@pytest.mark.parametrize(
    ("days", "said"),
    [
        (0, "today"),
        (1, "yesterday"),
        (2, "2 days ago"),
        (6, "6 days ago"),
        (7, "1 week ago"),
        (13, "1 week ago"),
        (14, "2 weeks ago"),
        (29, "4 weeks ago"),
        (30, "1 month ago"),
        (59, "1 month ago"),
        (60, "2 months ago"),
        (364, "12 months ago"),
        (365, "1 year ago"),
        (729, "1 year ago"),
        (730, "2 years ago"),
        (-1, "tomorrow"),
        (-2, "in 2 days"),
        (-6, "in 6 days"),
        (-7, "in 1 week"),
        (-13, "in 1 week"),
        (-14, "in 2 weeks"),
        (-29, "in 4 weeks"),
        (-30, "in 1 month"),
        (-59, "in 1 month"),
        (-60, "in 2 months"),
        (-364, "in 12 months"),
        (-365, "in 1 year"),
        (-1000, "in 2 years"),
    ],
)
def test_relative(days: int, said: str) -> None:
    """Past and future, in calendar days."""
    assert format_distance(TODAY - timedelta(days), TODAY) == said


@pytest.mark.parametrize(
    ("days", "line"),
    [
        (-3, None),
        (0, None),
        (1, None),
        (2, "[2 days later]"),
        (6, "[6 days later]"),
        (7, "[1 week later]"),
        (13, "[1 week later]"),
        (14, "[2 weeks later]"),
        (29, "[4 weeks later]"),
        (30, "[1 month later]"),
        (59, "[1 month later]"),
        (60, "[2 months later]"),
        (800, "[26 months later]"),
    ],
)
def test_gap(days: int, line: str | None) -> None:
    """More than a day is told, backwards is not, and years are told in months."""
    assert format_gap(days) == line


@pytest.mark.parametrize(
    ("line", "day"),
    [
        ("Date: May 15, 2023", date(2023, 5, 15)),
        ("Date:  Sep 5, 2023 ", date(2023, 9, 5)),
        ("Date: Sept. 5th, 2023", date(2023, 9, 5)),
        ("Date: 15 May 2023", date(2023, 5, 15)),
        ("Date: 2023-05-15", date(2023, 5, 15)),
        ("Date: Monday, May 15, 2023", date(2023, 5, 15)),
        ("Date: Mon May 15, 2023", date(2023, 5, 15)),
        ("Date: May 15, 2023 (Monday)", date(2023, 5, 15)),
        ("Date: 2023-05-15 (Mon)", date(2023, 5, 15)),
        ("Date: 2023-05-15, Thursday", date(2023, 5, 15)),
        ("**Date: May 15, 2023**", date(2023, 5, 15)),
        ("**Date:** May 15, 2023", date(2023, 5, 15)),
        ("## date: may 15, 2023", date(2023, 5, 15)),
        ("Date: May 15, 2023 (2 weeks ago)", None),
        ("Date: May 15, 2023 and after", None),
        ("Date: Feb 30, 2023", None),
        ("Date: 2023-13-01", None),
        ("Date: 2023-00-10", None),
        ("Date: May 0, 2023", None),
        ("Date: May 1, 0000", None),
        ("Date: unknown", None),
        ("Date:", None),
        ("* 🔴 Date: May 15, 2023", None),
        ("Update: May 15, 2023", None),
        ("Date: " + "1" * 100_000, None),
    ],
)
def test_heading(line: str, day: date | None) -> None:
    """A heading holds a date, perhaps a weekday, and nothing else; what is no day of the calendar
    is no date."""
    assert read_heading(line) == day


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("May 22, 2023", date(2023, 5, 22)),
        ("the week of May 22, 2023", date(2023, 5, 22)),
        ("Monday, May 22, 2023", date(2023, 5, 22)),
        ("May 27-28, 2023", date(2023, 5, 27)),
        ("May 27–28, 2023", date(2023, 5, 27)),
        ("early April 2023", date(2023, 4, 7)),
        ("mid-April 2023", date(2023, 4, 15)),
        ("Late April 2023", date(2023, 4, 23)),
        ("April to May 2023", date(2023, 5, 1)),
        ("April to early May 2023", date(2023, 5, 7)),
        ("May 29 to Jun 4, 2023", date(2023, 5, 29)),
        ("May 29 - June 4, 2023", date(2023, 5, 29)),
        ("May 29–Jun 4, 2023", date(2023, 5, 29)),
        ("Dec 28 to Jan 3, 2023", date(2022, 12, 28)),
        ("Dec 28, 2022 to Jan 3, 2023", date(2022, 12, 28)),
        ("May 15 to 21, 2023", date(2023, 5, 15)),
        ("15-21 May 2023", date(2023, 5, 15)),
        ("Oct 5-6, 2022, before Nov 1, 2022", date(2022, 10, 5)),
        ("May 29 to Jun 40, 2023", date(2023, 5, 29)),
        ("Dec to January 2023", date(2023, 1, 1)),
        ("2023-05-22", date(2023, 5, 22)),
        ("May 2023", None),
        ("sometime in 2023", None),
        ("February 31, 2023", None),
        ("\u017fep 1, 2023", date(2023, 9, 1)),
    ],
)
def test_written(text: str, day: date | None) -> None:
    """The first day of what is named; a month or a year alone names no day."""
    span = read_span(text)
    assert (span and span[0]) == day


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("May 22, 2023", date(2023, 5, 22)),
        ("May 27-28, 2023", date(2023, 5, 28)),
        ("Dec 28 to Jan 3, 2023", date(2023, 1, 3)),
    ],
)
def test_a_span_has_a_last_day(text: str, last: date) -> None:
    span = read_span(text)
    assert span
    assert span[1] == last


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("* went (meaning May 22, 2023)", "* went (meaning May 22, 2023 - 1 week ago)"),
        (
            "* User will go (meaning May 22, 2023)",
            "* User will go (meaning May 22, 2023 - 1 week ago, likely already happened)",
        ),
        ("* will go (meaning May 29, 2023)", "* will go (meaning May 29, 2023 - today)"),
        ("* will go (meaning June 5, 2023)", "* will go (meaning June 5, 2023 - in 1 week)"),
        (
            "* moved (estimated late April 2023)",
            "* moved (estimated late April 2023 - 1 month ago)",
        ),
        (
            "* Will went home (meaning May 22, 2023)",
            "* Will went home (meaning May 22, 2023 - 1 week ago)",
        ),
        (
            "* went (meaning May 22, 2023), will rest",
            "* went (meaning May 22, 2023 - 1 week ago), will rest",
        ),
        ("* x (meaning 2023-05-27)", "* x (meaning 2023-05-27 - 2 days ago)"),
        (
            "* x (meaning May 22, 2023; photo: tart)",
            "* x (meaning May 22, 2023 - 1 week ago; photo: tart)",
        ),
        (
            "* x (Meaning Monday, May 22, 2023, at noon)",
            "* x (Meaning Monday, May 22, 2023 - 1 week ago, at noon)",
        ),
        (
            "* x (estimated early May 2023 or May 22, 2023)",
            "* x (estimated early May 2023 - 3 weeks ago or May 22, 2023)",
        ),
        ("* fährt (meaning May 30, 2023)", "* fährt (meaning May 30, 2023 - tomorrow)"),
        ("* will go (meaning May 27-30, 2023)", "* will go (meaning May 27-30, 2023 - 2 days ago)"),
        (
            "* will go (meaning May 27 to Jun 2, 2023)",
            "* will go (meaning May 27 to Jun 2, 2023 - 2 days ago)",
        ),
        (
            "* will go (meaning May 22-28, 2023)",
            "* will go (meaning May 22-28, 2023 - 1 week ago, likely already happened)",
        ),
        ("* x (meaning May 2023)", "* x (meaning May 2023)"),
        ("* x (meaning the Feb 30, 2023)", "* x (meaning the Feb 30, 2023)"),
        ("* x (meaning soon)", "* x (meaning soon)"),
        ("* x (May 22, 2023)", "* x (May 22, 2023)"),
        (
            "* a (meaning May 22, 2023) b (estimated May 1, 2023)",
            "* a (meaning May 22, 2023 - 1 week ago) b (estimated May 1, 2023 - 4 weeks ago)",
        ),
    ],
)
def test_estimates(line: str, shown: str) -> None:
    """An estimate is told from the render date; what was intended and is past has likely
    happened."""
    assert annotate(line, TODAY) == shown


@pytest.mark.parametrize(
    "intention",
    [
        "will",
        "plans to",
        "plan to",
        "is planning to",
        "is looking forward to",
        "is going to",
        "intends to",
        "wants to",
        "needs to",
        "is about to",
        "'ll",
    ],
)
def test_intentions(intention: str) -> None:
    """Each way of speaking of an intention, before the date on the same line."""
    line = f"* User {intention} paint (meaning May 1, 2023)"
    assert annotate(line, TODAY).endswith(" - 4 weeks ago, likely already happened)")
    assert annotate(f"* User {intention} paint\n  * later (meaning May 1, 2023)", TODAY).endswith(
        "- 4 weeks ago)"
    )


def test_a_whole_log() -> None:
    """Headings are told from the render date, ways longer than a day get a line between empty ones,
    entries hang together."""
    log = [
        "Date: May 1, 2023\n* a\nDate: May 2, 2023\n* b\n\nDate: 2023-05-05\n* arr[0] -> x",
        "Date: May 28, 2023\n* c",
        "* no heading",
    ]
    assert list(annotate_entries(log, TODAY)) == [
        "Date: May 1, 2023 (4 weeks ago)\n* a\nDate: May 2, 2023 (3 weeks ago)\n* b\n\n[3 days later]\n\n"
        "Date: 2023-05-05 (3 weeks ago)\n* arr[0] -> x",
        "[3 weeks later]\n\nDate: May 28, 2023 (yesterday)\n* c",
        "* no heading",
    ]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("Date: on or before May 15, 2023, times not known", " (2 weeks ago or earlier)"),
        ("Date: on or before Monday, May 15, 2023, times not known", " (2 weeks ago or earlier)"),
        ("**Date:** on or before May 28, 2023", " (yesterday or earlier)"),
        ("Date: on or before noon", ""),
        ("Date: before May 15, 2023", ""),
    ],
)
def test_a_bound(line: str, shown: str) -> None:
    """A line "on or before" a day tells a least age, and is no heading of that day."""
    assert annotate(line, TODAY) == line + shown
    assert read_heading(line) is None


def test_no_gap_beside_a_bound() -> None:
    """How long it was from a time nobody knows is not told."""
    log = "Date: May 1, 2023\n* a\nDate: on or before May 15, 2023\n* b\nDate: May 20, 2023\n* c"
    assert "later]" not in annotate(log, TODAY)


def test_a_moment_is_taken_as_its_day() -> None:
    """The hour of the render date changes nothing."""
    assert (
        annotate("Date: May 29, 2023", datetime(2023, 5, 29, 23, 59, tzinfo=UTC))
        == "Date: May 29, 2023 (today)"
    )


PIECES = st.sampled_from(
    [
        "Date:",
        " ",
        "May",
        "Feb",
        "31",
        "2023",
        ",",
        "-",
        "2023-99-99",
        "(meaning ",
        "(estimated ",
        ")",
        "early",
        "to",
        "\n",
        "will",
        "٣",
    ]
)


@given(st.one_of(st.text(), st.lists(PIECES, max_size=20).map("".join)), st.dates())
def test_nothing_raises_and_nothing_is_lost(text: str, today: date) -> None:
    """Annotating any text only adds to it."""
    shown = iter(annotate(text, today))
    assert all(c in shown for c in "\n".join(line.rstrip() for line in text.split("\n")).rstrip())
