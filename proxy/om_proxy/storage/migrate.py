"""Find the numbered SQL files of a backend that a database still lacks, and whether this program may
use it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from om_proxy.errors import ProgramTooOld, StorageError


class Migration(NamedTuple):
    """A step of the schema. After a release its text never changes."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


@cache
def list_migrations(backend: str) -> tuple[Migration, ...]:
    """Return a backend's steps, `<backend>/migrations/NNNN_name.sql`, by number."""
    folder = files("om_proxy.storage") / backend / "migrations"
    files_by_stem = {
        file.name.removesuffix(".sql"): file
        for file in folder.iterdir()
        if file.name.endswith(".sql")
    }
    return tuple(
        sorted(
            Migration(int(stem[:4]), stem[5:], file.read_text("utf-8"))
            for stem, file in files_by_stem.items()
        )
    )


class SchemaRow(NamedTuple):
    """What a database says of its schema, which a newer program may have changed. A program is named
    by the newest migration that it knows."""

    version: int  # the newest migration that was applied
    min_reader: int  # the oldest program that may read
    min_writer: int  # the oldest program that may write

    def check_program(self, known: int) -> None:
        """Raise `ProgramTooOld` if a program that knows the migrations up to `known` may not use the
        database. Each program reads and writes, so it must be allowed both."""
        if known < max(self.min_reader, self.min_writer):
            raise ProgramTooOld(
                f"the database is newer than this program (it has migration {self.version}, and "
                f"programs that know less than {self.min_writer} may not write to it); "
                "run a newer om-proxy"
            )


def list_missing_migrations(
    shipped: tuple[Migration, ...], applied: Mapping[int, str], row: SchemaRow | None = None
) -> tuple[Migration, ...]:
    """Return the steps still to apply, given the checksums of those a database has. Raise
    `StorageError` if the database belongs to another program, or to a newer version that excludes
    this one. `row`: the database's; None: it is older than such rows, and takes no newer step."""
    known = shipped[-1].number
    if row is not None:
        row.check_program(known)
    shipped_by_number = {step.number: step for step in shipped}
    for number, checksum in sorted(applied.items()):
        if row is not None and number > known:
            continue  # a newer program applied it, and lets this one write
        if number not in shipped_by_number:
            raise ProgramTooOld(
                f"the database is newer than this program (it has migration {number}); "
                "run a newer om-proxy"
            )
        step = shipped_by_number[number]
        if step.checksum != checksum:
            raise StorageError(
                f"migration {number} ({step.name}) differs from the one "
                "this database was made with; "
                "run the om-proxy that made it, or export there and import here"
            )
    return tuple(step for step in shipped if step.number not in applied)
