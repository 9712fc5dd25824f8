"""The migrations that a database lacks are found, and a foreign database is refused."""

from __future__ import annotations

import sqlite3

import pytest

from om_proxy.errors import ProgramTooOld, StorageError
from om_proxy.storage.migrate import (
    Migration,
    SchemaRow,
    list_migrations,
    list_missing_migrations,
)

ONE, TWO = Migration(1, "one", "CREATE TABLE a (x);"), Migration(2, "two", "CREATE TABLE b (x);")


@pytest.mark.parametrize(
    ("applied", "expected"),
    [
        ({}, (ONE, TWO)),
        ({1: ONE.checksum}, (TWO,)),
        ({1: ONE.checksum, 2: TWO.checksum}, ()),
    ],
    ids=["new", "older", "current"],
)
def test_lacking(applied: dict[int, str], expected: tuple[Migration, ...]) -> None:
    """The steps that were not applied yet are listed in order."""
    assert list_missing_migrations((ONE, TWO), applied) == expected


@pytest.mark.parametrize(
    ("applied", "words"),
    [({1: ONE.checksum, 3: "x"}, "newer.*migration 3"), ({1: "x"}, r"migration 1 \(one\) differs")],
    ids=["newer", "differing"],
)
def test_refused(applied: dict[int, str], words: str) -> None:
    """A database that this program does not know is not changed."""
    with pytest.raises(StorageError, match=words):
        list_missing_migrations((ONE, TWO), applied)


@pytest.mark.parametrize(
    ("row", "is_refused"),
    [
        (SchemaRow(3, 1, 1), False),
        (SchemaRow(3, 1, 2), False),
        (SchemaRow(3, 1, 3), True),
        (SchemaRow(3, 3, 1), True),
    ],
)
def test_a_newer_database_says_who_may_use_it(row: SchemaRow, is_refused: bool) -> None:
    """A migration that this program does not know is accepted if the row lets it write."""
    applied = {1: ONE.checksum, 2: TWO.checksum, 3: "unknown"}
    if is_refused:
        with pytest.raises(ProgramTooOld, match="run a newer om-proxy"):
            list_missing_migrations((ONE, TWO), applied, row)
    else:
        assert list_missing_migrations((ONE, TWO), applied, row) == ()
        assert list_missing_migrations((ONE, TWO), {1: ONE.checksum, 3: "x"}, row) == (TWO,)


def test_a_migration_that_was_changed_is_refused_whatever_the_row_says() -> None:
    with pytest.raises(StorageError, match=r"migration 1 \(one\) differs"):
        list_missing_migrations((ONE, TWO), {1: "x", 3: "unknown"}, SchemaRow(3, 1, 1))


def test_the_newest_migration_raises_the_row_no_higher_than_itself() -> None:
    """Or this program would exclude itself."""
    shipped = list_migrations("sqlite")
    db = sqlite3.connect(":memory:")
    for step in shipped:
        db.executescript(step.sql)
    row = SchemaRow(*db.execute("SELECT version, min_reader, min_writer FROM schema").fetchone())
    db.close()
    row.check_program(shipped[-1].number)


def test_shipped_migrations_are_numbered_once_each() -> None:
    """The SQL files of SQLite are numbered from 1, no number twice, and hold statements."""
    shipped = list_migrations("sqlite")
    numbers = [step.number for step in shipped]
    assert (numbers[0], len(numbers)) == (1, len(set(numbers)))
    assert all(
        step.name
        and any(
            word in step.sql
            for word in ("CREATE TABLE", "ALTER TABLE", "CREATE INDEX", "DROP INDEX", "UPDATE")
        )
        for step in shipped
    )
