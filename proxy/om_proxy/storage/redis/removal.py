"""Remove a thread, or the threads of a resource or a tenant: their rows, and what the shared log and
the resource's other threads say about them.

What is to change is read and computed first; one script then makes all of it, unless anything of
the resource was written meanwhile (its *revision*). In that case it is read and computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from msgspec.structs import replace

from om_proxy.common.errors import Conflict
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import RECENT_MARKS, RESOURCE_THREAD, Key, Memory, resource_key
from om_proxy.storage.encryption.keyring import NO_COMMIT_KEYS, CommitKeys
from om_proxy.storage.encryption.row_cipher import RowCipher, ThreadCiphers
from om_proxy.storage.redis import rows
from om_proxy.storage.redis.changes import Changes, read_resource, try_until_applied
from om_proxy.storage.redis.commit import Commit, clear_others, create_version_conflict
from om_proxy.storage.redis.encryption import hold_key_of
from om_proxy.storage.redis.events import remove_from_log, select_of_thread
from om_proxy.storage.redis.keys import read_key_id, split_key_ids
from om_proxy.storage.redis.listing import has_active_since, list_rows, select_resource_names
from om_proxy.storage.redis.queries import select_memories, select_thread_rows
from om_proxy.storage.redis.rows import encode_sealed_event
from om_proxy.storage.redis.session import Session, pair_fields
from om_proxy.storage.redis.thread_rows import (
    select_generation_ids,
    select_generations,
    select_messages,
    select_outline,
)
from om_proxy.storage.shared.event_encoding import reseal_event
from om_proxy.storage.shared.forgetting import (
    LabelThread,
    count_batch_threads,
    plan_log_removal,
    uncover_thread,
)
from om_proxy.storage.values.changes import ForgetBatch
from om_proxy.storage.values.records import ForgetResult

# The threads of a batch: few enough for a short script, or one that is larger.
MAX_BATCH_THREADS = 100


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
            raise create_version_conflict(key, expected_version)
        changes = Changes(session)
        changes.expect_revision(key.tenant, key.resource, state.revision)
        removed = await delete_rows(changes, [key])
        if key.thread != RESOURCE_THREAD and RESOURCE_THREAD in state.threads:
            others = [
                key._replace(thread=name)
                for name, is_shared in sorted(state.threads.items())
                if is_shared and name not in (key.thread, RESOURCE_THREAD)
            ]
            removed = await _remove_from_log(
                changes, key, others, label_of, removed, state.told, now
            )
        if key.thread != RESOURCE_THREAD:
            for name in sorted(state.quoting - {key.thread}):
                other = key._replace(thread=name)
                await _remove_quotes(changes, other, label_of(key))
        if event and removed.threads:
            changes.add_events(Key(key.tenant, "", ""), [event])
        finish_removal(changes, [key], removed)
        return removed if (await changes.apply()).failed is None else None

    return await try_until_applied(attempt)


def finish_removal(changes: Changes, keys: Iterable[Key], removed: ForgetResult) -> None:
    """Ask for the log to be rewritten, and take forgotten names out of the ledger."""
    for tenant, resource in sorted({(key.tenant, key.resource) for key in keys}):
        changes.fold_ledger(tenant, resource)
    if any(removed.counts.values()):
        changes.ask_for_erasure()


async def delete_rows(changes: Changes, keys: Sequence[Key]) -> ForgetResult:
    """Add the steps that delete everything of these, with their keys. Return the numbers of what is
    stored."""
    names = changes.names
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
    counts = await changes.session.call_many(commands)
    result = ForgetResult()
    for place, key in enumerate(keys):
        changes.delete_thread(key)
        *own, events, key_ids = counts[7 * place : 7 * place + 7]
        changes.session.keyring.drop(split_key_ids(key_ids))
        removed = ForgetResult(*own)._replace(events=events)
        result = result.add(mark_copies(changes.session, removed, read_key_id(key_ids)))
    return result


def mark_copies(session: Session, removed: ForgetResult, key_id: bytes | None) -> ForgetResult:
    """Return the result with what becomes of copies of a memory that had this key, which goes."""
    if not any(removed.counts.values()):
        return removed
    return removed._replace(backups=session.keyring.say_of_copies(key_id))


async def _remove_from_log(
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
    session = changes.session
    log_key = resource_key(key)
    if not others:
        log_result = await delete_rows(changes, [log_key])
        return removed.add(log_result._replace(threads=0))
    stored = await select_thread_rows(session, [log_key])
    key_id = stored[log_key][1].key_id if log_key in stored else None
    # one that is gone since has taken the revision along
    if log_key not in stored or await session.keyring.is_destroyed(session, key_id):
        return removed
    [shared_log] = await select_memories(session, [log_key])
    older = await select_generations(session, log_key, shared_log.log.generation)
    keys = await _change_key(changes, log_key, key_id)
    # they may hold the thread's words
    event_count = await remove_from_log(changes, log_key, key.thread)
    plan = plan_log_removal(shared_log, older, key, others, label_of, now)
    await Commit(shared_log, plan.log, keys=keys).prepare(changes)
    await _delete_notes(changes, plan.log, plan.observations)
    for other, coverage in plan.uncovered:
        await _uncover(changes, other, plan.log, label_of(other), coverage)
    if plan.uncovered:
        # messages that are in a tail again may be due
        changes.set_due(log_key, now)
    uncovered = {other.thread for other, _ in plan.uncovered}
    told_keys = [key._replace(thread=name) for name in told - {key.thread, *uncovered}]
    await clear_others(changes, told_keys)
    part = plan.add_to(ForgetResult(events=event_count))
    return removed.add(mark_copies(session, part, key_id))


async def _change_key(changes: Changes, log_key: Key, key_id: bytes | None) -> CommitKeys:
    """Add the steps that encrypt all rows of a log with another key: copies of the data hold what it
    told of the thread. Return what its own row is to be written with."""
    session = changes.session
    new = session.keyring.create_key()
    if new is None:
        return NO_COMMIT_KEYS
    held = await session.keyring.hold_row(session, key_id)
    session.keyring.drop([key_id])
    await add_resealed_rows(changes, log_key, held.row, new.key)
    return await session.keyring.write_new(CommitKeys(ThreadCiphers(new.key), (new.stored,)))


async def _delete_notes(changes: Changes, log: Memory, ids: Collection[int]) -> None:
    """Take entries out of every older generation. That of `log` is written already."""
    generations = changes.names.of_thread("generations", log.key)
    for number, stored in (await select_generation_ids(changes.session, log.key)).items():
        kept = [id_ for id_ in stored if id_ not in ids]
        if number == log.log.generation or len(kept) == len(stored):
            continue
        changes.write_field(generations, number, rows.encode_ids(kept))
    changes.call_in_parts(("HDEL", changes.names.of_thread("notes", log.key)), tuple(ids))


async def _uncover(
    changes: Changes,
    key: Key,
    log: Memory,
    label: str,
    coverage: int,
) -> None:
    """Write a thread of which the log now covers less, up to the seq `coverage`."""
    session = changes.session
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
    await Commit(thread, after, keys=keys).prepare(changes)


async def _remove_quotes(changes: Changes, key: Key, label: str) -> None:
    """Take the look-ups of this thread out that quote the thread with the label. Copies of the data
    hold them too, where keys are apart: the thread gets a new key."""
    session = changes.session
    name = changes.names.of_thread("marks", key)
    marks = _number_fields(await session.call("HGETALL", name))
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
        keys = await _change_key(changes, key, key_id)
        after = replace(thread, other_threads_text="")
        await Commit(thread, after, keys=keys).prepare(changes)
    changes.set_fields(name, {seq: rows.drop_look_ups(marks[seq]) for seq in quoting})
    changes.raise_version(key)


async def remove_look_ups(changes: Changes, keys: Sequence[Key]) -> None:
    """Take all look-ups out of these threads."""
    for key in keys:
        name = changes.names.of_thread("marks", key)
        marks = _number_fields(await changes.session.call("HGETALL", name))
        kept = {seq: mark for seq, mark in marks.items() if rows.has_look_ups(mark)}
        changes.set_fields(name, {seq: rows.drop_look_ups(mark) for seq, mark in kept.items()})
        changes.raise_version(key)
        changes.call("SREM", changes.names.of_resource("quoting", *key[:2]), key.thread)


def _number_fields(reply: Sequence[bytes]) -> dict[int, bytes]:
    return {int(seq): value for seq, value in pair_fields(reply)}


async def add_resealed_rows(changes: Changes, key: Key, old: RowCipher, new: RowCipher) -> None:
    """Add the steps that write messages, notes, the pending reflection and events of a memory anew.
    The caller's condition tells whether what is read here stands."""
    names = changes.names
    reseals = {
        "marks": rows.reseal_mark,
        "texts": rows.reseal_raw,
        "notes": rows.reseal_observation,
    }
    *found, reflection = await changes.session.call_many(
        [
            *(("HGETALL", names.of_thread(part, key)) for part in reseals),
            ("HGET", names.of_thread("row", key), "reflection"),
        ]
    )
    for (part, reseal), fields in zip(reseals.items(), found, strict=True):
        resealed = {
            id_: reseal(id_, data, old, new) for id_, data in _number_fields(fields).items()
        }
        kept = {id_: data for id_, data in resealed.items() if data is not None}
        changes.set_fields(names.of_thread(part, key), kept)
    if reflection is not None:
        data = rows.encode_reflection(rows.decode_reflection(reflection, old), new)
        changes.call("HSET", names.of_thread("row", key), "reflection", data)
    for one in await select_of_thread(changes.session, key):
        event = encode_sealed_event(key, reseal_event(one.event, old, new))
        changes.replace_field(names.of_store("event_data"), one.id, event)


