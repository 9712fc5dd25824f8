"""Copy an SQLite file as it was at one moment, while servers use it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from om_proxy.common.errors import StorageError, UsageError

PAGES_PER_STEP = 500
STEP_PAUSE_S = 0.005  # others use the disk too
ONLY_OWNER = 0o600  # the file holds conversations


def back_up_file(
    database: Path,
    target: Path,
    *,
    is_compact: bool = False,
    on_step: Callable[[int, int], None] = lambda _left, _pages: None,
) -> None:
    """Write the database as it is now into a new file. Until it is whole, it is `<target>.part`; a
    `.part` that an earlier run left is written anew. `is_compact`: without free pages. `on_step`:
    called with the pages that are left, and all.

    One snapshot is held throughout: no write begins the copy again, and what is forgotten meanwhile
    leaves the write-ahead log only afterwards. Raise UsageError if the target exists, and
    StorageError if the copy fails.
    """
    if target.exists():
        raise UsageError(f"{target} exists already: name another file")
    part = target.with_name(f"{target.name}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, ONLY_OWNER)
    except OSError as exc:
        raise UsageError(f"{part} cannot be written: {exc.strerror}") from exc
    os.close(descriptor)
    try:
        with closing(sqlite3.connect(_name(database), uri=True, isolation_level=None)) as source:
            if is_compact:
                source.execute("VACUUM INTO ?", (str(part),))
            else:
                _copy_pages(source, part, on_step)
        check_file(part, is_unused=True)
        _sync(part)
        os.link(part, target)  # unlike a rename, it replaces nothing
        _sync(target.parent)
    except (sqlite3.Error, OSError) as exc:
        raise StorageError(f"{database} could not be backed up: {exc}") from exc
    finally:
        with suppress(OSError):
            part.unlink()


def _copy_pages(
    source: sqlite3.Connection, part: Path, on_step: Callable[[int, int], None]
) -> None:
    source.execute("BEGIN")
    source.execute("SELECT count(*) FROM sqlite_schema").fetchall()  # takes the snapshot
    with closing(sqlite3.connect(part)) as copy:
        source.backup(
            copy,
            pages=PAGES_PER_STEP,
            progress=lambda _status, left, pages: on_step(left, pages),
            sleep=STEP_PAUSE_S,
        )


def check_file(database: Path, *, is_unused: bool = False) -> None:
    """Raise StorageError unless the pages of the file fit together. `is_unused`: no one else uses
    the file, so SQLite need not make the files beside it, which a reader cannot remove."""
    name = f"{_name(database)}&immutable=1" if is_unused else _name(database)
    try:
        with closing(sqlite3.connect(name, uri=True)) as connection:
            [(result,), *_] = connection.execute("PRAGMA quick_check(1)").fetchall()
    except sqlite3.Error as exc:
        if getattr(exc, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
            raise StorageError(
                f"{database} is no database, or its first page is damaged: name another file in "
                "storage.url, or take the last backup"
            ) from exc
        result = str(exc)
    if result != "ok":
        raise StorageError(f"{database} is damaged ({result}); take the last backup")


def _name(database: Path) -> str:
    return f"{database.resolve().as_uri()}?mode=ro"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
