"""Read a thread's committed version on the event loop: every request checks whether the cached
memory is still the newest.

A hop to aiosqlite's thread and back costs 100 µs of CPU and, with the interpreter lock contended,
far more time; the read itself takes 7 µs on cached pages. In WAL mode a reader waits for no writer.
The probe never waits at all: if a recovery or a locked file prevents the read, it returns None, and
the caller reads through the worker.
"""

from __future__ import annotations

import sqlite3

from om_proxy.memory.model import Key
from om_proxy.storage.sqlite.queries import SELECT_VERSION


class VersionProbe:
    """A read-only connection used on the event loop. The file must have its schema already."""

    def __init__(self, database: str) -> None:
        self._connection: sqlite3.Connection | None = None
        try:
            self._connection = sqlite3.connect(
                database, timeout=0, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA query_only = ON")
            self._connection.execute("PRAGMA wal_autocheckpoint = 0")
        except sqlite3.Error:
            self.close()

    def version(self, key: Key) -> int | None:
        """Return the committed version, 0 for an unknown thread; None if it cannot be read without
        waiting."""
        if self._connection is None:
            return None
        try:
            row = self._connection.execute(SELECT_VERSION, key).fetchone()
        except sqlite3.OperationalError:
            return None
        except sqlite3.Error:
            self.close()
            return None
        return int(row[0]) if row else 0

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
