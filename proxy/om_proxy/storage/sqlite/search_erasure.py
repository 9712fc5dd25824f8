"""Get words of deleted passages out of the index of an SQLite file.

FTS5 writes a deletion as one more posting: the words stay readable in older segments until all are
merged into one (measured). That takes 0.2 s for 60 000 passages, so it is done only where passages
were deleted, and in rounds of steps: the first step of a round puts all segments together, and each
one merges MERGE_PAGES pages. Segments that come during a round are left to the next one. To put all
together again at each step, as long as passages come, would never end.

FTS5 merges newer segments first where these are more, and none of them that are too few. So what
says that a round has ended is the record of its levels. It merges segments of one level into a
segment of the next one, so the last level has the oldest segment, and takes no level out again.
Each merging of all segments adds two, and with more than 2 000 FTS5 finds its own record malformed
(measured with SQLite 3.40, after 1 001 mergings). A deleted word leaves only where it is merged
into the last level, also if those behind are empty. So empty levels are taken out here.

FTS5 has no words for this: the record is the one that `fts5_index.c` describes as the structure
record. A record of another format is left alone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from enum import Enum
from itertools import islice
from typing import NamedTuple

SELECT_RECORD = "SELECT block FROM passage_words_data WHERE id = 10"
WRITE_RECORD = "UPDATE passage_words_data SET block = ? WHERE id = 10"
COOKIE_BYTES = 4
# behind the cookie of a record whose segments have more numbers: of tables with contentless_delete
OTHER_FORMAT_MARK = b"\xff\x00\x00\x01"
NUMBERS_A_SEGMENT = 3


class Level(NamedTuple):
    merging: int  # of its segments, the oldest ones: so many are being merged
    segments: tuple[tuple[int, ...], ...]


class WordLevels(NamedTuple):
    """The levels, the one of the newest segments first."""

    cookie: bytes
    write_count: int
    levels: tuple[Level, ...]

    @property
    def is_merged(self) -> bool:
        """Whether the oldest segment is whole: what it was merged from is gone."""
        *newer, oldest = [level for level in self.levels if level.segments] or [Level(0, ())]
        return (
            len(oldest.segments) <= 1 and not oldest.merging and not (newer and newer[-1].merging)
        )


def decode_levels(record: bytes) -> WordLevels | None:
    """Return the levels; None: the record has another format."""
    cookie, body = record[:COOKIE_BYTES], record[COOKIE_BYTES:]
    if body.startswith(OTHER_FORMAT_MARK):
        return None
    numbers = _decode_numbers(body)
    try:
        level_count, segment_count, write_count = islice(numbers, 3)
        levels = tuple(_decode_level(numbers) for _ in range(level_count))
    except ValueError:
        return None
    decoded = WordLevels(cookie, write_count, levels)
    is_known = sum(len(level.segments) for level in levels) == segment_count
    return decoded if is_known and encode_levels(decoded) == record else None


def encode_levels(levels: WordLevels) -> bytes:
    numbers = [
        len(levels.levels),
        sum(len(level.segments) for level in levels.levels),
        levels.write_count,
    ]
    for level in levels.levels:
        numbers += [level.merging, len(level.segments)]
        numbers += [number for segment in level.segments for number in segment]
    return levels.cookie + b"".join(map(_encode_number, numbers))


def read_levels(db: sqlite3.Connection) -> WordLevels | None:
    """Return the levels; None: their record has another format."""
    (record,) = db.execute(SELECT_RECORD).fetchone()
    return decode_levels(record)


def drop_empty_levels(db: sqlite3.Connection) -> None:
    """Take out levels without a segment, inside a transaction. A connection that has written words
    goes by the record as it knows it, until it has merged."""
    levels = read_levels(db)
    if levels is None or all(level.segments for level in levels.levels):
        return
    kept = tuple(level for level in levels.levels if level.segments)
    db.execute(WRITE_RECORD, (encode_levels(levels._replace(levels=kept)),))


def _decode_level(numbers: Iterator[int]) -> Level:
    merging, segment_count = islice(numbers, 2)
    flat = tuple(islice(numbers, segment_count * NUMBERS_A_SEGMENT))
    if len(flat) < segment_count * NUMBERS_A_SEGMENT:
        raise ValueError("the record ends early")
    return Level(merging, tuple(zip(*[iter(flat)] * NUMBERS_A_SEGMENT, strict=True)))


def _decode_numbers(body: bytes) -> Iterator[int]:
    """Yield SQLite's variable-length integers of at most 8 bytes: of each the low 7 bits, the
    highest first."""
    number = 0
    for byte in body:
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            yield number
            number = 0


def _encode_number(number: int) -> bytes:
    encoded = [number & 0x7F]
    while number := number >> 7:
        encoded.append(number & 0x7F | 0x80)
    return bytes(reversed(encoded))


# written in one step, of 4 KB: some 5 ms with the sync
MERGE_PAGES = 64
SELECT_STATE = "SELECT asked, merging FROM search_erasure"
# https://sqlite.org/fts5.html#the_merge_command: a negative number puts all segments on one level
# first, as `optimize` does
MERGE_FIRST = f"INSERT INTO passage_words (passage_words, rank) VALUES ('merge', {-MERGE_PAGES})"
MERGE_MORE = f"INSERT INTO passage_words (passage_words, rank) VALUES ('merge', {MERGE_PAGES})"
# merges nothing, but FTS5 forgets what it knows of the record of its levels
READ_LEVELS_ANEW = "INSERT INTO passage_words (passage_words, rank) VALUES ('merge', 0)"
# as the same page says: with fewer there was nothing left to merge
MIN_MERGE_CHANGES = 2
# segments of one level that a step merges at least: else it merges none while some newer ones stand
# beside fewer older ones
MIN_MERGE_SEGMENTS = 2
HAS_MIN_SEGMENTS = f"""SELECT 1 FROM passage_words_config
    WHERE k = 'usermerge' AND v = {MIN_MERGE_SEGMENTS}"""
SET_MIN_SEGMENTS = f"""INSERT INTO passage_words (passage_words, rank)
    VALUES ('usermerge', {MIN_MERGE_SEGMENTS})"""
NOTE_BEGUN = "UPDATE search_erasure SET asked = 0, merging = 1"
NOTE_MERGED = "UPDATE search_erasure SET merging = 0"


class MergeStep(Enum):
    NONE = "none"  # no deleted word is in the index
    FIRST = "first"  # of a round
    MORE = "more"
    LAST = "last"  # no word is left that was deleted before the first one


def merge_words(db: sqlite3.Connection) -> MergeStep:
    """Take one step. The connection is in autocommit mode: the deletions of an open transaction are
    in no segment yet."""
    if not any(db.execute(SELECT_STATE).fetchone()):
        return MergeStep.NONE
    db.execute("BEGIN IMMEDIATE")
    try:
        step = _take_step(db)
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
    return step


def _take_step(db: sqlite3.Connection) -> MergeStep:
    asked, merging = db.execute(SELECT_STATE).fetchone()
    if not (asked or merging):  # another process was first
        return MergeStep.NONE
    if not merging:
        _begin_round(db)
        return MergeStep.FIRST
    has_merged = _merge(db, MERGE_MORE)
    drop_empty_levels(db)
    levels = read_levels(db)
    if not (levels.is_merged if levels else not has_merged):
        if has_merged:
            return MergeStep.MORE
        if _begin_round(db):
            return MergeStep.FIRST
    db.execute(NOTE_MERGED)
    return MergeStep.LAST


def _begin_round(db: sqlite3.Connection) -> bool:
    """Put all segments together, and merge the first of them. Return False if there is nothing to
    merge."""
    if db.execute(HAS_MIN_SEGMENTS).fetchone() is None:
        db.execute(SET_MIN_SEGMENTS)
    db.execute(READ_LEVELS_ANEW)
    drop_empty_levels(db)
    has_merged = _merge(db, MERGE_FIRST)
    db.execute(NOTE_BEGUN)
    return has_merged


def _merge(db: sqlite3.Connection, command: str) -> bool:
    changes_before = db.total_changes
    db.execute(command)
    return db.total_changes - changes_before >= MIN_MERGE_CHANGES
