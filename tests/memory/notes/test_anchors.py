"""Dates of relative times, checked against the calendar."""

from __future__ import annotations

import re
import time
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory.notes.anchors import drop_false_anchors

SUNDAY, WEDNESDAY = "Date: Apr 16, 2023", "Date: Apr 19, 2023"

TRUE = [
    (SUNDAY, "last week (meaning Apr 3-9, 2023)"),
    (SUNDAY, "last week (meaning Apr 5, 2023)"),
    (SUNDAY, "this week (meaning Apr 10 to 16, 2023)"),
    (WEDNESDAY, "next week (meaning Apr 24-30, 2023)"),
    (SUNDAY, "yesterday (meaning Apr 15, 2023)"),
    (SUNDAY, "yesterday's (meaning Apr 15, 2023)"),
    (SUNDAY, "yesterday evening (meaning Apr 15, 2023)"),
    (SUNDAY, "the day before yesterday (meaning Apr 14, 2023)"),
    (SUNDAY, "the day after tomorrow (meaning Apr 18, 2023)"),
    (SUNDAY, '"tomorrow" (meaning Apr 17, 2023)'),
    (SUNDAY, "last night (meaning Apr 15, 2023)"),
    (SUNDAY, "three days ago (meaning Apr 13, 2023)"),
    (SUNDAY, "in 10 days (meaning Apr 26, 2023)"),
    (SUNDAY, "two weeks ago (meaning Apr 2, 2023)"),
    (SUNDAY, "a week ago (estimated Apr 7, 2023)"),
    (SUNDAY, "last Friday (meaning Apr 14, 2023)"),
    (SUNDAY, "last Friday (meaning Apr 7, 2023)"),
    (SUNDAY, "next Friday (meaning Apr 21, 2023)"),
    (WEDNESDAY, "next Monday (meaning Apr 24, 2023)"),
    (WEDNESDAY, "next Wednesday (meaning Apr 26, 2023)"),
    (WEDNESDAY, "coming Friday (meaning Apr 21, 2023)"),
    ("Date: May 27, 2023", "last Friday (meaning May 26, 2023)"),
    (WEDNESDAY, "on Friday (meaning Apr 21, 2023)"),
    (WEDNESDAY, "next week's Friday (meaning Apr 28, 2023)"),
    (WEDNESDAY, "this weekend (meaning Apr 22-23, 2023)"),
    (WEDNESDAY, "last weekend (meaning Apr 15-16, 2023)"),
    (WEDNESDAY, "this past weekend (meaning Apr 15-16, 2023)"),
    (WEDNESDAY, "this coming weekend (meaning Apr 22-23, 2023)"),
    (SUNDAY, "next weekend (meaning Apr 22-23, 2023)"),
    (WEDNESDAY, "last month (meaning March 2023)"),
    (WEDNESDAY, "next month (estimated early May 2023)"),
    (WEDNESDAY, "last year (meaning 2022)"),
    (WEDNESDAY, "last year (estimated July 2022)"),
    ("Date: Jan 2, 2023", "last month (meaning December 2022)"),
    # a count before the unit is no vague phrase
    (WEDNESDAY, "a year ago (estimated April 2022)"),
    (WEDNESDAY, "two years ago (meaning 2021)"),
    (WEDNESDAY, "three years ago (estimated early 2020)"),
    (WEDNESDAY, "three years back (estimated mid June 2020)"),
    (WEDNESDAY, "two months ago (estimated February 2023)"),
    (WEDNESDAY, "6 months ago (estimated October 2022)"),
    (WEDNESDAY, "twenty-two years ago (estimated 2001)"),
    (WEDNESDAY, "thirty years ago (estimated 1993)"),
    (WEDNESDAY, "in two years (estimated 2025)"),
    (WEDNESDAY, "two and a half years ago (estimated October 2020)"),
    (WEDNESDAY, "1.5 years ago (estimated October 2021)"),
    (WEDNESDAY, "two or three weeks ago (estimated Mar 30, 2023)"),
    (WEDNESDAY, "2-3 weeks ago (estimated Apr 5, 2023)"),
    (WEDNESDAY, "two hundred years ago (estimated 1823)"),
    (WEDNESDAY, "for 3 years (since estimated April 2020)"),
    (WEDNESDAY, "for three years (since estimated 2020)"),
    (WEDNESDAY, "for two weeks (meaning Apr 19 to May 3, 2023)"),
    ("Date: May 31, 2023", "three months ago (meaning February 2023)"),
    ("Date: Feb 29, 2024", "a year ago (meaning February 2023)"),
    ("Date: Jan 1, 0001", "two years ago (meaning 2021)"),
    ("Date: Jan 1, 0001", "last month (meaning December 2022)"),
    (WEDNESDAY, "the weekend before last (meaning Apr 8-9, 2023)"),
    (WEDNESDAY, "the month before last (meaning February 2023)"),
    (WEDNESDAY, "the night before last (meaning Apr 17, 2023)"),
    (WEDNESDAY, "the previous week (meaning Apr 10-16, 2023)"),
    (WEDNESDAY, "half a year ago (estimated October 2022)"),
    (WEDNESDAY, "a year and a half ago (estimated October 2021)"),
    (WEDNESDAY, "two weeks from now (meaning May 3, 2023)"),
    (WEDNESDAY, "in two weeks' time (meaning May 3, 2023)"),
    (WEDNESDAY, "a fortnight ago (meaning Apr 5, 2023)"),
    (WEDNESDAY, "48 hours ago (meaning Apr 17, 2023)"),
    (WEDNESDAY, "three hours ago (meaning Apr 19, 2023)"),
    (WEDNESDAY, "2 nights ago (meaning Apr 17, 2023)"),
    (WEDNESDAY, "a decade ago (estimated 2013)"),
    (WEDNESDAY, "the last two weeks (meaning Apr 5-19, 2023)"),
    (WEDNESDAY, "over the past 3 months (since January 2023)"),
    (WEDNESDAY, "the next two weeks (meaning Apr 20 to May 3, 2023)"),
    (WEDNESDAY, "for 3 years now (since 2020)"),
    (WEDNESDAY, "last summer (estimated July 2022)"),
    (WEDNESDAY, "last Christmas (meaning Dec 25, 2022)"),
    (WEDNESDAY, "this summer (estimated July 2023)"),
    (WEDNESDAY, "yesterday [meaning Apr 18, 2023]"),
    (WEDNESDAY, "yesterday (Apr 18, 2023)"),
    (WEDNESDAY, "yesterday (with friends)"),
    # of another day, or what may be the user's own
    (WEDNESDAY, "two days earlier (meaning Apr 1, 2023)"),
    (WEDNESDAY, "a year later (meaning 2021)"),
    (WEDNESDAY, "recently (Apr 2, 2023)"),
    # other phrases, and dates that cannot be read
    (WEDNESDAY, "next quarter (estimated July to September 2023)"),
    (WEDNESDAY, "in spring (estimated April 2023)"),
    (WEDNESDAY, "the last Friday of March (meaning Mar 31, 2023)"),
    (WEDNESDAY, "the week before last (meaning Apr 3-9, 2023)"),
    (WEDNESDAY, "yesterday (meaning the day of the fair)"),
    (WEDNESDAY, "letzte Woche (meaning Apr 10-16, 2023)"),
    ("", "yesterday (meaning Apr 1, 2023)"),
    ("Date: Jan 1, 0001", "yesterday (meaning Apr 1, 2023)"),
]
VAGUE = (
    "a long time ago", "long ago", "not long ago", "ages ago", "earlier", "later", "once", "one day",
    "some day", "sometime soon", "previously", "in the past", "recent", "in recent weeks",
    "the past few weeks", "the last couple of months", "the past weeks", "in a few days",
    "in a couple of weeks", "a few nights ago", "the other week", "last time", "in the near future",
    # of two readings
    "over the weekend", "on the weekend", "the following Monday", "the following week",
    "a week from Friday", "a week from next Friday", "two days before yesterday",
)  # fmt: skip
VAGUE_SINCE = (
    "for a while", "for a while now", "for years", "for a long time", "for some time",
    "for several years", "for ages",
)  # fmt: skip
FALSE = [
    (SUNDAY, "last week (meaning Apr 10-16, 2023)"),
    (SUNDAY, "next week (meaning Apr 16-22, 2023)"),
    (SUNDAY, "yesterday (meaning Apr 16, 2023)"),
    (SUNDAY, "tomorrow (meaning Apr 18, 2023)"),
    (SUNDAY, "last Friday (meaning Apr 15, 2023)"),
    (SUNDAY, "last Friday (meaning Apr 21, 2023)"),
    (SUNDAY, "next Friday (meaning Apr 14, 2023)"),
    (SUNDAY, "this weekend (meaning Apr 22-23, 2023)"),
    (SUNDAY, "three days ago (meaning Apr 12, 2023)"),
    (SUNDAY, "two weeks ago (meaning Mar 20, 2023)"),
    (WEDNESDAY, "last month (meaning April 2023)"),
    (WEDNESDAY, "next year (meaning 2025)"),
    (WEDNESDAY, "two years ago (meaning 2022)"),
    (WEDNESDAY, "two months ago (estimated April 2023)"),
    (WEDNESDAY, "in two years (estimated 2026)"),
    (WEDNESDAY, "twenty-two weeks ago (meaning Apr 5, 2023)"),
    (WEDNESDAY, "for 3 years (since estimated February 2019)"),
    # people disagree which day it is
    (WEDNESDAY, "next Friday (meaning Apr 21, 2023)"),
    (WEDNESDAY, "next Friday (meaning Apr 28, 2023)"),
    (WEDNESDAY, "next weekend (meaning Apr 22-23, 2023)"),
    (WEDNESDAY, "next weekend (meaning Apr 29-30, 2023)"),
    # what is vague gets no date
    (WEDNESDAY, "some years ago (estimated 2015)"),
    (WEDNESDAY, "with someone years ago (estimated 2015)"),
    (WEDNESDAY, "recently (estimated early April 2023)"),
    (WEDNESDAY, "a while ago (estimated early February 2023)"),
    (WEDNESDAY, "a few months ago (estimated early February 2023)"),
    (WEDNESDAY, "a couple of weeks ago (meaning Apr 5, 2023)"),
    (WEDNESDAY, "years ago (estimated 2015)"),
    *((WEDNESDAY, f"{words} (meaning Apr 2, 2023)") for words in VAGUE),
    *((WEDNESDAY, f"{words} (since {word}2020)") for words in VAGUE_SINCE for word in ("", "estimated ")),
    (WEDNESDAY, "the week before last (meaning Apr 10-16, 2023)"),
    (WEDNESDAY, "the previous week (meaning Apr 3-9, 2023)"),
    (WEDNESDAY, "the previous month (meaning February 2023)"),
    (WEDNESDAY, "the night before last (meaning Apr 10, 2023)"),
    (WEDNESDAY, "half a year ago (meaning January 2022)"),
    (WEDNESDAY, "a year and a half ago (meaning November 2020)"),
    (WEDNESDAY, "two and a half years ago (meaning 2018)"),
    (WEDNESDAY, "two weeks from now (meaning May 10, 2023)"),
    (WEDNESDAY, "in two weeks' time (meaning May 24, 2023)"),
    (WEDNESDAY, "a fortnight ago (meaning Apr 12, 2023)"),
    (WEDNESDAY, "48 hours ago (meaning Apr 10, 2023)"),
    (WEDNESDAY, "2 nights ago (meaning Apr 10, 2023)"),
    (WEDNESDAY, "a decade ago (meaning 2003)"),
    (WEDNESDAY, "the last two weeks (meaning Mar 1-10, 2023)"),
    (WEDNESDAY, "over the past 3 months (since January 2022)"),
    (WEDNESDAY, "last summer (meaning June 2021)"),
    (WEDNESDAY, "last Christmas (meaning Dec 25, 2021)"),
    (WEDNESDAY, "next winter (meaning December 2022)"),
    (WEDNESDAY, "two days ago [meaning Apr 10, 2023]"),
    (WEDNESDAY, "two days ago (Apr 10, 2023)"),
    (WEDNESDAY, "two days ago (= Apr 10, 2023)"),
    (WEDNESDAY, "two days ago (i.e. meaning Apr 10, 2023)"),
    ("Date: on or before May 22, 2023, times not known", "yesterday (meaning May 21, 2023)"),
]  # fmt: skip


