"""The record of levels that FTS5 keeps of an index of words."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from om_proxy.storage.sqlite.search_erasure import (
    Level,
    WordLevels,
    decode_levels,
    drop_empty_levels,
    encode_levels,
    read_levels,
)

COOKIE = b"\0\0\0\7"
EMPTY = Level(0, ())
ONE_SEGMENT = Level(0, ((1, 1, 300),))
TWO_SEGMENTS = Level(0, ((2, 1, 1), (3, 1, 20_000)))
TWO_MERGING_SEGMENTS = Level(2, TWO_SEGMENTS.segments)
READ_LEVELS_ANEW = "INSERT INTO passage_words (passage_words, rank) VALUES ('merge', 0)"
WRITE_RECORD = "UPDATE passage_words_data SET block = ? WHERE id = 10"


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.execute("CREATE VIRTUAL TABLE passage_words USING fts5(words, content='')")
        for number in range(3):
            db.execute("INSERT INTO passage_words (rowid, words) VALUES (?, 'quorum')", (number,))
        yield db


def test_a_record_of_fts5_is_read_and_written(db: sqlite3.Connection) -> None:
    levels = read_levels(db)
    assert levels is not None
    assert [len(level.segments) for level in levels.levels] == [3]
    assert db.execute("SELECT block FROM passage_words_data WHERE id = 10").fetchone() == (
        encode_levels(levels),
    )


def test_an_index_without_its_empty_levels_finds_the_same(db: sqlite3.Connection) -> None:
    levels = read_levels(db)
    assert levels is not None
    many = levels._replace(levels=(EMPTY, *levels.levels, *[EMPTY] * 3_000))
    db.execute(READ_LEVELS_ANEW)
    db.execute(WRITE_RECORD, (encode_levels(many),))
    with pytest.raises(sqlite3.DatabaseError, match="malformed"):
        db.execute("SELECT rowid FROM passage_words WHERE passage_words MATCH 'quorum'").fetchall()
    drop_empty_levels(db)
    assert read_levels(db) == levels
    found = db.execute("SELECT rowid FROM passage_words WHERE passage_words MATCH 'quorum'")
    assert found.fetchall() == [(0,), (1,), (2,)]
    db.execute("INSERT INTO passage_words (passage_words) VALUES ('integrity-check')")


@pytest.mark.parametrize(
    ("levels", "is_merged"),
    [
        ((), True),
        ((ONE_SEGMENT,), True),
        ((TWO_SEGMENTS, ONE_SEGMENT), True),
        ((TWO_SEGMENTS, EMPTY, ONE_SEGMENT, EMPTY), True),
        ((TWO_SEGMENTS,), False),
        ((TWO_MERGING_SEGMENTS, ONE_SEGMENT), False),
        ((ONE_SEGMENT, TWO_SEGMENTS), False),
        ((Level(1, ONE_SEGMENT.segments), ONE_SEGMENT), False),
    ],
)
def test_words_are_merged_when_the_oldest_segment_is_whole(
    levels: tuple[Level, ...], is_merged: bool
) -> None:
    assert WordLevels(COOKIE, 0, levels).is_merged is is_merged


@pytest.mark.parametrize(
    "record",
    [
        b"",
        COOKIE + b"\xff\0\0\1" + encode_levels(WordLevels(b"", 5, (ONE_SEGMENT,))),
        encode_levels(WordLevels(COOKIE, 5, (ONE_SEGMENT, TWO_SEGMENTS)))[:-1],
        encode_levels(WordLevels(COOKIE, 5, (ONE_SEGMENT, TWO_SEGMENTS))) + b"\1",
    ],
    ids=["nothing", "another format", "cut", "too long"],
)
def test_another_record_is_left_alone(record: bytes) -> None:
    assert decode_levels(record) is None
