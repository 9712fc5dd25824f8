"""Get words of deleted passages out of the index of an SQLite file.

FTS5 writes a deletion as one more posting: the words stay readable in older segments until all are
merged into one (measured). That takes 0.2 s for 60 000 passages, so it is done only where passages
were deleted, and in rounds of steps: the first step of a round puts all segments together, and each
one merges MERGE_PAGES pages. Segments that come during a round are left to the next one. To put all
together again at each step, as long as passages come, would never end.

FTS5 merges newer segments first where these are more, and none of them that are too few. So what
says that a round has ended is the record of its levels (word_levels.py), which also lose empty ones
here.
"""

from __future__ import annotations

import sqlite3
from enum import Enum

from om_proxy.storage.sqlite import word_levels

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
    word_levels.drop_empty_levels(db)
    levels = word_levels.read_levels(db)
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
    word_levels.drop_empty_levels(db)
    has_merged = _merge(db, MERGE_FIRST)
    db.execute(NOTE_BEGUN)
    return has_merged


def _merge(db: sqlite3.Connection, command: str) -> bool:
    changes_before = db.total_changes
    db.execute(command)
    return db.total_changes - changes_before >= MIN_MERGE_CHANGES
