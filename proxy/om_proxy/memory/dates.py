"""Annotate the dates in observations: say how long ago they are, seen from the render date.

Annotations are added when the log is rendered and never stored. Three places get one:

- a `Date:` heading, at its end: `Date: May 15, 2023 (2 weeks ago)`
- the way from one heading to the next, when it is longer than a day: a line `[3 days later]`
- an estimate in the text, after the first date in its brackets: `(meaning May 22, 2023 - 1 week
  ago, likely already happened)`; the last words only if the line speaks of an intention and the
  whole span is past.

A heading may also be a bound, for messages that came together without times: `Date: on or before
May 15, 2023, times not known` becomes `… (2 weeks ago or earlier)`, without a gap before or after
it.

Text that cannot be read as a date stays as it is. Everything counts in calendar days.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import date, datetime, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from om_proxy.common.late_patterns import compile_late

MONTH_NAMES = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
WEEKDAY_NAMES = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]

_MONTH_NAME = "|".join(
    f"{name[:3]}(?:{name[3:]})?" if name[3:] else name for name in [*MONTH_NAMES, "Sept"]
)
_MONTH_GROUP = rf"(?P<month>{_MONTH_NAME})\.?"
_DAY_GROUP = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR_GROUP = r",?\s+(?P<year>\d{4})\b"
_ISO_DATE = compile_late(r"(?<!\d)(?P<year>\d{4})-(?P<number>\d{1,2})-(?P<day>\d{1,2})(?!\d)")
_MONTH_DAY = compile_late(rf"\b{_MONTH_GROUP}\s+{_DAY_GROUP}{_YEAR_GROUP}", re.IGNORECASE)
_RANGE_SEPARATOR = r"\s*(?:[-–—]|\b(?:to|through|until)\b)\s*"
_LAST_DAY_GROUP = r"(?P<last>\d{1,2})(?:st|nd|rd|th)?"
_MONTH_DAY_RANGE = compile_late(
    rf"\b{_MONTH_GROUP}\s+{_DAY_GROUP}{_RANGE_SEPARATOR}{_LAST_DAY_GROUP}{_YEAR_GROUP}",
    re.IGNORECASE,
)
_TWO_MONTH_RANGE = compile_late(
    rf"\b{_MONTH_GROUP}\s+{_DAY_GROUP}{_RANGE_SEPARATOR}(?P<last_month>{_MONTH_NAME})\.?\s+{_LAST_DAY_GROUP}{_YEAR_GROUP}",
    re.IGNORECASE,
)
_DAY_RANGE_MONTH = compile_late(
    rf"\b{_DAY_GROUP}{_RANGE_SEPARATOR}{_LAST_DAY_GROUP}\s+{_MONTH_GROUP}{_YEAR_GROUP}",
    re.IGNORECASE,
)
_DAY_MONTH = compile_late(rf"\b{_DAY_GROUP}\s+{_MONTH_GROUP}{_YEAR_GROUP}", re.IGNORECASE)
_PART_OF_MONTH = compile_late(
    rf"\b(?P<part>early|mid|late)[\s-]+{_MONTH_GROUP}{_YEAR_GROUP}", re.IGNORECASE
)
_MONTH_RANGE = compile_late(
    rf"\b(?:{_MONTH_NAME})\.?\s+to\s+(?:(?P<part>early)\s+)?{_MONTH_GROUP}{_YEAR_GROUP}",
    re.IGNORECASE,
)
_TEXT_DATE_FORMS = (
    _MONTH_DAY,
    _MONTH_DAY_RANGE,
    _TWO_MONTH_RANGE,
    _DAY_RANGE_MONTH,
    _DAY_MONTH,
    _PART_OF_MONTH,
    _MONTH_RANGE,
    _ISO_DATE,
)
_HEADING_DATE_FORMS = (_MONTH_DAY, _DAY_MONTH, _ISO_DATE)
_DAY_OF_PART = {"early": 7, "mid": 15, "late": 23}

_DATE_HEADING = compile_late(
    r"\s*+(?:#+\s*+)?(?:\*\*)?date:(?:\*\*)?(?P<date>.{4,60}?)(?:\*\*)?\s*", re.IGNORECASE
)
_WEEKDAY_NAME = r"(?:mon|tues?|wed(?:nes)?|thu(?:rs?)?|fri|sat(?:ur)?|sun)(?:day)?\.?"
_TEXT_BESIDE_DATE = compile_late(rf"[\s,()]*+(?:{_WEEKDAY_NAME})?[\s,()]*+", re.IGNORECASE)
_BOUND_DATE = compile_late(
    r"\s*+on or before\s+(?P<date>.{4,40}?)(?:,?\s+times not known)?\s*+", re.IGNORECASE
)
_ESTIMATED_DATE = compile_late(
    r"\((?P<kind>estimated|meaning)\s++(?P<date>[^()\n]++)\)", re.IGNORECASE
)
# `will` in small letters only: Will is a name
_INTENTION_WORDS = compile_late(
    r"\bwill\b|[’']ll\b|\b(?i:plans?\s+to|planning\s+to|looking\s+forward\s+to|going\s+to|intends?\s+to|wants?\s+to"
    r"|needs?\s+to|about\s+to)\b"
)


def find_zone(kept: str | None, configured: str) -> ZoneInfo:
    """Return the time zone that a thread keeps, else the configured one. A store may come from a
    machine with other time zone tables, so a kept zone may be unknown here."""
    try:
        return ZoneInfo(kept or configured)
    except (OSError, ValueError, KeyError):
        return ZoneInfo(configured)


@lru_cache(maxsize=4_096)  # each request of a thread asks it of the same render date
def read_time(at: float, zone: tzinfo | None) -> datetime:
    """Return the local time. One that no calendar has becomes the epoch's beginning."""
    try:
        return datetime.fromtimestamp(at, zone)
    except (OverflowError, ValueError, OSError):
        return datetime.fromtimestamp(0, zone)


