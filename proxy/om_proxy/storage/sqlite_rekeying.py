"""Moves a resource to another tenant inside an SQLite file: its threads, their hub, and all that is keyed by whose they are."""

from __future__ import annotations

from collections.abc import Callable

import aiosqlite

from om_proxy.errors import StorageError
from om_proxy.memory import rekeying
from om_proxy.memory.model import HUB, Key
from om_proxy.memory.rekeying import Chains, Row
from om_proxy.storage import sqlite_rows as rows
from om_proxy.storage.base import Moved
from om_proxy.storage.sqlite_commit import COUNT_UP, NEXT_VERSION
from om_proxy.storage.sqlite_reading import rows_of

RESOURCES = "SELECT DISTINCT resource FROM thread WHERE tenant = ? ORDER BY resource"
IN_THE_WAY = """SELECT count(*) FROM thread WHERE tenant = ? AND EXISTS (
    SELECT 1 FROM thread AS theirs WHERE theirs.tenant = ?
    AND (theirs.resource, theirs.thread) = (thread.resource, thread.thread))"""
THREADS = "SELECT id, thread, others, state FROM thread WHERE tenant = ? AND resource = ? ORDER BY thread = '', id"
MESSAGES = "SELECT seq, parent, live, fp, chain, raw FROM message WHERE thread_id = ? ORDER BY seq"
MESSAGE = "UPDATE message SET (fp, chain) = (?, ?) WHERE thread_id = ? AND seq = ?"
ENTRIES = f"SELECT {rows.OBSERVATION} FROM observation WHERE thread_id = ?"  # noqa: S608 - our own text
ENTRY = "UPDATE observation SET (chain, text, task, suggestion, parts) = (?, ?, ?, ?, ?) WHERE thread_id = ? AND id = ?"
REFLECTION = f"SELECT {rows.REFLECTION} FROM reflection WHERE thread_id = ?"  # noqa: S608 - our own text
REFLECT = "UPDATE reflection SET (text, task, suggestion) = (?, ?, ?) WHERE thread_id = ?"
THREAD = f"UPDATE thread SET (tenant, version, others, state) = (?, {NEXT_VERSION}, ?, ?) WHERE id = ?"  # noqa: S608 - our own text
LEASES = "DELETE FROM lease WHERE tenant = ? AND resource = ?"

Fingerprint = Callable[[bytes], bytes | None]


class Move:
    """The move of one resource, as work for the writer lane; its result is what has moved."""

    def __init__(
        self, old: str, new: str, resource: str, fingerprint: Fingerprint, label: Callable[[Key], str]
    ) -> None:
        self._old, self._new, self._resource = old, new, resource
        self._fingerprint = fingerprint
        self._label = label
        self._messages = 0
        self._labels: dict[str, str] = {}
        self._shared: dict[str, Chains] = {}

    async def __call__(self, db: aiosqlite.Connection) -> Moved:
        self._messages, self._shared = 0, {}  # it may be run again
        threads = await rows_of(db, THREADS, (self._old, self._resource))
        self._labels = {self._named(self._old, name): self._named(self._new, name) for _, name, _, _ in threads if name}
        [(taken,)] = await rows_of(db, f"{IN_THE_WAY} AND resource = ?", (self._old, self._new, self._resource))
        if taken:
            raise StorageError("a thread of the same name was made while the tenant was moved; run it again")
        for id_, name, others, state in threads:  # the hub comes last: its entries name the chains of the others
            await self._move(db, id_, name, rows.text_of(others), state)
        await db.execute(LEASES, (self._old, self._resource))
        return Moved(sum(name != HUB for _, name, _, _ in threads), self._messages)

    def _named(self, tenant: str, thread: str) -> str:
        return self._label(Key(tenant, self._resource, thread))

    async def _move(self, db: aiosqlite.Connection, id_: int, name: str, others: str, state: bytes) -> None:
        found = [self._row(row) for row in await rows_of(db, MESSAGES, (id_,))]
        by_seq = rekeying.chains_by_seq(found)
        chains = rekeying.chains_by_value(found, by_seq)
        self._shared[self._named(self._old, name)] = chains
        self._messages += len(found)
        await db.executemany(MESSAGE, [(row.moved, by_seq[row.seq], id_, row.seq) for row in found])
        await self._move_notes(db, id_, chains)
        small = rows.state_of(state)
        views = tuple(rekeying.moved_view(view, found, chains) for view in small.views)
        told = rows.stored(rekeying.relabelled(others, self._labels))
        await db.execute(THREAD, (self._new, told, rows.state_row(small, views), id_))
        await db.execute(COUNT_UP)

    def _row(self, row: rows.Row) -> Row:
        seq, parent, live, fp, chain, raw = row
        return Row(seq, parent, bool(live), fp, chain, self._fingerprint(raw) or fp)

    async def _move_notes(self, db: aiosqlite.Connection, id_: int, chains: Chains) -> None:
        for row in await rows_of(db, ENTRIES, (id_,)):
            entry = rekeying.moved_entry(rows.observation_of(row), chains, self._labels, self._shared)
            texts = [rows.stored(text) for text in (entry.text, entry.task, entry.suggestion)]
            await db.execute(ENTRY, (entry.chain, *texts, rows.parts_row(entry.parts), id_, entry.id))
        for row in await rows_of(db, REFLECTION, (id_,)):
            made = rows.reflection_of(row)
            moved = [
                text and rekeying.relabelled(text, self._labels) for text in (made.text, made.task, made.suggestion)
            ]
            await db.execute(REFLECT, (*map(rows.stored, moved), id_))
