"""A backup is the file as of one moment, whoever writes meanwhile."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from om_proxy.common.errors import StorageError, UsageError
from om_proxy.memory.model import Memory
from om_proxy.storage.sqlite import backup
from om_proxy.storage.sqlite.backup import back_up_file, check_file
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.whole_threads import list_keys, read_whole_thread
from tests.management.moving.test_importing import export
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.moving_contract import store_eventful


@pytest.mark.parametrize("is_compact", [False, True], ids=["pages", "compact"])
async def test_a_backup_of_an_open_store(tmp_path: Path, is_compact: bool) -> None:
    """It holds what was committed when it began, opens as a store, and is its owner's alone."""
    store = await SqliteStore.open(tmp_path / "om.db")
    try:
        await store_eventful(store)
        before = await export(store)
        # in a test the event loop may wait: nothing of it takes part
        back_up_file(tmp_path / "om.db", tmp_path / "backup.db", is_compact=is_compact)
    finally:
        await store.close()
    # no `.part`, and nothing that SQLite keeps beside a file that it reads
    assert [name for name in os.listdir(tmp_path) if name.startswith("backup.db")] == ["backup.db"]
    assert stat.S_IMODE((tmp_path / "backup.db").stat().st_mode) == 0o600
    copy = await SqliteStore.open(tmp_path / "backup.db")
    try:
        assert await export(copy) == before
    finally:
        await copy.close()


async def test_writes_meanwhile_neither_enter_nor_begin_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step is followed by a commit of another connection."""
    monkeypatch.setattr(backup, "PAGES_PER_STEP", 5)
    path = tmp_path / "om.db"
    store = await SqliteStore.open(path)
    await store_eventful(store)
    await store.close()
    left: list[int] = []

    with closing(sqlite3.connect(path, isolation_level=None)) as writer:

        def write(pages_left: int, pages: int) -> None:
            left.append(pages_left)
            writer.execute("UPDATE thread SET turn_at = ifnull(turn_at, 0) + 1")
            assert pages > 5

        back_up_file(path, tmp_path / "backup.db", on_step=write)
        [(written,)] = writer.execute("SELECT turn_at FROM thread").fetchall()
    assert len(left) > 3
    assert left == sorted(left, reverse=True)
    copy = await SqliteStore.open(tmp_path / "backup.db")
    try:
        whole = await read_whole_thread(copy, KEY)
        assert whole
        assert (whole.memory.turn_at or 0) < written
    finally:
        await copy.close()


async def store_many(path: Path) -> None:
    store = await SqliteStore.open(path)
    for number in range(20):
        key = KEY._replace(thread=f"t{number}")
        await store.commit(Memory(key=key), MemoryBuilder(key).chat(9, "x" * 900).memory())
    await store.close()


async def count_threads(path: Path) -> int:
    store = await SqliteStore.open(path)
    try:
        return len([key async for key in list_keys(store)])
    finally:
        await store.close()


def test_a_backup_that_is_cut_off_is_none(tmp_path: Path) -> None:
    """SIGKILL in the middle leaves a `.part`; the next run writes it anew."""
    asyncio.run(store_many(tmp_path / "om.db"))
    code = f"""
import os, signal
from pathlib import Path
from om_proxy.storage.sqlite import backup
backup.PAGES_PER_STEP = 5
folder = Path({str(tmp_path)!r})
def end(left, pages):
    if left < pages / 2:
        os.kill(os.getpid(), signal.SIGKILL)
backup.back_up_file(folder / "om.db", folder / "backup.db", on_step=end)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -9
    assert not (tmp_path / "backup.db").exists()
    assert (tmp_path / "backup.db.part").exists()
    back_up_file(tmp_path / "om.db", tmp_path / "backup.db")
    assert asyncio.run(count_threads(tmp_path / "backup.db")) == 20


def test_what_cannot_be_backed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is overwritten, and none is left behind."""
    asyncio.run(store_many(tmp_path / "om.db"))
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        back_up_file(tmp_path / "om.db", tmp_path / "kept")
    with pytest.raises(UsageError, match="cannot be written"):
        back_up_file(tmp_path / "om.db", tmp_path / "no" / "backup.db")

    def fill_disk(*_: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(backup, "_copy_pages", fill_disk)
    with pytest.raises(StorageError, match="disk is full"):
        back_up_file(tmp_path / "om.db", tmp_path / "backup.db")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "om.db"]


async def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "om.db")
    await store_eventful(store)
    await store.close()
    check_file(tmp_path / "om.db")
    damaged = bytearray((tmp_path / "om.db").read_bytes())
    damaged[4096 * 8 : 4096 * 30] = bytes(range(256)) * (4096 * 22 // 256)
    (tmp_path / "om.db").write_bytes(damaged)
    with pytest.raises(StorageError, match="is damaged"):
        check_file(tmp_path / "om.db")
