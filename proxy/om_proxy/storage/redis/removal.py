"""Remove a thread, older generations of its log, or the texts of single notes: its rows, and what
the shared log and the resource's other threads say about it.

What is to change is read and computed first; one script then makes all of it, unless anything of
the resource was written meanwhile (its *revision*). In that case it is read and computed again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec
from msgspec.structs import replace

from om_proxy.common.errors import Conflict
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import (
    RECENT_MARKS,
    RESOURCE_THREAD,
    Key,
    Memory,
    resource_key,
)
from om_proxy.storage.encryption.keyring import NO_COMMIT_KEYS, CommitKeys
from om_proxy.storage.encryption.row_cipher import RowCipher, ThreadCiphers
from om_proxy.storage.redis import rows
from om_proxy.storage.redis.changes import (
    Applied,
    Changes,
    ResourceState,
    read_resource,
    try_until_applied,
)
from om_proxy.storage.redis.commit import Commit, SharedCommit
from om_proxy.storage.redis.encryption import hold_key_of
from om_proxy.storage.redis.events import erase_texts, remove_from_log, select_of_thread
from om_proxy.storage.redis.keys import read_key_id, split_key_ids
from om_proxy.storage.redis.queries import select_memories, select_thread_rows
from om_proxy.storage.redis.rows import encode_sealed_event
from om_proxy.storage.redis.session import Session
from om_proxy.storage.redis.thread_rows import (
    select_generation_ids,
    select_generations,
    select_messages,
    select_notes,
    select_outline,
)
from om_proxy.storage.shared.event_encoding import reseal_event
from om_proxy.storage.shared.forgetting import LabelThread, plan_log_removal, uncover_thread
from om_proxy.storage.values.changes import Change, NoteErasure, WrittenRow, create_conflict
from om_proxy.storage.values.records import ForgetResult


async def remove_thread(
    session: Session,
    key: Key,
    expected_version: int | None,
    label_of: LabelThread,
    event: Event | None,
    now: float,
) -> ForgetResult:
    """Remove a thread. Return what was removed. Raise Conflict, and remove nothing, if it is stored
    with another version than `expected_version`."""

    async def attempt() -> ForgetResult | None:
        state = await read_resource(session, key.tenant, key.resource)
        stored = await select_thread_rows(session, [key])
        if expected_version is not None and key in stored and stored[key][0] != expected_version:
            raise Conflict(f"thread {key.thread}: it has changed since version {expected_version}")
        changes = Changes()
        changes.expect_revision(key.tenant, key.resource, state.revision)
        removed = await delete_rows(session, changes, [key])
        if key.thread != RESOURCE_THREAD and RESOURCE_THREAD in state.threads:
            others = [
                key._replace(thread=name)
                for name, is_shared in sorted(state.threads.items())
                if is_shared and name not in (key.thread, RESOURCE_THREAD)
            ]
            removed = await _remove_from_log(
                session, changes, key, others, label_of, removed, state.told, now
            )
        if key.thread != RESOURCE_THREAD:
            for name in sorted(state.quoting - {key.thread}):
                other = key._replace(thread=name)
                await _remove_quotes(session, changes, other, label_of(key))
        if event and removed.threads:
            changes.add_events(Key(key.tenant, "", ""), [event])
        finish_removal(session, changes, [key], removed)
        return removed if (await changes.apply(session)).failed is None else None

    return await try_until_applied(attempt)


def finish_removal(
    session: Session, changes: Changes, keys: Iterable[Key], removed: ForgetResult
) -> None:
    """Ask for the log to be rewritten, and take forgotten names out of the ledger."""
    for tenant, resource in sorted({(key.tenant, key.resource) for key in keys}):
        changes.fold_ledger(tenant, resource)
    if any(removed.counts.values()):
        ask_for_erasure(session, changes)


def ask_for_erasure(session: Session, changes: Changes) -> None:
    changes.call("HINCRBY", session.keys.of_store("erasure"), "asked", 1)


async def delete_rows(session: Session, changes: Changes, keys: Sequence[Key]) -> ForgetResult:
    """Add the steps that delete everything of these, with their keys. Return the numbers of what is
    stored."""
    names = session.keys
    commands = [
        command
        for key in keys
        for command in (
            ("HEXISTS", names.of_thread("row", key), "id"),
            ("HLEN", names.of_thread("marks", key)),
            ("HLEN", names.of_thread("notes", key)),
            ("HLEN", names.of_thread("generations", key)),
            ("HEXISTS", names.of_thread("row", key), "reflection"),
            ("ZCARD", names.of_thread("events", key)),
            ("HGET", names.of_thread("row", key), "keys"),
        )
    ]
    counts = await session.call_many(commands)
    result = ForgetResult()
    for place, key in enumerate(keys):
        changes.delete_thread(key)
        *own, events, key_ids = counts[7 * place : 7 * place + 7]
        session.keyring.drop(split_key_ids(key_ids))
        removed = ForgetResult(*own)._replace(events=events)
        result = result.add(mark_copies(session, removed, read_key_id(key_ids)))
    return result


def mark_copies(session: Session, removed: ForgetResult, key_id: bytes | None) -> ForgetResult:
    """Return the result with what becomes of copies of a memory that had this key, which goes."""
    if not any(removed.counts.values()):
        return removed
    return removed._replace(backups=session.keyring.say_of_copies(key_id))


async def _remove_from_log(
    session: Session,
    changes: Changes,
    key: Key,
    others: Sequence[Key],
    label_of: LabelThread,
    removed: ForgetResult,
    told: frozenset[str],
    now: float,
) -> ForgetResult:
    """Remove the thread's part from the shared log. Return `removed` with that part added.
    `others`: the threads that keep sharing it. A log whose key is destroyed is nothing that anybody
    can read: it stays with them."""
    log_key = resource_key(key)
    if not others:
        log_result = await delete_rows(session, changes, [log_key])
        return removed.add(log_result._replace(threads=0))
    stored = await select_thread_rows(session, [log_key])
    key_id = stored[log_key][1].key_id if log_key in stored else None
    # one that is gone since has taken the revision along
    if log_key not in stored or await session.keyring.is_destroyed(session, key_id):
        return removed
    [shared_log] = await select_memories(session, [log_key])
    older = await select_generations(session, log_key, shared_log.log.generation)
    keys = await _change_key(session, changes, log_key, key_id)
    # they may hold the thread's words
    event_count = await remove_from_log(session, changes, log_key, key.thread)
    plan = plan_log_removal(shared_log, older, key, others, label_of, now)
    await Commit(shared_log, plan.log, keys=keys).prepare(session, changes)
    await _delete_notes(session, changes, plan.log, plan.observations)
    for other, coverage in plan.uncovered:
        await _uncover(session, changes, other, plan.log, label_of(other), coverage)
    if plan.uncovered:
        # messages that are in a tail again may be due
        changes.set_due(log_key, now)
    uncovered = {other.thread for other, _ in plan.uncovered}
    told_keys = [key._replace(thread=name) for name in told - {key.thread, *uncovered}]
    await clear_others(session, changes, told_keys)
    part = plan.add_to(ForgetResult(events=event_count))
    return removed.add(mark_copies(session, part, key_id))


async def _change_key(
    session: Session, changes: Changes, log_key: Key, key_id: bytes | None
) -> CommitKeys:
    """Add the steps that encrypt all rows of a log with another key: copies of the data hold what it
    told of the thread. Return what its own row is to be written with."""
    new = session.keyring.create_key()
    if new is None:
        return NO_COMMIT_KEYS
    held = await session.keyring.hold_row(session, key_id)
    session.keyring.drop([key_id])
    await add_resealed_rows(session, changes, log_key, held.row, new.key)
    return await session.keyring.write_new(CommitKeys(ThreadCiphers(new.key), (new.stored,)))


async def _delete_notes(
    session: Session, changes: Changes, log: Memory, ids: Collection[int]
) -> None:
    """Take entries out of every older generation. That of `log` is written already."""
    generations = session.keys.of_thread("generations", log.key)
    for number, stored in (await select_generation_ids(session, log.key)).items():
        kept = [id_ for id_ in stored if id_ not in ids]
        if number == log.log.generation or len(kept) == len(stored):
            continue
        if kept:
            changes.call("HSET", generations, number, rows.encode_ids(kept))
        else:
            changes.call("HDEL", generations, number)
    changes.call_in_parts(("HDEL", session.keys.of_thread("notes", log.key)), tuple(ids))


async def _uncover(
    session: Session,
    changes: Changes,
    key: Key,
    log: Memory,
    label: str,
    coverage: int,
) -> None:
    """Write a thread of which the log now covers less, up to the seq `coverage`."""
    [thread] = await select_memories(session, [key])
    outline = await select_outline(session, key)
    covered = [mark for mark in outline.live if mark.seq <= coverage]
    tail = await select_messages(session, key, coverage)
    after = uncover_thread(
        thread,
        log,
        label,
        tuple(covered[-RECENT_MARKS:]),
        tail,
        (len(covered), sum(mark.tokens for mark in covered)),
    )
    after = replace(after, other_threads_text="")
    held = await hold_key_of(session, key)
    keys = await session.keyring.write_new(session.keyring.plan_commit(thread, after, held))
    await Commit(thread, after, keys=keys).prepare(session, changes)


async def clear_others(session: Session, changes: Changes, keys: Sequence[Key]) -> None:
    """Take what prompts tell of other threads out of these threads."""
    for key, (_, row, due) in (await select_thread_rows(session, keys)).items():
        changes.write_row(key, msgspec.structs.replace(row, others=b""), due)


async def _remove_quotes(session: Session, changes: Changes, key: Key, label: str) -> None:
    """Take the look-ups of this thread out that quote the thread with the label. Copies of the data
    hold them too, where keys are apart: the thread gets a new key."""
    name = session.keys.of_thread("marks", key)
    marks = _pair_fields(await session.call("HGETALL", name))
    stored = await select_thread_rows(session, [key])
    if key not in stored:
        return
    key_id = stored[key][1].key_id
    cipher = (await session.keyring.hold_row(session, key_id)).row
    quoting = [seq for seq, mark in marks.items() if rows.may_quote(mark, label, cipher)]
    if not quoting:
        return
    if session.keyring.separate is not None:
        [thread] = await select_memories(session, [key])
        keys = await _change_key(session, changes, key, key_id)
        after = replace(thread, other_threads_text="")
        await Commit(thread, after, keys=keys).prepare(session, changes)
    changes.set_fields(name, {seq: rows.drop_look_ups(marks[seq]) for seq in quoting})
    changes.raise_version(key)


async def remove_look_ups(session: Session, changes: Changes, keys: Sequence[Key]) -> None:
    """Take all look-ups out of these threads."""
    for key in keys:
        name = session.keys.of_thread("marks", key)
        marks = _pair_fields(await session.call("HGETALL", name))
        kept = {seq: mark for seq, mark in marks.items() if rows.has_look_ups(mark)}
        changes.set_fields(name, {seq: rows.drop_look_ups(mark) for seq, mark in kept.items()})
        changes.raise_version(key)
        changes.call("SREM", session.keys.of_resource("quoting", *key[:2]), key.thread)


def _pair_fields(reply: Sequence[bytes]) -> dict[int, bytes]:
    return {int(seq): value for seq, value in zip(reply[::2], reply[1::2], strict=True)}


async def add_resealed_rows(
    session: Session, changes: Changes, key: Key, old: RowCipher, new: RowCipher
) -> None:
    """Add the steps that write messages, notes, the pending reflection and events of a memory anew.
    The caller's condition tells whether what is read here stands."""
    names = session.keys
    marks, texts, notes, reflection = await session.call_many(
        [
            ("HGETALL", names.of_thread("marks", key)),
            ("HGETALL", names.of_thread("texts", key)),
            ("HGETALL", names.of_thread("notes", key)),
            ("HGET", names.of_thread("row", key), "reflection"),
        ]
    )
    changes.set_fields(
        names.of_thread("marks", key),
        {
            int(seq): resealed
            for seq, mark in zip(marks[::2], marks[1::2], strict=True)
            if (resealed := rows.reseal_mark(mark, old, new)) is not None
        },
    )
    changes.set_fields(
        names.of_thread("texts", key),
        {
            int(seq): new.seal(
                b"message", int(seq), b"raw", old.open(b"message", int(seq), b"raw", raw)
            )
            for seq, raw in zip(texts[::2], texts[1::2], strict=True)
        },
    )
    changes.set_fields(
        names.of_thread("notes", key),
        {
            int(id_): rows.encode_observation(rows.decode_observation(data, old), new)
            for id_, data in zip(notes[::2], notes[1::2], strict=True)
        },
    )
    if reflection is not None:
        resealed = rows.encode_reflection(rows.decode_reflection(reflection, old), new)
        changes.call("HSET", names.of_thread("row", key), "reflection", resealed)
    for one in await select_of_thread(session, key):
        event = reseal_event(one.event, old, new)
        data = encode_sealed_event(key, event)
        changes.replace_field(names.of_store("event_data"), one.id, data)


