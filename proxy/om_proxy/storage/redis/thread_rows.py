"""Read what a Redis keeps of a thread besides its memory: messages, notes and older generations, page by
page."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from om_proxy.memory.model import Beginning, Generation, Key, Message, Observation
from om_proxy.storage.encryption.row_cipher import RowCipher
from om_proxy.storage.redis import rows
from om_proxy.storage.redis.keys import read_key_id
from om_proxy.storage.redis.queries import select_waiting
from om_proxy.storage.redis.session import Command, Session, pair_fields
from om_proxy.storage.shared import row_decoding
from om_proxy.storage.values.stored_rows import (
    GenerationEntries,
    GenerationSummary,
    Outline,
    StoredMessage,
    StoredObservation,
    summarize_generation,
)


async def select_messages(
    session: Session, key: Key, after: int, through: int | None = None, limit: int | None = None
) -> tuple[Message, ...]:
    """Return `Store.messages`."""
    found = await _select_range(session, key, after, through, limit, is_live=True)
    return tuple(stored.message for stored in found)


async def select_stored_messages(
    session: Session, key: Key, after: int, through: int | None = None, *, limit: int
) -> tuple[StoredMessage, ...]:
    """Return `Store.stored_messages`."""
    return await _select_range(session, key, after, through, limit, is_live=False)


async def _select_range(
    session: Session,
    key: Key,
    after: int,
    through: int | None,
    limit: int | None,
    *,
    is_live: bool,
) -> tuple[StoredMessage, ...]:
    """Return the first messages with `after < seq <= through`: live ones, or all."""
    last = "+inf" if through is None else through
    most = -1 if limit is None else limit
    if not most:
        return ()
    found = await session.run("messages", *key, after, last, most, int(not is_live), 1)
    states, marks, texts, key_ids = found
    cipher = await _hold_cipher(session, key_ids)
    return tuple(
        rows.decode_stored_message(*columns, cipher)
        for columns in zip(states, marks, texts, strict=True)
    )


async def _hold_cipher(session: Session, key_ids: bytes | None) -> RowCipher:
    """Return the cipher of a memory, given the ids of its keys."""
    return (await session.keyring.hold_row(session, read_key_id(key_ids))).row


def _ask_for_keys(session: Session, key: Key) -> Command:
    """Return the command that reads the ids of a memory's keys. Send it after those that read its
    texts: texts that got another key in between do not open then."""
    return ("HGET", session.keys.of_thread("row", key), "keys")


async def select_by_seq(session: Session, key: Key, seqs: Sequence[int]) -> tuple[Message, ...]:
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
    cipher = await _hold_cipher(session, key_ids)
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
    pairs = pair_fields(found)
    return {int(number): rows.decode_ids(ids) for number, ids in pairs}


async def select_notes(session: Session, key: Key, ids: Collection[int]) -> dict[int, Observation]:
    if not ids:
        return {}
    found, key_ids = await session.call_many(
        [("HMGET", session.keys.of_thread("notes", key), *ids), _ask_for_keys(session, key)]
    )
    cipher = await _hold_cipher(session, key_ids)
    pairs = zip(ids, found, strict=True)
    return {id_: rows.decode_observation(data, cipher) for id_, data in pairs if data is not None}


async def select_generations(
    session: Session, key: Key, before: int, limit: int | None = None
) -> tuple[Generation, ...]:
    """Return `Store.generations`. Generations with an empty log are not stored, and left out."""
    stored = await select_generation_ids(session, key)
    numbers = sorted((n for n in stored if n < before), reverse=True)[:limit]
    notes = await select_notes(session, key, {id_ for n in numbers for id_ in stored[n]})
    # a generation that was pruned in between has lost entries
    return tuple(
        Generation(number, tuple(notes[id_] for id_ in stored[number]))
        for number in numbers
        if all(id_ in notes for id_ in stored[number])
    )


async def select_summaries(
    session: Session, key: Key, before: int
) -> tuple[GenerationSummary, ...]:
    found = await select_generations(session, key, before)
    return tuple(map(summarize_generation, found))


async def select_beginnings(session: Session, key: Key) -> dict[int, Beginning]:
    found = await session.call("HGETALL", session.keys.of_thread("beginnings", key))
    pairs = pair_fields(found)
    return {int(number): Beginning(*rows.decode_row(data)) for number, data in pairs}


async def select_observations(
    session: Session, key: Key, after: int, *, limit: int
) -> tuple[StoredObservation, ...]:
    """Return `Store.observations`."""
    names = [session.keys.of_thread(part, key) for part in ("notes", "chunks")]
    stored, chunks = await session.call_many([("HKEYS", names[0]), ("ZRANGE", names[1], 0, -1)])
    ids = sorted(id_ for id_ in map(int, stored) if id_ > after)[:limit]
    chunk_ids = set(map(int, chunks))
    notes = await select_notes(session, key, ids)
    return tuple(
        StoredObservation(notes[id_], "chunk" if id_ in chunk_ids else "log")
        for id_ in ids
        if id_ in notes
    )


async def select_generation_entries(
    session: Session, key: Key, after: int, *, limit: int
) -> tuple[GenerationEntries, ...]:
    stored = await select_generation_ids(session, key)
    numbers = sorted(number for number in stored if number > after)[:limit]
    return tuple(GenerationEntries(number, stored[number]) for number in numbers)


# ── other threads of the resource ──


async def select_other_tails(
    session: Session, key: Key, threads: int, messages: int
) -> tuple[tuple[Key, tuple[Message, ...]], ...]:
    waiting = [one for one in await select_waiting(session, key) if one[0] != key]
    # a thread without a turn comes last
    waiting.sort(
        key=lambda one: (one[2].turn_at is not None, one[2].turn_at or 0.0, one[1]), reverse=True
    )
    tails = []
    for other, _, row in waiting[:threads]:
        tail = await _select_newest_of_tail(session, other, row.coverage, messages)
        if tail:
            tails.append((other, tail))
    return tuple(tails)


async def _select_newest_of_tail(
    session: Session, key: Key, coverage: int, limit: int
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
    return await select_by_seq(session, key, [int(seq) for seq in seqs])
