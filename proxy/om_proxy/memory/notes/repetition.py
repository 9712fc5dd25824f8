"""Tell a repetition loop from an honest log that repeats itself.

A model that loops writes the same stretch again and again without a gap: lines, or phrases within
one line. An honest log may say the same thing many times, but its times, names and counts differ,
and equal text does not follow upon itself for long. So the evidence is a stretch that equals the
text one period before it, for one and a half periods on end and for 600 characters. The period may
have any length. (Notes of polling every ten seconds are equal for a minute.) The only other
evidence is many lines of which nearly all are the same few, in any order, up to the end. Lines are
compared with the day they are under: a habit is noted in the same words every day.

Measured: of 2 000 random logs of polling, retries and test runs none is refused; of the 272 logs
that models wrote for LoCoMo none; of the 59 in tests/agents/corpus/honest.py the two that poll
every five seconds. Loops of 1 to 50 lines are found from the third copy on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_LINE_CHARS = 50_000  # docs/contributing/behaviour.md#answers
MAX_READ_CHARS = 100_000  # from the end: a loop lasts until the model runs out of tokens
SEARCH_WINDOW_CHARS = 48  # shorter than two lines of notes, longer than a stock phrase
MIN_LOOP_CHARS = 600  # a shorter loop is not worth a second call
MIN_LOOP_PERIODS = 1.5  # two and a half copies; notes written twice are no loop
MIN_CERTAIN_LOOP_CHARS = 3_000  # a stretch this long is a loop, whatever its share
MIN_LOOP_SHARE = 0.25  # of the text; below it, a shorter loop leaves enough good text
MIN_LONG_LINE_CHARS = 24  # shorter lines may repeat as they like
MIN_LONG_LINES = 30
# of the long lines: occurred before, among all lines and from the first half to the second
MIN_SAME_LINE_SHARE = 0.8

_DATE_LINE = re.compile(r"[#*\s]*+date:", re.IGNORECASE)


def is_repetition_loop(text: str) -> bool:
    """Return whether the text is, or ends in, a repetition loop."""
    lines = text.split("\n")
    if any(len(line) > MAX_LINE_CHARS for line in lines):
        return True
    end_of_text = text[-MAX_READ_CHARS:]
    looped = _count_looped_chars(end_of_text)
    return (
        looped >= MIN_CERTAIN_LOOP_CHARS
        or (looped and looped >= MIN_LOOP_SHARE * len(end_of_text))
        or _repeats_few_lines(lines)
    )


def _count_looped_chars(text: str) -> int:
    """Count the characters in stretches that repeat the text one period before, in one pass."""
    seen: dict[str, int] = {}
    looped = run = period = 0
    for end in range(SEARCH_WINDOW_CHARS, len(text) + 1):
        window = text[end - SEARCH_WINDOW_CHARS : end]
        if run and text[end - 1] == text[end - 1 - period]:
            run += 1
        else:
            looped += run if _is_long_loop(run, period) else 0
            # A wrong guess (lines that begin alike) is refuted at the first difference, and guessed
            # anew from there.
            before = seen.get(window)
            period, run = (end - before, SEARCH_WINDOW_CHARS) if before is not None else (0, 0)
        seen[window] = end
    return looped + (run if _is_long_loop(run, period) else 0)


def _is_long_loop(run: int, period: int) -> bool:
    return run >= max(MIN_LOOP_CHARS, MIN_LOOP_PERIODS * period)


def _repeats_few_lines(lines: list[str]) -> bool:
    long_lines = list(_long_lines(lines))
    if len(long_lines) < MIN_LONG_LINES or len(set(long_lines)) >= (1 - MIN_SAME_LINE_SHARE) * len(
        long_lines
    ):
        return False
    half = len(long_lines) // 2
    first_half = set(long_lines[:half])  # an honest log goes on: its later lines have other times
    return sum(line in first_half for line in long_lines[half:]) > MIN_SAME_LINE_SHARE * (
        len(long_lines) - half
    )


def _long_lines(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the long lines, each with the date above it."""
    day = ""
    for line in lines:
        stripped = line.strip()
        if _DATE_LINE.match(stripped):
            day = stripped
        elif len(stripped) >= MIN_LONG_LINE_CHARS:
            yield day, stripped
