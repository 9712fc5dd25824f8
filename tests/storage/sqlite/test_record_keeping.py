"""An SQLite file never uses the id of a record again, and lets nobody change one."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.values.records import AUDIT_KEPT_S, AuditRecord
from tests.storage.records_contract import NOW, RECEIPT, add_threads


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path)
    yield store
    await store.close()


async def test_ids_of_the_audit_are_never_used_again(store: SqliteStore) -> None:
    await store.add_audit([AuditRecord(NOW, "who", "s", "old")])
    [old] = await store.audit("s")
    await store.prune_records(NOW + AUDIT_KEPT_S + 1)
    assert await store.audit("s") == ()
    await store.add_audit([AuditRecord(NOW, "who", "s", "new")])
    [new] = await store.audit("s")
    assert new.id > old.id


async def test_a_record_of_the_audit_is_never_changed(store: SqliteStore, path: Path) -> None:
    await store.add_audit([AuditRecord(NOW, "who", "s", "what")])
    with closing(sqlite3.connect(path)) as db, pytest.raises(sqlite3.IntegrityError):
        db.execute("UPDATE audit SET who = 'somebody else'")


async def test_a_receipt_says_pending_while_a_reader_holds_the_bytes(
    store: SqliteStore, path: Path
) -> None:
    await add_threads(store, "s", "r", 1)
    reader = sqlite3.connect(path, isolation_level=None)
    with closing(reader):
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM message").fetchall()
        batch = await store.forget_batch("s", "r")
        assert (batch.is_last, batch.result.log) == (True, "pending")
        await store.add_receipt(RECEIPT._replace(result=batch.result))
        kept = await store.receipt("r1", NOW)
        assert kept is not None
        assert kept.result.log == "pending"
    await store.wait_erased()
    kept = await store.receipt("r1", NOW)
    assert kept is not None
    assert (kept.result.database, kept.result.log) == ("gone", "gone")
