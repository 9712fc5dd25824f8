"""Memories in one SQLite file.

A writer connection and a reader connection (sqlite_lane.py), so that a load never waits behind a commit's fsync: in WAL mode
readers see the last committed state while a writer works. `synchronous=FULL`, because a power cut takes acknowledged commits
back under NORMAL (measured: in 24 of 60 cuts). Only the writer checkpoints: two connections doing so at once can corrupt a
file under SQLite before 3.51.3.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import aiosqlite
from msgspec.structs import replace

from om_proxy.errors import StorageError
from om_proxy.memory import identity
from om_proxy.memory.gathering import Waiting
from om_proxy.memory.model import HUB, Key, Memory, Message, Observation
from om_proxy.off_loop import MANY_MESSAGES, off_loop
from om_proxy.storage import sqlite_reading as reading
from om_proxy.storage import sqlite_rows as rows
from om_proxy.storage.base import Change, Forgotten, Moved, Outline, Stir, ThreadInfo
from om_proxy.storage.one_writer import OneWriter
from om_proxy.storage.sqlite_commit import NOW, Commit, SharedCommit
from om_proxy.storage.sqlite_erasing import IS_PENDING, Eraser
from om_proxy.storage.sqlite_forgetting import forgotten
from om_proxy.storage.sqlite_lane import GROUP, Lane
from om_proxy.storage.sqlite_probe import Probe
from om_proxy.storage.sqlite_reading import OF_THIS, THIS
from om_proxy.storage.sqlite_rekeying import IN_THE_WAY, RESOURCES, Move
from om_proxy.storage.sqlite_schema import brought_up_to_date, connected, private_file

IN_MEMORY = ":memory:"
SECRET_BYTES = 32
BUSY = 5.0  # seconds to wait for another process's lock; a commit holds it for milliseconds

SHARED = ("foreign_keys = ON", "secure_delete = ON")
WRITER = ("journal_mode = WAL", "synchronous = FULL", *SHARED)
READER = (*SHARED, "query_only = ON", "wal_autocheckpoint = 0")


class SqliteStore:
    """The `Store` protocol over one file; several processes may share it. `await SqliteStore.open(path)`, later `close()`."""

    def __init__(self, writer: Lane, reader: Lane, generations: int | None, turn: OneWriter | None) -> None:
        self._writer = writer
        self._reader = reader
        self._generations = generations
        self._turn = turn
        self._probe: Probe | None = None
        self._eraser: Eraser | None = None

    @classmethod
    async def open(
        cls, path: str | Path, *, busy: float = BUSY, group: int = GROUP, generations: int | None = None
    ) -> SqliteStore:
        """The store in this file, made if absent, its schema brought up to date. `:memory:` lives until `close`.

        `busy`: seconds to wait for another process's lock. `group`: how many commits may share a transaction. `generations`: how
        many older ones of a log are kept; None: all.
        """
        database = str(path)
        in_memory = database == IN_MEMORY
        # One connection for both in memory: another one would be another database.
        turn = None if in_memory else OneWriter(database, busy)
        writer = Lane(
            lambda: connected(database, busy, WRITER), "BEGIN IMMEDIATE", keep=in_memory, group=group, turn=turn
        )
        reader = writer if in_memory else Lane(lambda: connected(database, busy, READER), "BEGIN")
        store = cls(writer, reader, generations, turn)
        try:
            if not in_memory:
                store._eraser = Eraser(writer, busy)
                private_file(Path(database))
            await writer.run_alone(brought_up_to_date)
            await reader.run_alone(_looked)
            store._probe = None if in_memory else Probe(database)
            await store._look_for_erasures()
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
            await self._writer.close()  # last, so that it is the one to checkpoint
            if self._turn:
                self._turn.close()

    async def ping(self) -> None:
        await self._writer.run(_touched)
        await self._reader.run(_looked)

    # ── reading ──

    async def load(self, key: Key) -> Memory:
        return await self._reader.run(lambda db: reading.loaded(db, key))

    async def version(self, key: Key) -> int:
        if self._probe and (version := self._probe.version(key)) is not None:
            return version
        found = await self._read(f"SELECT version FROM thread WHERE {THIS}", key)  # noqa: S608 - our own text
        return int(found[0][0]) if found else 0

    async def outline(self, key: Key) -> Outline:
        found = await self._read(f"SELECT {rows.MARK}, live, parent FROM message WHERE {OF_THIS} ORDER BY seq", key)  # noqa: S608 - our own text
        marks = [(rows.mark_of(row[:7]), row[7], row[8]) for row in found]
        live = tuple(mark for mark, is_live, _ in marks if is_live)
        return Outline(live, tuple((mark, parent) for mark, is_live, parent in marks if not is_live))

    async def messages(
        self, key: Key, after: int, through: int | None = None, limit: int | None = None
    ) -> tuple[Message, ...]:
        sql = f"""SELECT {rows.MESSAGE} FROM message
            WHERE {OF_THIS} AND live = 1 AND seq > ? AND seq <= ifnull(?, seq) ORDER BY seq LIMIT ifnull(?, -1)"""  # noqa: S608 - our own text
        return tuple(rows.message_of(row) for row in await self._read(sql, (*key, after, through, limit)))

    async def by_seq(self, key: Key, seqs: Sequence[int]) -> tuple[Message, ...]:
        sql = f"""SELECT {rows.MESSAGE} FROM message
            WHERE {OF_THIS} AND seq IN (SELECT value FROM json_each(?)) ORDER BY seq"""  # noqa: S608 - our own text
        return tuple(rows.message_of(row) for row in await self._read(sql, (*key, json.dumps(list(seqs)))))

    async def generations(self, key: Key, before: int) -> tuple[tuple[int, tuple[Observation, ...]], ...]:
        """Those whose log was empty have nothing to read and are left out."""
        return await self._reader.run_alone(lambda db: reading.generations(db, key, before))

    async def waiting(self, hub: Key) -> tuple[Waiting, ...]:
        sql = f"""SELECT {rows.WAITING} FROM thread
            WHERE tenant = ? AND resource = ? AND shared = 1 AND pending > 0 ORDER BY turn_at, id"""  # noqa: S608 - our own text
        return tuple(rows.waiting_of(row) for row in await self._read(sql, (hub.tenant, hub.resource)))

    async def elsewhere(self, key: Key, threads: int, messages: int) -> tuple[tuple[Key, tuple[Message, ...]], ...]:
        return await self._reader.run(lambda db: reading.elsewhere(db, key, threads, messages))

    async def due(self, now: float, limit: int) -> tuple[Key, ...]:
        sql = f"""SELECT tenant, resource, thread FROM (
                SELECT tenant, resource, thread, due, id, row_number() OVER (PARTITION BY tenant ORDER BY due, id) AS turn
                FROM thread
                WHERE due <= ? AND NOT EXISTS (
                    SELECT 1 FROM lease WHERE (lease.tenant, lease.resource, lease.thread)
                        = (thread.tenant, thread.resource, thread.thread) AND until > {NOW}
                )
            ) ORDER BY turn, due, id LIMIT ?"""  # noqa: S608 - our own text
        await self._look_for_erasures()  # of processes that ended before they were done
        return tuple(Key(*row) for row in await self._read(sql, (now, limit)))

    async def threads(
        self, tenant: str | None, resource: str | None = None, cursor: Key | None = None, limit: int = 100
    ) -> tuple[ThreadInfo, ...]:
        asked: list[tuple[str, tuple[str, ...]]] = [("thread <> ?", (HUB,))]
        if tenant is not None:
            asked.append(("tenant = ?", (tenant,)))
        if resource is not None:
            asked.append(("resource = ?", (resource,)))
        if cursor is not None:
            asked.append(("(tenant, resource, thread) > (?, ?, ?)", cursor))
        where = " AND ".join(condition for condition, _ in asked)
        sql = f"SELECT {rows.INFO} FROM thread WHERE {where} ORDER BY tenant, resource, thread LIMIT ?"  # noqa: S608 - our own text
        values = [value for _, given in asked for value in given]
        return tuple(rows.info_of(row) for row in await self._read(sql, (*values, limit)))

    async def _read(self, sql: str, parameters: Iterable[Any]) -> list[rows.Row]:
        return await self._reader.run_alone(
            lambda db: reading.rows_of(db, sql, parameters)
        )  # one statement is its own snapshot

    # ── writing ──

    async def commit(self, before: Memory, after: Memory, aside: Sequence[Message] = ()) -> Memory:
        work = partial(Commit, before, after, aside, self._generations)
        many = len(after.tail) - len(before.tail)
        commit = work() if many <= MANY_MESSAGES else await off_loop(many, work)
        written = await self._writer.write(commit.write)
        return replace(after, version=written.version, born=written.born)

    async def commit_shared(
        self, thread: Change, hub: Change | None, stir: Stir | None = None
    ) -> tuple[Memory, Memory | None]:
        work = partial(SharedCommit, thread, hub, stir, self._generations)
        many = len(thread.after.tail) - len(thread.before.tail)
        first, *second = await self._writer.write((await off_loop(many, work)).write)
        log = hub.after if hub else None
        if log and second:
            log = replace(log, version=second[0].version, born=second[0].born)
        return replace(thread.after, version=first.version, born=first.born), log

    async def lease(self, key: Key, holder: str, seconds: float) -> bool:
        sql = f"""INSERT INTO lease VALUES (?, ?, ?, ?, {NOW} + ?) ON CONFLICT DO UPDATE
            SET (holder, until) = (excluded.holder, excluded.until)
            WHERE lease.holder = excluded.holder OR lease.until <= {NOW} RETURNING holder"""  # noqa: S608 - our own text
        return bool(await self._write(sql, (*key, holder, seconds)))

    async def look_again(self, key: Key, at: float | None) -> None:
        await self._write(f"UPDATE thread SET due = ? WHERE {THIS} AND due IS NOT ?", (at, *key, at))  # noqa: S608 - our own text

    async def mark_delivered(self, replies: Mapping[Key, int]) -> None:
        await self._writer.run(lambda db: _marked_delivered(db, replies))

    async def delivered(self, key: Key) -> int | None:
        found = await self._read(f"SELECT delivered FROM thread WHERE {THIS}", key)  # noqa: S608 - our own text
        return found[0][0] if found else None

    async def release(self, key: Key, holder: str) -> None:
        await self._write(f"DELETE FROM lease WHERE {THIS} AND holder = ?", (*key, holder))  # noqa: S608 - our own text

    async def secret(self, proposed: bytes | None = None) -> bytes:
        made = proposed or os.urandom(SECRET_BYTES)
        await self._write("INSERT INTO secret VALUES (1, ?) ON CONFLICT DO NOTHING", (made,))
        [(value,)] = await self._write("SELECT value FROM secret", ())
        return bytes(value)

    async def park(self, key: Key, parked: bool) -> bool:
        """A revived thread gets a new version, so that what is cached of it is read again."""
        return await self._writer.run(lambda db: _parked(db, key, parked))

    async def forget(self, key: Key) -> Forgotten:
        """Removed from the file as well: deleted content is overwritten, and the log of older pages emptied."""
        label = partial(identity.label, await self.secret())
        removed = await self._writer.run(lambda db: forgotten(db, key, label))
        if self._eraser is None or await self._eraser.erase():
            return removed
        return removed._replace(database="pending", log="pending")

    async def move_tenant(self, old: str, new: str, fingerprint: Callable[[bytes], bytes | None]) -> Moved:
        label = partial(identity.label, await self.secret())
        [(in_the_way,)] = await self._read(IN_THE_WAY, (old, new))
        if in_the_way:
            return Moved(in_the_way=in_the_way)
        threads = messages = 0
        for (resource,) in await self._read(RESOURCES, (old,)):
            moved = await self._writer.run(Move(old, new, resource, fingerprint, label))
            threads, messages = threads + moved.threads, messages + moved.messages
        return Moved(threads, messages)

    async def _look_for_erasures(self) -> None:
        [(is_pending,)] = await self._read(IS_PENDING, ())
        if is_pending and self._eraser:
            self._eraser.start()

    async def wait_erased(self) -> None:
        if self._eraser is not None:
            await self._eraser.wait()

    async def _write(self, sql: str, parameters: Iterable[Any]) -> list[rows.Row]:
        return await self._writer.run(lambda db: reading.rows_of(db, sql, parameters))


async def _marked_delivered(db: aiosqlite.Connection, replies: Mapping[Key, int]) -> None:
    sql = f"UPDATE thread SET delivered = max(?, ifnull(delivered, 0)) WHERE {THIS}"  # noqa: S608 - our own text
    await db.executemany(sql, [(reply_seq, *key) for key, reply_seq in replies.items()])


async def _parked(db: aiosqlite.Connection, key: Key, parked: bool) -> bool:
    [(version,)] = await reading.rows_of(db, "UPDATE sequence SET value = value + 1 RETURNING value", ())
    trouble = (
        "parked = 1, due = NULL"
        if parked
        else f"parked = 0, failures = 0, retry_at = 0, due = {NOW}, {rows.WITHOUT_CAUSE}"
    )
    sql = f"UPDATE thread SET version = ?, {trouble} WHERE {THIS} RETURNING id"  # noqa: S608 - our own text
    return bool(await reading.rows_of(db, sql, (version, *key)))


async def _touched(db: aiosqlite.Connection) -> None:
    # SQLite leaves a page alone that would not change: then nothing reaches the file, and a full disk is not seen. Versions may skip.
    await db.execute_fetchall("UPDATE sequence SET value = value + 1")


async def _looked(db: aiosqlite.Connection) -> None:
    await db.execute_fetchall("SELECT value FROM sequence")
