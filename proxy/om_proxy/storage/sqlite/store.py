"""Keep memories in one SQLite file.

There is a writer connection and a reader connection (connection_worker.py), so that a load never
waits for a commit's fsync: in WAL mode readers see the last committed state while a writer works.
The writer uses `synchronous=FULL`, because under NORMAL a power cut takes acknowledged commits back
(measured: in 24 of 60 cuts). Only the writer checkpoints: two connections that do so at once can
corrupt a file under SQLite before 3.51.3.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import aiosqlite

from om_proxy.errors import Conflict, KeysAway, StorageError, UnopenedText
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import (
    RESOURCE_THREAD,
    Beginning,
    Generation,
    Key,
    Memory,
    Message,
)
from om_proxy.off_loop import MANY_MESSAGES, run_off_loop
from om_proxy.storage import row_decoding
from om_proxy.storage.changes import Change, ForgetBatch, MoveResult, NoteErasure, ResourceWakeup
from om_proxy.storage.encryption.admission import check_master, open_stored_secret
from om_proxy.storage.encryption.conversion import EncryptedBatch, MovedBatch, RewrappedBatch
from om_proxy.storage.encryption.keyring import NO_HELD_KEYS, CommitKeys, Keyring
from om_proxy.storage.encryption.row_cipher import NO_MASTER_KEY, HeldKeys, RowCipher
from om_proxy.storage.encryption.separate_keys import SeparateKeys
from om_proxy.storage.event_encoding import encode_event
from om_proxy.storage.forgetting import FirstTurn, create_thread_labeler, digest_names
from om_proxy.storage.ledger_lines import (
    NAMELESS_RESOURCE,
    LedgerBatch,
    LedgerQuery,
    LedgerSum,
)
from om_proxy.storage.listing import (
    IdleThread,
    ResourceInfo,
    ThreadInfo,
    ThreadPage,
    ThreadPlace,
    ThreadSelection,
)
from om_proxy.storage.records import AuditRecord, ForgetResult, StoredReceipt
from om_proxy.storage.sqlite import encryption, ledger, queries, reencryption, rows
from om_proxy.storage.sqlite import events as event_rows
from om_proxy.storage.sqlite.commit import Commit, SharedCommit
from om_proxy.storage.sqlite.connection_worker import ConnectionWorker
from om_proxy.storage.sqlite.eraser import IS_ERASURE_PENDING, Eraser
from om_proxy.storage.sqlite.forgotten_names import (
    SELECT_FORGOTTEN_AT,
    delete_old_names,
    note_name,
)
from om_proxy.storage.sqlite.listing import (
    decode_infos,
    select_idle,
    select_resource,
    select_resources,
    select_threads,
)
from om_proxy.storage.sqlite.promise import create_promise
from om_proxy.storage.sqlite.queries import IS_THREAD, KEY_OF_ROW, OF_THREAD, UNIX_NOW
from om_proxy.storage.sqlite.record_keeping import (
    delete_old_records,
    insert_audit,
    insert_receipt,
    move_other_records,
    select_audit,
    select_receipt,
)
from om_proxy.storage.sqlite.removal import (
    commit_erasing,
    drop_generations,
    remove_batch,
    remove_lone_thread,
    remove_thread,
)
from om_proxy.storage.sqlite.restoring import Restoration
from om_proxy.storage.sqlite.schema import (
    apply_migrations,
    check_schema,
    ensure_private_file,
    open_connection,
    read_schema_row,
    require_own_database,
)
from om_proxy.storage.sqlite.search_methods import SearchMethods
from om_proxy.storage.sqlite.tenant_move import COUNT_NAME_CONFLICTS, SELECT_RESOURCES, ResourceMove
from om_proxy.storage.sqlite.totals import add_up_threads
from om_proxy.storage.sqlite.vector_methods import VectorMethods
from om_proxy.storage.sqlite.version_probe import VersionProbe
from om_proxy.storage.sqlite.work_queue import MAX_GROUP_UNITS
from om_proxy.storage.sqlite.writer_lock import WriterLock
from om_proxy.storage.store_description import Promise, StoreTotals
from om_proxy.storage.stored_events import MAX_EVENT_AGE_S, EventPage, WebhookState
from om_proxy.storage.stored_rows import (
    Backlog,
    GenerationEntries,
    GenerationSummary,
    Outline,
    StoredMessage,
    StoredObservation,
    WholeThread,
)

if TYPE_CHECKING:
    from om_proxy.storage.encryption.master_keys import MasterKeys

_Written = TypeVar("_Written")
_Read = TypeVar("_Read")
IN_MEMORY = ":memory:"
SECRET_BYTES = 32
MAX_SEQ = (
    2**63 - 1
)  # a bound of a range: with `ifnull(?, seq)` SQLite would read to the thread's end
# how long to wait for another process's lock; a commit holds it for milliseconds
BUSY_TIMEOUT_S = 5.0

COMMON_PRAGMAS = ("foreign_keys = ON", "secure_delete = ON")
WRITER_PRAGMAS = ("journal_mode = WAL", "synchronous = FULL", *COMMON_PRAGMAS)
READER_PRAGMAS = (*COMMON_PRAGMAS, "query_only = ON", "wal_autocheckpoint = 0")

TAKE_LEASE = f"""INSERT INTO lease VALUES (?, ?, ?, ?, {UNIX_NOW} + ?) ON CONFLICT DO UPDATE
    SET (holder, until) = (excluded.holder, excluded.until)
    WHERE lease.holder = excluded.holder OR lease.until <= {UNIX_NOW} RETURNING holder"""

SET_DUE = f"UPDATE thread SET due = ? WHERE {IS_THREAD} AND due IS NOT ?"
SELECT_BACKLOG = f"""SELECT {row_decoding.BACKLOG_COLUMNS} FROM thread
    WHERE tenant = ? AND resource = ? AND shared = 1 AND pending > 0 ORDER BY turn_at, id"""


class SqliteStore(SearchMethods, VectorMethods):
    """The `Store` protocol on one file, which several processes may share. Call `await
    SqliteStore.open(path)`, and `close()` at the end."""

    def __init__(
        self,
        writer: ConnectionWorker,
        reader: ConnectionWorker,
        generations: int | None,
        lock: WriterLock | None,
        clock: Callable[[], float],
        masters: MasterKeys | None = None,
        separate: SeparateKeys | None = None,
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._generations = generations
        self._known_secret: bytes | None = None  # None: not read yet
        self._lock = lock
        self._clock = clock
        self._masters = masters
        self._keys = Keyring(queries.select_wrapped_keys, masters)
        self._separate = separate
        self._key_rows = encryption.SeparateRows(reader, writer)
        self._probe: VersionProbe | None = None
        self._eraser: Eraser | None = None

    @classmethod
    async def open(
        cls,
        path: str | Path,
        *,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        max_group_units: int = MAX_GROUP_UNITS,
        generations: int | None = None,
        create: bool = True,
        clock: Callable[[], float] = time.time,
        masters: MasterKeys | None = None,
        separate: SeparateKeys | None = None,
        begins_encryption: bool = False,
        moves_keys: bool = False,
    ) -> SqliteStore:
        """Open the store in this file, create it if it is missing, and bring its schema up to date.
        `:memory:` lives until `close`. With `create=False`, raise StorageError for a file that is
        no store yet, and change nothing.

        `busy_timeout_s`: how long to wait for another process's lock. `max_group_units`: how many
        commits may share a transaction. `generations`: how many older generations of a log are
        kept; None: all. `clock`: this machine's, in unix seconds. `masters`: the master keys that
        its text is encrypted with; None: none. `separate`: where its keys are; None: in the file.
        The store closes it. `begins_encryption`: a file that is not encrypted is from now on.
        `moves_keys`: keys that are in the file may be moved.
        """
        database = str(path)
        is_in_memory = database == IN_MEMORY
        if not create:
            await asyncio.to_thread(require_own_database, Path(database), busy_timeout_s)
        # In memory one connection reads and writes: a second one would open another database.
        lock = None if is_in_memory else WriterLock(database, busy_timeout_s)
        writer = ConnectionWorker(
            lambda: open_connection(database, busy_timeout_s, WRITER_PRAGMAS),
            "BEGIN IMMEDIATE",
            is_kept_open=is_in_memory,
            max_units=max_group_units,
            lock=lock,
        )
        reader = (
            writer
            if is_in_memory
            else ConnectionWorker(
                lambda: open_connection(database, busy_timeout_s, READER_PRAGMAS), "BEGIN"
            )
        )
        store = cls(writer, reader, generations, lock, clock, masters, separate)
        try:
            if not is_in_memory:
                store._eraser = Eraser(writer, busy_timeout_s)
                ensure_private_file(Path(database))
            await writer.run_alone(apply_migrations)
            await (writer.run if masters else reader.run)(
                lambda db: encryption.admit(
                    db,
                    masters,
                    separate,
                    begins_encryption=begins_encryption,
                    moves_keys=moves_keys,
                )
            )
            store._keys.separate = separate
            await reader.run_alone(_read_sequence)
            store._probe = None if is_in_memory else VersionProbe(database)
            await store._resume_erasure()
        except OSError as exc:
            raise StorageError(f"cannot use {database} as a database: {exc.strerror}") from exc
        except BaseException:
            await store.close()
            raise
        return store

    async def close(self) -> None:
        try:
            if self._eraser:
                await self._eraser.close()
            if self._probe:
                self._probe.close()
            await self._reader.close()
        finally:
            await self._writer.close()  # last, so that the writer checkpoints
            if self._lock:
                self._lock.close()
            self._keys.close()
            if self._separate:
                await self._separate.close()

    async def totals(self, now: float) -> StoreTotals:
        return await add_up_threads(self._read, now)

    async def clock(self) -> float:
        """Return this machine's clock, which all processes on a file share."""
        return self._clock()

    async def describe(self) -> Promise:
        row = await self._reader.run_alone(read_schema_row)
        return create_promise(
            is_in_memory=self._eraser is None,
            schema_version=row.version,
            is_encrypted=self._masters is not None,
            has_separate_keys=self._separate is not None,
        )

    async def check_schema(self) -> None:
        await self._reader.run_alone(check_schema)

    async def ping(self) -> None:
        await self._writer.run(_write_sequence)
        await self._reader.run(_read_sequence)
        if self._separate:
            await self._separate.ping()

    # ── reading ──

    async def load(self, key: Key) -> Memory:
        return await self._read_sealed(lambda db: queries.select_memory(db, key, self._keys))

    async def _read_sealed(self, read: Callable[[aiosqlite.Connection], Awaitable[_Read]]) -> _Read:
        """Run work that reads texts, and needs keys for it: the keys beside them are of the same
        snapshot."""
        return await self._keys.retry_unopened(lambda: self._reader.run(read))

    async def refresh(self, held: Memory) -> Memory:
        version = self._probe.version(held.key) if self._probe else None
        if version == held.version:
            return held
        return await self._read_sealed(lambda db: queries.select_newer(db, held, self._keys))

    async def refresh_shared(self, thread: Memory, shared_log: Memory) -> tuple[Memory, Memory]:
        # Of one snapshot, although these are two reads: no version is given twice, so what has the
        # held version at the second read had it at the first.
        if (
            self._probe
            and self._probe.version(thread.key) == thread.version
            and self._probe.version(shared_log.key) == shared_log.version
        ):
            return thread, shared_log
        return await self._read_sealed(
            lambda db: queries.select_newer_pair(db, thread, shared_log, self._keys)
        )

    async def version(self, key: Key) -> int:
        if self._probe and (version := self._probe.version(key)) is not None:
            return version
        version_rows = await self._read(queries.SELECT_VERSION, key)
        return int(version_rows[0][0]) if version_rows else 0

    async def outline(self, key: Key) -> Outline:
        mark_rows = await self._read(
            f"SELECT {row_decoding.MARK_COLUMNS}, live, parent FROM message WHERE {OF_THREAD} ORDER BY seq",
            key,
        )
        marks = [(row_decoding.decode_mark(row[:7]), row[7], row[8]) for row in mark_rows]
        live = tuple(mark for mark, state, _ in marks if state == row_decoding.LIVE)
        superseded = tuple(
            (mark, parent) for mark, state, parent in marks if state != row_decoding.LIVE
        )
        return Outline(live, superseded)

    async def messages(
        self, key: Key, after: int, through: int | None = None, limit: int | None = None
    ) -> tuple[Message, ...]:
        sql = f"""SELECT {KEY_OF_ROW}, {row_decoding.MESSAGE_COLUMNS} FROM message
            WHERE {OF_THREAD} AND live = 1 AND seq > ? AND seq <= ? ORDER BY seq LIMIT ifnull(?, -1)"""
        last = MAX_SEQ if through is None else through
        return await self._read_rows(row_decoding.decode_message, sql, *key, after, last, limit)

    async def stored_messages(
        self, key: Key, after: int, through: int | None = None, *, limit: int
    ) -> tuple[StoredMessage, ...]:
        sql = f"""SELECT {KEY_OF_ROW}, {row_decoding.STORED_COLUMNS} FROM message
            WHERE {OF_THREAD} AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?"""
        last = MAX_SEQ if through is None else through
        decode = row_decoding.decode_stored_message
        return await self._read_rows(decode, sql, *key, after, last, limit)

    async def messages_by_seq(self, key: Key, seqs: Sequence[int]) -> tuple[Message, ...]:
        sql = f"""SELECT {KEY_OF_ROW}, {row_decoding.MESSAGE_COLUMNS} FROM message
            WHERE {OF_THREAD} AND seq IN (SELECT value FROM json_each(?)) ORDER BY seq"""
        return await self._read_rows(row_decoding.decode_message, sql, *key, json.dumps(list(seqs)))

    async def observations(
        self, key: Key, after: int, *, limit: int
    ) -> tuple[StoredObservation, ...]:
        return await self._read_sealed(
            lambda db: queries.select_observations(db, key, after, limit, self._keys)
        )

    async def generation_entries(
        self, key: Key, after: int, *, limit: int
    ) -> tuple[GenerationEntries, ...]:
        return await self._reader.run_alone(
            lambda db: queries.select_generation_entries(db, key, after, limit)
        )

    async def generations(
        self, key: Key, before: int, limit: int | None = None
    ) -> tuple[Generation, ...]:
        """Return the older generations. Those with an empty log have no rows, and are left out."""
        return await self._read_sealed(
            lambda db: queries.select_generations(db, key, self._keys, before, limit)
        )

    async def generation_summaries(self, key: Key, before: int) -> tuple[GenerationSummary, ...]:
        found = await self._read(queries.SELECT_GENERATION_SUMMARIES, (*key, before))
        return tuple(GenerationSummary(*row) for row in found)

    async def beginnings(self, key: Key) -> Mapping[int, Beginning]:
        sql = f"SELECT number, why, at FROM generation WHERE {OF_THREAD}"
        return {row[0]: Beginning(*row[1:]) for row in await self._read(sql, key)}

    async def resource_backlog(self, shared_log: Key) -> Backlog:
        return row_decoding.decode_backlog(
            await self._read(SELECT_BACKLOG, (shared_log.tenant, shared_log.resource))
        )

    async def other_thread_tails(
        self, key: Key, threads: int, messages: int
    ) -> tuple[tuple[Key, tuple[Message, ...]], ...]:
        return await self._read_sealed(
            lambda db: queries.select_other_tails(db, key, threads, messages, self._keys)
        )

    async def events(
        self, tenant: str | None, keys: Sequence[Key] | None, after: int | None, limit: int
    ) -> EventPage:
        return await self._reader.run(
            lambda db: event_rows.select_events(db, tenant, keys, after, limit, self._keys)
        )

    async def event_position(self, before: int = 0) -> int:
        newest, _ = await self._reader.run_alone(event_rows.select_position)
        return max(0, newest - before)

    async def due_threads(self, now: float, limit: int) -> tuple[Key, ...]:
        return await self._reader.run_alone(lambda db: queries.select_due(db, now, limit))

    async def claim(
        self,
        now: float,
        limit: int,
        holder: str,
        seconds: float,
        *,
        callers: bool = True,
        skip: Collection[Key] = (),
    ) -> tuple[Key, ...]:
        await self._resume_erasure()  # left by processes that have ended
        await self._destroy_doomed()
        select_due = partial(queries.select_due, now=now, limit=limit, skip=skip, callers=callers)
        if not await self._reader.run_alone(select_due):
            return ()  # without disturbing the writer
        return await self._writer.run(lambda db: _lease_due(db, select_due, holder, seconds))

    async def threads(
        self,
        tenant: str | None,
        resource: str | None = None,
        cursor: Key | None = None,
        limit: int = 100,
    ) -> tuple[ThreadInfo, ...]:
        conditions = ["thread <> ?"]
        parameters = [RESOURCE_THREAD]
        if tenant is not None:
            conditions.append("tenant = ?")
            parameters.append(tenant)
        if resource is not None:
            conditions.append("resource = ?")
            parameters.append(resource)
        if cursor is not None and tenant == cursor.tenant:  # a range of the index
            conditions.append("(resource, thread) > (?, ?)")
            parameters.extend(cursor[1:])
        elif cursor is not None:
            conditions.append("(tenant, resource, thread) > (?, ?, ?)")
            parameters.extend(cursor)
        where = " AND ".join(conditions)
        sql = f"SELECT {rows.INFO_COLUMNS} FROM thread WHERE {where} ORDER BY tenant, resource, thread LIMIT ?"

        async def select(db: aiosqlite.Connection) -> tuple[ThreadInfo, ...]:
            found = await queries.select_rows(db, sql, (*parameters, limit))
            return await decode_infos(db, found, self._keys)

        return await self._reader.run_alone(select)

    async def find_threads(
        self, selection: ThreadSelection, after: ThreadPlace | None = None, limit: int = 100
    ) -> ThreadPage:
        return await self._reader.run(
            lambda db: select_threads(db, selection, after, limit, self._keys)
        )

    async def idle_threads(
        self, before: float, after: ThreadPlace | None = None, limit: int = 100
    ) -> tuple[IdleThread, ...]:
        return await self._reader.run_alone(lambda db: select_idle(db, before, after, limit))

    async def resources(
        self, tenant: str, after: str | None = None, limit: int = 100
    ) -> tuple[ResourceInfo, ...]:
        return await self._reader.run(
            lambda db: select_resources(db, tenant, after, limit, self._keys)
        )

    async def resource(self, tenant: str, resource: str) -> ResourceInfo | None:
        return await self._reader.run(lambda db: select_resource(db, tenant, resource, self._keys))

    async def _read(self, sql: str, parameters: Iterable[Any]) -> list[row_decoding.Row]:
        # one statement is its own snapshot, so it needs no transaction
        return await self._reader.run_alone(lambda db: queries.select_rows(db, sql, parameters))

    async def _read_rows(
        self, decode: Callable[[row_decoding.Row, RowCipher], _Read], sql: str, *parameters: object
    ) -> tuple[_Read, ...]:
        """Return decoded rows. `sql`: as of `select_sealed_rows`."""

        async def select(db: aiosqlite.Connection) -> tuple[_Read, ...]:
            found = await queries.select_sealed_rows(db, sql, parameters, self._keys)
            return tuple(decode(row, cipher) for cipher, row in found)

        return await self._read_sealed(select)

    # ── writing ──

    async def _plan_keys(self, before: Memory, after: Memory) -> CommitKeys:
        """Return what a commit writes with. Raise Conflict if `before` is no longer stored."""
        held = self._keys.find_row(before)
        if held is None:
            held = await self._read_sealed(lambda db: encryption.hold_key(db, before, self._keys))
        return await self._keys.write_new(self._keys.plan_commit(before, after, held))

    async def _write_commit(
        self, before: Memory, write: Callable[[sqlite3.Connection], _Written]
    ) -> _Written:
        try:
            return await self._writer.write(write)
        except Conflict:
            self._keys.forget_row(before.row_id)
            raise

    async def commit(
        self,
        before: Memory,
        after: Memory,
        interrupted: Sequence[Message] = (),
        events: Sequence[Event] = (),
        began_at: float | None = None,
    ) -> Memory:
        change = Change(before, after, interrupted, events, began_at)
        keys = await self._plan_keys(before, after)
        first_turn = await self._find_first_turn(change)
        encode = partial(Commit, *change[:4], self._generations, keys, first_turn)
        new_count = len(after.tail) - len(before.tail)
        commit = encode() if new_count <= MANY_MESSAGES else await run_off_loop(new_count, encode)
        written = await self._write_commit(before, commit.write)
        self._keys.note_row(written.row_id, written.version, keys.key_id)
        return written.add_to(after)

    async def commit_shared(
        self, thread: Change, shared_log: Change | None, wakeup: ResourceWakeup | None = None
    ) -> tuple[Memory, Memory | None]:
        changes = [thread, shared_log] if shared_log else [thread]
        keys = [await self._plan_keys(change.before, change.after) for change in changes]
        first_turn = await self._find_first_turn(thread)
        encode = partial(
            SharedCommit, thread, shared_log, wakeup, self._generations, keys, first_turn
        )
        new_count = len(thread.after.tail) - len(thread.before.tail)
        commit = await run_off_loop(new_count, encode)
        thread_row, *log_rows = await self._write_commit(thread.before, commit.write)
        for row, row_keys in zip((thread_row, *log_rows), keys, strict=False):
            self._keys.note_row(row.row_id, row.version, row_keys.key_id)
        log_after = shared_log.after if shared_log else None
        if log_after and log_rows:
            [log_row] = log_rows
            log_after = log_row.add_to(log_after)
        return thread_row.add_to(thread.after), log_after

    async def _find_first_turn(self, change: Change) -> FirstTurn | None:
        if change.before.version or change.began_at is None:
            return None  # as for nearly every commit: without the secret
        return FirstTurn(await self._digest_names(change.before.key), change.began_at)

    async def _digest_names(self, key: Key) -> tuple[bytes, ...]:
        return digest_names(self._known_secret or await self.secret(), key)

    async def add_events(self, key: Key, events: Sequence[Event]) -> None:
        encoded = [encode_event(event) for event in events]
        held = NO_HELD_KEYS
        while True:
            if self._masters:
                held = await self._reader.run(
                    lambda db: encryption.hold_key_of(db, key, self._keys)
                )
            insert = partial(event_rows.insert_thread_events, key=key, events=encoded, held=held)
            if await self._writer.write(insert):
                return
            if self._masters is None:
                raise UnopenedText(NO_MASTER_KEY)

    async def webhook_state(self, name: str) -> WebhookState | None:
        found = await self._read(event_rows.SELECT_WEBHOOK, (name,))
        return WebhookState(*found[0]) if found else None

    async def set_webhook_state(self, name: str, state: WebhookState) -> None:
        await self._write(event_rows.UPSERT_WEBHOOK, (name, *state))

    async def prune_events(self, now: float) -> None:
        await self._writer.write(lambda db: event_rows.prune_events(db, now), is_background=True)
        await self._writer.write(
            lambda db: delete_old_names(db, now - MAX_EVENT_AGE_S), is_background=True
        )

    async def lease(self, key: Key, holder: str, seconds: float) -> bool:
        return bool(await self._write(TAKE_LEASE, (*key, holder, seconds)))

    async def set_due(self, key: Key, at: float | None, backlog: Backlog | None = None) -> bool:
        async def compare_and_set(db: aiosqlite.Connection) -> bool:
            if backlog is not None:
                found = await queries.select_rows(db, SELECT_BACKLOG, (key.tenant, key.resource))
                if row_decoding.decode_backlog(found) != backlog:
                    return False
            await db.execute(SET_DUE, (at, *key, at))
            return True

        return await self._writer.run(compare_and_set)

    async def mark_delivered(self, replies: Mapping[Key, int]) -> None:
        await self._writer.run(lambda db: _update_delivered(db, replies))

    async def delivered_reply(self, key: Key) -> int | None:
        seq_rows = await self._read(f"SELECT delivered FROM thread WHERE {IS_THREAD}", key)
        return seq_rows[0][0] if seq_rows else None

    async def release(self, key: Key, holder: str) -> None:
        await self._write(f"DELETE FROM lease WHERE {IS_THREAD} AND holder = ?", (*key, holder))

    async def secret(self, proposed: bytes | None = None) -> bytes:
        master, stored = await self._reader.run_alone(encryption.select_secret)
        if stored is None:  # the first time: only then does the file have to be written
            secret = proposed or os.urandom(SECRET_BYTES)
            master, stored = await self._keep_secret(encryption.KEEP_FIRST, secret)
        self._known_secret = open_stored_secret(stored, master, self._masters, self._known_secret)
        return self._known_secret

    async def adopt_secret(self, secret: bytes) -> bool:
        master, _ = await self._keep_secret(encryption.KEEP_ADOPTED, secret)
        check_master(master, self._masters)
        return await self.secret() == secret

    async def _keep_secret(self, sql: str, secret: bytes) -> tuple[str | None, bytes | None]:
        """Return what is stored then. It is looked at behind the transaction: an error in there would
        undo the commits that share it."""
        return await self._writer.run(
            lambda db: encryption.keep_secret(db, sql, secret, self._masters)
        )

    async def restore(
        self, thread: WholeThread, over: int = 0, *, keeps_row: bool = False
    ) -> Memory:
        keys = await self._keys.write_new(self._keys.plan_restoration(thread.memory))
        encode = partial(Restoration, thread, over, keys, keeps_row=keeps_row)
        restoration = await run_off_loop(len(thread.messages), encode)
        row = await self._writer.write(restoration.write)
        if over:
            await self._resume_erasure()
            await self._destroy_doomed()
        self._keys.note_row(row.row_id, row.version, keys.key_id)
        return row.add_to(thread.memory)

    async def park(self, key: Key, parked: bool) -> bool:
        """Park or revive a thread. It gets a new version, so that caches read it again."""
        return await self._writer.run(lambda db: _update_parked(db, key, parked))

    async def add_to_ledger(self, batch: LedgerBatch) -> None:
        await self._writer.write(partial(ledger.add_batch, batch=batch))

    async def prune_ledger(self, now: float) -> None:
        """Remove old lines, some in each transaction, so that no commit waits for long."""
        while await self._writer.write(
            lambda db: ledger.delete_old_lines(db, now), is_background=True
        ):
            continue

    async def sum_ledger(self, query: LedgerQuery) -> tuple[LedgerSum, ...]:
        return await self._reader.run_alone(lambda db: ledger.select_sums(db, query))

    async def note_forgotten(self, key: Key, at: float) -> None:
        digest, *_ = await self._digest_names(key)
        await self._writer.write(lambda db: note_name(db, digest, at))

    async def forgotten_at(self, key: Key) -> float | None:
        [(at,)] = await self._read(SELECT_FORGOTTEN_AT, await self._digest_names(key))
        return None if at is None else float(at)

    async def forget(
        self,
        key: Key,
        expected_version: int | None = None,
        event: Event | None = None,
        *,
        defers_erasure: bool = False,
    ) -> ForgetResult:
        """Remove the thread, also from the file: deleted content is overwritten, and the
        write-ahead log is truncated."""
        label_of = create_thread_labeler(await self.secret())
        label = label_of(key)
        lone = await self._writer.write(
            lambda db: remove_lone_thread(db, key, expected_version, label, event),
            is_background=defers_erasure,
        )
        if lone is not None:
            removed = lone.settle_keys(self._keys)
        else:
            removed = await self._writer.run(
                lambda db: remove_thread(db, key, expected_version, label_of, event, self._keys),
                is_background=defers_erasure,
            )
        if defers_erasure and self._eraser:
            await self._eraser.erase_soon(removed.threads + removed.messages)
            return removed._replace(database="pending", log="pending")
        return await self._erase(removed)

    async def forget_batch(
        self,
        tenant: str,
        resource: str | None = None,
        describe_forgotten: Callable[[Key], Event] | None = None,
        active_before: float | None = None,
    ) -> ForgetBatch:
        """Remove some threads. The bytes are erased after the last batch."""
        defers_erasure = active_before is not None
        batch = await self._writer.run(
            lambda db: remove_batch(
                db, tenant, resource, describe_forgotten, self._keys, active_before
            ),
            is_background=defers_erasure,
        )
        result = batch.result
        if defers_erasure and self._eraser:
            await self._eraser.erase_soon(result.threads + result.messages)
            if batch.is_last:
                result = result._replace(database="pending", log="pending")
        elif batch.is_last:
            return batch._replace(result=await self._erase(result))
        is_destroyed = await self._destroy_doomed()
        return batch._replace(result=result.settle_keys(is_destroyed=is_destroyed))

    async def commit_erasing(
        self,
        change: Change,
        erasures: Sequence[NoteErasure],
        wakeup: ResourceWakeup | None = None,
    ) -> tuple[Memory, ForgetResult]:
        # what has another key by then also has another version: a conflict
        held = await self._hold_erased([erasure.key for erasure in erasures])
        keys = await self._plan_keys(change.before, change.after)
        commit = SharedCommit(change, None, wakeup, self._generations, [keys])
        row = await self._writer.write(lambda db: commit_erasing(db, commit, erasures, held))
        count = sum(len(erasure.blanks) for erasure in erasures)
        erased = await self._erase(ForgetResult(observations=count))
        return row.add_to(change.after), erased

    async def drop_generations(
        self, key: Key, expected_version: int, numbers: Sequence[int]
    ) -> int:
        return await self._writer.write(
            lambda db: drop_generations(db, key, expected_version, numbers), is_background=True
        )

    async def _hold_erased(self, keys: Sequence[Key]) -> HeldKeys:
        """Return the data keys of these memories."""
        if self._masters is None:
            return NO_HELD_KEYS
        return await self._reader.run(lambda db: encryption.hold_erased(db, keys, self._keys))

    async def _erase(self, removed: ForgetResult) -> ForgetResult:
        if self._eraser is not None and not await self._eraser.erase():
            removed = removed._replace(database="pending", log="pending")
        return removed.settle_keys(is_destroyed=await self._destroy_doomed())

    async def _destroy_doomed(self) -> bool:
        """Destroy the keys of what was removed. Return False if any is left."""
        return self._separate is None or await self._separate.destroy_doomed(self._key_rows)

    async def add_audit(self, records: Sequence[AuditRecord]) -> None:
        await self._writer.run(lambda db: insert_audit(db, tuple(records)))

    async def audit(
        self, tenant: str | None, before: int | None = None, limit: int = 100
    ) -> tuple[AuditRecord, ...]:
        return await self._reader.run_alone(lambda db: select_audit(db, tenant, before, limit))

    async def add_receipt(self, receipt: StoredReceipt) -> None:
        await self._writer.run(lambda db: insert_receipt(db, receipt))

    async def prune_records(self, now: float) -> None:
        """Remove old records, some in each transaction, so that no commit waits for long."""
        while await self._writer.run(lambda db: delete_old_records(db, now), is_background=True):
            continue
        if self._separate:
            with suppress(KeysAway):  # the next hour will do
                await self._separate.sweep(self._key_rows)

    async def receipt(self, receipt_id: str, now: float) -> StoredReceipt | None:
        return await self._reader.run(lambda db: select_receipt(db, receipt_id, now))

    async def move_tenant(
        self, old: str, new: str, fingerprint: Callable[[bytes], bytes | None]
    ) -> MoveResult:
        label_of = create_thread_labeler(await self.secret())
        [(name_conflicts,)] = await self._read(COUNT_NAME_CONFLICTS, (old, new))
        if name_conflicts:
            return MoveResult(name_conflicts=name_conflicts)
        threads = messages = 0
        for (resource,) in await self._read(SELECT_RESOURCES, (old,)):
            move = ResourceMove(old, new, resource, fingerprint, label_of, self._keys)
            moved = await self._writer.run(move)
            threads += moved.threads
            messages += moved.messages
        await self._writer.run(lambda db: ledger.move_resource(db, old, new, NAMELESS_RESOURCE))
        await self._writer.run(lambda db: move_other_records(db, old, new))
        return MoveResult(threads, messages)

    async def _resume_erasure(self) -> None:
        """Start the eraser if forgotten bytes are pending."""
        [(is_pending,)] = await self._read(IS_ERASURE_PENDING, ())
        if is_pending and self._eraser:
            self._eraser.start()

    # ── encrypting what is stored ──

    async def encrypt_batch(self, after: int) -> EncryptedBatch:
        return await self._writer.run(lambda db: reencryption.encrypt_batch(db, after, self._keys))

    async def move_batch(self) -> MovedBatch:
        if self._separate is None:
            return MovedBatch(0, is_last=True)
        return await self._separate.move_batch(self._key_rows)

    async def rewrap_batch(self, after: bytes) -> RewrappedBatch:
        masters = self._require_masters()
        if self._separate:
            return await self._separate.rewrap_batch(after, masters)
        return await self._writer.write(lambda db: reencryption.rewrap_batch(db, after, masters))

    async def finish_rekeying(self) -> bool:
        masters = self._require_masters()
        if self._separate and await self._separate.has_older(masters.newest_id):
            return False
        return await self._writer.write(lambda db: reencryption.finish_rekeying(db, masters))

    async def erase_replaced(self) -> bool:
        return (await self._erase(ForgetResult())).database == "gone"

    def _require_masters(self) -> MasterKeys:
        assert self._masters is not None  # the command asks for a key
        return self._masters

    async def wait_erased(self) -> None:
        if self._eraser is not None:
            await self._eraser.wait()
        if self._separate:
            await self._separate.wait_destroyed(self._key_rows)

    async def _write(self, sql: str, parameters: Iterable[Any]) -> list[row_decoding.Row]:
        return await self._writer.run(lambda db: queries.select_rows(db, sql, parameters))


