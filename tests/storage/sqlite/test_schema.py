"""Whose database a file is, and how another release's becomes this one's."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from msgspec.structs import replace

from om_proxy.common.errors import ProgramTooOld, StorageError
from om_proxy.memory.ledger import Account
from om_proxy.memory.model import Memory
from om_proxy.storage.shared.migrate import Migration, list_migrations
from om_proxy.storage.shared.row_decoding import Row
from om_proxy.storage.sqlite import claiming, schema
from om_proxy.storage.sqlite.schema import require_own_database
from om_proxy.storage.sqlite.session import SqliteSession
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.values.records import LedgerBatch, LedgerLine, LedgerQuery
from tests.storage.memory_builder import KEY, MemoryBuilder

NEXT_NUMBER = list_migrations("sqlite")[-1].number + 1
# as releases before the fourth migration write one
INSERT_OLDER_LINE = "INSERT INTO ledger VALUES (?,?,?,?,?,?, ?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_a_database_of_ours(tmp_path: Path) -> None:
    """A young one, whose tables are in its write-ahead log alone, and a closed one, without a
    log."""
    file = tmp_path / "om 100%.db"
    store = await SqliteStore.open(file)
    names = list_names(tmp_path)
    require_own_database(file, 1)
    assert list_names(tmp_path) == names
    await store.close()
    require_own_database(file, 1)
    assert list_names(tmp_path) == [file.name]


async def test_another_database_is_not_opened(tmp_path: Path) -> None:
    """Without `create`, neither another program's file nor its folder changes."""
    file = tmp_path / "om.db"
    with contextlib.closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE account (x)")
    before = file.read_bytes()
    with pytest.raises(StorageError, match="no database of om-proxy"):
        await SqliteStore.open(file, create=False)
    with pytest.raises(StorageError, match="no database of om-proxy"):
        await SqliteStore.open(tmp_path / "missing.db", create=False)
    assert (file.read_bytes(), list_names(tmp_path)) == (before, ["om.db"])


async def test_a_database_of_main_before_it_had_one_schema_is_refused(tmp_path: Path) -> None:
    """It says how its memories move, and not a byte of it changes, nor does any file beside it."""
    file = tmp_path / "om.db"
    store = await SqliteStore.open(file)
    await store.close()
    with contextlib.closing(sqlite3.connect(file)) as db, db:
        db.execute("UPDATE migration SET name = 'memory', checksum = '9a44'")
        db.execute(
            "INSERT INTO migration (number, name, checksum) VALUES (?, 'shared', '7b03')",
            (NEXT_NUMBER,),
        )
        db.execute("UPDATE schema SET (version, min_reader, min_writer) = (25, 14, 14)")
    before = file.read_bytes()
    for create in (True, False):
        with pytest.raises(StorageError, match="nothing was changed: export it") as raised:
            await SqliteStore.open(file, create=create)
        assert not isinstance(raised.value, ProgramTooOld)
    assert (file.read_bytes(), list_names(tmp_path)) == (before, ["om.db"])


async def test_the_next_release_adds_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is stored stays, and the program before goes on with the file: the row lets it write."""
    file = tmp_path / "om.db"
    store = await SqliteStore.open(file)
    memory = await store.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    step = Migration(
        NEXT_NUMBER, "next", "ALTER TABLE thread ADD COLUMN next INTEGER NOT NULL DEFAULT 7;"
    )
    with monkeypatch.context() as next_release:
        shipped = (*list_migrations("sqlite"), step)
        next_release.setattr(schema, "list_migrations", lambda _: shipped)
        newer = await SqliteStore.open(file)
        assert (await newer.describe()).schema_version == step.number
        assert await newer.load(KEY) == memory
        memory = await newer.commit(memory, replace(memory, turns=1))
        await newer.close()
    await store.check_schema()
    assert await store.load(KEY) == memory
    await store.commit(memory, replace(memory, turns=2))
    await store.close()


async def test_older_lines_of_the_ledger_have_the_newer_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are 0, and are added to from then on."""
    file = tmp_path / "om.db"
    with monkeypatch.context() as before:
        older = tuple(step for step in list_migrations("sqlite") if step.number < 4)
        before.setattr(schema, "list_migrations", lambda _: older)
        await (await SqliteStore.open(file)).close()
    sums = range(1, len(Account.__struct_fields__) - 1)
    with contextlib.closing(sqlite3.connect(file)) as db, db:
        db.execute(INSERT_OLDER_LINE, ("t", 1, "", "m", "actor", "full", *sums))
    store = await SqliteStore.open(file)
    (found,) = await store.sum_ledger(LedgerQuery("t", "day"))
    assert found.account == Account(*sums)
    later = {LedgerLine("t", "", 1, "m", "actor", "full"): Account(overhead_us=5, degraded=1)}
    await store.add_to_ledger(LedgerBatch("w", 1, later))
    (found,) = await store.sum_ledger(LedgerQuery("t", "day"))
    assert found.account == Account(*sums, 5, 1)
    await store.close()


async def test_a_message_pays_for_no_index_that_nobody_reads(tmp_path: Path) -> None:
    """Chains and fingerprints are compared in memory: no query looks for them. Few messages have
    look-ups."""
    file = tmp_path / "om.db"
    store = await SqliteStore.open(file)
    await store.close()
    with contextlib.closing(sqlite3.connect(file)) as db:
        names = {row[1] for row in db.execute("PRAGMA index_list(message)")}
        of_passages = {row[1] for row in db.execute("PRAGMA index_list(passage)")}
    assert names == {"message_live", "message_look_ups", "sqlite_autoindex_message_1"}
    assert of_passages == {"passage_scope", "sqlite_autoindex_passage_1"}


async def test_due_work_is_found_by_an_index(tmp_path: Path) -> None:
    """A look for work reads no thread that is not due, none whose call others hold, and of each
    tenant only the oldest."""
    file = tmp_path / "om.db"
    store = await SqliteStore.open(file)
    plans: list[str] = []

    async def explain(db: aiosqlite.Connection) -> None:
        session = SqliteSession(db)
        select = session.select

        async def planned(sql: str, *parameters: Any) -> list[Row]:
            plan = await select(f"EXPLAIN QUERY PLAN {sql}", *parameters)
            plans.extend(row[3] for row in plan)
            return await select(sql, *parameters)

        session.select = planned  # type: ignore[method-assign] # to see the SQL
        await claiming.select_due(session, 9.0, 9, callers=False)

    await store._reader.run_alone(explain)
    await store.close()
    of_tenant = "SEARCH waiting USING INDEX thread_due (tenant=? AND needs_caller=? AND due<?)"
    assert plans.count(of_tenant) == 2  # those that need a caller, and the others
    assert not any(step.startswith("SCAN thread") for step in plans)
