"""Read what a PostgreSQL schema keeps of a thread besides its memory: messages, notes and older
generations, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from om_proxy.memory.model import Beginning, Generation, Key, Message
from om_proxy.storage import row_decoding
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.postgres.encryption import KEY_OF_ROW, select_sealed_rows
from om_proxy.storage.postgres.session import OF_THREAD, Session
from om_proxy.storage.stored_rows import (
    GenerationEntries,
    GenerationSummary,
    Outline,
    StoredMessage,
    StoredObservation,
)

MAX_SEQ = 2**63 - 1
SELECT_MARKS = f"""SELECT live, parent, {row_decoding.MARK_COLUMNS} FROM om.message
    WHERE {OF_THREAD} ORDER BY seq"""
SELECT_MESSAGES = f"""SELECT {KEY_OF_ROW}, {row_decoding.MESSAGE_COLUMNS} FROM om.message
    WHERE {OF_THREAD} AND live = 1 AND seq > $4 AND seq <= $5 ORDER BY seq LIMIT $6"""
SELECT_STORED_MESSAGES = f"""SELECT {KEY_OF_ROW}, {row_decoding.STORED_COLUMNS} FROM om.message
    WHERE {OF_THREAD} AND seq > $4 AND seq <= $5 ORDER BY seq LIMIT $6"""
SELECT_BY_SEQ = f"""SELECT {KEY_OF_ROW}, {row_decoding.MESSAGE_COLUMNS} FROM om.message
    WHERE {OF_THREAD} AND seq = ANY ($4::bigint[]) ORDER BY seq"""
SELECT_BEGINNINGS = f"SELECT number, why, at FROM om.generation WHERE {OF_THREAD}"


async def select_outline(session: Session, key: Key) -> Outline:
    marks = [
        (state, parent, row_decoding.decode_mark(tuple(mark)))
        for state, parent, *mark in await session.select(SELECT_MARKS, *key)
    ]
    live = tuple(mark for state, _, mark in marks if state == row_decoding.LIVE)
    superseded = tuple(
        (mark, parent) for state, parent, mark in marks if state != row_decoding.LIVE
    )
    return Outline(live, superseded)


async def select_messages(
    session: Session,
    key: Key,
    keyring: Keyring,
    after: int,
    through: int | None,
    limit: int | None,
) -> tuple[Message, ...]:
    last = MAX_SEQ if through is None else through
    parameters = (*key, after, last, limit)
    found = await select_sealed_rows(session, SELECT_MESSAGES, parameters, keyring)
    return tuple(row_decoding.decode_message(row, cipher) for cipher, row in found)


async def select_stored_messages(
    session: Session, key: Key, keyring: Keyring, after: int, through: int | None, limit: int
) -> tuple[StoredMessage, ...]:
    last = MAX_SEQ if through is None else through
    parameters = (*key, after, last, limit)
    found = await select_sealed_rows(session, SELECT_STORED_MESSAGES, parameters, keyring)
    return tuple(row_decoding.decode_stored_message(row, cipher) for cipher, row in found)


async def select_by_seq(
    session: Session, key: Key, seqs: Sequence[int], keyring: Keyring
) -> tuple[Message, ...]:
    found = await select_sealed_rows(session, SELECT_BY_SEQ, (*key, list(seqs)), keyring)
    return tuple(row_decoding.decode_message(row, cipher) for cipher, row in found)


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


async def select_summaries(
    session: Session, key: Key, before: int
) -> tuple[GenerationSummary, ...]:
    found = await session.select(SELECT_GENERATION_SUMMARIES, *key, before)
    return tuple(GenerationSummary(*row) for row in found)


async def select_beginnings(session: Session, key: Key) -> dict[int, Beginning]:
    found = await session.select(SELECT_BEGINNINGS, *key)
    return {number: Beginning(why, at) for number, why, at in found}