def format_day(day: date) -> str:
    """Return a day as prompts and answers write it: `Nov 20, 2025`."""
    return f"{MONTH_NAMES[day.month - 1][:3]} {day.day}, {day.year}"


def format_moment(at: datetime) -> str:
    """Return a time as prompts and answers write it: `Nov 20, 2025 23:47`."""
    return f"{format_day(at)} {at:%H:%M}"


def annotate_entries(entries: Sequence[str], today: date) -> Iterator[str]:
    """Relate the dates of a log's entries to `today`, the render date. In order: a gap may lie between
    the last heading of one and the first of the next.

    An entry's text depends on it and the entries before it, so a growing log keeps its beginning.
    """
    # a datetime is a date, too, but cannot be compared with one
    today = date(today.year, today.month, today.day)
    last: date | None = None
    for entry in entries:
        lines: list[str] = []
        for line in entry.split("\n"):
            if day := read_heading(line):
                lines += _gap_lines(last, day, lines)
                lines.append(f"{line.rstrip()} ({format_distance(day, today)})")
                last = day
            elif day := read_bound(line):
                lines.append(f"{line.rstrip()} ({format_distance(day, today)} or earlier)")
                last = None
            else:
                lines.append(_annotate_estimates(line, today))
        yield "\n".join(lines)


def drop_repeated_headings(entries: Sequence[str], labels: Sequence[str | None]) -> Iterator[str]:
    """Drop each heading that equals the heading before it, also across entries: every chunk of a
    day begins with that day's heading. `labels`: the thread of each entry; a new thread starts
    without a heading.

    An entry's text depends on it and the entries before it, so a growing log keeps its beginning.
    """
    last: tuple[date | None, date | None] = (None, None)
    last_label: str | None = None
    for entry, label in zip(entries, labels, strict=True):
        if label != last_label:
            last = (None, None)
            last_label = label
        lines: list[str] = []
        for line in entry.split("\n"):
            days = read_heading(line), read_bound(line)
            if any(days) and days == last:
                continue
            last = days if any(days) else last
            lines.append(line)
        yield "\n".join(lines)


def read_heading(line: str) -> date | None:
    """Return the day of a `Date:` heading: the line holds the date, a weekday perhaps, and nothing
    else."""
    match = _DATE_HEADING.fullmatch(line)
    return _read_lone_date(match["date"]) if match else None


def read_bound(line: str) -> date | None:
    """Return the day of a heading that is only a bound: the notes below it are from that day or
    earlier."""
    match = _DATE_HEADING.fullmatch(line)
    bound = _BOUND_DATE.fullmatch(match["date"]) if match else None
    return _read_lone_date(bound["date"]) if bound else None


