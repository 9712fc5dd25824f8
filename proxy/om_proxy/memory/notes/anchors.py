"""Check the dates that a memory model worked out for relative times.

In `last week (meaning Apr 3-9, 2023)` the bracket is an *anchor*, and so it is in `for 3 years
(since estimated 2020)`. Models count days badly, and a false date looks as certain as a true one.
Under a `Date:` heading the common phrases are a matter of the calendar, so an anchor that does not
fit its phrase is dropped: the user's words and the heading stay. A vague phrase ("a while ago",
"in a few days") gets no date at all, and neither does one under a heading that is only a bound
(`on or before`). A date in brackets without a word (`yesterday (Apr 2, 2023)`) is checked too, but
after a vague phrase it may be the user's own: it stays.

Phrases of other languages, and anchors that cannot be read as a date, stay as they are. Weeks go
from Monday to Sunday. Where people disagree ("next Friday", said on a Wednesday), or the phrase
has two readings ("over the weekend", "the following Monday"), it gets no date. "Last Friday" may be
either of the two before, and "last summer" any of the last 18 months.
"""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import date, timedelta
from functools import partial
from typing import NamedTuple

from om_proxy.common.late_patterns import compile_late
from om_proxy.memory import dates

_WORDS_FROM_ONE = (  # noqa: SIM905 — words are what notes hold
    "one two three four five six seven eight nine ten eleven twelve "
    "thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
).split()
_WORDS_OF_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()  # noqa: SIM905 — words are what notes hold
_COUNTS = {
    "a": 1,
    "an": 1,
    **{word: count for count, word in enumerate(_WORDS_FROM_ONE, 1)},
    **{word: 10 * count for count, word in enumerate(_WORDS_OF_TENS, 2)},
}
# not the end of "1.5", "2-3" or "two or three"
_COUNT = rf"(?<![.,–-])(?<!\bor )(?<!\bto )(?P<count>\d{{1,3}}|(?:(?:{'|'.join(_WORDS_OF_TENS)})[ -])?(?:{'|'.join(_COUNTS)}))"
_NO_NUMBER_BEFORE = "".join(
    rf"(?<!\b{word} )" for word in [*_COUNTS, "hundred", "thousand", "dozen", "half"]
)
_UNIT = r"(?:hour|day|night|week|fortnight|month|year|decade)"
_LONGER_UNITS = {"fortnight": (2, "week"), "decade": (10, "year")}
_SLACK_DAYS = {"day": 0, "week": 3, "fortnight": 3, "month": 15, "year": 183, "decade": 730}
_LAST_SIDES = ("last", "past", "this past", "previous", "preceding")
SEASON_REACH_DAYS = 548  # 18 months: in October "last summer" may be this year's
HOLIDAY_REACH_DAYS = 366
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
_NO_UNIT_BEFORE = "".join(
    rf"(?<!\b{unit}{plural} )"
    for unit in ("minute", "hour", "day", "night", "week", "month", "year")
    for plural in ("", "s")
)
_FEW = r"(?:a few|few|a couple(?: of)?|couple(?: of)?|several|some|many)"
_VAGUE = (
    r"just|lately|recent|recently|soon|previously|someday|some day|one day|once|at some point"
    r"|sometime(?: soon)?|eventually|nowadays|in the (?:distant |near )?(?:past|future)"
    rf"|{_NO_UNIT_BEFORE}(?:earlier|later)(?: on)?|(?:last|next) time"
    r"|(?:a|some|quite a|a little|a good) while (?:ago|back)|some time (?:ago|back)"
    r"|(?:a |not so |not |very )?long (?:time )?(?:ago|back)|ages ago"
    rf"|{_FEW} {_UNIT}s (?:ago|back|from now)|in {_FEW} {_UNIT}s(?:['’] time)?"
    rf"|(?:past|last|next|coming|recent) (?:{_FEW} )?{_UNIT}s"
    rf"|{_NO_NUMBER_BEFORE}(?<!\d )(?:{_UNIT}s|long) ago"
    rf"|the other {_UNIT}|these days"
    r"|for (?:a |some |quite a |a very )?(?:long |short |little |good )?(?:while|time)(?: now)?"
    rf"|for (?:ages|{_UNIT}s|{_FEW} {_UNIT}s)(?: now)?"
    # of two readings
    rf"|(?:over|on|at|during) the weekend|following (?:{_WEEKDAY}|weekend|{_UNIT})"
    rf"|{_UNIT}s? (?:from|after|before|on) (?:{_SIDE.replace('side', 'vague_side')} )?(?:{_WEEKDAY}|tomorrow|yesterday)"
)
_SEASON = r"spring|summer|autumn|fall|winter"
_HOLIDAY = r"christmas|easter|thanksgiving|halloween|new year['’]s(?: eve| day)?"
_PHRASE = compile_late(
    rf"\b(?:(?P<day>{'|'.join(_DAYS)}|last night)(?: (?:morning|afternoon|evening|night|noon))?"
    rf"|(?P<vague>{_VAGUE})"
    rf"|{_COUNT} (?P<unit>{_UNIT})s? (?:ago|back)"
    r"|(?P<half>half) a year (?:ago|back)"
    rf"|{_COUNT.replace('count', 'halves')} (?:years? and a half|and a half years) (?:ago|back)"
    rf"|for {_COUNT.replace('count', 'length')} (?P<length_unit>{_UNIT})s?(?: now)?(?= [(\[]since )"
    rf"|in {_COUNT.replace('count', 'ahead')} (?P<ahead_unit>{_UNIT})s?(?:['’]?s? time)?"
    rf"|{_COUNT.replace('count', 'later')} (?P<later_unit>{_UNIT})s? from (?:now|today)"
    rf"|(?P<range_side>past|last|next|coming) {_COUNT.replace('count', 'range')} (?P<range_unit>{_UNIT})s?"
    r"|(?P<before>weekend|week|month|year|night) before last"
    rf"|{_SIDE.replace('side', 'season_side')} (?:(?P<season>{_SEASON})|(?P<holiday>{_HOLIDAY}))"
    rf"|(?:{_SIDE} )?(?P<weekday>{_WEEKDAY})(?: (?:morning|afternoon|evening|night|noon))?"
    rf"|{_SIDE.replace('side', 'period_side')} (?P<period>weekend|week|month|year))"
    r"(?:['’]s)?[\"”'’*_,]{0,3} ?(?P<anchor>[(\[](?P<word>(?:(?:since|meaning|estimated|i\.e\.,?|=) )*)(?P<date>[^()\[\]\n]+)[)\]])",
    re.IGNORECASE,
)
# those whose anchor may be a whole month or year
_LONG_GROUPS = ("half", "halves", "season", "holiday")
_UNIT_GROUPS = ("period", "before", "unit", "length_unit", "ahead_unit", "later_unit", "range_unit")
_WHOLE_PERIOD = compile_late(r"(?:(?P<month>[A-Za-z]{3})[a-z]*\.?,? )?(?P<year>\d{4})")


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
        lines.append(_PHRASE.sub(check_anchor, line) if "(" in line or "[" in line else line)
    return "\n".join(lines)