async def _lease_due(
    db: aiosqlite.Connection,
    select_due: Callable[[aiosqlite.Connection], Awaitable[tuple[Key, ...]]],
    holder: str,
    seconds: float,
) -> tuple[Key, ...]:
    """Select due threads again and lease them. No other writer comes between the two."""
    keys = await select_due(db)
    for key in keys:
        await db.execute_fetchall(TAKE_LEASE, (*key, holder, seconds))
    return keys


async def _update_delivered(db: aiosqlite.Connection, replies: Mapping[Key, int]) -> None:
    sql = f"UPDATE thread SET delivered = max(?, ifnull(delivered, 0)) WHERE {IS_THREAD}"
    await db.executemany(sql, [(reply_seq, *key) for key, reply_seq in replies.items()])


async def _update_parked(db: aiosqlite.Connection, key: Key, parked: bool) -> bool:
    [(version,)] = await queries.select_rows(
        db, "UPDATE sequence SET value = value + 1 RETURNING value", ()
    )
    failure_columns = (
        "parked = 1, due = NULL"
        if parked
        else f"parked = 0, failures = 0, retry_at = 0, due = {UNIX_NOW}, {rows.WITHOUT_CAUSE}"
    )
    sql = f"UPDATE thread SET version = ?, {failure_columns} WHERE {IS_THREAD} RETURNING id"
    return bool(await queries.select_rows(db, sql, (version, *key)))


async def _write_sequence(db: aiosqlite.Connection) -> None:
    # SQLite does not write a page that would not change, and a full disk would go unnoticed. So this
    # changes one; versions may have gaps.
    await db.execute_fetchall("UPDATE sequence SET value = value + 1")


async def _read_sequence(db: aiosqlite.Connection) -> None:
    await db.execute_fetchall("SELECT value FROM sequence")
