"""Annotate the dates in observations: say how long ago they are, seen from the render date.

Annotations are added when the log is rendered and never stored. Three places get one:

- a `Date:` heading, at its end: `Date: May 15, 2023 (2 weeks ago)`
- the way from one heading to the next, when it is longer than a day: a line `[3 days later]`
- an estimate in the text, behind the first date in its brackets: `(meaning May 22, 2023 - 1 week
  ago, likely already happened)`; the last words only where the line speaks of an intention and the
  whole span is past.

A heading may also be a bound, for messages that came together without times: `Date: on or before
May 15, 2023, times not known` becomes `… (2 weeks ago or earlier)`, without a gap before or behind
it.

Text that cannot be read as a date stays as it is. Everything counts in calendar days.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import date
from zoneinfo import ZoneInfo

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

_NAMES = "|".join(
    f"{name[:3]}(?:{name[3:]})?" if name[3:] else name for name in [*MONTH_NAMES, "Sept"]
)
_MONTH = rf"(?P<month>{_NAMES})\.?"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r",?\s+(?P<year>\d{4})\b"
_ISO = re.compile(r"(?<!\d)(?P<year>\d{4})-(?P<number>\d{1,2})-(?P<day>\d{1,2})(?!\d)")
_MONTH_DAY = re.compile(rf"\b{_MONTH}\s+{_DAY}{_YEAR}", re.IGNORECASE)
_TO = r"\s*(?:[-–—]|\b(?:to|through|until)\b)\s*"
_LAST = r"(?P<last>\d{1,2})(?:st|nd|rd|th)?"
_DAYS = re.compile(rf"\b{_MONTH}\s+{_DAY}{_TO}{_LAST}{_YEAR}", re.IGNORECASE)
_ACROSS = re.compile(  # two months
    rf"\b{_MONTH}\s+{_DAY}{_TO}(?P<last_month>{_NAMES})\.?\s+{_LAST}{_YEAR}", re.IGNORECASE
)
_DAYS_MONTH = re.compile(rf"\b{_DAY}{_TO}{_LAST}\s+{_MONTH}{_YEAR}", re.IGNORECASE)
_DAY_MONTH = re.compile(rf"\b{_DAY}\s+{_MONTH}{_YEAR}", re.IGNORECASE)
_PART = re.compile(rf"\b(?P<part>early|mid|late)[\s-]+{_MONTH}{_YEAR}", re.IGNORECASE)
_SPAN = re.compile(
    rf"\b(?:{_NAMES})\.?\s+to\s+(?:(?P<part>early)\s+)?{_MONTH}{_YEAR}", re.IGNORECASE
)
_IN_TEXT = (_MONTH_DAY, _DAYS, _ACROSS, _DAYS_MONTH, _DAY_MONTH, _PART, _SPAN, _ISO)
_IN_HEADING = (_MONTH_DAY, _DAY_MONTH, _ISO)
_DAY_OF_PART = {"early": 7, "mid": 15, "late": 23}

_HEADING = re.compile(
    r"\s*+(?:#+\s*+)?(?:\*\*)?date:(?:\*\*)?(?P<date>.{4,60}?)(?:\*\*)?\s*", re.IGNORECASE
)
_WEEKDAY = r"(?:mon|tues?|wed(?:nes)?|thu(?:rs?)?|fri|sat(?:ur)?|sun)(?:day)?\.?"
_BESIDE_DATE = re.compile(rf"[\s,()]*+(?:{_WEEKDAY})?[\s,()]*+", re.IGNORECASE)
_BOUND = re.compile(
    r"\s*+on or before\s+(?P<date>.{4,40}?)(?:,?\s+times not known)?\s*+", re.IGNORECASE
)
_ESTIMATE = re.compile(r"\((?P<kind>estimated|meaning)\s++(?P<date>[^()\n]++)\)", re.IGNORECASE)
_INTENDED = re.compile(  # `will` in small letters only: Will is a name
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


def annotate(text: str, today: date) -> str:
    """Return the text with its dates related to `today`, the render date."""
    return next(annotate_entries([text], today))


def annotate_entries(entries: Sequence[str], today: date) -> Iterator[str]:
    """Annotate the entries of a log in order: a gap may lie between the last heading of one and the
    first of the next.

    An entry's text depends on it and the entries before it, so a growing log keeps its beginning.
    """
    today = date(
        today.year, today.month, today.day
    )  # a datetime is a date, too, but cannot be compared with one
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
    day begins with that day's. `labels`: the thread of each entry; a new thread starts without a
    heading.

    An entry's text depends on it and the entries before it, so a growing log keeps its beginning.
    """
    last: tuple[date | None, date | None] = (None, None)
    about: str | None = None
    for entry, label in zip(entries, labels, strict=True):
        if label != about:
            last, about = (None, None), label
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
    found = _HEADING.fullmatch(line)
    return _read_lone_date(found["date"]) if found else None