def _read_lone_date(text: str) -> date | None:
    """Return the date in a text that holds at most a weekday beside it."""
    for form in _HEADING_DATE_FORMS:
        if match := form.search(text):
            around = f"{text[: match.start()]} {text[match.end() :]}"
            return _first_day(match) if _TEXT_BESIDE_DATE.fullmatch(around) else None
    return None


def format_distance(day: date, today: date) -> str:
    """Return the distance in words: `2 weeks ago`, `yesterday`, `today`, `in 3 months`."""
    days = (today - day).days
    if days in (-1, 0, 1):
        return ("today", "yesterday", "tomorrow")[days]
    return f"{_format_length(days)} ago" if days > 0 else f"in {_format_length(-days)}"


def format_gap(days: int) -> str | None:
    """Return the line for a gap of this many days between two headings; None up to one day. The
    line never counts in years: it only tells that time passed."""
    return f"[{_format_length(days, years=False)} later]" if days > 1 else None


def _format_length(days: int, years: bool = True) -> str:
    """Return two days or more in the largest unit that fits: weeks from 7 days, months of 30 days
    from 30, years from 365."""
    if days < 7:
        count, unit = days, "day"
    elif days < 30:
        count, unit = days // 7, "week"
    elif days < 365 or not years:
        count, unit = days // 30, "month"
    else:
        count, unit = days // 365, "year"
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"


def _gap_lines(last: date | None, day: date, before: Sequence[str]) -> list[str]:
    """Return the gap's line with an empty line on each side. The first is left out after an empty
    line and at the beginning of the entry."""
    line = format_gap((day - last).days) if last else None
    if line is None:
        return []
    return [*([""] if before and before[-1].strip() else []), line, ""]


def _annotate_estimates(line: str, today: date) -> str:
    """Return the line with the distance of each estimated date."""
    intention = _INTENTION_WORDS.search(line)
    intended_from = intention.end() if intention else len(line)

    def annotate_estimate(match: re.Match[str]) -> str:
        named = _first_date(match["date"])
        day = _first_day(named) if named else None
        if named is None or day is None:
            return match[0]
        is_past = _last_day(named, day) < today and intended_from <= match.start()
        passed = ", likely already happened" if is_past else ""
        end = match.start("date") + named.end() - match.start()
        return f"{match[0][:end]} - {format_distance(day, today)}{passed}{match[0][end:]}"

    return _ESTIMATED_DATE.sub(annotate_estimate, line)


def read_span(text: str) -> tuple[date, date] | None:
    """Return the first and last day of the date or span in a text: `May 22, 2023`, `May 27-28,
    2023`, `late April 2023` (a day of it), `April to May 2023` (a day of the last)."""
    match = _first_date(text)
    first = _first_day(match) if match else None
    return (first, _last_day(match, first)) if match and first else None


def _first_date(text: str) -> re.Match[str] | None:
    """Return the date that begins first; if several begin there, the first of
    `_TEXT_DATE_FORMS`."""
    return min(
        (match for form in _TEXT_DATE_FORMS if (match := form.search(text))),
        key=lambda m: m.start(),
        default=None,
    )


def _first_day(match: re.Match[str]) -> date | None:
    """Return the first day of a date or span. None if the numbers are no day of the calendar:
    models write such dates too."""
    groups = match.groupdict()
    part = groups.get("part")
    day = _DAY_OF_PART[part.lower()] if part else int(groups.get("day") or 1)
    month = int(groups["number"]) if "number" in groups else _month_number(groups["month"])
    last_month = _month_number(groups["last_month"]) if groups.get("last_month") else month
    # Dec 28 to Jan 3, 2023 begins in the year before
    first_year = int(groups["year"]) - (last_month < month)
    return _make_date(first_year, month, day)


def _last_day(match: re.Match[str], first: date) -> date:
    """Return the last day of a span; of anything else its first."""
    groups = match.groupdict()
    if not groups.get("last"):
        return first
    month = _month_number(groups["last_month"]) if groups.get("last_month") else first.month
    return _make_date(int(groups["year"]), month, int(groups["last"])) or first


def _make_date(year: int, month: int, day: int) -> date | None:
    """Return the date; None if the calendar has no such day."""
    try:
        return date(year, month, day)
    except ValueError:
        return None


def _month_number(name: str) -> int:
    return next(
        i for i, month in enumerate(MONTH_NAMES, 1) if month[:3].lower() == name[:3].casefold()
    )