@pytest.mark.parametrize(("heading", "words"), TRUE)
def test_a_true_anchor_stays(heading: str, words: str) -> None:
    """So does one whose phrase the calendar alone does not decide."""
    notes = f"{heading}\n* 🔴 (10:00) User was there {words}; it rained\n  * and left"
    assert drop_false_anchors(notes) == notes


@pytest.mark.parametrize(("heading", "words"), FALSE)
def test_a_false_anchor_goes(heading: str, words: str) -> None:
    """The user's words stay, and what follows them."""
    notes = f"{heading}\n* 🔴 User goes there {words}; it rained"
    phrase = re.split(r" [(\[]", words)[0]
    assert drop_false_anchors(notes) == f"{heading}\n* 🔴 User goes there {phrase}; it rained"


def test_each_line_goes_by_its_heading() -> None:
    """Several anchors in a line are checked one by one."""
    assert drop_false_anchors(
        "Date: Apr 16, 2023\n* came yesterday (meaning Apr 15, 2023), leaves tomorrow (meaning Apr 20, 2023)\n\n"
        "Date: Apr 17, 2023\n* left yesterday (meaning Apr 15, 2023)"
    ) == (
        "Date: Apr 16, 2023\n* came yesterday (meaning Apr 15, 2023), leaves tomorrow\n\n"
        "Date: Apr 17, 2023\n* left yesterday"
    )


