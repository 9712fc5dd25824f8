"""Turn a commit into changes: the rows of one difference, and what it erases.

Everything is written by one script, whose first step draws the version. What only the store can tell,
which entries older generations hold, is read before; the version tells whether it still stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from om_proxy.common.errors import Conflict, ForgottenName
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import RESOURCE_THREAD, Key, Memory, Message, resource_key
from om_proxy.storage.encoding import find_stored_others
from om_proxy.storage.encryption.keyring import NO_COMMIT_KEYS, CommitKeys, changes_others
from om_proxy.storage.redis import rows
from om_proxy.storage.redis.changes import (
    Applied,
    Changes,
    ResourceState,
    read_resource,
    try_until_applied,
)
from om_proxy.storage.redis.encryption import hold_key_of
from om_proxy.storage.redis.events import erase_texts
from om_proxy.storage.redis.queries import select_thread_rows
from om_proxy.storage.redis.session import Session
from om_proxy.storage.redis.thread_rows import select_generation_ids, select_notes
from om_proxy.storage.shared.difference import (
    Difference,
    PlacedMessage,
    compute_difference,
    count_kept_generations,
    find_new_quotes,
)
from om_proxy.storage.shared.forgetting import FirstTurn
from om_proxy.storage.values.changes import (
    Change,
    NoteErasure,
    ResourceWakeup,
    WrittenRow,
    create_conflict,
)


class Commit:
    """Everything a commit writes. It is encoded before a connection is taken."""

    def __init__(
        self,
        before: Memory,
        after: Memory,
        interrupted: Sequence[Message] = (),
        events: Sequence[Event] = (),
        generations: int | None = None,
        keys: CommitKeys = NO_COMMIT_KEYS,
    ) -> None:
        """Encode the rows. `generations`: how many older ones stay when a new one begins; None:
        all."""
        self.before = before
        self._after = after
        self._difference = compute_difference(before, after, interrupted)
        self._events = events
        self._keys = keys
        self._cipher = keys.ciphers.row
        others = find_stored_others(after)
        # texts that stay are not encrypted again: their column is read
        self._keeps_others = bool(others and keys.key_id and not changes_others(before, after))
        self._row = rows.create_thread_row(
            after, keys.ciphers, writes_others=not self._keeps_others
        )
        placed = (*self._difference.messages, *self._difference.interrupted)
        self._marks, self._texts = rows.encode_messages(placed, self._cipher)
        self._kept_count = count_kept_generations(before, after, generations)

    async def prepare(self, changes: Changes) -> None:
        """Read what the commit depends on, and add its steps. The conditions are the caller's, but
        for that of new quotes."""
        older: Mapping[int, tuple[int, ...]] = {}
        if self._difference.dropped_chunks or self._kept_count is not None:
            older = await select_generation_ids(changes.session, self.before.key)
        if quotes := find_new_quotes(self.before, self._difference):
            changes.expect_unforgotten(self.before.key.tenant, quotes)
        is_rewound = _is_rewound(self.before, self._after, self._difference)
        changes.add_keys(self._keys.new_keys)
        row = self._row
        if self._keeps_others:
            stored = await select_thread_rows(changes.session, [self.before.key])
            if self.before.key in stored:  # else its condition does not hold
                row = replace(row, others=stored[self.before.key][1].others)
        changes.write_row(self.before.key, row, self._after.due_at, is_rewound=is_rewound)
        self._add_messages(changes)
        self._add_notes(changes)
        self._drop_notes(changes, older)
        if self._kept_count is not None:
            await self._prune(changes, older)
        changes.add_events(self.before.key, self._events, self._cipher)

    def _name(self, changes: Changes, part: str) -> str:
        return changes.names.of_thread(part, self.before.key)

    def _add_messages(self, changes: Changes) -> None:
        difference = self._difference
        changes.set_marks(self.before.key, self._marks)
        changes.set_fields(self._name(changes, "texts"), self._texts)
        self._set_states(changes, difference.messages, "live")
        self._set_states(changes, difference.interrupted, "interrupted")
        if difference.may_supersede:
            kept_seqs = [message.seq for message in self._after.tail]
            changes.supersede_missing(self.before.key, self._after.coverage, kept_seqs)

    def _set_states(self, changes: Changes, messages: Sequence[PlacedMessage], state: str) -> None:
        seqs = [one.message.seq for one in messages]
        for other in {"live", "superseded", "interrupted"} - {state}:
            changes.call_in_parts(("ZREM", self._name(changes, other)), seqs)
        scored = [number for seq in seqs for number in (seq, seq)]
        changes.call_in_parts(("ZADD", self._name(changes, state)), scored)

    def _add_notes(self, changes: Changes) -> None:
        difference, log = self._difference, self._after.log
        notes, chunks = self._name(changes, "notes"), self._name(changes, "chunks")
        observations = difference.observations
        changes.set_fields(
            notes,
            {entry.id: rows.encode_observation(entry, self._cipher) for entry, _ in observations},
        )
        for entry, state in observations:
            if state == "chunk":
                changes.call("ZADD", chunks, entry.last, entry.id)
            else:
                changes.call("ZREM", chunks, entry.id)
        if difference.entries or difference.is_shortened:
            ids = rows.encode_ids([entry.id for entry in log.entries])
            changes.write_field(self._name(changes, "generations"), log.generation, ids)
        if difference.began:
            beginning = rows.encode(tuple(difference.began))
            changes.call("HSET", self._name(changes, "beginnings"), log.generation, beginning)
        if difference.has_new_reflection:
            waiting = log.reflection
            sealed = rows.encode_reflection(waiting, self._cipher) if waiting else None
            changes.write_field(self._name(changes, "row"), "reflection", sealed)

    def _drop_notes(self, changes: Changes, older: Mapping[int, tuple[int, ...]]) -> None:
        """Drop chunks. One that an older generation holds is kept as an entry of that one."""
        dropped = self._difference.dropped_chunks
        held = {id_ for ids in older.values() for id_ in ids}
        changes.call_in_parts(("ZREM", self._name(changes, "chunks")), dropped)
        unheld = [id_ for id_ in dropped if id_ not in held]
        changes.call_in_parts(("HDEL", self._name(changes, "notes")), unheld)

    async def _prune(self, changes: Changes, older: Mapping[int, tuple[int, ...]]) -> None:
        """Keep the newest generations that have entries, with this one; then drop the entries that
        none of them holds."""
        logs = dict(older)
        if self._after.log.entries:
            logs[self._after.log.generation] = tuple(e.id for e in self._after.log.entries)
        kept = sorted(logs)[-self._kept_count :] if self._kept_count else []
        gone = [number for number in logs if number not in kept]
        stored = {
            int(id_) for id_ in await changes.session.call("HKEYS", self._name(changes, "notes"))
        }
        held = {id_ for number in kept for id_ in logs[number]}
        held.update(chunk.id for chunk in self._after.chunks)
        old: list[int] = []
        if kept:
            begun = map(int, await changes.session.call("HKEYS", self._name(changes, "beginnings")))
            old = [number for number in begun if number < kept[0]]
        _drop_logs(changes, self.before.key, gone, sorted(stored - held), old)


def _drop_logs(
    changes: Changes, key: Key, generations: list[int], notes: list[int], beginnings: list[int]
) -> None:
    """Drop older generations, the notes that no other holds, and when generations began."""
    parts = {"generations": generations, "notes": notes, "beginnings": beginnings}
    for part, ids in parts.items():
        changes.call_in_parts(("HDEL", changes.names.of_thread(part, key)), ids)


def _is_rewound(before: Memory, after: Memory, difference: Difference) -> bool:
    """Return whether the commit does more than add messages and notes, and choose between notes."""
    known = {entry.id: entry for entry in (*before.log.entries, *before.chunks)}
    return (
        difference.may_supersede
        or after.coverage < before.coverage
        or any(one.message.seq < before.next_seq for one in difference.messages)
        or any(
            entry.id < before.next_id and known.get(entry.id) != entry
            for entry, _ in difference.observations
        )
    )


CONDITIONS_PER_MEMORY = 2  # of a commit: its version and its key


class SharedCommit:
    """A commit of a thread and the shared log of its resource, both or neither. A shared log that
    does not differ is not written, but its version is checked."""

    def __init__(
        self,
        thread: Change,
        shared_log: Change | None,
        wakeup: ResourceWakeup | None,
        generations: int | None,
        keys: Sequence[CommitKeys] = (NO_COMMIT_KEYS, NO_COMMIT_KEYS),
        first_turn: FirstTurn | None = None,
    ) -> None:
        """Encode the rows. `keys`: of the thread and of the shared log. `first_turn`: of the
        thread."""
        self._keys = keys
        self._first_turn = first_turn
        self._thread = Commit(*thread[:4], generations, keys[0])
        self._log_before = shared_log.before if shared_log else None
        self._log = (
            Commit(*shared_log[:4], generations, keys[1])
            if shared_log and shared_log.needs_write
            else None
        )
        self._wakeup = wakeup

    async def add_steps(self, changes: Changes) -> None:
        await self._thread.prepare(changes)
        if self._log:
            await self._log.prepare(changes)
        if self._wakeup:
            log_key = resource_key(self._thread.before.key)
            changes.wake_resource(log_key, self._wakeup.now, self._wakeup.tokens)

    async def write(self, session: Session) -> tuple[WrittenRow, WrittenRow | None]:
        """Write everything. Raise `Conflict` if either has changed, `ForgottenName` for a first turn
        that began before its thread was forgotten."""
        changes = Changes(session)
        before = [self._thread.before]
        if self._log_before is not None:
            before.append(self._log_before)
        for memory, keys in zip(before, self._keys, strict=False):
            changes.expect_version(memory.key, memory.version)
            changes.expect_key(memory.key, keys.key_id if memory.version else None)
        if self._first_turn:
            changes.expect_name_kept(self._first_turn)
        await self.add_steps(changes)
        applied = await changes.apply()
        if applied.failed is not None:
            if self._first_turn and applied.failed == CONDITIONS_PER_MEMORY * len(before):
                name = self._thread.before.key.thread
                raise ForgottenName(f"thread {name} was forgotten after the turn began")
            raise create_conflict(before[0 if applied.failed < CONDITIONS_PER_MEMORY else -1])
        return applied.rows[0], applied.rows[1] if self._log else None


# ── what is erased ──


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
        changes = Changes(session)
        changes.expect_revision(key.tenant, key.resource, state.revision)
        for erasure in erasures:
            await _overwrite_entries(changes, erasure, state)
            if erasure.key != key:
                changes.raise_version(erasure.key)
        await commit.add_steps(changes)
        changes.ask_for_erasure()
        applied = await changes.apply()
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
    changes: Changes,
    erasure: NoteErasure,
    state: ResourceState,
) -> None:
    key = erasure.key
    notes = await select_notes(changes.session, key, [entry.id for entry in erasure.blanks])
    cipher = (await hold_key_of(changes.session, key)).row
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
    changes.set_fields(changes.names.of_thread("notes", key), blanks)
    changes.rewind(key)
    # their events hold the same words
    keys = [key]
    if key.thread == RESOURCE_THREAD:
        keys = [key._replace(thread=name) for name in state.threads]
        told = [key._replace(thread=name) for name in state.told]
        await clear_others(changes, told)
    await erase_texts(changes, keys)


async def clear_others(changes: Changes, keys: Sequence[Key]) -> None:
    """Take what prompts tell of other threads out of these threads."""
    for key, (_, row, due) in (await select_thread_rows(changes.session, keys)).items():
        changes.write_row(key, msgspec.structs.replace(row, others=b""), due)


async def drop_generations(
    session: Session, key: Key, expected_version: int, numbers: Sequence[int]
) -> int:
    """Remove older generations (`Store.drop_generations`). What is read here is as the version
    says, or the script changes nothing."""
    stored = await select_thread_rows(session, [key])
    if key not in stored or stored[key][0] != expected_version:
        raise create_version_conflict(key, expected_version)
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
    changes = Changes(session)
    changes.expect_version(key, expected_version)
    _drop_logs(changes, key, gone, unheld, begun)
    if (await changes.apply()).failed is not None:
        raise create_version_conflict(key, expected_version)
    return len(gone)


def create_version_conflict(key: Key, version: int) -> Conflict:
    return Conflict(f"thread {key.thread}: it has changed since version {version}")
