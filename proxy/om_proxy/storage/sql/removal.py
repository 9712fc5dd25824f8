"""Remove what other rows say of a thread: its part of the shared log, look-ups that quote it, and the
texts of single notes.

A thread that loses look-ups gets a new version; no other thread is written for them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from om_proxy.memory.model import RECENT_MARKS, RESOURCE_THREAD, Key, Memory, resource_key
from om_proxy.memory.recall.message_ids import shorten_label
from om_proxy.storage.encoding import encode_parts
from om_proxy.storage.encryption.keyring import CommitKeys, Keyring
from om_proxy.storage.encryption.row_cipher import RowCipher
from om_proxy.storage.shared import row_decoding
from om_proxy.storage.shared.forgetting import LabelThread, plan_log_removal, uncover_thread
from om_proxy.storage.shared.row_decoding import find_quoting_look_ups
from om_proxy.storage.sql.key_rows import hold_key
from om_proxy.storage.sql.reencryption import change_key
from om_proxy.storage.sql.session import IS_THREAD, OF_THREAD, UNIX_NOW, Session
from om_proxy.storage.sql.thread_rows import select_generations
from om_proxy.storage.values.changes import NoteErasure
from om_proxy.storage.values.records import ForgetResult

SET_DUE_NOW = f"UPDATE om.thread SET due = {UNIX_NOW} WHERE {IS_THREAD}"
DELETE_ENTRIES = f"DELETE FROM om.entry WHERE {OF_THREAD} AND observation_id = ANY ($4::bigint[])"
DELETE_OBSERVATIONS = f"DELETE FROM om.observation WHERE {OF_THREAD} AND id = ANY ($4::bigint[])"
SELECT_TAIL = f"""SELECT {row_decoding.MESSAGE_COLUMNS} FROM om.message
    WHERE {OF_THREAD} AND live = 1 AND seq > $4 ORDER BY seq"""
SELECT_RECENT = f"""SELECT {row_decoding.MARK_COLUMNS} FROM om.message
    WHERE {OF_THREAD} AND live = 1 AND seq <= $4 ORDER BY seq DESC LIMIT {RECENT_MARKS}"""
COUNT_COVERED = f"""SELECT count(*), coalesce(sum(tokens), 0)::bigint FROM om.message
    WHERE {OF_THREAD} AND live = 1 AND seq <= $4"""
UPDATE_NOTES = """UPDATE om.observation
    SET (text, tokens, task, suggestion, title, parts) = ($3, $4, $5, $6, $7, $8)
    WHERE thread_id = $1 AND id = $2"""
SELECT_RESOURCE_ROWS = "SELECT id FROM om.thread WHERE tenant = $1 AND resource = $2"

MESSAGES_PER_PAGE = 500
HAS_LOOK_UPS = """EXISTS (SELECT 1 FROM om.message /* INDEXED BY message_look_ups */
    WHERE message.thread_id = thread.id AND look_ups IS NOT NULL)"""
# Along the resource's threads, each by the index of its look-ups. Of one that is not encrypted the
# database finds the label.
SELECT_QUOTING = f"""SELECT id, key_id, seq, look_ups
    FROM om.thread CROSS JOIN om.message /* INDEXED BY message_look_ups */
    WHERE tenant = $1 AND resource = $2 AND thread_id = id AND look_ups IS NOT NULL
    AND (id, seq) > ($3::bigint, $4::bigint)
    AND (key_id IS NOT NULL OR position($5::bytea IN look_ups) > 0)
    ORDER BY id, seq LIMIT {MESSAGES_PER_PAGE}"""
CLEAR_SOME = """UPDATE om.message SET look_ups = NULL
    WHERE thread_id = $1 AND seq = ANY ($2::bigint[])"""
SELECT_KEEPING = f"SELECT id FROM om.thread WHERE tenant = $1 AND resource = $2 AND {HAS_LOOK_UPS}"
CLEAR_ALL = """UPDATE om.message /* INDEXED BY message_look_ups */ SET look_ups = NULL
    WHERE look_ups IS NOT NULL AND thread_id = ANY ($1::bigint[])"""


S = TypeVar("S", bound=Session)


class Remover(ABC, Generic[S]):
    """The removal of what other rows say, inside a transaction of one session."""

    def __init__(self, session: S, keyring: Keyring) -> None:
        self._session = session
        self._keyring = keyring

    @abstractmethod
    async def _load(self, key: Key) -> Memory: ...

    @abstractmethod
    async def _write_commit(self, before: Memory, after: Memory, keys: CommitKeys) -> None: ...

    @abstractmethod
    async def _erase_event_texts(self, thread_ids: Sequence[int]) -> None:
        """Take the words of a conversation out of the events of these threads, which keep their
        places."""

    @abstractmethod
    async def _remove_from_events(self, log_id: int, thread: str) -> int:
        """Take a thread out of the events of the log that it shared, and all texts with it. Return how
        many went."""

    async def remove_from_log(
        self, key: Key, others: Sequence[Key], label_of: LabelThread
    ) -> ForgetResult:
        """Remove the thread's part from the shared log. `others`: the threads that keep sharing it.
        Return what was removed: of its bytes the result says nothing yet."""
        session, keyring = self._session, self._keyring
        shared_log = await self._load(resource_key(key))
        # they may hold the thread's words
        event_count = await self._remove_from_events(shared_log.row_id, key.thread)
        older_generations = await select_generations(
            session, shared_log.key, keyring, shared_log.log.generation
        )
        [(now,)] = await session.select(f"SELECT {UNIX_NOW}")
        plan = plan_log_removal(shared_log, older_generations, key, others, label_of, now)
        await self._commit(shared_log, plan.log)
        for sql in (DELETE_ENTRIES, DELETE_OBSERVATIONS):
            await session.execute(sql, *shared_log.key, list(plan.observations))
        for other, coverage in plan.uncovered:
            thread = await self._load(other)
            await self._uncover_thread(thread, plan.log, label_of(other), coverage)
        if plan.uncovered:
            # messages that are in a tail again may be due
            await session.execute(SET_DUE_NOW, *shared_log.key)
        await session.clear_others(*key[:2])
        # copies of the data hold what it told of the thread
        await change_key(session, shared_log.row_id, keyring)
        return plan.add_to(ForgetResult(events=event_count))

    async def _commit(self, before: Memory, after: Memory) -> None:
        held = await hold_key(self._session, before, self._keyring)
        keys = await self._keyring.write_new(self._keyring.plan_commit(before, after, held))
        await self._write_commit(before, after, keys)

    async def _uncover_thread(
        self, thread: Memory, shared_log: Memory, label: str, coverage: int
    ) -> None:
        """Write a thread of which the log now covers less, up to the seq `coverage`."""
        parameters = (*thread.key, coverage)
        recent_rows = await self._session.select(SELECT_RECENT, *parameters)
        tail_rows = await self._session.select(SELECT_TAIL, *parameters)
        [(count, tokens)] = await self._session.select(COUNT_COVERED, *parameters)
        cipher = (await hold_key(self._session, thread, self._keyring)).row
        after = uncover_thread(
            thread,
            shared_log,
            label,
            tuple(row_decoding.decode_mark(row) for row in reversed(recent_rows)),
            tuple(row_decoding.decode_message(row, cipher) for row in tail_rows),
            (count, tokens),
        )
        await self._commit(thread, after)

    async def overwrite_notes(self, row_id: int, erasure: NoteErasure, cipher: RowCipher) -> None:
        """Write entries without their texts, and take these out of the events."""
        rows = []
        for entry in erasure.blanks:
            text, *hints = self._session.encoder.encode_notes(entry, cipher)
            columns = (text, entry.tokens, *hints, encode_parts(entry.parts))
            rows.append((row_id, entry.id, *columns))
        await self._session.execute_many(UPDATE_NOTES, rows)
        ids = [row_id]
        if erasure.key.thread == RESOURCE_THREAD:
            found = await self._session.select(SELECT_RESOURCE_ROWS, *erasure.key[:2])
            ids = [id_ for (id_,) in found]
            await self._session.clear_others(*erasure.key[:2])
        await self._erase_event_texts(ids)


def write_label(label: str) -> bytes:
    """Return the label of a thread as look-ups that are not encrypted hold it."""
    return shorten_label(label).encode()


async def remove_quotes(session: Session, key: Key, label: str, keyring: Keyring) -> None:
    """Remove the look-ups that quote a forgotten thread, inside a transaction that no other one
    writes look-ups of the resource beside. `label`: of that thread. Copies of the data hold them too,
    where keys are apart: their threads get new keys."""
    quoting: dict[int, list[int]] = {}
    last = (0, 0)
    while page := await session.select(SELECT_QUOTING, *key[:2], *last, write_label(label)):
        held = await keyring.hold(session, [row[1] for row in page])
        for id_, seqs in find_quoting_look_ups(page, held, label).items():
            quoting.setdefault(id_, []).extend(seqs)
        last = page[-1][0], page[-1][2]
    for id_, seqs in quoting.items():
        await session.execute(CLEAR_SOME, id_, seqs)
        if keyring.separate is not None:
            await change_key(session, id_, keyring)
    await session.raise_versions([*quoting])


async def remove_look_ups(session: Session, tenant: str, resource: str) -> None:
    """Remove all look-ups that the threads of a resource keep, inside a transaction as above: all of
    its threads are going."""
    keeping = [row[0] for row in await session.select(SELECT_KEEPING, tenant, resource)]
    await session.raise_versions(keeping)
    await session.execute(CLEAR_ALL, keeping)
