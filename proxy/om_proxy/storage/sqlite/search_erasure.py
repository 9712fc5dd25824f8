"""Get words of deleted passages out of the index of an SQLite file.

FTS5 writes a deletion as one more posting: the words stay readable in older segments until all are
merged into one (measured). That takes 0.2 s for 60 000 passages, so it is done only where passages
were deleted, and in steps of MERGE_PAGES pages.
"""

from __future__ import annotations

import sqlite3

# written in one step, of 4 KB: some 5 ms with the sync
MERGE_PAGES = 64
IS_ERASED = "SELECT asked = 0 FROM search_erasure"
# A negative number: FTS5 puts all segments on one level and merges them into one, a part at each
# call. A segment that comes meanwhile begins that anew, with what is merged already as one of them.
MERGE_SOME = f"INSERT INTO passage_words (passage_words, rank) VALUES ('merge', {-MERGE_PAGES})"
# https://sqlite.org/fts5.html#the_merge_command: with fewer there was nothing left to merge
MIN_MERGE_CHANGES = 2
NOTE_ERASED = "UPDATE search_erasure SET asked = 0"


def merge_words(db: sqlite3.Connection) -> bool:
    """Merge some pages of the segments if passages were deleted since all were one. Return whether
    no deleted word is left. The connection is in autocommit mode: the deletions of an open
    transaction are in no segment yet."""
    if db.execute(IS_ERASED).fetchone()[0]:
        return True
    db.execute("BEGIN IMMEDIATE")
    try:
        changes_before = db.total_changes
        db.execute(MERGE_SOME)
        is_merged = db.total_changes - changes_before < MIN_MERGE_CHANGES
        if is_merged:
            db.execute(NOTE_ERASED)
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
    return is_merged
