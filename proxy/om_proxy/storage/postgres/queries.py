"""Read memories, each with one statement: a statement is its own snapshot, and every further one
would cost a round trip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from om_proxy.memory.model import RECENT_MARKS, Key, Memory
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.encryption.row_cipher import HeldKeys, WrappedKey, list_key_ids
from om_proxy.storage.shared import row_decoding
from om_proxy.storage.shared.row_decoding import Row
from om_proxy.storage.sql.columns import THREAD, list_names
from om_proxy.storage.sql.session import IS_THREAD, Session

_THREAD = list_names(THREAD, "thread.")
# What stands beside the row of a thread is read by functions (migrations/0001_schema.sql). asyncpg decodes
# within a record only types that a column of some statement has: so the NULLs.
_TYPES_IN_RECORDS = "NULL::record[], NULL::bigint[], NULL::bytea[], NULL::float8[]"
SELECT_MEMORIES = f"""SELECT thread.thread, thread.id, thread.version, {_TYPES_IN_RECORDS},
    om.read_memory(thread.id, thread.generation, thread.coverage), {_THREAD} FROM om.thread
    WHERE tenant = $1 AND resource = $2 AND thread.thread = ANY ($3::text[])"""

# ── what has changed since ──

# ids come from the counter of the versions: a row made anew after a forget is told by its own
IS_TOLD_AS_CHANGES = """thread.id = held.id AND thread.version <> held.version
    AND thread.rewound <= held.version"""
# without changes the function is not called, and costs nothing
_COLUMNS_OF_CHANGES = f"""SELECT thread.thread, thread.id, thread.version, {_TYPES_IN_RECORDS},
    CASE WHEN {IS_TOLD_AS_CHANGES} THEN ROW (
        om.read_changes(thread.id, thread.generation, held.version, held.coverage), {_THREAD}) END FROM"""
_OF_HELD = """JOIN om.thread
    ON thread.tenant = $1 AND thread.resource = $2 AND thread.thread = held.thread"""
# What nearly every request asks: arrays would take a third more of both sides' time.
SELECT_CHANGES_OF_ONE = f"""{_COLUMNS_OF_CHANGES} (SELECT $3::text AS thread, $4::bigint AS id, $5::bigint AS version,
        $6::bigint AS coverage) AS held {_OF_HELD}"""
SELECT_CHANGES = f"""{_COLUMNS_OF_CHANGES} unnest($3::text[], $4::bigint[], $5::bigint[], $6::bigint[])
        AS held (thread, id, version, coverage) {_OF_HELD}"""

# In the order in which every transaction locks threads, and none that it would have to wait for: it
# holds those of many.
MARK_UNLOCKED_DELIVERED = """WITH reply AS (
        SELECT thread.id, sent.seq FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[])
            AS sent (tenant, resource, thread, seq) JOIN om.thread USING (tenant, resource, thread)
        ORDER BY tenant, resource, thread = '', thread FOR NO KEY UPDATE OF thread SKIP LOCKED)
    UPDATE om.thread SET delivered = greatest(reply.seq, delivered) FROM reply WHERE thread.id = reply.id
    RETURNING tenant, resource, thread"""
MARK_DELIVERED = (
    f"UPDATE om.thread SET delivered = greatest($4::bigint, delivered) WHERE {IS_THREAD}"
)

SELECT_WRAPPED_KEYS = "SELECT id, master, wrapped FROM om.data_key WHERE id = ANY ($1::bytea[])"


async def select_memories(
    session: Session, keys: Sequence[Key], keyring: Keyring
) -> tuple[Memory, ...]:
    """Return these memories of one resource, all of one snapshot."""
    tenant, resource, _ = keys[0]
    names = [key.thread for key in keys]
    found = await session.select(SELECT_MEMORIES, tenant, resource, names)
    held = await keyring.hold(session, list_key_ids(map(_find_key_columns, found)))
    for row in found:
        keyring.note_row(row[1], row[2], row[row_decoding.KEY_ID_PLACE])
    stored = {row[0]: row[1:] for row in found}
    return tuple(
        _decode_memory(key, stored[key.thread], held) if key.thread in stored else Memory(key=key)
        for key in keys
    )


def _find_key_columns(columns: Row) -> tuple[bytes | None, bytes]:
    """Return `key_id` and `others` of a row that ends with the columns `THREAD_COLUMNS`."""
    return columns[row_decoding.KEY_ID_PLACE], columns[row_decoding.OTHERS_PLACE]


def _decode_memory(key: Key, row: Row, held: HeldKeys) -> Memory:
    id_, version, _, _, _, _, (recent, tail, log, chunks, reflection), *columns = row
    ciphers = held.find_thread(*_find_key_columns(columns))
    cipher = ciphers.row
    memory = row_decoding.decode_memory(key, version, id_, tuple(columns), ciphers)
    return replace(
        memory,
        recent=row_decoding.decode_marks(recent)[::-1],
        tail=tuple(row_decoding.decode_message(message, cipher) for message in tail),
        log=replace(
            memory.log,
            entries=tuple(row_decoding.decode_observation(entry, cipher) for entry in log),
            reflection=row_decoding.decode_reflection(reflection, cipher) if reflection else None,
        ),
        chunks=tuple(row_decoding.decode_observation(chunk, cipher) for chunk in chunks),
    )


async def select_newest(
    session: Session, held: Sequence[Memory], keyring: Keyring
) -> tuple[Memory, ...]:
    """Return the newest of these memories of one resource, all of one snapshot, and those that are
    as they are held. What cannot be told as changes is read in full, with a second statement."""
    tenant, resource, _ = held[0].key
    states = [
        (memory.key.thread, memory.row_id, memory.version, memory.coverage) for memory in held
    ]
    if len(states) == 1:
        found = await session.select(SELECT_CHANGES_OF_ONE, tenant, resource, *states[0])
        if found and found[0][1:3] == (held[0].row_id, held[0].version):
            return tuple(held)
    else:
        columns = map(list, zip(*states, strict=True))
        found = await session.select(SELECT_CHANGES, tenant, resource, *columns)
    changed = [row for row in found if row[-1] is not None]
    keys = await keyring.hold(session, list_key_ids(_find_key_columns(row[-1]) for row in changed))
    for row in changed:
        keyring.note_row(row[1], row[2], row[-1][row_decoding.KEY_ID_PLACE])
    stored = {row[0]: row[1:] for row in found}
    for memory in held:
        found_row = stored.get(memory.key.thread)
        if memory.row_id and (found_row is None or found_row[0] != memory.row_id):
            keyring.drop_row(memory.row_id)
    newest = [_apply_changes(memory, stored.get(memory.key.thread), keys) for memory in held]
    if all(memory is not None for memory in newest):
        return tuple(memory for memory in newest if memory is not None)
    read = await select_memories(session, [memory.key for memory in held], keyring)
    return tuple(
        memory if (memory.row_id, memory.version) == (now.row_id, now.version) else now
        for memory, now in zip(held, read, strict=True)
    )


def _apply_changes(held: Memory, row: Row | None, keys: HeldKeys) -> Memory | None:
    """Return the newest memory; None if the row does not tell all of it."""
    if row is None:
        return held if not held.version and held == Memory(key=held.key) else Memory(key=held.key)
    id_, version, _, _, _, _, told = row
    if (id_, version) == (held.row_id, held.version):
        return held
    if told is None:
        return None
    (messages, notes, log_ids, chunk_ids, reflection), *columns = told
    ciphers = keys.find_thread(*_find_key_columns(columns))
    cipher = ciphers.row
    memory = row_decoding.decode_memory(held.key, version, id_, tuple(columns), ciphers)
    by_seq = {message.seq: message for message in held.tail}
    for is_live, *message_columns in messages:
        if is_live:
            message = row_decoding.decode_message(tuple(message_columns), cipher)
            by_seq[message.seq] = message
        else:
            by_seq.pop(message_columns[0], None)
    live = [by_seq[seq] for seq in sorted(by_seq)]
    covered = [message.mark for message in live if message.seq <= memory.coverage]
    tail = tuple(message for message in live if message.seq > memory.coverage)
    known = {entry.id: entry for entry in (*held.log.entries, *held.chunks)}
    for note in notes:
        entry = row_decoding.decode_observation(note, cipher)
        known[entry.id] = entry
    live_count = columns[_LIVE_COUNT]
    if not known.keys() >= {*log_ids, *chunk_ids} or live_count != memory.covered_count + len(tail):
        return None
    pending = held.log.reflection
    if reflection is None:
        pending = None
    elif reflection[0]:
        pending = row_decoding.decode_reflection(reflection[1], cipher)
    return replace(
        memory,
        recent=(*held.recent, *covered)[-RECENT_MARKS:],
        tail=tail,
        log=replace(memory.log, entries=tuple(known[id_] for id_ in log_ids), reflection=pending),
        chunks=tuple(known[id_] for id_ in chunk_ids),
    )


_LIVE_COUNT = [*THREAD].index("live_count")


async def select_wrapped_keys(session: Session, key_ids: Sequence[bytes]) -> list[WrappedKey]:
    """Return the wrapped data keys with these ids, as far as they are stored."""
    return [WrappedKey(*row) for row in await session.select(SELECT_WRAPPED_KEYS, list(key_ids))]


async def mark_delivered(session: Session, replies: Mapping[Key, int]) -> list[Key]:
    """Note the replies that were delivered, of threads that are not locked. Return those of
    others."""
    columns = [list(names) for names in zip(*replies, strict=True)] or [[], [], []]
    found = await session.select(MARK_UNLOCKED_DELIVERED, *columns, list(replies.values()))
    marked = {Key(*names) for names in found}
    return [key for key in replies if key not in marked]
