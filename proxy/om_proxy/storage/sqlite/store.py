"""Keep memories in one SQLite file: say on which connection, and in what kind of transaction, each
method of the contract runs. What it does there is in the files beside.

There is a writer connection and a reader connection (connection_worker.py), so that a load never
waits for a commit's fsync: in WAL mode readers see the last committed state while a writer works.
The writer uses `synchronous=FULL`, because under NORMAL a power cut takes acknowledged commits back
(measured: in 24 of 60 cuts). Only the writer checkpoints: two connections that do so at once can
corrupt a file under SQLite before 3.51.3.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from om_proxy.common.errors import StorageError, UnopenedText
from om_proxy.common.off_loop import MANY_MESSAGES, run_off_loop
from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import Key, Memory
from om_proxy.storage.contract.status import Promise
from om_proxy.storage.encryption.key_store import SeparateKeys
from om_proxy.storage.encryption.keyring import NO_HELD_KEYS, CommitKeys
from om_proxy.storage.encryption.row_cipher import NO_MASTER_KEY, ThreadCiphers
from om_proxy.storage.promises import create_sqlite_promise
from om_proxy.storage.shared.event_encoding import encode_event
from om_proxy.storage.shared.forgetting import FirstTurn
from om_proxy.storage.shared.row_decoding import Row
from om_proxy.storage.sql.columns import THREAD
from om_proxy.storage.sql.encryption import admit
from om_proxy.storage.sql.key_rows import hold_key_of
from om_proxy.storage.sql.listing import write_info_columns
from om_proxy.storage.sql.session import IS_THREAD, Session, Work
from om_proxy.storage.sql.store import SharedStore
from om_proxy.storage.sqlite import claiming, queries
from om_proxy.storage.sqlite import events as event_rows
from om_proxy.storage.sqlite.commit import Commit, SharedCommit
from om_proxy.storage.sqlite.connection_worker import (
    ConnectionWorker,
    run_in_connection_thread,
)
from om_proxy.storage.sqlite.eraser import Eraser, SqliteRecords
from om_proxy.storage.sqlite.forgetting import SqliteForgetting
from om_proxy.storage.sqlite.schema import (
    apply_migrations,
    check_schema,
    ensure_private_file,
    open_connection,
    read_schema_row,
    require_own_database,
)
from om_proxy.storage.sqlite.search import SqliteSearch
from om_proxy.storage.sqlite.session import (
    INCREMENT_SEQUENCE,
    ROW_ENCODER,
    SqliteSession,
    run_in_thread,
)
from om_proxy.storage.sqlite.writer_lock import WriterLock
from om_proxy.storage.values.changes import Change, MoveResult, ResourceWakeup, WrittenRow
from om_proxy.storage.values.records import EventPage

if TYPE_CHECKING:
    from om_proxy.storage.encryption.master_keys import MasterKeys

_Written = TypeVar("_Written")
_Read = TypeVar("_Read")
IN_MEMORY = ":memory:"
# how long to wait for another process's lock; a commit holds it for milliseconds
BUSY_TIMEOUT_S = 5.0
SELECT_SEQUENCE = "SELECT value FROM sequence"
# its rows go with it
DELETE_THREAD = f"DELETE FROM om.thread WHERE {IS_THREAD} AND version = $4 RETURNING id"

COMMON_PRAGMAS = ("foreign_keys = ON", "secure_delete = ON")
WRITER_PRAGMAS = ("journal_mode = WAL", "synchronous = FULL", *COMMON_PRAGMAS)
READER_PRAGMAS = (*COMMON_PRAGMAS, "query_only = ON", "wal_autocheckpoint = 0")


class SqliteStore(SqliteSearch, SqliteRecords, SqliteForgetting, SharedStore):
    """The `Store` protocol on one file, which several processes may share. Call `await
    SqliteStore.open(path)`, and `close()` at the end."""

    _has_plain_title = "title < x''"  # every TEXT comes before the empty BLOB
    _log_tokens = queries.write_count_in_state("log_tokens")
    _reflected_tokens = queries.write_count_in_state("reflected_tokens")
    _info_columns = write_info_columns(_log_tokens)
    _encoder = ROW_ENCODER
    _thread_columns = THREAD
    _version_columns = ("version",)
    _newest_event = event_rows.NEWEST_EVENT
    _rows_have_versions = False

    def __init__(
        self,
        writer: ConnectionWorker,
        reader: ConnectionWorker,
        generations: int | None,
        lock: WriterLock | None,
        clock: Callable[[], float],
        eraser: Eraser | None = None,
        masters: MasterKeys | None = None,
        separate: SeparateKeys | None = None,
    ) -> None:
        super().__init__(queries.select_wrapped_keys, generations, masters, separate)
        self._writer = writer
        self._reader = reader
        self._lock = lock
        self._clock = clock
        self._eraser = eraser  # None: in memory
        self._probe: queries.VersionProbe | None = None

    @classmethod
    async def open(
        cls,
        path: str | Path,
        *,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        generations: int | None = None,
        create: bool = True,
        clock: Callable[[], float] = time.time,
        masters: MasterKeys | None = None,
        separate: SeparateKeys | None = None,
        moves_keys: bool = False,
    ) -> SqliteStore:
        """Open the store in this file, create it if it is missing, and bring its schema up to date.
        `:memory:` lives until `close`. With `create=False`, raise StorageError for a file that is
        no store yet, and change nothing.

        `busy_timeout_s`: how long to wait for another process's lock. `generations`: how many older
        generations of a log are kept; None: all. `clock`: this machine's, in unix seconds.
        `masters`: the master keys that its text is encrypted with; None: none. `separate`: where its
        keys are; None: in the file. The store closes it. `moves_keys`: keys that are in the file may
        be moved.
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
            lock=lock,
        )
        reader = (
            writer
            if is_in_memory
            else ConnectionWorker(
                lambda: open_connection(database, busy_timeout_s, READER_PRAGMAS), "BEGIN"
            )
        )
        eraser = None if is_in_memory else Eraser(writer, busy_timeout_s, database)
        store = cls(writer, reader, generations, lock, clock, eraser, masters, separate)
        try:
            if not is_in_memory:
                ensure_private_file(Path(database))
            await writer.run_alone(apply_migrations)
            await (writer.run if masters else reader.run)(
                lambda db: admit(SqliteSession(db), masters, separate, moves_keys=moves_keys)
            )
            store.use_key_store()
            await reader.run_alone(lambda db: SqliteSession(db).select(SELECT_SEQUENCE))
            store._probe = None if is_in_memory else queries.VersionProbe(database)
            await store.resume_erasure()
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

    async def clock(self) -> float:
        """Return this machine's clock, which all processes on a file share."""
        return self._clock()

    async def describe(self) -> Promise:
        row = await self._reader.run_alone(read_schema_row)
        return create_sqlite_promise(
            is_in_memory=self._eraser is None,
            schema_version=row.version,
            is_encrypted=self._masters is not None,
            has_separate_keys=self._separate is not None,
        )

    async def check_schema(self) -> None:
        await self._reader.run_alone(check_schema)

    async def ping(self) -> None:
        # SQLite does not write a page that would not change, and a full disk would go unnoticed. So
        # this changes one; versions may have gaps.
        await self._write_one(INCREMENT_SEQUENCE)
        await self._select(SELECT_SEQUENCE)
        if self._separate:
            await self._separate.ping()

    # ── reading ──

    async def load(self, key: Key) -> Memory:
        return await self._read_sealed(lambda s: queries.select_memory(s, key, self._keys))

    async def _read_one(self, work: Work[_Read], *, is_long: bool = False) -> _Read:
        return await self._reader.run_alone(lambda db: work(SqliteSession(db)))

    def _read_with_keys(self, work: Work[_Read], *, is_snapshot: bool = False) -> Awaitable[_Read]:
        return self._reader.run(lambda db: work(SqliteSession(db)))

    async def _read_snapshot(self, work: Work[_Read], *, is_long: bool = False) -> _Read:
        run = partial(run_in_thread, work)
        return await self._reader.run(lambda db: run_in_connection_thread(db, run))

    async def _write(
        self, work: Work[_Written], *, is_long: bool = False, is_background: bool = False
    ) -> _Written:
        run = partial(run_in_thread, work)
        return await self._writer.write(run, is_background=is_background)

    async def _write_one(self, sql: str, *parameters: object) -> list[Row]:
        return await self._write(lambda session: session.select(sql, *parameters))

    async def refresh(self, held: Memory) -> Memory:
        version = self._probe.version(held.key) if self._probe else None
        if version == held.version:
            return held
        return await self._read_sealed(lambda s: queries.select_newer(s, held, self._keys))

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
            lambda s: queries.select_newer_pair(s, thread, shared_log, self._keys)
        )

    async def version(self, key: Key) -> int:
        if self._probe and (version := self._probe.version(key)) is not None:
            return version
        return await super().version(key)

    async def events(
        self, tenant: str | None, keys: Sequence[Key] | None, after: int | None, limit: int
    ) -> EventPage:
        return await self._read_with_keys(
            lambda s: event_rows.select_events(s, tenant, keys, after, limit, self._keys)
        )

    async def event_position(self, before: int = 0) -> int:
        newest, _ = await self._read_one(event_rows.select_position)
        return max(0, newest - before)

    async def due_threads(self, now: float, limit: int) -> tuple[Key, ...]:
        return await self._read_one(lambda s: claiming.select_due(s, now, limit))

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
        await self._finish_deletion()  # left by processes that have ended
        if not await self._read_one(
            lambda s: claiming.select_due(s, now, limit, skip, callers=callers)
        ):
            return ()  # without disturbing the writer
        return await self._write(
            lambda s: claiming.claim_due(s, now, limit, holder, seconds, callers, skip)
        )

    # ── writing ──

    async def _write_commit(
        self, change: Change, keys: CommitKeys, first_turn: FirstTurn | None
    ) -> WrittenRow:
        encode = partial(Commit, *change[:4], self._generations, keys, first_turn)
        new_count = len(change.after.tail) - len(change.before.tail)
        commit = encode() if new_count <= MANY_MESSAGES else await run_off_loop(new_count, encode)
        return await self._writer.write(commit.write)

    async def _write_shared(
        self,
        thread: Change,
        shared_log: Change | None,
        wakeup: ResourceWakeup | None,
        keys: Sequence[CommitKeys],
        first_turn: FirstTurn | None,
    ) -> tuple[WrittenRow, WrittenRow | None]:
        encode = partial(
            SharedCommit, thread, shared_log, wakeup, self._generations, keys, first_turn
        )
        commit = await run_off_loop(len(thread.after.tail) - len(thread.before.tail), encode)
        return await self._writer.write(commit.write)

    async def add_events(self, key: Key, events: Sequence[Event]) -> None:
        encoded = [encode_event(event) for event in events]
        held = NO_HELD_KEYS
        while True:
            if self._masters:
                held = await self._read_with_keys(lambda s: hold_key_of(s, key, self._keys))
            insert = partial(event_rows.insert_thread_events, key=key, events=encoded, held=held)
            if await self._writer.write(insert):
                return
            if self._masters is None:
                raise UnopenedText(NO_MASTER_KEY)

    async def prune(self, now: float) -> None:
        await self._writer.write(lambda db: event_rows.prune_events(db, now), is_background=True)
        await self._prune_names(now)
        await self._prune_records(now)
        await self._prune_ledger(now)

    async def mark_delivered(self, replies: Mapping[Key, int]) -> None:
        rows = [(seq, *key) for key, seq in replies.items()]
        await self._write(lambda session: session.execute_many(queries.UPDATE_DELIVERED, rows))

    @staticmethod
    def _encode_thread(memory: Memory, ciphers: ThreadCiphers) -> Row:
        return ROW_ENCODER.encode_thread(memory, ciphers, writes_others=True)

    async def _delete_version(self, session: Session, key: Key, version: int) -> bool:
        if not await session.select(DELETE_THREAD, *key, version):
            return False
        await session.request_erasure()
        return True

    async def _finish_deletion(self) -> None:
        await self.resume_erasure()
        await self._doomed.destroy()

    async def _move(self, work: Work[MoveResult]) -> MoveResult:
        return await self._writer.run(lambda db: work(SqliteSession(db)))
