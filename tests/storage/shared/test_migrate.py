"""The migrations that a database lacks are found, and a foreign database is refused. The second step
is a made-up one."""

from __future__ import annotations

import sqlite3

import pytest

from om_proxy.common.errors import ProgramTooOld, StorageError
from om_proxy.storage.shared.migrate import (
    Migration,
    SchemaRow,
    list_migrations,
    list_missing_migrations,
)

ONE = list_migrations("sqlite")[0]
TWO = Migration(2, "two", "CREATE TABLE b (x);")


@pytest.mark.parametrize(
    ("applied", "row", "expected"),
    [
        ({}, None, (ONE, TWO)),
        ({1: ONE.checksum}, SchemaRow(1, 1, 1), (TWO,)),
        ({1: ONE.checksum, 2: TWO.checksum}, SchemaRow(2, 1, 1), ()),
    ],
    ids=["new", "older", "current"],
)
def test_lacking(
    applied: dict[int, str], row: SchemaRow | None, expected: tuple[Migration, ...]
) -> None:
    """The steps that were not applied yet are listed in order."""
    assert list_missing_migrations((ONE, TWO), applied, row) == expected


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


@pytest.mark.parametrize("row", [SchemaRow(3, 1, 1), SchemaRow(25, 14, 14)])
def test_a_migration_that_was_changed_is_refused_whatever_the_row_says(row: SchemaRow) -> None:
    """It is another version's database, newer or older, and the error says how its memories move."""
    with pytest.raises(
        StorageError, match=r"\(migration 1, schema, differs\).*export it"
    ) as raised:
        list_missing_migrations((ONE, TWO), {1: "x", 3: "unknown"}, row)
    assert not isinstance(raised.value, ProgramTooOld)


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_shipped_migrations_are_numbered_once_each(backend: str) -> None:
    """The SQL files of a backend are numbered from 1, no number twice, and hold statements."""
    shipped = list_migrations(backend)
    assert [step.number for step in shipped] == list(range(1, len(shipped) + 1))
    assert all(step.name and step.sql.startswith(("--", "CREATE", "ALTER")) for step in shipped)


def test_the_newest_migration_raises_the_row_no_higher_than_itself() -> None:
    """Or this program would exclude itself."""
    shipped = list_migrations("sqlite")
    db = sqlite3.connect(":memory:")
    for step in shipped:
        db.executescript(step.sql)
    row = SchemaRow(*db.execute("SELECT version, min_reader, min_writer FROM schema").fetchone())
    db.close()
    row.check_program(shipped[-1].number)
