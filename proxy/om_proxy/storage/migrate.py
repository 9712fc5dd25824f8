"""The numbered SQL files of a backend, and which of them a database still lacks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import NamedTuple

from om_proxy.errors import StorageError


class Migration(NamedTuple):
    """One step of the schema; once released its text never changes."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations(backend: str) -> tuple[Migration, ...]:
    """The steps shipped for a backend, `migrations/<backend>/NNNN_name.sql`, by number."""
    folder = files("om_proxy.storage") / "migrations" / backend
    found = [(file.name.removesuffix(".sql"), file) for file in folder.iterdir() if file.name.endswith(".sql")]
    return tuple(sorted(Migration(int(stem[:4]), stem[5:], file.read_text("utf-8")) for stem, file in found))


def lacking(shipped: tuple[Migration, ...], applied: Mapping[int, str]) -> tuple[Migration, ...]:
    """The steps still to apply, given the checksums of those a database has; `StorageError` if the two do not belong together."""
    known = {step.number: step for step in shipped}
    for number, checksum in sorted(applied.items()):
        if number not in known:
            raise StorageError(
                f"the database is newer than this program (it has migration {number}); run a newer om-proxy"
            )
        if known[number].checksum != checksum:
            raise StorageError(
                f"migration {number} ({known[number].name}) differs from the one this database was made with; "
                "run the om-proxy that made it, or export there and import here"
            )
    return tuple(step for step in shipped if step.number not in applied)
