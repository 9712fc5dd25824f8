"""Overwrite the texts of single notes in a PostgreSQL schema, with the commit that says so. Rows are
locked in the order of `removal`."""

from __future__ import annotations

from collections.abc import Sequence

from om_proxy.common.errors import Conflict
from om_proxy.memory.model import RESOURCE_THREAD, Key
from om_proxy.storage.encoding import encode_parts
from om_proxy.storage.encryption.row_cipher import HeldKeys, RowCipher
from om_proxy.storage.postgres.commit import SharedCommit
from om_proxy.storage.postgres.events import erase_event_texts
from om_proxy.storage.postgres.removal import CLEAR_OTHERS, lock_threads
from om_proxy.storage.postgres.rows import ROW_ENCODER
from om_proxy.storage.postgres.session import Session
from om_proxy.storage.sql.columns import Columns, list_names, transpose, write_unnest
from om_proxy.storage.values.changes import Change, NoteErasure, WrittenRow, create_conflict

# these rows, and with the shared log all whose prompts tell of other threads
SELECT_ERASED = """SELECT id, thread, version, key_id FROM om.thread
    WHERE tenant = $1 AND resource = $2 AND (thread = ANY ($3::text[]) OR others <> '' AND '' = ANY ($3::text[]))
    ORDER BY thread = '', thread"""
_BLANK: Columns = {
    "id": "bigint",
    "text": "bytea",
    "tokens": "bigint",
    "task": "bytea",
    "suggestion": "bytea",
    "title": "bytea",
    "parts": "bytea",
}
_BLANK_VALUES = [name for name in _BLANK if name != "id"]
UPDATE_NOTES = f"""UPDATE om.observation SET ({list_names(_BLANK_VALUES)}) = ROW ({list_names(_BLANK_VALUES, "blank.")})
    FROM {write_unnest(_BLANK, 2, "blank")} WHERE thread_id = $1 AND observation.id = blank.id"""
SELECT_IDS = "SELECT id FROM om.thread WHERE tenant = $1 AND resource = $2"


async def commit_erasing(
    session: Session,
    change: Change,
    commit: SharedCommit,
    erasures: Sequence[NoteErasure],
    held: HeldKeys,
) -> WrittenRow:
    """Overwrite stored entries and write the commit, inside a transaction
    (`Store.commit_erasing`). Raise Conflict before anything is written. `held`: the keys of the
    stored entries."""
    key = change.before.key
    names = {key.thread, *(erasure.key.thread for erasure in erasures)}
    locked = await lock_threads(session, SELECT_ERASED, key.tenant, key.resource, sorted(names))
    stored = {Key(key.tenant, key.resource, row[1]): row for row in locked}
    for erasure in erasures:
        if erasure.key not in stored or stored[erasure.key][2] != erasure.version:
            raise Conflict("the notes have changed since; load them again")
    version = stored[key][2] if key in stored else 0
    if version != change.before.version:
        raise create_conflict(change.before)
    for erasure in erasures:
        row = stored[erasure.key]
        await _overwrite_entries(session, row[0], erasure, held.find(row[3]))
        if erasure.key != key:
            await session.raise_versions([row[0]])
    written, _ = await commit.write(session)
    return written


async def _overwrite_entries(
    session: Session, thread_id: int, erasure: NoteErasure, cipher: RowCipher
) -> None:
    columns = []
    for entry in erasure.blanks:
        text, *hints = ROW_ENCODER.encode_notes(entry, cipher)
        columns.append((entry.id, text, entry.tokens, *hints, encode_parts(entry.parts)))
    if columns:
        await session.execute(UPDATE_NOTES, thread_id, *transpose(columns, _BLANK))
    # their events hold the same words
    ids = [thread_id]
    if erasure.key.thread == RESOURCE_THREAD:
        ids = [row[0] for row in await session.select(SELECT_IDS, *erasure.key[:2])]
        await session.execute(CLEAR_OTHERS, *erasure.key[:2])
    await erase_event_texts(session, ids)
