"""Keep the names that were asked to be forgotten (`Store.note_forgotten`)."""

from __future__ import annotations

import sqlite3

from om_proxy.storage.shared import forgetting
from om_proxy.storage.shared.forgetting import FirstTurn
from om_proxy.storage.values.records import MAX_EVENT_AGE_S

IS_FORGOTTEN_SINCE = (
    "SELECT EXISTS (SELECT 1 FROM forgotten_name WHERE digest IN (?, ?, ?) AND at > ?)"
)
SELECT_FORGOTTEN_AT = "SELECT max(at) FROM forgotten_name WHERE digest IN (?, ?, ?)"
UPSERT_NAME = """INSERT INTO forgotten_name (digest, at) VALUES (?, ?)
    ON CONFLICT (digest) DO UPDATE SET at = max(at, excluded.at)"""
DELETE_SURPLUS = """DELETE FROM forgotten_name WHERE at <= (
    SELECT at FROM forgotten_name ORDER BY at DESC LIMIT 1 OFFSET ?)"""
DELETE_OLD = "DELETE FROM forgotten_name WHERE at < ? OR at > ?"


def is_forgotten_since(db: sqlite3.Connection, turn: FirstTurn) -> bool:
    (found,) = db.execute(IS_FORGOTTEN_SINCE, (*turn.digests, turn.began_at)).fetchone()
    return bool(found)


def note_name(db: sqlite3.Connection, digest: bytes, at: float) -> None:
    db.execute(UPSERT_NAME, (digest, at))
    db.execute(DELETE_SURPLUS, (forgetting.MAX_FORGOTTEN_NAMES,))


def delete_old_names(db: sqlite3.Connection, now: float) -> None:
    db.execute(DELETE_OLD, (now - MAX_EVENT_AGE_S, now + forgetting.MAX_NAME_AHEAD_S))
