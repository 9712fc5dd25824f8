"""Remove a thread: its rows, and what the shared log and the resource's other threads say about it.

What is to change is read and computed first; one script then makes all of it, unless anything of the
resource was written meanwhile (its *revision*). In that case it is read and computed again.
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
from om_proxy.storage.encryption.keyring import NO_COMMIT_KEYS, CommitKeys, Keyring
from om_proxy.storage.encryption.row_cipher import ThreadCiphers
from om_proxy.storage.redis import rows
from om_proxy.storage.redis.changes import Changes
from om_proxy.storage.redis.commit import Commit
from om_proxy.storage.redis.encryption import hold_key_of
from om_proxy.storage.redis.events import remove_from_log
from om_proxy.storage.redis.keys import read_key_id, split_key_ids
from om_proxy.storage.redis.queries import select_memories, select_thread_rows
from om_proxy.storage.redis.resealing import add_resealed_rows
from om_proxy.storage.redis.resource_state import read_resource, try_until_applied
from om_proxy.storage.redis.session import Session
from om_proxy.storage.redis.thread_rows import (
    select_generation_ids,
    select_generations,
    select_messages,
    select_outline,
)
from om_proxy.storage.shared.forgetting import LabelThread, plan_log_removal, uncover_thread
from om_proxy.storage.values.records import ForgetResult


async def remove_thread(
    session: Session,
    key: Key,
    expected_version: int | None,
    label_of: LabelThread,
    event: Event | None,
    now: float,
    keyring: Keyring,
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
        removed = await delete_rows(session, changes, [key], keyring)
        if key.thread != RESOURCE_THREAD and RESOURCE_THREAD in state.threads:
            others = [
                key._replace(thread=name)
                for name, is_shared in sorted(state.threads.items())
                if is_shared and name not in (key.thread, RESOURCE_THREAD)
            ]
            removed = await _remove_from_log(
                session, changes, key, others, label_of, removed, state.told, now, keyring
            )
        if key.thread != RESOURCE_THREAD:
            for name in sorted(state.quoting - {key.thread}):
                other = key._replace(thread=name)
                await _remove_quotes(session, changes, other, label_of(key), keyring)
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


async def delete_rows(
    session: Session, changes: Changes, keys: Sequence[Key], keyring: Keyring
) -> ForgetResult:
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
        keyring.drop(split_key_ids(key_ids))
        removed = ForgetResult(*own)._replace(events=events)
        result = result.add(mark_copies(removed, read_key_id(key_ids), keyring))
    return result


def mark_copies(removed: ForgetResult, key_id: bytes | None, keyring: Keyring) -> ForgetResult:
    """Return the result with what becomes of copies of a memory that had this key, which goes."""
    if not any(removed.counts.values()):
        return removed
    return removed._replace(backups=keyring.say_of_copies(key_id))


async def _remove_from_log(
    session: Session,
    changes: Changes,
    key: Key,
    others: Sequence[Key],
    label_of: LabelThread,
    removed: ForgetResult,
    told: frozenset[str],
    now: float,
    keyring: Keyring,
) -> ForgetResult:
    """Remove the thread's part from the shared log. Return `removed` with that part added.
    `others`: the threads that keep sharing it. A log whose key is destroyed is nothing that anybody
    can read: it stays with them."""
    log_key = resource_key(key)
    if not others:
        log_result = await delete_rows(session, changes, [log_key], keyring)
        return removed.add(log_result._replace(threads=0))
    stored = await select_thread_rows(session, [log_key])
    key_id = stored[log_key][1].key_id if log_key in stored else None
    # one that is gone since has taken the revision along
    if log_key not in stored or await keyring.is_destroyed(session, key_id):
        return removed
    [shared_log] = await select_memories(session, [log_key], keyring)
    older = await select_generations(session, log_key, keyring, shared_log.log.generation)
    keys = await _change_key(session, changes, log_key, key_id, keyring)
    # they may hold the thread's words
    event_count = await remove_from_log(session, changes, log_key, key.thread)
    plan = plan_log_removal(shared_log, older, key, others, label_of, now)
    await Commit(shared_log, plan.log, keys=keys).prepare(session, changes)
    await _delete_notes(session, changes, plan.log, plan.observations)
    for other, coverage in plan.uncovered:
        await _uncover(session, changes, other, plan.log, label_of(other), coverage, keyring)
    if plan.uncovered:
        # messages that are in a tail again may be due
        changes.set_due(log_key, now)
    uncovered = {other.thread for other, _ in plan.uncovered}
    told_keys = [key._replace(thread=name) for name in told - {key.thread, *uncovered}]
    await clear_others(session, changes, told_keys)
    part = plan.add_to(ForgetResult(events=event_count))
    return removed.add(mark_copies(part, key_id, keyring))


async def _change_key(
    session: Session, changes: Changes, log_key: Key, key_id: bytes | None, keyring: Keyring
) -> CommitKeys:
    """Add the steps that encrypt all rows of a log with another key: copies of the data hold what it
    told of the thread. Return what its own row is to be written with."""
    new = keyring.create_key()
    if new is None:
        return NO_COMMIT_KEYS
    held = await keyring.hold_row(session, key_id)
    keyring.drop([key_id])
    await add_resealed_rows(session, changes, log_key, held.row, new.key)
    return await keyring.write_new(CommitKeys(ThreadCiphers(new.key), (new.stored,)))


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
    keyring: Keyring,
) -> None:
    """Write a thread of which the log now covers less, up to the seq `coverage`."""
    [thread] = await select_memories(session, [key], keyring)
    outline = await select_outline(session, key)
    covered = [mark for mark in outline.live if mark.seq <= coverage]
    tail = await select_messages(session, key, keyring, coverage)
    after = uncover_thread(
        thread,
        log,
        label,
        tuple(covered[-RECENT_MARKS:]),
        tuple(stored.message for stored in tail),
        (len(covered), sum(mark.tokens for mark in covered)),
    )
    after = replace(after, other_threads_text="")
    held = await hold_key_of(session, key, keyring)
    keys = await keyring.write_new(keyring.plan_commit(thread, after, held))
    await Commit(thread, after, keys=keys).prepare(session, changes)


async def clear_others(session: Session, changes: Changes, keys: Sequence[Key]) -> None:
    """Take what prompts tell of other threads out of these threads."""
    for key, (_, row, due) in (await select_thread_rows(session, keys)).items():
        changes.write_row(key, msgspec.structs.replace(row, others=b""), due)


async def _remove_quotes(
    session: Session, changes: Changes, key: Key, label: str, keyring: Keyring
) -> None:
    """Take the look-ups of this thread out that quote the thread with the label. Copies of the data
    hold them too, where keys are apart: the thread gets a new key."""
    name = session.keys.of_thread("marks", key)
    marks = _pair_fields(await session.call("HGETALL", name))
    stored = await select_thread_rows(session, [key])
    if key not in stored:
        return
    key_id = stored[key][1].key_id
    cipher = (await keyring.hold_row(session, key_id)).row
    quoting = [seq for seq, mark in marks.items() if rows.may_quote(mark, label, cipher)]
    if not quoting:
        return
    if keyring.separate is not None:
        [thread] = await select_memories(session, [key], keyring)
        keys = await _change_key(session, changes, key, key_id, keyring)
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
