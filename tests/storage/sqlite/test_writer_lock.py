"""One process at a time writes or checkpoints a file."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from om_proxy.common.errors import StorageError
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.sqlite.writer_lock import WriterLock

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")


async def test_one_after_the_other(tmp_path: Path) -> None:
    """One file handle waits for the other. Two handles stand for two processes, because the
    system's lock belongs to the handle."""
    first, second = WriterLock(f"{tmp_path}/om.db", 5.0), WriterLock(f"{tmp_path}/om.db", 5.0)
    order: list[str] = []
    async with first:

        async def wait() -> None:
            async with second:
                order.append("second")

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0.02)
        order.append("first")
    await waiting
    assert order == ["first", "second"]
    first.close()
    second.close()


async def test_who_waits_too_long_is_told(tmp_path: Path) -> None:
    first, second = WriterLock(f"{tmp_path}/om.db", 5.0), WriterLock(f"{tmp_path}/om.db", 0.05)
    async with first:
        with pytest.raises(StorageError, match="another process"):
            async with second:
                raise AssertionError("both have it")
    async with second:  # and is free again
        pass
    first.close()
    second.close()


async def test_a_store_writes_in_its_turn_only(tmp_path: Path) -> None:
    """A store does not commit, forget, checkpoint or close while another process has the lock."""
    store = await SqliteStore.open(tmp_path / "om.db", busy_timeout_s=0.1)
    other = WriterLock(f"{tmp_path}/om.db", 1.0)
    async with other:
        with pytest.raises(StorageError, match="another process"):
            await store.ping()
        with pytest.raises(StorageError, match="another process"):
            await store.secret()
    await store.ping()
    await store.close()
    other.close()


async def test_it_is_let_go_after_an_error(tmp_path: Path) -> None:
    turn = WriterLock(f"{tmp_path}/om.db", 0.05)
    with pytest.raises(ZeroDivisionError):
        async with turn:
            raise ZeroDivisionError
    other = WriterLock(f"{tmp_path}/om.db", 0.05)
    async with other:
        pass
    turn.close()
    other.close()


async def test_a_busy_one_lets_the_next_in(tmp_path: Path) -> None:
    """A waiting process gets the lock within two turns of one that writes without a pause."""
    busy, quiet = WriterLock(f"{tmp_path}/om.db", 5.0), WriterLock(f"{tmp_path}/om.db", 5.0)
    turns, waited = 0, asyncio.Event()

    async def write() -> None:
        nonlocal turns
        while not waited.is_set():
            async with busy:
                turns += 1
                await asyncio.sleep(0.004)

    writing = asyncio.create_task(write())
    for _ in range(5):
        await asyncio.sleep(0.01)
        before = turns
        async with quiet:
            assert turns - before <= 2
    waited.set()
    await writing
    busy.close()
    quiet.close()


# ── its files ──


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


async def test_a_clean_end_leaves_nothing_but_the_database(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "om.db")
    await store.secret()
    assert {"om.db-next", "om.db-writer"} <= names(tmp_path)
    await store.close()
    assert names(tmp_path) == {"om.db"}


async def test_the_files_go_with_the_last_one(tmp_path: Path) -> None:
    """Stores that end one after the other leave no files, and each can write until its own end."""
    stores = [await SqliteStore.open(tmp_path / "om.db") for _ in range(3)]
    while stores:
        await stores.pop(0).close()
        for store in stores:
            await store.ping()
    assert names(tmp_path) == {"om.db"}


async def test_files_in_use_stay(tmp_path: Path) -> None:
    """A process that ends while another one writes does not remove the lock: a new process must
    wait for the writer."""
    writing, ending = WriterLock(f"{tmp_path}/om.db", 5.0), WriterLock(f"{tmp_path}/om.db", 5.0)
    async with ending:
        pass
    async with writing:
        ending.close()
        new = WriterLock(f"{tmp_path}/om.db", 0.05)
        with pytest.raises(StorageError, match="another process"):
            async with new:
                raise AssertionError("both have it")
        new.close()
    writing.close()
    assert names(tmp_path) == set()


async def test_a_lock_on_a_removed_file_is_none(tmp_path: Path) -> None:
    """A process that waited for a file which its holder removed does not write at the same time as
    the process that opened the new file."""
    ended, waiting, new = (WriterLock(f"{tmp_path}/om.db", 5.0) for _ in range(3))
    for one in (waiting, ended):
        async with one:  # both have the first file open
            pass
    ended.close()
    inside = 0

    async def write(one: WriterLock) -> None:
        nonlocal inside
        for _ in range(5):
            async with one:
                inside += 1
                assert inside == 1
                await asyncio.sleep(0.01)
                inside -= 1

    await asyncio.gather(write(new), write(waiting))
    waiting.close()
    new.close()


COUNTING = """
import asyncio, sys
from pathlib import Path
from om_proxy.storage.sqlite.writer_lock import WriterLock

async def main(folder):
    count = Path(folder, "count")
    for _ in range(60):
        turn = WriterLock(f"{folder}/om.db", 60.0)
        async with turn:
            seen = int(count.read_text())
            await asyncio.sleep(0)
            count.write_text(str(seen + 1))
        turn.close()

asyncio.run(main(sys.argv[1]))
"""


def test_processes_that_end_and_begin_all_the_time(tmp_path: Path) -> None:
    """Each process removes the files at its end, which is after every write. No two processes ever
    write at once."""
    (tmp_path / "count").write_text("0")
    command, root = [sys.executable, "-c", COUNTING, str(tmp_path)], Path(__file__).parents[3]
    running = [subprocess.Popen(command, cwd=root) for _ in range(4)]
    assert [process.wait(120) for process in running] == [0] * 4
    assert (tmp_path / "count").read_text() == "240"
    assert names(tmp_path) == {"count"}


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="needs root")
async def test_root_locks_beside_a_server_of_another_user(tmp_path: Path) -> None:
    """While root runs a command, the server's user can open the files that root has created."""
    database = tmp_path / "om.db"
    await (await SqliteStore.open(database)).close()
    os.chown(database, 65534, 65534)
    store = await SqliteStore.open(database)
    await store.ping()
    owners = {name: os.stat(f"{database}{name}").st_uid for name in ("-writer", "-next", "-wal")}
    await store.close()
    assert owners == dict.fromkeys(owners, 65534)
