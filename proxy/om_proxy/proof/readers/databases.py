"""SQLite files of other programs, opened for reading while those programs may run."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from om_proxy.proof.conversation import HistoryError
from om_proxy.proof.readers.records import Head

SQLITE_START = b"SQLite format 3\0"
BUSY_TIMEOUT_S = 1.0


def has_tables(head: Head, *names: str) -> bool:
    """Return whether the file is a database with these tables."""
    if not head.start.startswith(SQLITE_START):
        return False
    with open_database(head.path, "a program that this reader knows") as database:
        rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {row["name"] for row in rows}.issuperset(names)


@contextmanager
def open_database(path: Path, made_by: str) -> Iterator[sqlite3.Connection]:
    """Open a file that its program may be writing. Without a write-ahead log nothing is written
    beside it. A busy one is copied with its log. Raise HistoryError for another schema than the
    one that `made_by` names."""
    with TemporaryDirectory(prefix="om-proxy-") as folder, closing(_connect(path, folder)) as found:
        found.row_factory = sqlite3.Row
        try:
            yield found
        except sqlite3.Error as exc:
            raise HistoryError(f"{path} is no database of {made_by}: {exc}") from exc


def _connect(path: Path, folder: str) -> sqlite3.Connection:
    log, shared_memory = (path.with_name(path.name + ending) for ending in ("-wal", "-shm"))
    if not log.exists():
        return _open_uri(path, "immutable=1")
    if shared_memory.exists():  # its program runs: the snapshot of any other reader
        connection = _open_uri(path, "mode=ro")
        try:
            connection.execute("BEGIN")
            connection.execute("SELECT name FROM sqlite_master LIMIT 1")
            return connection
        except sqlite3.OperationalError:
            connection.close()
    copied = Path(folder, path.name)
    for one in (path, log):
        shutil.copyfile(one, copied.with_name(one.name))
    return _open_uri(copied, "mode=rw")


def _open_uri(path: Path, options: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?{options}", uri=True, timeout=BUSY_TIMEOUT_S
    )
