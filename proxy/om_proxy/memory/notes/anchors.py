"""Check the dates that a memory model worked out for relative times.

In `last week (meaning Apr 3-9, 2023)` the bracket is an *anchor*. Models count days badly, and a
false date looks as certain as a true one. Under a `Date:` heading the common phrases are a matter of
the calendar, so an anchor that does not fit its phrase is dropped: the user's words and the heading
stay. A vague phrase ("a while ago") gets no date at all, and neither does one under a heading that
is only a bound (`on or before`).

Phrases of other languages, and anchors that cannot be read as a date, stay as they are. Weeks go
from Monday to Sunday. Where people disagree ("next Friday") every reading counts as true.
"""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import date, timedelta
from functools import partial
from typing import NamedTuple

from om_proxy.memory import dates

_COUNT_WORDS = "one two three four five six seven eight nine ten eleven twelve".split()  # noqa: SIM905 — words are what notes hold
_COUNTS = {"a": 1, "an": 1, **{word: count for count, word in enumerate(_COUNT_WORDS, 1)}}
_COUNT = rf"(?P<count>\d{{1,3}}|{'|'.join(_COUNTS)})"
_LAST_SIDES = ("last", "past", "this past")
_NEXT_SIDES = ("next", "coming", "this coming")
_SIDE = rf"(?P<side>{'|'.join((*_LAST_SIDES, *_NEXT_SIDES, 'this'))})"
_WEEKDAY = "|".join(dates.WEEKDAY_NAMES)
_DAYS = {
    "day before yesterday": -2,
    "yesterday": -1,
    "today": 0,
    "tonight": 0,
    "this morning": 0,
    "this afternoon": 0,
    "this evening": 0,
    "tomorrow": 1,
    "day after tomorrow": 2,
}
_PHRASE = re.compile(
    rf"\b(?:(?P<vague>just|lately|recently|soon|(?:a|some|quite a|a little) while (?:ago|back)|some time ago"
    rf"|(?:a few|a couple(?: of)?|several|some|many) (?:days|weeks|months|years) (?:ago|back)"
    rf"|(?:days|weeks|months|years|long) ago|the other day|these days)"
    rf"|(?P<day>{'|'.join(_DAYS)}|last night)(?: (?:morning|afternoon|evening|night|noon))?"
    rf"|{_COUNT} (?P<unit>day|week)s? (?P<past>ago)|in {_COUNT.replace('count', 'ahead')} (?P<ahead_unit>day|week)s?"
    rf"|(?:{_SIDE} )?(?P<weekday>{_WEEKDAY})(?: (?:morning|afternoon|evening|night|noon))?"
    rf"|{_SIDE.replace('side', 'period_side')} (?P<period>weekend|week|month|year))"
    r"(?:['’]s)?[\"”'’*_,]{0,3} ?(?P<anchor>\((?:meaning|estimated) (?P<date>[^()\n]+)\))",
    re.IGNORECASE,
)
_WHOLE_PERIOD = re.compile(r"(?:(?P<month>[A-Za-z]{3})[a-z]*\.?,? )?(?P<year>\d{4})")


class Window(NamedTuple):
    """The days in which an anchor must lie, both included."""

    first: date
    last: date
    weekday: int | None = None  # the first day's; None: any


def drop_false_anchors(text: str) -> str:
    """Return the notes without anchors that do not fit their phrase, and with plain headings."""
    lines: list[str] = []
    day: date | None = None
    is_bound = False
    for line in map(_drop_weeks, text.split("\n")):
        if heading := dates.read_heading(line):
            day, is_bound = heading, False
        elif dates.read_bound(line):
            day, is_bound = None, True
        check_anchor = partial(_check_anchor, day=day, is_bound=is_bound)
        lines.append(_PHRASE.sub(check_anchor, line) if "(" in line else line)
    return "\n".join(lines)


def _drop_weeks(line: str) -> str:
    """Return a heading without the weeks that a model copied from the transcript's heading."""
    heading, _, weeks = line.partition(" (")
    return heading if " week " in weeks and dates.read_heading(heading) else line


