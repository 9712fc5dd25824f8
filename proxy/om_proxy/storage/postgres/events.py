"""Write, read and prune the rows of events.

A sequence is not the order of commits: id 6 can be visible before id 5. So an event's id is the
number of the transaction that wrote it, and its place in that transaction, packed into one integer:
`(xid + offset) << 14 | place`. A reader leaves out every event whose transaction is not older than
all that are still running (`pg_snapshot_xmin`). Below that horizon nothing can appear any more, so
an id that was returned is a cursor. The ids stay below 2^53, which JavaScript counts exactly, for
5 * 10^11 transactions. The offset is 0 until a database is restored into a younger server, whose
transactions have smaller numbers.

A transaction of anybody that stays open holds the horizon back, and with it the events. A reader
waits for it, but not for long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from om_proxy.memory.events.parts import Forgotten
from om_proxy.memory.model import Key
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.postgres.session import Session
from om_proxy.storage.shared.event_encoding import (
    TYPES_WITHOUT_TEXT,
    EventRow,
    SealedEvent,
    remove_texts,
    remove_thread,
    seal_event,
)
from om_proxy.storage.sql.columns import EVENT, list_names, transpose, write_unnest
from om_proxy.storage.sql.events import select_page
from om_proxy.storage.sql.key_rows import hold_key_of
from om_proxy.storage.sql.session import IS_THREAD
from om_proxy.storage.sql.session import Session as SqlSession
from om_proxy.storage.values.records import (
    MAX_EVENT_AGE_S,
    MAX_EVENTS,
    MAX_EVENTS_BEFORE_COMMIT,
    EventPage,
    StoredEvent,
)

# Of the events of one transaction: more than are ever kept.
PLACE_BITS = 14
# Each turn would prune one event if it pruned as soon as there is one too many.
PRUNED_AT_ONCE = 100
# How long a reader waits for transactions that hold back events which are committed.
MAX_HELD_BACK_S = 0.5
HELD_BACK_PAUSE_S = 0.01

_OFFSET = "(SELECT xid_offset FROM om.event_mark)"
HORIZON = f"((pg_snapshot_xmin(pg_current_snapshot())::text::bigint + {_OFFSET}) << {PLACE_BITS})"


def write_event_id(place: str) -> str:
    """Return SQL for the id of an event of this transaction."""
    return f"(((pg_current_xact_id()::text::bigint + {_OFFSET}) << {PLACE_BITS}) + {place})"


SELECT_FORGOTTEN = f"""SELECT FROM (SELECT at, type, data FROM om.event WHERE tenant = $1
        ORDER BY id DESC LIMIT {MAX_EVENTS_BEFORE_COMMIT}) AS newest
    WHERE type = $2 AND at >= $3 AND EXISTS (SELECT FROM unnest($4::text[]) AS label
        WHERE position('"' || label IN data) > 0)"""
INSERT_EVENTS = f"""INSERT INTO om.event (id, number, tenant, thread_id, {list_names(EVENT)})
    SELECT {write_event_id("$3::bigint + happened.place - 1")}, nextval('om.event_number'),
        $1::text, $2::bigint, {list_names(EVENT, "happened.")}
    FROM {write_unnest(EVENT, 4, "happened")}"""
# the lock keeps the thread from being forgotten before its event is there
INSERT_THREAD_EVENTS = f"""WITH owner AS (
        SELECT id FROM om.thread WHERE {IS_THREAD} AND key_id IS NOT DISTINCT FROM $4::bytea FOR KEY SHARE)
    INSERT INTO om.event (id, number, tenant, thread_id, {list_names(EVENT)})
    SELECT {write_event_id("happened.place - 1")}, nextval('om.event_number'), $1::text, owner.id,
        {list_names(EVENT, "happened.")}
    FROM owner, {write_unnest(EVENT, 5, "happened")} RETURNING 1"""
SELECT_POSITION = f"""SELECT
    greatest((SELECT max(id) FROM om.event WHERE id < {HORIZON}), newest, pruned), pruned,
    EXISTS (SELECT 1 FROM om.event WHERE id >= {HORIZON})
    FROM om.event_mark"""
SELECT_FORGETTINGS = """SELECT id, tenant, at, type, data FROM om.event
    WHERE id > $1 AND coalesce(tenant = $2::text, true) AND type = $3 ORDER BY id"""
SELECT_BEFORE_NEWEST = "SELECT id FROM om.event WHERE id <= $1 ORDER BY id DESC OFFSET $2 LIMIT 1"
# Who has read an event that goes with its thread keeps a cursor that is known.
KEEP_POSITION = f"""UPDATE om.event_mark
    SET newest = greatest(newest, (SELECT max(id) FROM om.event WHERE id < {HORIZON}))"""
DELETE_OF_ROWS = """WITH gone AS (DELETE FROM om.event WHERE thread_id = ANY ($1::bigint[]) RETURNING 1)
    SELECT count(*) FROM gone"""
SELECT_WITH_TEXT = """SELECT id, type, data, sealed IS NOT NULL FROM om.event
    WHERE thread_id = ANY ($1::bigint[]) AND type <> ALL ($2::text[])"""
SELECT_OF_ROW = "SELECT id, type, data FROM om.event WHERE thread_id = $1"
DELETE_EVENTS = "DELETE FROM om.event WHERE id = ANY ($1::bigint[])"
UPDATE_DATA = """UPDATE om.event SET data = changed.data, sealed = NULL
    FROM unnest($1::bigint[], $2::text[]) AS changed (id, data) WHERE event.id = changed.id"""
# The oldest event tells whether there are too many, or any that is too old.
SELECT_OLDEST = """SELECT number, at, (SELECT last_value FROM om.event_number) FROM om.event
    ORDER BY id LIMIT 1"""
LOCK_MARK = "SELECT FROM om.event_mark FOR UPDATE"
LOCK_FREE_MARK = f"{LOCK_MARK} SKIP LOCKED"
# By id, because a reader counts by id; below the horizon, because an id above may yet be joined by
# smaller ones.
_SELECT_PRUNED = f"""SELECT max(id) FROM om.event WHERE id < {HORIZON}
    AND id < coalesce((SELECT min(id) FROM om.event WHERE {{is_kept}}), {HORIZON})"""
SELECT_SURPLUS = _SELECT_PRUNED.format(is_kept="number > $1")
SELECT_OLD = _SELECT_PRUNED.format(is_kept="at >= $1")
DELETE_PRUNED = "DELETE FROM om.event WHERE id <= $1"
SET_PRUNED = "UPDATE om.event_mark SET pruned = greatest(pruned, $1)"
# In a restored database the events may have ids that this server's transactions do not reach yet.
_NEWEST_ID = "greatest(newest, pruned, (SELECT max(id) FROM om.event))"
_NEWEST_XID = f"({_NEWEST_ID} >> {PLACE_BITS})"
NEWEST_EVENT = f"SELECT {_NEWEST_ID} FROM om.event_mark"
SELECT_MISALIGNED = f"""SELECT FROM om.event_mark
    WHERE {_NEWEST_XID} >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint + xid_offset"""
ALIGN_OFFSET = f"""UPDATE om.event_mark SET xid_offset =
    {_NEWEST_XID} + 1 - pg_snapshot_xmin(pg_current_snapshot())::text::bigint"""


async def align_events(session: Session) -> None:
    """Let ids of events go on where those of a restored database end, inside a transaction."""
    if not await session.select(SELECT_MISALIGNED):
        return
    await session.execute(LOCK_MARK)
    if await session.select(SELECT_MISALIGNED):  # again: another process may have been first
        await session.execute(ALIGN_OFFSET)


async def was_forgotten_since(
    session: Session, tenant: str, labels: Sequence[str], since: float
) -> bool:
    """Return whether a thread of the tenant with one of these labels has been forgotten since."""
    return bool(await session.select(SELECT_FORGOTTEN, tenant, Forgotten.TYPE, since, list(labels)))


async def insert_events(
    session: Session, tenant: str, thread_id: int | None, events: Sequence[SealedEvent]
) -> None:
    """Write the newest of the events, inside a transaction."""
    kept = events[-MAX_EVENTS:]
    if kept:
        first = session.take_event_places(len(kept))
        columns = transpose(kept, EVENT)
        await session.select(INSERT_EVENTS, tenant, thread_id, first, *columns)


async def insert_thread_events(
    session: Session, key: Key, events: Sequence[EventRow], keyring: Keyring
) -> None:
    """Write the newest of these events of a thread. A thread that is not there has none."""
    while True:
        held = await hold_key_of(session, key, keyring)
        sealed = [seal_event(event, held.row) for event in events[-MAX_EVENTS:]]
        columns = transpose(sealed, EVENT)
        if await session.select(INSERT_THREAD_EVENTS, *key, held.row_key_id, *columns):
            return
        # forgotten, or it has got another key meanwhile
        if (await hold_key_of(session, key, keyring)).row_key_id == held.row_key_id:
            return


async def delete_events(session: SqlSession, thread_ids: Sequence[int]) -> int:
    """Delete the events of these threads, inside a transaction. Return how many there were."""
    if not thread_ids:
        return 0
    await session.execute(KEEP_POSITION)
    [(count,)] = await session.select(DELETE_OF_ROWS, list(thread_ids))
    return int(count)


async def erase_event_texts(session: SqlSession, thread_ids: Sequence[int]) -> None:
    """Carry out `Remover._erase_event_texts`."""
    found = await session.select(SELECT_WITH_TEXT, list(thread_ids), list(TYPES_WITHOUT_TEXT))
    without = [
        (id_, remove_texts(type_, data), data, is_sealed) for id_, type_, data, is_sealed in found
    ]
    changed = [
        (id_, after) for id_, after, before, is_sealed in without if is_sealed or after != before
    ]
    await _update_data(session, changed)


async def remove_from_log_events(session: SqlSession, log_id: int, thread: str) -> int:
    """Carry out `Remover._remove_from_events`."""
    await erase_event_texts(session, [log_id])
    found = await session.select(SELECT_OF_ROW, log_id)
    removal = remove_thread([(id_, type_, data) for id_, type_, data in found], thread)
    if removal.deleted:
        await session.execute(KEEP_POSITION)
        await session.execute(DELETE_EVENTS, list(removal.deleted))
    await _update_data(session, removal.changed)
    return len(removal.deleted)


async def _update_data(session: SqlSession, changed: Sequence[tuple[int, str]]) -> None:
    if changed:
        ids, data = zip(*changed, strict=True)
        await session.execute(UPDATE_DATA, list(ids), list(data))


async def has_surplus(session: Session) -> bool:
    """Return whether there are more than MAX_EVENTS events."""
    found = await session.select(SELECT_OLDEST)
    return any(newest_number - number >= MAX_EVENTS for number, _, newest_number in found)


async def has_old(session: Session, now: float) -> bool:
    """Return whether the oldest event is older than MAX_EVENT_AGE_S."""
    return any(at < now - MAX_EVENT_AGE_S for _, at, _ in await session.select(SELECT_OLDEST))


async def prune_surplus(session: Session) -> None:
    """Remove all but the newest MAX_EVENTS events, inside a transaction; none while another process
    removes some, or forgets: it may stand still, and turns would wait for it."""
    if not await session.select(LOCK_FREE_MARK):
        return
    [(newest_number,)] = await session.select("SELECT last_value FROM om.event_number")
    await _delete_through(session, SELECT_SURPLUS, newest_number - MAX_EVENTS)


async def prune_old(session: Session, now: float) -> None:
    """Remove the events that are older than MAX_EVENT_AGE_S, inside a transaction, as
    `prune_surplus` does."""
    if not await session.select(LOCK_FREE_MARK):
        return
    await _delete_through(session, SELECT_OLD, now - MAX_EVENT_AGE_S)


async def _delete_through(session: Session, select_last: str, bound: float) -> None:
    """Delete the events up to the one that is selected, and record how far that was."""
    [(through,)] = await session.select(select_last, bound)
    if through is not None:
        await session.execute(DELETE_PRUNED, through)
        await session.execute(SET_PRUNED, through)


async def select_position(session: Session, before: int) -> int:
    """Return the id of the newest event that readers may know; see `Store.event_position`."""
    deadline = time.monotonic() + MAX_HELD_BACK_S
    while True:
        [(newest, pruned, is_held_back)] = await session.select(SELECT_POSITION)
        if not is_held_back or time.monotonic() > deadline:
            if not before:
                return int(newest)
            found = await session.select(SELECT_BEFORE_NEWEST, newest, before)
            return int(found[0][0] if found else pruned)
        await asyncio.sleep(HELD_BACK_PAUSE_S)


async def select_events(
    session: Session,
    tenant: str | None,
    keys: Sequence[Key] | None,
    after: int | None,
    limit: int,
    keyring: Keyring,
) -> EventPage:
    """Return a page of events; see `Store.events`."""
    deadline = time.monotonic() + MAX_HELD_BACK_S
    while True:
        [(newest, pruned, is_held_back)] = await session.select(SELECT_POSITION)
        is_gap = after is not None and not pruned <= after <= newest
        start = pruned if after is None or is_gap else after
        events = await select_page(session, tenant, keys, (start, newest), limit, keyring)
        is_full = len(events) == limit
        if is_full or not is_held_back or time.monotonic() > deadline:
            break
        await asyncio.sleep(HELD_BACK_PAUSE_S)
    if is_full or not is_held_back:
        return EventPage(events, events[-1].id if is_full else newest, is_gap, is_held_back)
    ahead = await session.select(SELECT_FORGETTINGS, newest, tenant, Forgotten.TYPE)
    # they name no thread, and bear no text
    forgettings = tuple(StoredEvent(row[0], Key(row[1], "", ""), *row[2:]) for row in ahead)
    return EventPage(events, newest, is_gap, is_held_back, forgettings)