def test_weeks_copied_into_a_heading_go() -> None:
    """The transcript's heading has them; a heading of notes is a date."""
    shown = (
        "Date: Sunday, Apr 16, 2023 (last week Apr 3-9, this week Apr 10-16, next week Apr 17-23)"
    )
    assert drop_false_anchors(f"{shown}\n* a") == "Date: Sunday, Apr 16, 2023\n* a"


@given(st.dates(date(1990, 1, 1), date(2090, 1, 1)), st.integers(-300, 300))
def test_only_one_day_is_yesterday(day: date, distance: int) -> None:
    named = day + timedelta(distance)
    notes = f"Date: {day:%b} {day.day}, {day.year}\n* yesterday (meaning {named:%b} {named.day}, {named.year})"
    assert ("meaning" in drop_false_anchors(notes)) is (distance == -1)


@given(st.text(alphabet="yesterday last week(meaning)Date: 2023,Apr\n-", max_size=200))
def test_any_text_is_read(text: str) -> None:
    assert len(drop_false_anchors(text)) <= len(text)


@pytest.mark.parametrize(
    "part",
    [
        "*\n",
        "last week ",
        "yesterday (meaning ",
        "Date: week (",
        "a few ",
        "for a very long ",
        "(since ",
        "yesterday (i.e. since = ",
    ],
)
def test_long_answers_take_little_time(part: str) -> None:
    """A model may write 100 000 tokens: reading stays linear."""
    started = time.process_time()
    drop_false_anchors(f"Date: May 1, 2023\n{part * (200_000 // len(part))}")
    assert time.process_time() - started < 5
