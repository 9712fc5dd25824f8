"""Remove older generations of a log from an SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from om_proxy.errors import Conflict
from om_proxy.memory.model import Key
from om_proxy.storage.sqlite.commit import PRUNE_OBSERVATIONS
from om_proxy.storage.sqlite.queries import IS_THREAD

SELECT_ROW = f"SELECT id, version, key_id FROM thread WHERE {IS_THREAD}"
DROP_ENTRIES = """DELETE FROM entry WHERE thread_id = ?1 AND generation = ?2
    AND generation < (SELECT generation FROM thread WHERE id = ?1)"""
DROP_BEGINNING = """DELETE FROM generation WHERE thread_id = ?1 AND number = ?2
    AND number < (SELECT generation FROM thread WHERE id = ?1)"""


def drop_generations(
    db: sqlite3.Connection, key: Key, expected_version: int, numbers: Sequence[int]
) -> int:
    """Remove older generations, inside a transaction (`Store.drop_generations`)."""
    row = db.execute(SELECT_ROW, key).fetchone()
    if row is None or row[1] != expected_version:
        raise Conflict(f"thread {key.thread}: it has changed since version {expected_version}")
    dropped_count = 0
    for number in numbers:
        dropped_count += db.execute(DROP_ENTRIES, (row[0], number)).rowcount > 0
        db.execute(DROP_BEGINNING, (row[0], number))
    db.execute(PRUNE_OBSERVATIONS, (row[0],))
    return dropped_count
