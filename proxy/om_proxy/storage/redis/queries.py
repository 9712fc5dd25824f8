"""Read memories, and the rows of threads. What must be of one moment is read by one script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from om_proxy.memory.model import RECENT_MARKS, Key, Memory, Observation, Reflection
from om_proxy.storage.encoding import decode_text
from om_proxy.storage.encryption.row_cipher import HeldKeys, RowCipher, ThreadCiphers
from om_proxy.storage.redis import rows
from om_proxy.storage.redis.session import Session
from om_proxy.storage.shared import row_decoding

IS_ABSENT, IS_HELD = 0, 1


class _Found(NamedTuple):
    """The return value of the script `load` for a memory that is held in another state."""

    is_whole: bool  # else what has come since
    row_id: int
    version: int
    due: float | None
    row: rows.ThreadRow
    reflection: bytes | None
    parts: Sequence[Any]  # messages and notes


async def select_newest(session: Session, held: Sequence[Memory]) -> tuple[Memory, ...]:
    """Return the newest of these memories of one resource, all of one moment, and those that are
    as they are held. Where the changes since do not tell all of one, all are read in full."""
    newest = await _load(session, held)
    if None not in newest:
        return tuple(memory for memory in newest if memory is not None)
    read = await select_memories(session, [memory.key for memory in held])
    return tuple(
        memory if (memory.row_id, memory.version) == (now.row_id, now.version) else now
        for memory, now in zip(held, read, strict=True)
    )


async def _load(session: Session, held: Sequence[Memory]) -> list[Memory | None]:
    """Return the newest of these memories; None for one of which the changes do not tell all."""
    tenant, resource, _ = held[0].key
    wanted = [part for memory in held for part in _list_held(memory)]
    answers = await session.run("load", tenant, resource, RECENT_MARKS, len(held), *wanted)
    found = [_read_answer(answer) for answer in answers]
    for memory, one in zip(held, found, strict=True):
        _note_row(session, memory, one)
    ids = {
        id_
        for one in found
        if isinstance(one, _Found)
        for id_ in (one.row.key_id, one.row.others_key_id)
    }
    keys = await session.keyring.hold(session, ids)
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


def _note_row(session: Session, held: Memory, found: _Found | int) -> None:
    """Note which key the memory has now. The key of one that is gone is held no longer."""
    row_id = found.row_id if isinstance(found, _Found) else 0
    if held.row_id and found != IS_HELD and row_id != held.row_id:
        session.keyring.drop_row(held.row_id)
    if isinstance(found, _Found):
        session.keyring.note_row(found.row_id, found.version, found.row.key_id)


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


async def select_memories(session: Session, keys: Sequence[Key]) -> tuple[Memory, ...]:
    """Return these memories of one resource, all of one moment."""
    newest = await _load(session, [Memory(key=key) for key in keys])
    return tuple(memory for memory in newest if memory is not None)  # nothing held, nothing partial


async def select_forgotten_at(session: Session, digests: Sequence[bytes]) -> float | None:
    name = session.keys.of_store("forgotten")
    scores = await session.call_many([("ZSCORE", name, digest) for digest in digests])
    return max((float(at) for at in scores if at is not None), default=None)


async def select_version(session: Session, key: Key) -> int:
    return int(await session.call("HGET", session.keys.of_thread("row", key), "version") or 0)


async def select_delivered(session: Session, key: Key) -> int | None:
    found = await session.call("HGET", session.keys.of_thread("row", key), "delivered")
    return None if found is None else int(found)


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


async def select_waiting(session: Session, key: Key) -> list[tuple[Key, int, rows.ThreadRow]]:
    """Return the threads that share the log of this resource and have a tail."""
    name = session.keys.of_resource("waiting", key.tenant, key.resource)
    names = await session.call("HKEYS", name)
    keys = [key._replace(thread=decode_text(name)) for name in names]
    found = await session.call_many(
        [("HMGET", session.keys.of_thread("row", one), "id", "row") for one in keys]
    )
    return [
        (one, int(row_id), rows.decode_thread_row(row))
        for one, (row_id, row) in zip(keys, found, strict=True)
        if row is not None
    ]