# ── many threads ──


async def remove_batch(
    session: Session,
    tenant: str,
    resource: str | None,
    describe_forgotten: Callable[[Key], Event] | None,
    active_before: float | None = None,
) -> ForgetBatch:
    """Remove some threads of a resource or tenant: all rows of each, but not its part of a shared
    log. Shared logs go with the last batch. Events that describe forgotten threads stay: they name
    none. `active_before`: as in `Store.forget_batch`."""

    async def attempt() -> ForgetBatch | None:
        listed = await list_rows(session, tenant, resource, MAX_BATCH_THREADS + 1)
        count = count_batch_threads([one.row.live_count for one in listed[:MAX_BATCH_THREADS]])
        is_last = count == len(listed)
        keys = [one.key for one in listed[:count]]
        names = {key.resource for key in keys}
        if is_last:
            names.update(await select_resource_names(session, tenant, resource))
        changes = Changes(session)
        removed = await delete_rows(changes, keys)
        for name in sorted(names):
            log_key = Key(tenant, name, RESOURCE_THREAD)
            removed = await _leave_resource(changes, log_key, keys, is_last, removed)
        # after the revisions were read, so that no turn comes between
        if active_before is not None and await has_active_since(
            session, tenant, resource, active_before
        ):
            raise Conflict("a thread of the resource had a turn since")
        if is_last:
            changes.drop_leases(tenant, resource)
        if describe_forgotten:
            changes.add_events(Key(tenant, "", ""), map(describe_forgotten, keys))
        finish_removal(changes, [Key(tenant, name, "") for name in names], removed)
        applied = await changes.apply()
        if applied.failed is not None:
            return None
        # a thread may have begun meanwhile
        is_last = is_last and not await list_rows(session, tenant, resource, 1)
        return ForgetBatch(removed, tuple(keys), is_last)

    return await try_until_applied(attempt)


async def _leave_resource(
    changes: Changes,
    log_key: Key,
    keys: Collection[Key],
    is_last: bool,
    removed: ForgetResult,
) -> ForgetResult:
    """Add what a batch changes in one resource besides its threads. Return the sums with that."""
    state = await read_resource(changes.session, log_key.tenant, log_key.resource)
    changes.expect_revision(log_key.tenant, log_key.resource, state.revision)
    if is_last and RESOURCE_THREAD in state.threads:
        log_result = await delete_rows(changes, [log_key])
        removed = removed.add(log_result._replace(threads=0))
    told = [log_key._replace(thread=name) for name in state.told]
    await clear_others(changes, [key for key in told if key not in keys])
    quoting = [log_key._replace(thread=name) for name in sorted(state.quoting)]
    await remove_look_ups(changes, [key for key in quoting if key not in keys])
    return removed
