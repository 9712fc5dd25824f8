"""Between processes, one at a time writes or checkpoints a file."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from proxy.errors import StorageError
from proxy.storage.one_writer import OneWriter
from proxy.storage.sqlite import SqliteStore

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")


async def test_one_after_the_other(tmp_path: Path) -> None:
    """Two file handles stand for two processes: the system's lock belongs to the handle."""
    first, second = OneWriter(f"{tmp_path}/om.db", 5.0), OneWriter(f"{tmp_path}/om.db", 5.0)
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
    first, second = OneWriter(f"{tmp_path}/om.db", 5.0), OneWriter(f"{tmp_path}/om.db", 0.05)
    async with first:
        with pytest.raises(StorageError, match="another process"):
            async with second:
                raise AssertionError("both have it")
    async with second:  # and is free again
        pass
    first.close()
    second.close()


async def test_a_store_writes_in_its_turn_only(tmp_path: Path) -> None:
    """Commit, forgetting with its checkpoint, closing: nothing happens while another process has the turn."""
    store = await SqliteStore.open(tmp_path / "om.db", busy=0.1)
    other = OneWriter(f"{tmp_path}/om.db", 1.0)
    async with other:
        with pytest.raises(StorageError, match="another process"):
            await store.ping()
        with pytest.raises(StorageError, match="another process"):
            await store.secret()
    await store.ping()
    await store.close()
    other.close()


async def test_it_is_let_go_after_an_error(tmp_path: Path) -> None:
    turn = OneWriter(f"{tmp_path}/om.db", 0.05)
    with pytest.raises(ZeroDivisionError):
        async with turn:
            raise ZeroDivisionError
    other = OneWriter(f"{tmp_path}/om.db", 0.05)
    async with other:
        pass
    turn.close()
    other.close()


async def test_a_busy_one_lets_the_next_in(tmp_path: Path) -> None:
    """Who writes without a pause stands behind who waits: within two of its turns the other one has had its own."""
    busy, quiet = OneWriter(f"{tmp_path}/om.db", 5.0), OneWriter(f"{tmp_path}/om.db", 5.0)
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
