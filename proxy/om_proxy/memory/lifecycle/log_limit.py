"""Keep a log within a number of entries (`retention.max_observations`;
docs/contributing/behaviour.md#limited-log).

Only entries with words count. Beyond the limit, the oldest keep their 🔴 and ✅ lines alone. An
entry without such lines keeps its range, since its messages stay covered: it becomes a *stand-in*,
an entry without words. Many stand-ins side by side become one, which names them as its sources. So
a fork in the middle of it finds the notes in an older generation, as with a reflection.

What a person wrote or withdrew stays as it is, and so do the notes of forks, and the entries that a
pending reflection is about to replace.

The log gets a new generation only where its prefix changes anyway: with new entries, or with a
reflection. A tenth of the limit is freed at once, so that not every activation begins one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count, groupby
from typing import NamedTuple

from msgspec.structs import replace

from om_proxy.memory.lifecycle import log_sharing
from om_proxy.memory.lifecycle.hints import newest_task
from om_proxy.memory.lifecycle.transitions import is_made_from
from om_proxy.memory.model import Memory, Observation, ObservationLog
from om_proxy.memory.notes.log_excerpt import DATE_HEADING
from om_proxy.memory.notes.sections import Section, render_sections, split_entry

FREED_SHARE = 10  # a tenth of the limit
# side by side or not: below it, each keeps its own range
MAX_SEPARATE_STAND_INS = 64


class LogLimit(NamedTuple):
    """How many entries with words a log may have."""

    max_entries: int
    count_tokens: Callable[[str], int]


def count_kept_entries(max_entries: int) -> int:
    """Return how many of the newest entries keep all their lines in a log beyond its limit."""
    return max_entries - max_entries // FREED_SHARE


def count_excess(log: ObservationLog, max_entries: int | None) -> int:
    """Return by how many entries the log is beyond the limit, although the older ones have lost all
    the lines that may go: a reflection must make fewer of them."""
    if max_entries is None or log.count_with_words() <= max_entries:
        return 0
    window = _find_window(log, max_entries)
    emptied = sum(1 for entry in window if not _shorten_text(entry))
    return max(0, log.count_with_words() - emptied - max_entries)


def shorten_log(before: Memory, after: Memory, limit: LogLimit | None, now: float) -> Memory:
    """Return `after` with its log within the limit, as far as lines may go. `after` is `before`
    with new entries or with a reflection; without either, or without a limit, nothing goes."""
    if limit is None or after.log.entries == before.log.entries:
        return after
    if after.log.count_with_words() <= limit.max_entries:
        return after
    first_id = log_sharing.next_entry_id(after)
    ids = count(first_id)
    entries = _shorten_entries(after.log, limit, ids)
    # an older generation holds those that have lost their lines just now
    stored_ids = [entry.id for entry in after.log.entries]
    entries = _merge_stand_ins(entries, stored_ids, ids)
    if entries == after.log.entries:
        return after
    log = after.log
    if log.generation == before.log.generation:
        log = log.begin_generation(entries, "limit", now)
    else:  # the reflection has begun one, which is not stored yet
        log = replace(log, entries=entries)
    if log.reflection and not is_made_from(log, log.reflection):
        log = replace(log, reflection=None)
    return replace(log_sharing.reserve_entry_ids(after, next(ids) - first_id), log=log)


def count_shortened(unlimited: Memory, limited: Memory) -> int:
    """Return how many entries of the one have lost lines in the other, from `shorten_log`."""
    kept = {entry.id for entry in limited.log.entries}
    return sum(1 for entry in unlimited.log.entries if entry.text and entry.id not in kept)


def describe_origin(entry: Observation) -> Observation:
    """Return what an entry and its shortened versions have in common, and no other entry."""
    return replace(entry, id=0, text="", tokens=0)


def _find_window(log: ObservationLog, max_entries: int) -> list[Observation]:
    """Return the oldest entries with words, of which lines may go."""
    with_words = [entry for entry in log.entries if entry.text]
    pending = set(log.reflection.sources) if log.reflection else set()
    return [
        entry
        for entry in with_words[: -count_kept_entries(max_entries)]
        if entry.replaces is None and not entry.is_rollback_note and entry.id not in pending
    ]


def _shorten_entries(
    log: ObservationLog, limit: LogLimit, ids: Iterator[int]
) -> tuple[Observation, ...]:
    window = {entry.id for entry in _find_window(log, limit.max_entries)}

    def shorten(entry: Observation) -> Observation:
        text = _shorten_text(entry)
        if text == entry.text:
            return entry
        tokens = limit.count_tokens(text) if text else 0
        return replace(entry, id=next(ids), text=text, tokens=min(tokens, entry.tokens))

    return tuple(shorten(entry) if entry.id in window else entry for entry in log.entries)


def _shorten_text(entry: Observation) -> str:
    if entry.kind != "reflection" or not entry.parts:
        return keep_important_lines(entry.text)
    sections = split_entry(entry)
    kept = [Section(label, keep_important_lines(text)) for label, text in sections]
    if kept == sections:
        return entry.text
    return render_sections(section for section in kept if section.text)


def _is_stand_in(entry: Observation) -> bool:
    return entry.is_withdrawn and entry.replaces is None


def _merge_stand_ins(
    entries: tuple[Observation, ...], stored_ids: Sequence[int], ids: Iterator[int]
) -> tuple[Observation, ...]:
    """Make one of each run of stand-ins, if there are many. `stored_ids`: of the entries as they
    were before."""
    if sum(map(_is_stand_in, entries)) <= MAX_SEPARATE_STAND_INS:
        return entries
    merged: list[Observation] = []
    start = 0
    for is_stand_in, group in groupby(entries, _is_stand_in):
        run = tuple(group)
        sources = tuple(stored_ids[start : start + len(run)])
        start += len(run)
        merged += [_merge(run, sources, next(ids))] if is_stand_in and len(run) > 1 else run
    return tuple(merged)


def _merge(run: Sequence[Observation], sources: tuple[int, ...], id_: int) -> Observation:
    return replace(
        run[-1],
        id=id_,
        after=run[0].after,
        source_tokens=sum(entry.source_tokens for entry in run),
        at=next((entry.at for entry in reversed(run) if entry.task is not None), run[-1].at),
        task=newest_task(run),
        kind="reflection",
        parts=log_sharing.merge_parts(run),
        sources=sources,
        depth=max(entry.depth for entry in run),
    )


# Keep the lines of notes that a later reader cannot do without: those marked 🔴 or ✅.
#
# A line belongs to the line above it that is further left, and a line without a mark is as
# important as the line that it belongs to. What 🔴 and ✅ lines belong to is kept with them: their
# `Date:` heading, and the line that they are a sub-line of.


KEPT_MARKS = "🔴✅"

_BULLET = r"(?:[*+•‣◦–—-]|\d{1,3}[.)])"
_NOTE_LINE_PATTERN = re.compile(
    rf"(?P<indent>[ \t]*)(?P<bullet>{_BULLET}[ \t]*)?(?P<mark>[🔴🟡🟢✅])?"
)
_HEADING = re.compile(r"\s*(?:#|\*\*|<)|.*:\s*$")
_DATE_LEVEL, _HEADING_LEVEL = -2, -1  # further left than any line
TAB_COLUMNS = 4


class _Line(NamedTuple):
    """A line of notes. `level`: how far right it is; `mark`: its own, if any."""

    level: int
    mark: str | None


def keep_important_lines(text: str) -> str:
    """Return the notes without 🟢 and 🟡 lines and their sub-lines, and without lines that nothing
    says the importance of. Return the very text if nothing of it goes."""
    texts = text.split("\n")
    kept = _find_kept([_read_line(line) for line in texts], texts)
    if len(kept) == sum(1 for line in texts if line.strip()):
        return text
    return "\n".join(texts[index] for index in sorted(kept))


def _find_kept(lines: list[_Line], texts: list[str]) -> set[int]:
    kept: set[int] = set()
    above: list[tuple[int, int, bool]] = []  # level, index, and whether it is important
    can_continue = False  # whether a line without a bullet goes on with the line before it
    for index, (line, text) in enumerate(zip(lines, texts, strict=True)):
        if not text.strip():
            can_continue = False
            continue
        level = line.level
        if level == _HEADING_LEVEL and can_continue and not _HEADING.match(text):
            level = above[-1][0] + 1
        while above and above[-1][0] >= level:
            above.pop()
        is_important = line.mark in KEPT_MARKS if line.mark else bool(above) and above[-1][2]
        # an emoji inside a line without a mark: rather too much than too little
        is_important |= line.mark is None and any(mark in text for mark in KEPT_MARKS)
        above.append((level, index, is_important))
        can_continue = level >= 0
        if is_important:
            kept.update(parent for _, parent, _ in above)
    return kept


def _read_line(text: str) -> _Line:
    if DATE_HEADING.match(text):
        return _Line(_DATE_LEVEL, None)
    found = _NOTE_LINE_PATTERN.match(text)
    assert found is not None  # every part may be missing
    level = len(found["indent"].expandtabs(TAB_COLUMNS))
    if not (level or found["bullet"] or found["mark"]):
        level = _HEADING_LEVEL
    return _Line(level, found["mark"])
