"""Finds the numbered SQL files of a backend that a database still lacks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import NamedTuple

from om_proxy.errors import StorageError


class Migration(NamedTuple):
    """A step of the schema. Its text never changes once it is released."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def list_migrations(backend: str) -> tuple[Migration, ...]:
    """Return a backend's steps, `<backend>/migrations/NNNN_name.sql`, by number."""
    folder = files("om_proxy.storage") / backend / "migrations"
    found = [
        (file.name.removesuffix(".sql"), file)
        for file in folder.iterdir()
        if file.name.endswith(".sql")
    ]
    return tuple(
        sorted(Migration(int(stem[:4]), stem[5:], file.read_text("utf-8")) for stem, file in found)
    )


def list_missing_migrations(
    shipped: tuple[Migration, ...], applied: Mapping[int, str]
) -> tuple[Migration, ...]:
    """Return the steps still to apply, given the checksums of those a database has. Raise
    `StorageError` if the database belongs to another program or version."""
    known = {step.number: step for step in shipped}
    for number, checksum in sorted(applied.items()):
        if number not in known:
            raise StorageError(
                f"the database is newer than this program (it has migration {number}); "
                "run a newer om-proxy"
            )
        if known[number].checksum != checksum:
            raise StorageError(
                f"migration {number} ({known[number].name}) differs from the one "
                "this database was made with; "
                "run the om-proxy that made it, or export there and import here"
            )
    return tuple(step for step in shipped if step.number not in applied)