def _drop_weeks(line: str) -> str:
    """Return a heading without the weeks that a model copied from the transcript's heading."""
    heading, _, weeks = line.partition(" (")
    return heading if " week " in weeks and dates.read_heading(heading) else line


def _check_anchor(match: re.Match[str], day: date | None, is_bound: bool) -> str:
    """Return the phrase with its anchor, or without."""
    if match["vague"] or is_bound:
        return _drop_anchor(match) if match["word"] else match[0]
    window = _find_window(match, day) if day else None
    unit = next(filter(None, map(match.group, _UNIT_GROUPS)), "").lower()
    span = dates.read_span(match["date"])
    if span is None and (
        unit in ("month", "year", "decade") or any(map(match.group, _LONG_GROUPS))
    ):
        span = _read_period(match["date"])
    return match[0] if not window or not span or _fits(span, window) else _drop_anchor(match)


def _read_period(text: str) -> tuple[date, date] | None:
    """Return the first and last day of a whole month or year."""
    match = _WHOLE_PERIOD.fullmatch(text)
    if match is None or not int(match["year"]):
        return None
    year = int(match["year"])
    if match["month"] is None:
        return _find_period("year", date(year, 1, 1))[:2]
    names = [name[:3].lower() for name in dates.MONTH_NAMES]
    if match["month"].lower() not in names:
        return None
    month = 1 + names.index(match["month"].lower())
    return _find_period("month", date(year, month, 1))[:2]


def _drop_anchor(match: re.Match[str]) -> str:
    return match[0][: match.start("anchor") - match.start()].rstrip()


def _fits(span: tuple[date, date], window: Window) -> bool:
    first, last = span
    is_inside = window.first <= first and last <= window.last
    return is_inside and window.weekday in (None, first.weekday())


def _find_window(match: re.Match[str], day: date) -> Window | None:
    """Return where the anchor of a phrase said on `day` must lie; None: outside the calendar."""
    try:
        return _window_of_name(match, day) or _window_of_number(match, day)
    except (OverflowError, ValueError):
        return None


def _window_of_name(match: re.Match[str], day: date) -> Window | None:
    """Return the window of a phrase without a number; None: it has one."""
    if match["day"]:
        return _window_of_day(match["day"].lower(), day)
    if match["weekday"]:
        return _window_of_weekday((match["side"] or "").lower(), match["weekday"], day)
    if match["period"]:
        return _window_of_period(match["period_side"].lower(), match["period"].lower(), day)
    if match["before"]:
        return _window_before_last(match["before"].lower(), day)
    if match["season_side"]:
        reach = SEASON_REACH_DAYS if match["season"] else HOLIDAY_REACH_DAYS
        return _window_of_days(match["season_side"].lower(), reach, day)
    return None


