"""Find the numbered SQL files of a backend that a database still lacks, and whether this program may
use it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from om_proxy.common.errors import ProgramTooOld, StorageError


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
    """The schema that a database reports, which a newer program may have changed. A program is
    named by the newest migration that it knows."""

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


def refuse_foreign(fault: str) -> StorageError:
    """Return the error of a database that another version wrote, in a form unknown here."""
    return StorageError(
        f"another version of om-proxy wrote this database ({fault}), and nothing was changed: export "
        "it with that version (`om-proxy export --all --with-secret`), and import the file here"
    )


def list_missing_migrations(
    shipped: tuple[Migration, ...], applied: Mapping[int, str], row: SchemaRow | None
) -> tuple[Migration, ...]:
    """Return the steps still to apply, given the checksums of those a database has. `row`: the
    database's; None: it is new. Raise `StorageError` if another program made the database, and
    `ProgramTooOld` if a newer one excludes this one."""
    for step in shipped:
        if applied.get(step.number, step.checksum) != step.checksum:
            raise refuse_foreign(f"migration {step.number}, {step.name}, differs")
    if row is not None:
        row.check_program(shipped[-1].number)
    return tuple(step for step in shipped if step.number not in applied)
