"""Say how long ago: what the dates in observations are, seen from the render date.

Annotations are added when the log is rendered and never stored. Three places get one:

- a `Date:` heading, at its end: `Date: May 15, 2023 (2 weeks ago)`
- the way from one heading to the next, when it is longer than a day: a line `[3 days later]`
- an estimate in the text, behind the first date in its brackets: `(meaning May 22, 2023 - 1 week ago, likely already happened)`;
  the last words only where the line spoke of an intention and the whole span is past.

A heading may also be a bound, of messages that came together and told no times: `Date: on or before May 15, 2023, times not known`
becomes `… (2 weeks ago or earlier)`, and no gap is told before or behind it.

What cannot be read as a date stays as it is. Everything counts in calendar days.
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

_NAMES = "|".join(f"{name[:3]}(?:{name[3:]})?" if name[3:] else name for name in [*MONTH_NAMES, "Sept"])
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
_SPAN = re.compile(rf"\b(?:{_NAMES})\.?\s+to\s+(?:(?P<part>early)\s+)?{_MONTH}{_YEAR}", re.IGNORECASE)
_IN_TEXT = (_MONTH_DAY, _DAYS, _ACROSS, _DAYS_MONTH, _DAY_MONTH, _PART, _SPAN, _ISO)
_IN_HEADING = (_MONTH_DAY, _DAY_MONTH, _ISO)
_DAY_OF_PART = {"early": 7, "mid": 15, "late": 23}

_HEADING = re.compile(r"\s*+(?:#+\s*+)?(?:\*\*)?date:(?:\*\*)?(?P<date>.{4,60}?)(?:\*\*)?\s*", re.IGNORECASE)
_WEEKDAY = r"(?:mon|tues?|wed(?:nes)?|thu(?:rs?)?|fri|sat(?:ur)?|sun)(?:day)?\.?"
_BESIDE_DATE = re.compile(rf"[\s,()]*+(?:{_WEEKDAY})?[\s,()]*+", re.IGNORECASE)
_BOUND = re.compile(r"\s*+on or before\s+(?P<date>.{4,40}?)(?:,?\s+times not known)?\s*+", re.IGNORECASE)
_ESTIMATE = re.compile(r"\((?P<kind>estimated|meaning)\s++(?P<date>[^()\n]++)\)", re.IGNORECASE)
_INTENDED = re.compile(  # `will` in small letters only: Will is a name
    r"\bwill\b|[’']ll\b|\b(?i:plans?\s+to|planning\s+to|looking\s+forward\s+to|going\s+to|intends?\s+to|wants?\s+to"
    r"|needs?\s+to|about\s+to)\b"
)


def zone(kept: str | None, configured: str) -> ZoneInfo:
    """The time zone a thread keeps, if it keeps one that is known here: a store may come from a machine with other tables."""
    try:
        return ZoneInfo(kept or configured)
    except (OSError, ValueError, KeyError):
        return ZoneInfo(configured)


def annotate(text: str, today: date) -> str:
    """The text with its dates related to `today`, the render date."""
    return next(annotated([text], today))


def annotated(entries: Sequence[str], today: date) -> Iterator[str]:
    """The same for the entries of a log in order: a gap may lie between the last heading of one and the first of the next.

    What an entry becomes depends on it and those before it, so a growing log keeps its beginning.
    """
    today = date(today.year, today.month, today.day)  # a datetime is a date, too, but cannot be compared with one
    last: date | None = None
    for entry in entries:
        lines: list[str] = []
        for line in entry.split("\n"):
            if day := heading(line):
                lines += _gap_lines(last, day, lines)
                lines.append(f"{line.rstrip()} ({relative(day, today)})")
                last = day
            elif day := bound(line):
                lines.append(f"{line.rstrip()} ({relative(day, today)} or earlier)")
                last = None
            else:
                lines.append(_with_estimates(line, today))
        yield "\n".join(lines)


def without_repeated_headings(entries: Sequence[str], labels: Sequence[str | None]) -> Iterator[str]:
    """The entries without a heading that says what the heading before it says, of an earlier entry too: chunks of one day each begin
    with it. `labels`: the thread each entry is of; where it changes, nothing stands above.

    What an entry becomes depends on it and those before it, so a growing log keeps its beginning.
    """
    last: tuple[date | None, date | None] = (None, None)
    about: str | None = None
    for entry, label in zip(entries, labels, strict=True):
        if label != about:
            last, about = (None, None), label
        lines: list[str] = []
        for line in entry.split("\n"):
            told = heading(line), bound(line)
            if any(told) and told == last:
                continue
            last = told if any(told) else last
            lines.append(line)
        yield "\n".join(lines)


def heading(line: str) -> date | None:
    """The day of a `Date:` heading: the line holds the date, a weekday perhaps, and nothing else."""
    found = _HEADING.fullmatch(line)
    return _alone(found["date"]) if found else None


def bound(line: str) -> date | None:
    """The day of a heading that says no more than that something was said on it or before."""
    found = _HEADING.fullmatch(line)
    bounded = _BOUND.fullmatch(found["date"]) if found else None
    return _alone(bounded["date"]) if bounded else None


def _alone(text: str) -> date | None:
    """The date a text holds, if beside it there is at most a weekday."""
    for form in _IN_HEADING:
        if found := form.search(text):
            around = f"{text[: found.start()]} {text[found.end() :]}"
            return _day(found) if _BESIDE_DATE.fullmatch(around) else None
    return None


def relative(day: date, today: date) -> str:
    """`2 weeks ago`, `yesterday`, `today`, `tomorrow`, `in 3 months`."""
    days = (today - day).days
    if days in (-1, 0, 1):
        return ("today", "yesterday", "tomorrow")[days]
    return f"{_length(days)} ago" if days > 0 else f"in {_length(-days)}"


def gap(days: int) -> str | None:
    """The line for so many days between two headings; None up to one day. Never years: what counts is that time passed."""
    return f"[{_length(days, years=False)} later]" if days > 1 else None


def _length(days: int, years: bool = True) -> str:
    """Two days or more, in the largest unit that fits: weeks from 7, months of 30 days from 30, years of 365."""
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
    """The gap's line with an empty one on each side, unless there is one or the entry begins here."""
    line = gap((day - last).days) if last else None
    if line is None:
        return []
    return [*([""] if before and before[-1].strip() else []), line, ""]