async def commit_erasing(
    session: Session,
    change: Change,
    commit: SharedCommit,
    erasures: Sequence[NoteErasure],
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
            await _overwrite_entries(session, changes, erasure, state)
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
) -> None:
    key = erasure.key
    notes = await select_notes(session, key, [entry.id for entry in erasure.blanks])
    cipher = (await hold_key_of(session, key)).row
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


async def drop_generations(
    session: Session, key: Key, expected_version: int, numbers: Sequence[int]
) -> int:
    """Remove older generations (`Store.drop_generations`). What is read here is as the version
    says, or the script changes nothing."""
    stored = await select_thread_rows(session, [key])
    if key not in stored or stored[key][0] != expected_version:
        raise _create_version_conflict(key, expected_version)
    names = session.keys
    logs = await select_generation_ids(session, key)
    current = stored[key][1].generation
    gone = [number for number in set(numbers) if number in logs and number < current]
    notes, chunks, beginnings = await session.call_many(
        [
            ("HKEYS", names.of_thread("notes", key)),
            ("ZRANGE", names.of_thread("chunks", key), 0, -1),
            ("HKEYS", names.of_thread("beginnings", key)),
        ]
    )
    held = {id_ for number, ids in logs.items() if number not in gone for id_ in ids}
    unheld = sorted({int(id_) for id_ in notes} - held - {int(id_) for id_ in chunks})
    begun = [number for number in map(int, beginnings) if number in numbers and number < current]
    changes = Changes()
    changes.expect_version(key, expected_version)
    changes.call_in_parts(("HDEL", names.of_thread("generations", key)), gone)
    changes.call_in_parts(("HDEL", names.of_thread("notes", key)), unheld)
    changes.call_in_parts(("HDEL", names.of_thread("beginnings", key)), begun)
    if (await changes.apply(session)).failed is not None:
        raise _create_version_conflict(key, expected_version)
    return len(gone)


def _create_version_conflict(key: Key, version: int) -> Conflict:
    return Conflict(f"thread {key.thread}: it has changed since version {version}")
