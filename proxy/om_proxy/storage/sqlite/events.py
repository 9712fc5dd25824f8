"""Write, read and prune the rows of events, on a given connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from om_proxy.memory.events.parts import Forgotten
from om_proxy.memory.model import Key
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.encryption.row_cipher import HeldKeys
from om_proxy.storage.shared.event_encoding import (
    TEXT_FIELDS,
    EventRow,
    SealedEvent,
    remove_thread,
    seal_event,
)
from om_proxy.storage.sql.events import select_page
from om_proxy.storage.sql.session import Session
from om_proxy.storage.sqlite.queries import IS_THREAD
from om_proxy.storage.values.records import (
    MAX_EVENT_AGE_S,
    MAX_EVENTS,
    MAX_EVENTS_BEFORE_COMMIT,
    EventPage,
)

INSERT_EVENT = (
    "INSERT INTO event (tenant, thread_id, at, type, data, sealed) VALUES (?, ?, ?, ?, ?, ?)"
)
SELECT_THREAD_KEY = f"SELECT id, key_id FROM thread WHERE {IS_THREAD}"
SELECT_OF_THREAD = "SELECT id, type, data FROM event WHERE thread_id = ?"
NEWEST_EVENT = "SELECT seq FROM sqlite_sequence WHERE name = 'event'"
SELECT_POSITION = f"SELECT ifnull(({NEWEST_EVENT}), 0), through FROM event_pruning"
SELECT_FORGOTTEN = f"""SELECT 1 FROM (SELECT at, type, data FROM event WHERE tenant = ?1
        ORDER BY id DESC LIMIT {MAX_EVENTS_BEFORE_COMMIT})
    WHERE type = ?2 AND at >= ?3 AND instr(data, '"' || ?4) > 0"""
SELECT_FIRST_YOUNG = "SELECT id FROM event WHERE at >= ? ORDER BY id LIMIT 1"


def _write_erasure() -> str:
    """Return SQL for what `remove_texts` does, on all events of a thread. All other writers wait
    meanwhile, and Python would take twice as long. A quote within a text is escaped, so `"name":"`
    is found only where this field holds a text."""
    cases, conditions = [], []
    for type_, fields in TEXT_FIELDS.items():
        if fields:
            nulls = ", ".join(f"'$.{name}', NULL" for name in fields)
            cases.append(f"WHEN '{type_}' THEN json_replace(data, {nulls})")
            has_text = " OR ".join(f"""instr(data, '"{name}":"')""" for name in fields)
            conditions.append(f"type = '{type_}' AND ({has_text})")
    known = ", ".join(f"'{type_}'" for type_ in TEXT_FIELDS)
    return f"""UPDATE event SET sealed = NULL, data = CASE type {" ".join(cases)} ELSE 'null' END
        WHERE thread_id = ? AND (sealed IS NOT NULL OR type NOT IN ({known}) OR {" OR ".join(conditions)})"""


ERASE_TEXTS = _write_erasure()


def was_forgotten_since(
    db: sqlite3.Connection, tenant: str, labels: Sequence[str], since: float
) -> bool:
    """Return whether a thread of the tenant with one of these labels has been forgotten since."""
    return any(
        db.execute(SELECT_FORGOTTEN, (tenant, Forgotten.TYPE, since, label)).fetchone()
        for label in labels
    )


def insert_events(
    db: sqlite3.Connection, tenant: str, thread_id: int | None, events: Sequence[SealedEvent]
) -> None:
    """Write the events, and remove those that are too many. The events' own times remove none: the
    clock of the process that writes them may be far ahead of the others'."""
    db.executemany(INSERT_EVENT, ((tenant, thread_id, *event) for event in events))
    if events:
        (newest, _) = db.execute(SELECT_POSITION).fetchone()
        _delete_through(db, newest - MAX_EVENTS)


def insert_thread_events(
    db: sqlite3.Connection, key: Key, events: Sequence[EventRow], held: HeldKeys
) -> bool:
    """Write events of a thread. Return False, and write nothing, if the thread has another key than
    the held one. A thread that is not there has no events."""
    found = db.execute(SELECT_THREAD_KEY, key).fetchone()
    if found is None:
        return True
    thread_id, key_id = found
    if key_id != held.row_key_id:
        return False
    sealed = [seal_event(event, held.find(key_id)) for event in events]
    insert_events(db, key.tenant, thread_id, sealed)
    return True


async def erase_event_texts(session: Session, thread_ids: Sequence[int]) -> None:
    """Carry out `Remover._erase_event_texts`."""
    await session.execute_many(ERASE_TEXTS, [(id_,) for id_ in thread_ids])


async def remove_from_log_events(session: Session, log_id: int, thread: str) -> int:
    """Carry out `Remover._remove_from_events`."""
    await erase_event_texts(session, [log_id])
    found = await session.select(SELECT_OF_THREAD, log_id)
    removal = remove_thread([(id_, type_, data) for id_, type_, data in found], thread)
    deleted = [(id_,) for id_ in removal.deleted]
    await session.execute_many("DELETE FROM event WHERE id = ?", deleted)
    changed = [(data, id_) for id_, data in removal.changed]
    await session.execute_many("UPDATE event SET data = ? WHERE id = ?", changed)
    return len(removal.deleted)


def prune_events(db: sqlite3.Connection, now: float) -> None:
    """Remove the events that are older than MAX_EVENT_AGE_S. Without anything to remove, this reads
    a few rows."""
    first_young = db.execute(SELECT_FIRST_YOUNG, (now - MAX_EVENT_AGE_S,)).fetchone()
    (newest, _) = db.execute(SELECT_POSITION).fetchone()
    _delete_through(db, first_young[0] - 1 if first_young else newest)


def _delete_through(db: sqlite3.Connection, through: int) -> None:
    """Delete the events up to this id, and record how far that was, if there are any."""
    (oldest,) = db.execute("SELECT min(id) FROM event").fetchone()
    if oldest is not None and oldest <= through:
        db.execute("DELETE FROM event WHERE id <= ?", (through,))
        db.execute("UPDATE event_pruning SET through = ?", (through,))


async def select_position(session: Session) -> tuple[int, int]:
    """Return the id of the newest event that was ever stored, and the newest that was pruned."""
    [(newest, through)] = await session.select(SELECT_POSITION)
    return newest, through


async def select_events(
    session: Session,
    tenant: str | None,
    keys: Sequence[Key] | None,
    after: int | None,
    limit: int,
    keyring: Keyring,
) -> EventPage:
    """Return a page of events; see `Store.events`. Run it inside a transaction."""
    newest, through = await select_position(session)
    is_gap = after is not None and not through <= after <= newest
    start = through if after is None or is_gap else after
    events = await select_page(session, tenant, keys, (start, newest), limit, keyring)
    is_full = len(events) == limit
    return EventPage(events, events[-1].id if is_full else newest, is_gap)
