"""Find the numbered SQL files of a backend that a database still lacks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import NamedTuple

from om_proxy.errors import StorageError


class Migration(NamedTuple):
    """A step of the schema. After a release its text never changes."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


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


def list_missing_migrations(
    shipped: tuple[Migration, ...], applied: Mapping[int, str]
) -> tuple[Migration, ...]:
    """Return the steps still to apply, given the checksums of those a database has. Raise
    `StorageError` if the database belongs to another program or version."""
    shipped_by_number = {step.number: step for step in shipped}
    for number, checksum in sorted(applied.items()):
        if number not in shipped_by_number:
            raise StorageError(
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
