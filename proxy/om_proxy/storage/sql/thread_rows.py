"""Read what a database keeps of a thread besides its memory, page by page: messages, notes and
older generations, which can be removed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter

from om_proxy.common.errors import Conflict
from om_proxy.common.off_loop import run_off_loop
from om_proxy.memory.model import Beginning, Generation, Key, Message
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.encryption.row_cipher import RowCipher
from om_proxy.storage.shared import row_decoding
from om_proxy.storage.shared.row_decoding import Row
from om_proxy.storage.sql.session import (
    IS_THREAD,
    KEY_OF_ROW,
    MAX_NUMBER,
    OF_THREAD,
    Session,
    SqlStore,
)
from om_proxy.storage.values.stored_rows import (
    GenerationEntries,
    GenerationSummary,
    Outline,
    StoredMessage,
    StoredObservation,
)

SELECT_DELIVERED = f"SELECT delivered FROM om.thread WHERE {IS_THREAD}"
SELECT_MARKS = f"""SELECT live, parent, {row_decoding.MARK_COLUMNS} FROM om.message
    WHERE {OF_THREAD} ORDER BY seq"""
SELECT_MESSAGES = f"""SELECT {KEY_OF_ROW}, {row_decoding.MESSAGE_COLUMNS} FROM om.message
    WHERE {OF_THREAD} AND live = 1 AND seq > $4 AND seq <= $5 ORDER BY seq LIMIT $6"""
SELECT_STORED_MESSAGES = f"""SELECT {KEY_OF_ROW}, {row_decoding.STORED_COLUMNS} FROM om.message
    WHERE {OF_THREAD} AND seq > $4 AND seq <= $5 ORDER BY seq LIMIT $6"""
SELECT_BY_SEQ = f"""SELECT {KEY_OF_ROW}, {row_decoding.MESSAGE_COLUMNS} FROM om.message
    WHERE {OF_THREAD} AND seq = ANY ($4::bigint[]) ORDER BY seq"""
SELECT_OBSERVATIONS = f"""SELECT {KEY_OF_ROW}, observation.state, {row_decoding.OBSERVATION_COLUMNS}
    FROM om.observation WHERE {OF_THREAD} AND observation.id > $4 ORDER BY observation.id LIMIT $5"""
SELECT_ENTRIES = f"""SELECT generation, observation_id FROM om.entry WHERE {OF_THREAD} AND generation IN (
        SELECT DISTINCT generation FROM om.entry WHERE {OF_THREAD} AND generation > $4
        ORDER BY generation LIMIT $5)
    ORDER BY generation, position"""
_WITH_OBSERVATION = """om.entry JOIN om.observation
    ON observation.thread_id = entry.thread_id AND observation.id = observation_id"""
# a range: SQLite would look for each generation of a list by itself, and sort what it finds
SELECT_GENERATIONS = f"""SELECT (SELECT thread.key_id FROM om.thread WHERE thread.id = entry.thread_id),
        generation, {row_decoding.OBSERVATION_COLUMNS} FROM {_WITH_OBSERVATION}
    WHERE entry.{OF_THREAD} AND generation < $4 AND generation >= (
        SELECT min(generation) FROM (SELECT DISTINCT generation FROM om.entry
            WHERE {OF_THREAD} AND generation < $4 ORDER BY generation DESC LIMIT $5) AS newest)
    ORDER BY generation DESC, position"""
SELECT_SUMMARIES = f"""SELECT generation, count(*), sum(tokens)::bigint,
        count(*) FILTER (WHERE kind = 'reflection'), max(at) FROM {_WITH_OBSERVATION}
    WHERE entry.{OF_THREAD} AND generation < $4 GROUP BY generation ORDER BY generation DESC"""
SELECT_BEGINNINGS = f"SELECT number, why, at FROM om.generation WHERE {OF_THREAD}"
_LATEST_OTHERS = """SELECT key_id, thread, id, coverage, turn_at FROM om.thread
    WHERE tenant = $1 AND resource = $2 AND shared = true AND pending > 0 AND thread <> $3
    ORDER BY turn_at DESC NULLS LAST, id DESC LIMIT $4"""
_TAIL_BEGIN = """SELECT min(seq) FROM (SELECT seq FROM om.message AS newer
    WHERE newer.thread_id = latest.id AND newer.live = 1 AND newer.seq > latest.coverage
    ORDER BY newer.seq DESC LIMIT $5) AS newest"""
# without an order: SQLite would sort the texts
SELECT_OTHER_TAILS = f"""SELECT key_id, thread, latest.id, turn_at, {row_decoding.MESSAGE_COLUMNS}
    FROM ({_LATEST_OTHERS}) AS latest
    JOIN om.message ON thread_id = latest.id AND live = 1 AND seq >= ({_TAIL_BEGIN})"""


LOCK_LOG = f"SELECT id, version FROM om.thread WHERE {IS_THREAD} FOR NO KEY UPDATE"
_GENERATION = "(SELECT generation FROM om.thread WHERE id = $1)"
DROP_ENTRIES = f"""DELETE FROM om.entry
    WHERE thread_id = $1 AND generation = $2 AND generation < {_GENERATION} RETURNING 1"""
DROP_BEGINNING = f"""DELETE FROM om.generation
    WHERE thread_id = $1 AND number = $2 AND number < {_GENERATION}"""
# those that no generation holds
PRUNE_OBSERVATIONS = """DELETE FROM om.observation WHERE thread_id = $1 AND state = 'log'
    AND NOT EXISTS (SELECT 1 FROM om.entry
        WHERE entry.thread_id = observation.thread_id AND observation_id = observation.id)"""


class ThreadRowMethods(SqlStore):
    """The `ThreadRows` of an SQL store."""

    async def delivered_reply(self, key: Key) -> int | None:
        found = await self._select(SELECT_DELIVERED, *key)
        return found[0][0] if found else None

    async def outline(self, key: Key) -> Outline:
        marks = [
            (state, parent, row_decoding.decode_mark(mark))
            for state, parent, *mark in await self._select(SELECT_MARKS, *key)
        ]
        live = tuple(mark for state, _, mark in marks if state == row_decoding.LIVE)
        superseded = tuple(
            (mark, parent) for state, parent, mark in marks if state != row_decoding.LIVE
        )
        return Outline(live, superseded)

    async def messages(
        self, key: Key, after: int, through: int | None = None, limit: int | None = None
    ) -> tuple[Message, ...]:
        last = MAX_NUMBER if through is None else through
        most = MAX_NUMBER if limit is None else limit
        parameters = (*key, after, last, most)
        return await self._select_texts(row_decoding.decode_message, SELECT_MESSAGES, *parameters)

    async def stored_messages(
        self, key: Key, after: int, through: int | None = None, *, limit: int
    ) -> tuple[StoredMessage, ...]:
        last = MAX_NUMBER if through is None else through
        decode = row_decoding.decode_stored_message
        return await self._select_texts(decode, SELECT_STORED_MESSAGES, *key, after, last, limit)

    async def messages_by_seq(self, key: Key, seqs: Sequence[int]) -> tuple[Message, ...]:
        decode = row_decoding.decode_message
        return await self._select_texts(decode, SELECT_BY_SEQ, *key, list(seqs))

    async def observations(
        self, key: Key, after: int, *, limit: int
    ) -> tuple[StoredObservation, ...]:
        decode = _decode_stored_observation
        return await self._select_texts(decode, SELECT_OBSERVATIONS, *key, after, limit)

    async def generation_entries(
        self, key: Key, after: int, *, limit: int
    ) -> tuple[GenerationEntries, ...]:
        found = await self._select(SELECT_ENTRIES, *key, after, limit)
        return tuple(
            GenerationEntries(number, tuple(id_ for _, id_ in entries))
            for number, entries in groupby(found, key=lambda row: int(row[0]))
        )

    async def generations(
        self, key: Key, before: int, limit: int | None = None
    ) -> tuple[Generation, ...]:
        """Return the older generations. Those with an empty log have no rows, and are left out."""
        return await self._read_sealed(
            lambda session: select_generations(session, key, self._keys, before, limit)
        )

    async def generation_summaries(self, key: Key, before: int) -> tuple[GenerationSummary, ...]:
        found = await self._select(SELECT_SUMMARIES, *key, before)
        return tuple(GenerationSummary(*row) for row in found)

    async def beginnings(self, key: Key) -> Mapping[int, Beginning]:
        found = await self._select(SELECT_BEGINNINGS, *key)
        return {number: Beginning(why, at) for number, why, at in found}

    async def other_thread_tails(
        self, key: Key, threads: int, messages: int
    ) -> tuple[tuple[Key, tuple[Message, ...]], ...]:
        parameters = (*key, threads, messages)
        found = await self._select_texts(_decode_tail_message, SELECT_OTHER_TAILS, *parameters)
        in_order = sorted(found, key=lambda each: (each[0], each[1].seq))
        return tuple(
            (key._replace(thread=place[-1]), tuple(message for _, message in tail))
            for place, tail in groupby(in_order, key=itemgetter(0))
        )

    async def drop_generations(
        self, key: Key, expected_version: int, numbers: Sequence[int]
    ) -> int:
        async def drop(session: Session) -> int:
            found = await session.select(LOCK_LOG, *key)
            if not found or found[0][1] != expected_version:
                raise Conflict(
                    f"thread {key.thread}: it has changed since version {expected_version}"
                )
            thread_id, dropped_count = found[0][0], 0
            for number in numbers:
                dropped_count += bool(await session.select(DROP_ENTRIES, thread_id, number))
                await session.execute(DROP_BEGINNING, thread_id, number)
            await session.execute(PRUNE_OBSERVATIONS, thread_id)
            return dropped_count

        return await self._write(drop, is_background=True)


def _decode_stored_observation(row: Row, cipher: RowCipher) -> StoredObservation:
    return StoredObservation(row_decoding.decode_observation(row[1:], cipher), row[0])


def _decode_tail_message(row: Row, cipher: RowCipher) -> tuple[Row, Message]:
    """Return the place and name of the thread, the latest first, and the message."""
    thread, id_, turn_at = row[:3]
    place = (math.inf if turn_at is None else -turn_at, -id_, thread)
    return place, row_decoding.decode_message(row[3:], cipher)


async def select_generations(
    session: Session, key: Key, keys: Keyring, before: int, limit: int | None = None
) -> tuple[Generation, ...]:
    """Return `Store.generations`, alone or inside a transaction that then writes. A log may have
    hundreds of generations: those are decoded off the event loop."""
    most = MAX_NUMBER if limit is None else limit
    found = await session.select(SELECT_GENERATIONS, *key, before, most)
    held = await keys.hold(session, {row[0] for row in found})

    def decode() -> tuple[Generation, ...]:
        return tuple(
            Generation(
                number,
                tuple(row_decoding.decode_observation(row[2:], held.find(row[0])) for row in log),
            )
            for number, log in groupby(found, key=lambda row: int(row[1]))
        )

    return await run_off_loop(len(found), decode)
