"""Read memories and lists of them, each with one statement: a statement is its own snapshot, and
every further one would cost a round trip."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby

from msgspec.structs import replace

from om_proxy.memory.model import RECENT_MARKS, Generation, Key, Memory, Message
from om_proxy.storage import row_decoding
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.encryption.row_cipher import HeldKeys, list_key_ids
from om_proxy.storage.postgres.encryption import KEY_OF_ROW, select_sealed_rows
from om_proxy.storage.postgres.session import OF_THREAD, UNIX_NOW, Row, Session
from om_proxy.storage.stored_rows import GenerationEntries, StoredObservation

_THREAD = ", ".join(f"thread.{name.strip()}" for name in row_decoding.THREAD_COLUMNS.split(","))
# What stands beside the row of a thread is read by functions (migrations/0011_reading.sql). asyncpg decodes
# within a record only types that a column of some statement has: so the NULLs.
_TYPES_IN_RECORDS = "NULL::record[], NULL::bigint[], NULL::bytea[]"
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
    id_, version, _, _, _, (recent, tail, log, chunks, reflection), *columns = row
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
    """Return the newest of these memories of one resource, all of one snapshot, and those that stand
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
    id_, version, _, _, _, told = row
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


_LIVE_COUNT = [name.strip() for name in row_decoding.THREAD_COLUMNS.split(",")].index("live_count")

# ── lists ──

_LEASED = f"""EXISTS (SELECT 1 FROM om.lease
    WHERE (lease.tenant, lease.resource, lease.thread) = (thread.tenant, thread.resource, thread.thread)
    AND until > {UNIX_NOW})"""
# One step from each tenant with work to the next, and of each only as many threads as are wanted: a
# window over all that is due reads all of it. $3 to $5: the keys that are left out.
SELECT_DUE = f"""WITH RECURSIVE owner (tenant) AS (
        (SELECT tenant FROM om.thread WHERE due IS NOT NULL ORDER BY tenant LIMIT 1)
        UNION ALL SELECT (SELECT thread.tenant FROM om.thread
            WHERE due IS NOT NULL AND thread.tenant > owner.tenant ORDER BY thread.tenant LIMIT 1)
        FROM owner WHERE owner.tenant IS NOT NULL
    ), listed AS (
        SELECT waiting.*, row_number() OVER (PARTITION BY waiting.tenant ORDER BY due, id) AS turn
        FROM owner CROSS JOIN LATERAL (
            SELECT id, thread.tenant, resource, thread.thread, due FROM om.thread
            WHERE thread.tenant = owner.tenant AND due <= $1 AND ($6::boolean OR NOT needs_caller)
            AND NOT EXISTS (SELECT 1 FROM unnest($3::text[], $4::text[], $5::text[]) AS skipped (tenant, resource, thread)
                WHERE (skipped.tenant, skipped.resource, skipped.thread) = (thread.tenant, thread.resource, thread.thread))
            AND NOT {_LEASED}
            ORDER BY due, id LIMIT $2) AS waiting
    ), candidate AS (SELECT * FROM listed ORDER BY turn, due, id LIMIT $2)"""
LIST_DUE = f"""{SELECT_DUE} SELECT tenant, resource, thread FROM candidate ORDER BY turn, due, id"""
# A row that somebody else locks is being claimed or committed, and is left out.
CLAIM_DUE = f"""{SELECT_DUE}, free AS (
        SELECT tenant, resource, thread FROM om.thread
        WHERE id IN (SELECT id FROM candidate) AND due <= $1 FOR NO KEY UPDATE SKIP LOCKED
    ), taken AS (
        INSERT INTO om.lease (tenant, resource, thread, holder, until)
        SELECT tenant, resource, thread, $7::text, {UNIX_NOW} + $8::float8 FROM free
        ON CONFLICT (tenant, resource, thread) DO UPDATE SET (holder, until) = ROW (excluded.holder, excluded.until)
        WHERE lease.until <= {UNIX_NOW} RETURNING lease.tenant, lease.resource, lease.thread
    ) SELECT candidate.tenant, candidate.resource, candidate.thread, taken.tenant IS NOT NULL
    FROM candidate LEFT JOIN taken ON (taken.tenant, taken.resource, taken.thread)
        = (candidate.tenant, candidate.resource, candidate.thread)
    ORDER BY turn, due, id"""
# Others may take what was found; then look again, so that nothing that is due is left out.
MAX_CLAIM_ROUNDS = 10


async def select_due(session: Session, now: float, limit: int) -> tuple[Key, ...]:
    return tuple(Key(*row) for row in await session.select(LIST_DUE, now, limit, [], [], [], True))