def _check_anchor(match: re.Match[str], day: date | None, is_bound: bool) -> str:
    """Return the phrase with its anchor, or without."""
    if match["vague"] or is_bound:
        return _drop_anchor(match)
    window = _find_window(match, day) if day else None
    span = dates.read_span(match["date"]) or (match["period"] and _read_period(match["date"]))
    return match[0] if not window or not span or _fits(span, window) else _drop_anchor(match)


def _read_period(text: str) -> tuple[date, date] | None:
    """Return the first and last day of a whole month or year."""
    match = _WHOLE_PERIOD.fullmatch(text)
    if match is None or not int(match["year"]):
        return None
    year = int(match["year"])
    if match["month"] is None:
        return date(year, 1, 1), date(year, 12, 31)
    names = [name[:3].lower() for name in dates.MONTH_NAMES]
    if match["month"].lower() not in names:
        return None
    month = 1 + names.index(match["month"].lower())
    return date(year, month, 1), date(year, month, monthrange(year, month)[1])


def _drop_anchor(match: re.Match[str]) -> str:
    return match[0][: match.start("anchor") - match.start()].rstrip()


def _fits(span: tuple[date, date], window: Window) -> bool:
    first, last = span
    is_inside = window.first <= first and last <= window.last
    return is_inside and window.weekday in (None, first.weekday())


def _find_window(match: re.Match[str], day: date) -> Window | None:
    """Return where the anchor of a phrase said on `day` must lie; None: outside the calendar."""
    try:
        if match["day"]:
            return _window_of_day(match["day"].lower(), day)
        if match["weekday"]:
            return _window_of_weekday((match["side"] or "").lower(), match["weekday"], day)
        if match["period"]:
            return _window_of_period(match["period_side"].lower(), match["period"].lower(), day)
        count = _read_count(match["count"] or match["ahead"])
        unit = (match["unit"] or match["ahead_unit"]).lower()
        return _window_of_count(-count if match["past"] else count, unit, day)
    except OverflowError:
        return None


def _window_of_day(phrase: str, day: date) -> Window:
    if phrase == "last night":
        return Window(day - timedelta(1), day)
    target = day + timedelta(_DAYS[phrase])
    return Window(target, target)


def _window_of_weekday(side: str, name: str, day: date) -> Window:
    number = [known.lower() for known in dates.WEEKDAY_NAMES].index(name.lower())
    first = day + timedelta(1 if side in _NEXT_SIDES else -14)
    last = day + timedelta(-1 if side in _LAST_SIDES else 14)
    return Window(first, last, number)


def _window_of_period(side: str, period: str, day: date) -> Window:
    step = -1 if side in _LAST_SIDES else 1 if side in _NEXT_SIDES else 0
    if period == "year":
        return Window(date(day.year + step, 1, 1), date(day.year + step, 12, 31))
    if period == "month":
        months = day.year * 12 + day.month - 1 + step
        year, month = months // 12, months % 12 + 1
        return Window(date(year, month, 1), date(year, month, monthrange(year, month)[1]))
    monday = day - timedelta(day.weekday())
    if period == "week":
        first = monday + timedelta(7 * step)
        return Window(first, first + timedelta(6))
    if step == 1:  # this week's or the next one's
        return Window(monday + timedelta(4), monday + timedelta(13))
    first = monday + timedelta(4 + 7 * step)
    return Window(first, first + timedelta(2))


def _read_count(text: str) -> int:
    return _COUNTS.get(text.lower()) or int(text)


def _window_of_count(count: int, unit: str, day: date) -> Window:
    """Days are exact; "two weeks ago" may be any day of that week."""
    if unit == "day":
        target = day + timedelta(count)
        return Window(target, target)
    target = day + timedelta(7 * count)
    monday = target - timedelta(target.weekday())
    return Window(
        min(monday, target - timedelta(3)), max(monday + timedelta(6), target + timedelta(3))
    )
