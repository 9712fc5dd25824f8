"""Overwrite the texts of single notes in a Redis, with the commit that says so."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from om_proxy.common.errors import Conflict
from om_proxy.memory.model import RESOURCE_THREAD, Memory
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.redis import rows
from om_proxy.storage.redis.changes import Applied, Changes
from om_proxy.storage.redis.commit import SharedCommit
from om_proxy.storage.redis.encryption import hold_key_of
from om_proxy.storage.redis.events import erase_texts
from om_proxy.storage.redis.queries import select_thread_rows
from om_proxy.storage.redis.removal import ask_for_erasure, clear_others
from om_proxy.storage.redis.resource_state import ResourceState, read_resource, try_until_applied
from om_proxy.storage.redis.session import Session
from om_proxy.storage.redis.thread_rows import select_notes
from om_proxy.storage.values.changes import Change, NoteErasure, WrittenRow, create_conflict


async def commit_erasing(
    session: Session,
    change: Change,
    commit: SharedCommit,
    erasures: Sequence[NoteErasure],
    keyring: Keyring,
) -> WrittenRow:
    """Overwrite stored entries and write the commit (`Store.commit_erasing`). Raise Conflict before
    anything is written."""
    key = change.before.key

    async def attempt() -> Applied | None:
        state = await read_resource(session, key.tenant, key.resource)
        await _check_versions(session, change.before, erasures)
        changes = Changes()
        changes.expect_revision(key.tenant, key.resource, state.revision)
        for erasure in erasures:
            await _overwrite_entries(session, changes, erasure, state, keyring)
            if erasure.key != key:
                changes.raise_version(erasure.key)
        await commit.add_steps(session, changes)
        ask_for_erasure(session, changes)
        applied = await changes.apply(session)
        return None if applied.failed is not None else applied

    applied = await try_until_applied(attempt)
    return applied.rows[-1]


async def _check_versions(
    session: Session, before: Memory, erasures: Sequence[NoteErasure]
) -> None:
    keys = list({before.key, *(erasure.key for erasure in erasures)})
    stored = await select_thread_rows(session, keys)
    for erasure in erasures:
        if erasure.key not in stored or stored[erasure.key][0] != erasure.version:
            raise Conflict("the notes have changed since; load them again")
    version = stored[before.key][0] if before.key in stored else 0
    if version != before.version:
        raise create_conflict(before)


async def _overwrite_entries(
    session: Session,
    changes: Changes,
    erasure: NoteErasure,
    state: ResourceState,
    keyring: Keyring,
) -> None:
    key = erasure.key
    notes = await select_notes(session, key, [entry.id for entry in erasure.blanks], keyring)
    cipher = (await hold_key_of(session, key, keyring)).row
    blanks = {
        blank.id: rows.encode_observation(
            replace(
                notes[blank.id],
                text=blank.text,
                tokens=blank.tokens,
                task=blank.task,
                suggestion=blank.suggestion,
                title=blank.title,
                parts=blank.parts,
            ),
            cipher,
        )
        for blank in erasure.blanks
        if blank.id in notes
    }
    changes.set_fields(session.keys.of_thread("notes", key), blanks)
    changes.rewind(key)
    # their events hold the same words
    keys = [key]
    if key.thread == RESOURCE_THREAD:
        keys = [key._replace(thread=name) for name in state.threads]
        told = [key._replace(thread=name) for name in state.told]
        await clear_others(session, changes, told)
    await erase_texts(session, changes, keys)