async def claim_due(
    session: Session,
    now: float,
    limit: int,
    holder: str,
    seconds: float,
    callers: bool,
    skip: Collection[Key],
) -> tuple[Key, ...]:
    """Return `Store.claim`. Each round is a statement, and so a transaction, of its own."""
    claimed: list[Key] = []
    skipped = set(skip)
    for _ in range(MAX_CLAIM_ROUNDS):
        columns = [list(values) for values in zip(*skipped, strict=True)] or [[], [], []]
        found = await session.select(
            CLAIM_DUE, now, limit - len(claimed), *columns, callers, holder, seconds
        )
        taken = [Key(*row[:3]) for row in found if row[3]]
        claimed += taken
        skipped.update(taken)
        if len(claimed) == limit or len(taken) == len(found):
            break
    return tuple(claimed)


_LATEST_OTHERS = """SELECT key_id, tenant, resource, thread.thread, thread.id, thread.coverage, turn_at FROM om.thread
    WHERE tenant = $1 AND resource = $2 AND shared AND pending > 0 AND thread.thread <> $3
    ORDER BY turn_at DESC NULLS LAST, id DESC LIMIT $4"""
SELECT_OTHER_TAILS = f"""SELECT key_id, tenant, resource, thread, ARRAY (
        SELECT ROW ({row_decoding.MESSAGE_COLUMNS}) FROM om.message
        WHERE thread_id = latest.id AND live = 1 AND seq > latest.coverage ORDER BY seq DESC LIMIT $5)
    FROM ({_LATEST_OTHERS}) AS latest ORDER BY turn_at DESC NULLS LAST, id DESC"""


async def select_other_tails(
    session: Session, key: Key, threads: int, messages: int, keyring: Keyring
) -> tuple[tuple[Key, tuple[Message, ...]], ...]:
    parameters = (*key, threads, messages)
    found = await select_sealed_rows(session, SELECT_OTHER_TAILS, parameters, keyring)
    return tuple(
        (
            Key(*names),
            tuple(row_decoding.decode_message(row, cipher) for row in reversed(newest_first)),
        )
        for cipher, (*names, newest_first) in found
    )


async def select_observations(
    session: Session, key: Key, after: int, limit: int, keyring: Keyring
) -> tuple[StoredObservation, ...]:
    sql = f"""SELECT {KEY_OF_ROW}, observation.state, {row_decoding.OBSERVATION_COLUMNS} FROM om.observation
        WHERE {OF_THREAD} AND observation.id > $4 ORDER BY observation.id LIMIT $5"""
    found = await select_sealed_rows(session, sql, (*key, after, limit), keyring)
    return tuple(
        StoredObservation(row_decoding.decode_observation(tuple(columns), cipher), state)
        for cipher, (state, *columns) in found
    )


async def select_generation_entries(
    session: Session, key: Key, after: int, limit: int
) -> tuple[GenerationEntries, ...]:
    sql = f"""SELECT generation, observation_id FROM om.entry WHERE {OF_THREAD} AND generation IN (
            SELECT DISTINCT generation FROM om.entry WHERE {OF_THREAD} AND generation > $4
            ORDER BY generation LIMIT $5)
        ORDER BY generation, position"""
    found = await session.select(sql, *key, after, limit)
    return tuple(
        GenerationEntries(number, tuple(id_ for _, id_ in entries))
        for number, entries in groupby(found, key=lambda row: int(row[0]))
    )


SELECT_GENERATIONS = f"""SELECT (SELECT thread.key_id FROM om.thread WHERE thread.id = entry.thread_id), generation,
    {row_decoding.OBSERVATION_COLUMNS} FROM om.entry JOIN om.observation
    ON observation.thread_id = entry.thread_id AND observation.id = observation_id
    WHERE entry.{OF_THREAD} AND generation IN (SELECT DISTINCT generation FROM om.entry
        WHERE {OF_THREAD} AND generation < $4 ORDER BY generation DESC LIMIT $5)
    ORDER BY generation DESC, position"""
SELECT_GENERATION_SUMMARIES = f"""SELECT generation, count(*), sum(tokens)::bigint,
        count(*) FILTER (WHERE kind = 'reflection'), max(at) FROM om.entry JOIN om.observation
    ON observation.thread_id = entry.thread_id AND observation.id = observation_id
    WHERE entry.{OF_THREAD} AND generation < $4 GROUP BY generation ORDER BY generation DESC"""


async def select_generations(
    session: Session, key: Key, keyring: Keyring, before: int, limit: int | None = None
) -> tuple[Generation, ...]:
    """Return `Store.generations`. Generations with an empty log have no rows, and are left out."""
    found = await session.select(SELECT_GENERATIONS, *key, before, limit)
    held = await keyring.hold(session, {row[0] for row in found})
    logs = groupby(found, key=lambda row: int(row[1]))
    return tuple(
        Generation(
            number,
            tuple(
                row_decoding.decode_observation(tuple(row[2:]), held.find(row[0])) for row in log
            ),
        )
        for number, log in logs
    )
