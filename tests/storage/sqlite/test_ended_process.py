"""A process that ends anywhere in its work on an SQLite file leaves a file that can be read, and the same
work ends what it began.

What a killed process leaves is what stands in its files at that moment. So the files are copied before
each statement, and each copy is opened as after the end. The connection has room for few pages: it
writes rows of a transaction to its log before the commit.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import pytest

from om_proxy.memory.model import RESOURCE_THREAD, Key, Memory
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.sqlite import removal
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.key_rotation_contract import fill, without_version
from tests.storage.memory_builder import KEY

MASTERS = MasterKeys([bytes(range(32))])
MAX_CHECKED = 10  # ends, evenly spaced, of all that differ


@asynccontextmanager
async def open_file(file: Path, masters: MasterKeys | None) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(file, masters=masters)
    try:
        yield store
    finally:
        await store.close()


async def note_ends(
    store: SqliteStore, file: Path, work: Callable[[], Awaitable[None]]
) -> list[Path]:
    """Do the work. Return copies of the file: one for each state in which an end would leave it."""
    seen: set[bytes] = set()
    copies: list[Path] = []

    def copy_files(_: str) -> None:
        parts = {suffix: Path(f"{file}{suffix}") for suffix in ("", "-wal")}
        state = sha256(
            b"".join(part.read_bytes() for part in parts.values() if part.exists())
        ).digest()
        if state in seen:
            return
        seen.add(state)
        copy = file.with_name(f"ended-{len(copies)}.db")
        for suffix, part in parts.items():
            if part.exists():
                shutil.copy(part, f"{copy}{suffix}")
        copies.append(copy)

    await store._writer.run_alone(lambda db: db.execute("PRAGMA cache_size = 1"))
    await store._writer.run_alone(lambda db: db.set_trace_callback(copy_files))
    await work()
    await store._writer.run_alone(lambda db: db.set_trace_callback(None))
    copy_files("")
    assert len(copies) > 5, "no transaction was written in parts"
    step = max(1, len(copies) // MAX_CHECKED)
    return [*copies[:-1:step], copies[-1]]


async def load_all(store: SqliteStore, keys: list[Key]) -> dict[Key, Memory]:
    return {key: without_version(await store.load(key)) for key in keys}


@pytest.mark.parametrize("masters", [None, MASTERS], ids=["plain", "encrypted"])
async def test_an_end_while_a_tenant_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, masters: MasterKeys | None
) -> None:
    """As retention and people do it: each thread is whole or gone, and the next run ends it."""
    monkeypatch.setattr(removal, "MAX_BATCH_THREADS", 2)
    file = tmp_path / "om.db"

    async def forget_all(store: SqliteStore) -> int:
        count = 0
        while True:
            batch = await store.forget_batch(KEY.tenant)
            count += batch.result.threads
            if batch.is_last:
                return count

    async with open_file(file, masters) as store:
        keys = await fill(store)
        before = await load_all(store, keys)
        threads = [key for key in keys if key.thread != RESOURCE_THREAD]

        async def forget() -> None:
            assert await forget_all(store) == len(threads)

        ends = await note_ends(store, file, forget)
    counts = []
    for end in ends:
        async with open_file(end, masters) as store:
            for key, memory in (await load_all(store, keys)).items():
                whole_or_gone = (before[key], Memory(key=key))
                assert _say_content(memory) in map(_say_content, whole_or_gone)
            counts.append(await forget_all(store))
            assert await load_all(store, keys) == {key: Memory(key=key) for key in keys}
    assert (counts[0], counts[-1]) == (len(threads), 0)
    assert len(set(counts)) > 2


def _say_content(memory: Memory) -> tuple[object, ...]:
    """Return what forgetting other threads does not change: look-ups that quote them go."""
    said = tuple(message.item for message in memory.tail)
    return said, memory.recent, memory.log, memory.chunks, memory.overrides