def _with_estimates(line: str, today: date) -> str:
    intention = _INTENDED.search(line)
    intended_from = intention.end() if intention else len(line)

    def told(found: re.Match[str]) -> str:
        named = _first_date(found["date"])
        day = _day(named) if named else None
        if named is None or day is None:
            return found[0]
        is_past = _last_day(named, day) < today and intended_from <= found.start()
        passed = ", likely already happened" if is_past else ""
        end = found.start("date") + named.end() - found.start()
        return f"{found[0][:end]} - {relative(day, today)}{passed}{found[0][end:]}"

    return _ESTIMATE.sub(told, line)


def written(text: str) -> date | None:
    """The first day of what a text calls a date: `May 22, 2023`, `May 27-28, 2023`, `late April 2023`, `April to May 2023`."""
    found = _first_date(text)
    return _day(found) if found else None


def _first_date(text: str) -> re.Match[str] | None:
    """The date that begins first; of those that begin together, the form that stands first."""
    return min((match for form in _IN_TEXT if (match := form.search(text))), key=lambda m: m.start(), default=None)


def _day(found: re.Match[str]) -> date | None:
    """None where the numbers are no day of the calendar: models write such dates, too."""
    groups = found.groupdict()
    part = groups.get("part")
    day = _DAY_OF_PART[part.lower()] if part else int(groups.get("day") or 1)
    month = int(groups["number"]) if "number" in groups else _month(groups["month"])
    last_month = _month(groups["last_month"]) if groups.get("last_month") else month
    return _of_calendar(int(groups["year"]) - (last_month < month), month, day)  # Dec 28 to Jan 3, 2023


def _last_day(found: re.Match[str], first: date) -> date:
    """The last day of a span; of anything else its first."""
    groups = found.groupdict()
    if not groups.get("last"):
        return first
    month = _month(groups["last_month"]) if groups.get("last_month") else first.month
    return _of_calendar(int(groups["year"]), month, int(groups["last"])) or first


def _of_calendar(year: int, month: int, day: int) -> date | None:
    try:
        return date(year, month, day)
    except ValueError:
        return None


def _month(name: str) -> int:
    return next(i for i, month in enumerate(MONTH_NAMES, 1) if month[:3].lower() == name[:3].casefold())
