"""The migrations that a database lacks are found, and a foreign database is refused."""

from __future__ import annotations

import pytest

from om_proxy.errors import StorageError
from om_proxy.storage.migrate import Migration, list_migrations, list_missing_migrations

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


def test_shipped_migrations_are_numbered_without_gaps() -> None:
    """The SQL files of SQLite are numbered from 1 and hold statements."""
    shipped = list_migrations("sqlite")
    assert [step.number for step in shipped] == list(range(1, len(shipped) + 1))
    assert all(
        step.name and any(word in step.sql for word in ("CREATE TABLE", "ALTER TABLE"))
        for step in shipped
    )
