"""Read memories and what belongs to them. What must be of one moment is read by one script."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from om_proxy.memory.model import (
    RECENT_MARKS,
    Beginning,
    Generation,
    Key,
    Memory,
    Message,
    Observation,
    Reflection,
)
from om_proxy.storage import row_decoding
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.encryption.row_cipher import HeldKeys, RowCipher, ThreadCiphers
from om_proxy.storage.redis import rows
from om_proxy.storage.redis.keys import pack_names, read_key_id, unpack_key
from om_proxy.storage.redis.session import Command, Session
from om_proxy.storage.stored_rows import (
    Backlog,
    GenerationEntries,
    GenerationSummary,
    Outline,
    StoredMessage,
    StoredObservation,
    summarize_generation,
)

IS_ABSENT, IS_HELD = 0, 1
# in parts of a command: few enough for the server's other work to go on
MARKS_PER_PAGE = 1_000


class _Found(NamedTuple):
    """What the script `load` returns of a memory that is not held as it stands."""

    is_whole: bool  # else what has come since
    row_id: int
    version: int
    due: float | None
    row: rows.ThreadRow
    reflection: bytes | None
    parts: Sequence[Any]  # messages and notes


async def select_newest(
    session: Session, held: Sequence[Memory], keyring: Keyring
) -> tuple[Memory, ...]:
    """Return the newest of these memories of one resource, all of one moment, and those that stand
    as they are held. Where the changes since do not tell all of one, all are read in full."""
    newest = await _load(session, held, keyring)
    if None not in newest:
        return tuple(memory for memory in newest if memory is not None)
    read = await select_memories(session, [memory.key for memory in held], keyring)
    return tuple(
        memory if (memory.row_id, memory.version) == (now.row_id, now.version) else now
        for memory, now in zip(held, read, strict=True)
    )


async def _load(session: Session, held: Sequence[Memory], keyring: Keyring) -> list[Memory | None]:
    """Return the newest of these memories; None for one of which the changes do not tell all."""
    tenant, resource, _ = held[0].key
    wanted = [part for memory in held for part in _list_held(memory)]
    answers = await session.run("load", tenant, resource, RECENT_MARKS, len(held), *wanted)
    found = [_read_answer(answer) for answer in answers]
    for memory, one in zip(held, found, strict=True):
        _note_row(keyring, memory, one)
    ids = {
        id_
        for one in found
        if isinstance(one, _Found)
        for id_ in (one.row.key_id, one.row.others_key_id)
    }
    keys = await keyring.hold(session, ids)
    return [_take_newest(memory, one, keys) for memory, one in zip(held, found, strict=True)]


def _read_answer(answer: Any) -> _Found | int:
    if isinstance(answer, int):
        return answer
    kind, row_id, version, due, row, reflection, *parts = answer
    return _Found(
        kind == b"all",
        int(row_id),
        int(version),
        None if due is None else float(due),
        rows.decode_thread_row(row),
        reflection,
        parts,
    )


def _note_row(keyring: Keyring, held: Memory, found: _Found | int) -> None:
    """Note which key the memory has now. The key of one that is gone is held no longer."""
    row_id = found.row_id if isinstance(found, _Found) else 0
    if held.row_id and found != IS_HELD and row_id != held.row_id:
        keyring.drop_row(held.row_id)
    if isinstance(found, _Found):
        keyring.note_row(found.row_id, found.version, found.row.key_id)


def _list_held(memory: Memory) -> tuple[str | int, ...]:
    seqs = [0, *(mark.seq for mark in memory.recent[-1:]), *(m.seq for m in memory.tail[-1:])]
    return memory.key.thread, memory.row_id, memory.version, seqs[-1], memory.next_id


def _take_newest(held: Memory, found: _Found | int, keys: HeldKeys) -> Memory | None:
    """Return the newest memory; None if the parts do not tell all of it."""
    if found == IS_HELD:
        return held
    if not isinstance(found, _Found):  # it is absent
        empty = Memory(key=held.key)
        return held if held == empty else empty
    ciphers = keys.find_thread(found.row.key_id, found.row.others)
    if found.is_whole:
        return decode_memory(held.key, found, ciphers)
    return _apply_changes(held, found, ciphers)


def _apply_changes(held: Memory, found: _Found, ciphers: ThreadCiphers) -> Memory | None:
    marks, texts, log, chunks, notes = found.parts
    cipher = ciphers.row
    memory = _decode_row(held.key, found, ciphers)
    live = [
        *held.tail,
        *(rows.decode_message(*pair, cipher) for pair in zip(marks, texts, strict=True)),
    ]
    covered = [message.mark for message in live if message.seq <= memory.coverage]
    tail = tuple(message for message in live if message.seq > memory.coverage)
    known = {entry.id: entry for entry in (*held.log.entries, *held.chunks)}
    added = [rows.decode_observation(data, cipher) for data in notes]
    known |= {entry.id: entry for entry in added}
    log_ids, chunk_ids = map(int, log), [*map(int, chunks)]
    entries = [known.get(id_) for id_ in log_ids]
    stored_chunks = [known.get(id_) for id_ in chunk_ids]
    # an older branch or generation that came back, or what was written in between
    is_partial = None in entries or None in stored_chunks
    if is_partial or found.row.live_count != memory.covered_count + len(tail):
        return None
    return replace(
        memory,
        recent=(*held.recent, *covered)[-RECENT_MARKS:],
        tail=tail,
        log=replace(
            memory.log,
            entries=tuple(entry for entry in entries if entry is not None),
            reflection=_decode_reflection(found, cipher),
        ),
        chunks=_sort_chunks(chunk for chunk in stored_chunks if chunk is not None),
    )


def _decode_row(key: Key, found: _Found, ciphers: ThreadCiphers) -> Memory:
    """Return a memory without its messages and notes."""
    columns = found.row.list_columns(found.due)
    return row_decoding.decode_memory(key, found.version, found.row_id, columns, ciphers)


def _decode_reflection(found: _Found, cipher: RowCipher) -> Reflection | None:
    return rows.decode_reflection(found.reflection, cipher) if found.reflection else None


def _sort_chunks(chunks: Iterable[Observation]) -> tuple[Observation, ...]:
    return tuple(sorted(chunks, key=lambda chunk: (chunk.last, chunk.id)))


def decode_memory(key: Key, found: _Found, ciphers: ThreadCiphers) -> Memory:
    recent, tail, texts, log, chunks = found.parts
    cipher = ciphers.row
    memory = _decode_row(key, found, ciphers)
    return replace(
        memory,
        recent=tuple(rows.decode_mark(mark) for mark in reversed(recent)),
        tail=tuple(rows.decode_message(*pair, cipher) for pair in zip(tail, texts, strict=True)),
        log=replace(
            memory.log,
            entries=tuple(rows.decode_observation(data, cipher) for data in log),
            reflection=_decode_reflection(found, cipher),
        ),
        chunks=_sort_chunks(rows.decode_observation(data, cipher) for data in chunks),
    )


async def select_memories(
    session: Session, keys: Sequence[Key], keyring: Keyring
) -> tuple[Memory, ...]:
    """Return these memories of one resource, all of one moment."""
    newest = await _load(session, [Memory(key=key) for key in keys], keyring)
    return tuple(memory for memory in newest if memory is not None)  # nothing held, nothing partial


async def select_forgotten_at(session: Session, digests: Sequence[bytes]) -> float | None:
    name = session.keys.of_store("forgotten")
    scores = await session.call_many([("ZSCORE", name, digest) for digest in digests])
    return max((float(at) for at in scores if at is not None), default=None)


async def select_version(session: Session, key: Key) -> int:
    return int(await session.call("HGET", session.keys.of_thread("row", key), "version") or 0)


async def select_messages(
    session: Session,
    key: Key,
    keyring: Keyring,
    after: int,
    through: int | None = None,
    limit: int | None = None,
    *,
    every: bool = False,
) -> tuple[StoredMessage, ...]:
    """Return the first messages with `after < seq <= through`: live ones, or all."""
    last = "+inf" if through is None else through
    most = -1 if limit is None else limit
    if not most:
        return ()
    found = await session.run("messages", *key, after, last, most, int(every), 1)
    states, marks, texts, key_ids = found
    cipher = (await keyring.hold_row(session, read_key_id(key_ids))).row
    return tuple(
        rows.decode_stored_message(*columns, cipher)
        for columns in zip(states, marks, texts, strict=True)
    )


def _ask_for_keys(session: Session, key: Key) -> Command:
    """Return the command that reads the ids of a memory's keys. Send it behind those that read its
    texts: texts that were encrypted in between do not open then, and are never taken for plain."""
    return ("HGET", session.keys.of_thread("row", key), "keys")


async def select_by_seq(
    session: Session, key: Key, seqs: Sequence[int], keyring: Keyring
) -> tuple[Message, ...]:
    if not seqs:
        return ()
    wanted = sorted(set(seqs))
    marks, texts, key_ids = await session.call_many(
        [
            ("HMGET", session.keys.of_thread("marks", key), *wanted),
            ("HMGET", session.keys.of_thread("texts", key), *wanted),
            _ask_for_keys(session, key),
        ]
    )
    cipher = (await keyring.hold_row(session, read_key_id(key_ids))).row
    pairs = zip(marks, texts, strict=True)
    return tuple(
        rows.decode_message(mark, text, cipher) for mark, text in pairs if mark and text is not None
    )


async def select_outline(session: Session, key: Key) -> Outline:
    found = await session.run("messages", *key, 0, "+inf", -1, 1, 0)
    marks = [
        (int(state), rows.decode_parent(mark), rows.decode_mark(mark))
        for state, mark in zip(found[0], found[1], strict=True)
    ]
    return Outline(
        tuple(mark for state, _, mark in marks if state == row_decoding.LIVE),
        tuple((mark, parent) for state, parent, mark in marks if state != row_decoding.LIVE),
    )


# ── notes ──


async def select_generation_ids(session: Session, key: Key) -> dict[int, tuple[int, ...]]:
    """Return the ids of the entries of every stored generation, by its number."""
    found = await session.call("HGETALL", session.keys.of_thread("generations", key))
    pairs = zip(found[::2], found[1::2], strict=True)
    return {int(number): rows.decode_ids(ids) for number, ids in pairs}


async def select_notes(
    session: Session, key: Key, ids: Collection[int], keyring: Keyring
) -> dict[int, Observation]:
    if not ids:
        return {}
    found, key_ids = await session.call_many(
        [("HMGET", session.keys.of_thread("notes", key), *ids), _ask_for_keys(session, key)]
    )
    cipher = (await keyring.hold_row(session, read_key_id(key_ids))).row
    pairs = zip(ids, found, strict=True)
    return {id_: rows.decode_observation(data, cipher) for id_, data in pairs if data is not None}


async def select_generations(
    session: Session, key: Key, keyring: Keyring, before: int, limit: int | None = None
) -> tuple[Generation, ...]:
    """Return `Store.generations`. Generations with an empty log are not stored, and left out."""
    stored = await select_generation_ids(session, key)
    numbers = sorted((n for n in stored if n < before), reverse=True)[:limit]
    notes = await select_notes(session, key, {id_ for n in numbers for id_ in stored[n]}, keyring)
    # a generation that was pruned in between has lost entries
    return tuple(
        Generation(number, tuple(notes[id_] for id_ in stored[number]))
        for number in numbers
        if all(id_ in notes for id_ in stored[number])
    )


async def select_summaries(
    session: Session, key: Key, keyring: Keyring, before: int
) -> tuple[GenerationSummary, ...]:
    found = await select_generations(session, key, keyring, before)
    return tuple(map(summarize_generation, found))


async def select_beginnings(session: Session, key: Key) -> dict[int, Beginning]:
    found = await session.call("HGETALL", session.keys.of_thread("beginnings", key))
    pairs = zip(found[::2], found[1::2], strict=True)
    return {int(number): Beginning(*rows.decode_row(data)) for number, data in pairs}


async def select_observations(
    session: Session, key: Key, after: int, limit: int, keyring: Keyring
) -> tuple[StoredObservation, ...]:
    """Return `Store.observations`."""
    names = [session.keys.of_thread(part, key) for part in ("notes", "chunks")]
    stored, chunks = await session.call_many([("HKEYS", names[0]), ("ZRANGE", names[1], 0, -1)])
    ids = sorted(id_ for id_ in map(int, stored) if id_ > after)[:limit]
    chunk_ids = set(map(int, chunks))
    notes = await select_notes(session, key, ids, keyring)
    return tuple(
        StoredObservation(notes[id_], "chunk" if id_ in chunk_ids else "log")
        for id_ in ids
        if id_ in notes
    )


async def select_generation_entries(
    session: Session, key: Key, after: int, limit: int
) -> tuple[GenerationEntries, ...]:
    stored = await select_generation_ids(session, key)
    numbers = sorted(number for number in stored if number > after)[:limit]
    return tuple(GenerationEntries(number, stored[number]) for number in numbers)


# ── threads of a resource ──


async def select_thread_rows(
    session: Session, keys: Sequence[Key]
) -> dict[Key, tuple[int, rows.ThreadRow, float | None]]:
    """Return the version, the row and the due time of each of these threads that is stored."""
    found = await session.call_many(
        [("HMGET", session.keys.of_thread("row", key), "version", "row", "due") for key in keys]
    )
    return {
        key: (int(version), rows.decode_thread_row(row), None if due is None else float(due))
        for key, (version, row, due) in zip(keys, found, strict=True)
        if row is not None
    }


async def _select_waiting(session: Session, key: Key) -> list[tuple[Key, int, rows.ThreadRow]]:
    """Return the threads that share the log of this resource and have a tail."""
    name = session.keys.of_resource("waiting", key.tenant, key.resource)
    names = await session.call("HKEYS", name)
    keys = [key._replace(thread=row_decoding.decode_text(name)) for name in names]
    found = await session.call_many(
        [("HMGET", session.keys.of_thread("row", one), "id", "row") for one in keys]
    )
    return [
        (one, int(row_id), rows.decode_thread_row(row))
        for one, (row_id, row) in zip(keys, found, strict=True)
        if row is not None
    ]


async def select_backlog(session: Session, shared_log: Key) -> Backlog:
    waiting = await _select_waiting(session, shared_log)
    waiting.sort(key=lambda one: (one[2].turn_at is not None, one[2].turn_at or 0.0, one[1]))
    return row_decoding.decode_backlog(
        (
            *key,
            row.turn_at,
            row.pending,
            row.fresh,
            row.chunked,
            row.failures,
            row.retry_at,
            row.parked,
        )
        for key, _, row in waiting
    )


async def select_other_tails(
    session: Session, key: Key, threads: int, messages: int, keyring: Keyring
) -> tuple[tuple[Key, tuple[Message, ...]], ...]:
    waiting = [one for one in await _select_waiting(session, key) if one[0] != key]
    # a thread without a turn comes last
    waiting.sort(
        key=lambda one: (one[2].turn_at is not None, one[2].turn_at or 0.0, one[1]), reverse=True
    )
    tails = []
    for other, _, row in waiting[:threads]:
        tail = await _select_newest_of_tail(session, other, row.coverage, messages, keyring)
        if tail:
            tails.append((other, tail))
    return tuple(tails)


async def _select_newest_of_tail(
    session: Session, key: Key, coverage: int, limit: int, keyring: Keyring
) -> tuple[Message, ...]:
    seqs = await session.call(
        "ZREVRANGEBYSCORE",
        session.keys.of_thread("live", key),
        "+inf",
        f"({coverage}",
        "LIMIT",
        0,
        limit,
    )
    return await select_by_seq(session, key, [int(seq) for seq in seqs], keyring)


# ── due ──


async def claim_due(
    session: Session,
    now: float,
    limit: int,
    *,
    callers: bool = True,
    skip: Collection[Key] = (),
    holder: str = "",
    lease_ms: int = 0,
) -> tuple[Key, ...]:
    """Return what is due; with a holder, leased to it."""
    skipped = [pack_names(*key) for key in skip]
    found = await session.run(
        "claim", now, limit, int(callers), holder, lease_ms, len(skipped), *skipped
    )
    return tuple(map(unpack_key, found))


async def select_delivered(session: Session, key: Key) -> int | None:
    found = await session.call("HGET", session.keys.of_thread("row", key), "delivered")
    return None if found is None else int(found)