def _window_of_number(match: re.Match[str], day: date) -> Window:
    if match["half"] or match["halves"]:
        years = 0 if match["half"] else _read_count(match["halves"])
        around = _shift(day, -12 * years - 6, "month")
        return Window(_shift(around, -3, "month"), _shift(around, 3, "month"))
    if match["range"]:
        unit = match["range_unit"].lower()
        return _window_of_range(match["range_side"].lower(), match["range"], unit, day)
    if ahead := match["ahead"] or match["later"]:
        unit = (match["ahead_unit"] or match["later_unit"]).lower()
        return _window_of_count(_read_count(ahead), unit, day)
    count = _read_count(match["count"] or match["length"])
    return _window_of_count(-count, (match["unit"] or match["length_unit"]).lower(), day)


def _window_of_day(phrase: str, day: date) -> Window:
    if phrase == "last night":
        return Window(day - timedelta(1), day)
    target = day + timedelta(_DAYS[phrase])
    return Window(target, target)


def _window_of_weekday(side: str, name: str, day: date) -> Window:
    number = [known.lower() for known in dates.WEEKDAY_NAMES].index(name.lower())
    if side == "next":  # the coming one, if that lies in the next week
        return Window(day + timedelta(7 - day.weekday()), day + timedelta(7), number)
    first = day + timedelta(1 if side in _NEXT_SIDES else -14)
    last = day + timedelta(-1 if side in _LAST_SIDES else 14)
    return Window(first, last, number)


def _window_of_period(side: str, period: str, day: date) -> Window:
    step = -1 if side in _LAST_SIDES else 1 if side in _NEXT_SIDES else 0
    if period != "weekend":
        return _find_period(period, _shift(day, step, period))
    monday = day - timedelta(day.weekday())
    if step == 1:  # a "next" one said before Saturday is this week's or the next week's: no date
        coming = monday + timedelta(4 if day.weekday() < 5 else 11)
        first = monday + timedelta(11) if side == "next" else coming
        return Window(first, coming + timedelta(2))
    first = monday + timedelta(4 + 7 * step)
    return Window(first, first + timedelta(2))


def _read_count(text: str) -> int:
    """Return the number of `3`, `three` or `twenty-three`."""
    words = re.split("[ -]", text.lower())
    return sum(_COUNTS.get(word) or int(word) for word in words)


def _window_of_count(count: int, unit: str, day: date) -> Window:
    """Days are exact; "two weeks ago" may be any day of that week, or half a week beside it."""
    if unit == "hour":
        return Window(day + timedelta(count // 24), day + timedelta((count + 23) // 24))
    if unit == "night":
        return Window(day + timedelta(count), day + timedelta(count + 1))
    factor, short_unit = _LONGER_UNITS.get(unit, (1, unit))
    target = _shift(day, count * factor, short_unit)
    first, last = _find_period(short_unit, target)[:2]
    slack = timedelta(_SLACK_DAYS[unit])
    return Window(min(first, target - slack), max(last, target + slack))


def _window_of_range(side: str, count: str, unit: str, day: date) -> Window:
    """ "The last two weeks" begin two weeks ago and end on the day."""
    if side in _LAST_SIDES:
        return Window(_window_of_count(-_read_count(count), unit, day).first, day)
    return Window(day, _window_of_count(_read_count(count), unit, day).last)


def _window_of_days(side: str, reach: int, day: date) -> Window:
    """Return the days up to `reach` days before or after the day; both with "this"."""
    first = day if side in _NEXT_SIDES else day - timedelta(reach)
    return Window(first, day if side in _LAST_SIDES else day + timedelta(reach))


def _window_before_last(unit: str, day: date) -> Window:
    if unit == "night":
        return _window_of_count(-2, unit, day)
    if unit == "weekend":
        return _window_of_period("last", unit, day - timedelta(7))
    return _find_period(unit, _shift(day, -2, unit))


def _shift(day: date, count: int, unit: str) -> date:
    """Return the day `count` units later; the last of a month that is too short."""
    if unit in ("day", "week"):
        return day + timedelta(count * (7 if unit == "week" else 1))
    months = day.year * 12 + day.month - 1 + count * (12 if unit == "year" else 1)
    year, month = months // 12, months % 12 + 1
    return date(year, month, min(day.day, monthrange(year, month)[1]))


def _find_period(unit: str, day: date) -> Window:
    """Return the day itself, or its week, month or year."""
    if unit == "week":
        monday = day - timedelta(day.weekday())
        return Window(monday, monday + timedelta(6))
    if unit == "month":
        return Window(day.replace(day=1), day.replace(day=monthrange(day.year, day.month)[1]))
    if unit == "year":
        return Window(date(day.year, 1, 1), date(day.year, 12, 31))
    return Window(day, day)