def read_bound(line: str) -> date | None:
    """Return the day of a heading that is only a bound: the notes below it are from that day or
    earlier."""
    found = _HEADING.fullmatch(line)
    bounded = _BOUND.fullmatch(found["date"]) if found else None
    return _read_lone_date(bounded["date"]) if bounded else None


def _read_lone_date(text: str) -> date | None:
    """Return the date a text holds, if beside it there is at most a weekday."""
    for form in _IN_HEADING:
        if found := form.search(text):
            around = f"{text[: found.start()]} {text[found.end() :]}"
            return _first_day(found) if _BESIDE_DATE.fullmatch(around) else None
    return None


def format_distance(day: date, today: date) -> str:
    """`2 weeks ago`, `yesterday`, `today`, `tomorrow`, `in 3 months`."""
    days = (today - day).days
    if days in (-1, 0, 1):
        return ("today", "yesterday", "tomorrow")[days]
    return f"{_format_length(days)} ago" if days > 0 else f"in {_format_length(-days)}"


def format_gap(days: int) -> str | None:
    """Return the line for a gap of this many days between two headings; None up to one day. It
    never counts in years: only that time passed matters."""
    return f"[{_format_length(days, years=False)} later]" if days > 1 else None


def _format_length(days: int, years: bool = True) -> str:
    """Two days or more, in the largest unit that fits: weeks from 7, months of 30 days from 30,
    years of 365."""
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
    """Return the gap's line with an empty line on each side, unless one is there or the entry
    begins here."""
    line = format_gap((day - last).days) if last else None
    if line is None:
        return []
    return [*([""] if before and before[-1].strip() else []), line, ""]


def _annotate_estimates(line: str, today: date) -> str:
    intention = _INTENDED.search(line)
    intended_from = intention.end() if intention else len(line)

    def annotate_estimate(found: re.Match[str]) -> str:
        named = _first_date(found["date"])
        day = _first_day(named) if named else None
        if named is None or day is None:
            return found[0]
        is_past = _last_day(named, day) < today and intended_from <= found.start()
        passed = ", likely already happened" if is_past else ""
        end = found.start("date") + named.end() - found.start()
        return f"{found[0][:end]} - {format_distance(day, today)}{passed}{found[0][end:]}"

    return _ESTIMATE.sub(annotate_estimate, line)


def read_date(text: str) -> date | None:
    """Return the first day of what a text calls a date: `May 22, 2023`, `May 27-28, 2023`, `late
    April 2023`, `April to May 2023`."""
    found = _first_date(text)
    return _first_day(found) if found else None


def _first_date(text: str) -> re.Match[str] | None:
    """Return the date that begins first; of those that begin together, the form that stands
    first."""
    return min(
        (match for form in _IN_TEXT if (match := form.search(text))),
        key=lambda m: m.start(),
        default=None,
    )


def _first_day(found: re.Match[str]) -> date | None:
    """Return the first day of a date or span. None where the numbers are no day of the calendar:
    models write such dates too."""
    groups = found.groupdict()
    part = groups.get("part")
    day = _DAY_OF_PART[part.lower()] if part else int(groups.get("day") or 1)
    month = int(groups["number"]) if "number" in groups else _month_number(groups["month"])
    last_month = _month_number(groups["last_month"]) if groups.get("last_month") else month
    return _make_date(
        int(groups["year"]) - (last_month < month), month, day
    )  # Dec 28 to Jan 3, 2023


def _last_day(found: re.Match[str], first: date) -> date:
    """Return the last day of a span; of anything else its first."""
    groups = found.groupdict()
    if not groups.get("last"):
        return first
    month = _month_number(groups["last_month"]) if groups.get("last_month") else first.month
    return _make_date(int(groups["year"]), month, int(groups["last"])) or first


def _make_date(year: int, month: int, day: int) -> date | None:
    try:
        return date(year, month, day)
    except ValueError:
        return None


def _month_number(name: str) -> int:
    return next(
        i for i, month in enumerate(MONTH_NAMES, 1) if month[:3].lower() == name[:3].casefold()
    )
