"""Keep memories in one SQLite file.

There is a writer connection and a reader connection (connection_worker.py), so that a load never
waits for a commit's fsync: in WAL mode readers see the last committed state while a writer works.
The writer uses `synchronous=FULL`, because under NORMAL a power cut takes acknowledged commits back
(measured: in 24 of 60 cuts). Only the writer checkpoints: two connections that do so at once can
corrupt a file under SQLite before 3.51.3.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import aiosqlite
from msgspec.structs import replace

from om_proxy.errors import StorageError
from om_proxy.memory.model import RESOURCE_THREAD, Generation, Key, Memory, Message
from om_proxy.off_loop import MANY_MESSAGES, run_off_loop
from om_proxy.storage.base import (
    Backlog,
    Change,
    ForgetResult,
    MoveResult,
    Outline,
    ResourceWakeup,
    ThreadInfo,
)
from om_proxy.storage.forgetting import create_thread_labeler
from om_proxy.storage.sqlite import queries, rows
from om_proxy.storage.sqlite.commit import Commit, SharedCommit
from om_proxy.storage.sqlite.connection_worker import MAX_GROUP_UNITS, ConnectionWorker
from om_proxy.storage.sqlite.eraser import IS_ERASURE_PENDING, Eraser
from om_proxy.storage.sqlite.queries import IS_THREAD, OF_THREAD, UNIX_NOW
from om_proxy.storage.sqlite.removal import remove_thread
from om_proxy.storage.sqlite.schema import apply_migrations, ensure_private_file, open_connection
from om_proxy.storage.sqlite.tenant_move import COUNT_NAME_CONFLICTS, SELECT_RESOURCES, ResourceMove
from om_proxy.storage.sqlite.version_probe import VersionProbe
from om_proxy.storage.sqlite.writer_lock import WriterLock

IN_MEMORY = ":memory:"
SECRET_BYTES = 32
# how long to wait for another process's lock; a commit holds it for milliseconds
BUSY_TIMEOUT_S = 5.0

COMMON_PRAGMAS = ("foreign_keys = ON", "secure_delete = ON")
WRITER_PRAGMAS = ("journal_mode = WAL", "synchronous = FULL", *COMMON_PRAGMAS)
READER_PRAGMAS = (*COMMON_PRAGMAS, "query_only = ON", "wal_autocheckpoint = 0")

TAKE_LEASE = f"""INSERT INTO lease VALUES (?, ?, ?, ?, {UNIX_NOW} + ?) ON CONFLICT DO UPDATE
    SET (holder, until) = (excluded.holder, excluded.until)
    WHERE lease.holder = excluded.holder OR lease.until <= {UNIX_NOW} RETURNING holder"""


class SqliteStore:
    """The `Store` protocol on one file, which several processes may share. Call `await
    SqliteStore.open(path)`, and `close()` at the end."""

    def __init__(
        self,
        writer: ConnectionWorker,
        reader: ConnectionWorker,
        generations: int | None,
        lock: WriterLock | None,
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._generations = generations
        self._lock = lock
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
    ) -> SqliteStore:
        """Open the store in this file, create it if it is missing, and bring its schema up to date.
        `:memory:` lives until `close`.

        `busy_timeout_s`: how long to wait for another process's lock. `max_group_units`: how many
        commits may share a transaction. `generations`: how many older generations of a log are
        kept; None: all.
        """
        database = str(path)
        is_in_memory = database == IN_MEMORY
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
        store = cls(writer, reader, generations, lock)
        try:
            if not is_in_memory:
                store._eraser = Eraser(writer, busy_timeout_s)
                ensure_private_file(Path(database))
            await writer.run_alone(apply_migrations)
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

    async def ping(self) -> None:
        await self._writer.run(_write_sequence)
        await self._reader.run(_read_sequence)

    # ── reading ──

    async def load(self, key: Key) -> Memory:
        return await self._reader.run(lambda db: queries.select_memory(db, key))

    async def version(self, key: Key) -> int:
        if self._probe and (version := self._probe.version(key)) is not None:
            return version
        version_rows = await self._read(f"SELECT version FROM thread WHERE {IS_THREAD}", key)
        return int(version_rows[0][0]) if version_rows else 0

    async def outline(self, key: Key) -> Outline:
        mark_rows = await self._read(
            f"SELECT {rows.MARK_COLUMNS}, live, parent FROM message WHERE {OF_THREAD} ORDER BY seq",
            key,
        )
        marks = [(rows.decode_mark(row[:7]), row[7], row[8]) for row in mark_rows]
        live = tuple(mark for mark, is_live, _ in marks if is_live)
        superseded = tuple((mark, parent) for mark, is_live, parent in marks if not is_live)
        return Outline(live, superseded)

    async def messages(
        self, key: Key, after: int, through: int | None = None, limit: int | None = None
    ) -> tuple[Message, ...]:
        sql = f"""SELECT {rows.MESSAGE_COLUMNS} FROM message
            WHERE {OF_THREAD} AND live = 1 AND seq > ? AND seq <= ifnull(?, seq) ORDER BY seq LIMIT ifnull(?, -1)"""
        return tuple(
            rows.decode_message(row) for row in await self._read(sql, (*key, after, through, limit))
        )

    async def messages_by_seq(self, key: Key, seqs: Sequence[int]) -> tuple[Message, ...]:
        sql = f"""SELECT {rows.MESSAGE_COLUMNS} FROM message
            WHERE {OF_THREAD} AND seq IN (SELECT value FROM json_each(?)) ORDER BY seq"""
        return tuple(
            rows.decode_message(row)
            for row in await self._read(sql, (*key, json.dumps(list(seqs))))
        )

    async def generations(self, key: Key, before: int) -> tuple[Generation, ...]:
        """Return the older generations. Those with an empty log have no rows, and are left out."""
        return await self._reader.run_alone(lambda db: queries.select_generations(db, key, before))

    async def resource_backlog(self, shared_log: Key) -> Backlog:
        sql = f"""SELECT {rows.BACKLOG_COLUMNS} FROM thread
            WHERE tenant = ? AND resource = ? AND shared = 1 AND pending > 0 ORDER BY turn_at, id"""
        return rows.decode_backlog(await self._read(sql, (shared_log.tenant, shared_log.resource)))

    async def other_thread_tails(
        self, key: Key, threads: int, messages: int
    ) -> tuple[tuple[Key, tuple[Message, ...]], ...]:
        return await self._reader.run(
            lambda db: queries.select_other_tails(db, key, threads, messages)
        )

    async def due_threads(self, now: float, limit: int) -> tuple[Key, ...]:
        return await self._reader.run_alone(lambda db: queries.select_due(db, now, limit))

    async def claim(
        self, now: float, limit: int, holder: str, seconds: float, *, skip: Collection[Key] = ()
    ) -> tuple[Key, ...]:
        await self._resume_erasure()  # left by processes that have ended
        select_due = partial(queries.select_due, now=now, limit=limit, skip=skip)
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
        if cursor is not None:
            conditions.append("(tenant, resource, thread) > (?, ?, ?)")
            parameters.extend(cursor)
        where = " AND ".join(conditions)
        sql = f"SELECT {rows.INFO_COLUMNS} FROM thread WHERE {where} ORDER BY tenant, resource, thread LIMIT ?"
        return tuple(rows.decode_info(row) for row in await self._read(sql, (*parameters, limit)))

    async def _read(self, sql: str, parameters: Iterable[Any]) -> list[rows.Row]:
        # one statement is its own snapshot, so it needs no transaction
        return await self._reader.run_alone(lambda db: queries.select_rows(db, sql, parameters))

    # ── writing ──

    async def commit(
        self, before: Memory, after: Memory, interrupted: Sequence[Message] = ()
    ) -> Memory:
        encode = partial(Commit, before, after, interrupted, self._generations)
        new_count = len(after.tail) - len(before.tail)
        commit = encode() if new_count <= MANY_MESSAGES else await run_off_loop(new_count, encode)
        written = await self._writer.write(commit.write)
        return replace(after, version=written.version, row_id=written.row_id)

    async def commit_shared(
        self, thread: Change, shared_log: Change | None, wakeup: ResourceWakeup | None = None
    ) -> tuple[Memory, Memory | None]:
        encode = partial(SharedCommit, thread, shared_log, wakeup, self._generations)
        new_count = len(thread.after.tail) - len(thread.before.tail)
        commit = await run_off_loop(new_count, encode)
        thread_row, *log_rows = await self._writer.write(commit.write)
        log_after = shared_log.after if shared_log else None
        if log_after and log_rows:
            [log_row] = log_rows
            log_after = replace(log_after, version=log_row.version, row_id=log_row.row_id)
        thread_after = replace(thread.after, version=thread_row.version, row_id=thread_row.row_id)
        return thread_after, log_after

    async def lease(self, key: Key, holder: str, seconds: float) -> bool:
        return bool(await self._write(TAKE_LEASE, (*key, holder, seconds)))

    async def set_due(self, key: Key, at: float | None) -> None:
        await self._write(
            f"UPDATE thread SET due = ? WHERE {IS_THREAD} AND due IS NOT ?",
            (at, *key, at),
        )

    async def mark_delivered(self, replies: Mapping[Key, int]) -> None:
        await self._writer.run(lambda db: _update_delivered(db, replies))

    async def delivered_reply(self, key: Key) -> int | None:
        seq_rows = await self._read(f"SELECT delivered FROM thread WHERE {IS_THREAD}", key)
        return seq_rows[0][0] if seq_rows else None

    async def release(self, key: Key, holder: str) -> None:
        await self._write(f"DELETE FROM lease WHERE {IS_THREAD} AND holder = ?", (*key, holder))

    async def secret(self, proposed: bytes | None = None) -> bytes:
        new_secret = proposed or os.urandom(SECRET_BYTES)
        await self._write("INSERT INTO secret VALUES (1, ?) ON CONFLICT DO NOTHING", (new_secret,))
        [(value,)] = await self._write("SELECT value FROM secret", ())
        return bytes(value)

    async def park(self, key: Key, parked: bool) -> bool:
        """Park or revive a thread. It gets a new version, so that caches read it again."""
        return await self._writer.run(lambda db: _update_parked(db, key, parked))

    async def forget(self, key: Key) -> ForgetResult:
        """Remove the thread, also from the file: deleted content is overwritten, and the
        write-ahead log is truncated."""
        label_of = create_thread_labeler(await self.secret())
        removed = await self._writer.run(lambda db: remove_thread(db, key, label_of))
        if self._eraser is None or await self._eraser.erase():
            return removed
        return removed._replace(database="pending", log="pending")

    async def move_tenant(
        self, old: str, new: str, fingerprint: Callable[[bytes], bytes | None]
    ) -> MoveResult:
        label_of = create_thread_labeler(await self.secret())
        [(name_conflicts,)] = await self._read(COUNT_NAME_CONFLICTS, (old, new))
        if name_conflicts:
            return MoveResult(name_conflicts=name_conflicts)
        threads = messages = 0
        for (resource,) in await self._read(SELECT_RESOURCES, (old,)):
            moved = await self._writer.run(ResourceMove(old, new, resource, fingerprint, label_of))
            threads += moved.threads
            messages += moved.messages
        return MoveResult(threads, messages)

    async def _resume_erasure(self) -> None:
        """Start the eraser if forgotten bytes are pending."""
        [(is_pending,)] = await self._read(IS_ERASURE_PENDING, ())
        if is_pending and self._eraser:
            self._eraser.start()

    async def wait_erased(self) -> None:
        if self._eraser is not None:
            await self._eraser.wait()

    async def _write(self, sql: str, parameters: Iterable[Any]) -> list[rows.Row]:
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
