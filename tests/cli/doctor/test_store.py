"""What `doctor` finds about the store."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from om_proxy.cli.doctor.store import MAX_CLOCK_DIFFERENCE_S, examine_storage
from om_proxy.cli.doctor.upstreams import Finding
from om_proxy.common.errors import StorageError
from om_proxy.memory.model import Key, Memory
from om_proxy.storage.base import Store
from om_proxy.storage.contract.status import Promise
from om_proxy.storage.forwarding_store import ForwardingStore
from om_proxy.storage.promises import list_promises
from om_proxy.storage.sqlite.store import SqliteStore

KEY = Key("local", "t", "t")
NOW = 1.7e9


class FullDisk(ForwardingStore):
    """A store whose disk is full."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    @property
    def inner(self) -> Store:
        return self._inner

    async def ping(self) -> None:
        raise StorageError("database or disk is full")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "om.db"


@pytest_asyncio.fixture
async def store(file: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(file)
    await store.commit(Memory(key=KEY), Memory(key=KEY, turn_at=NOW))
    yield store
    await store.close()


def list_broken(findings: list[Finding]) -> list[str]:
    return [finding.text for finding in findings if not finding.works]


async def test_a_store_that_works(store: SqliteStore, file: Path) -> None:
    """The report says where it is, what it promises, and what it does not."""
    findings = await examine_storage(store, file, NOW)
    assert list_broken(findings) == []
    first, second = (finding.text for finding in findings)
    assert str(file) in first
    assert all(said in first for said in list_promises(await store.describe()))
    assert "clock fits" in second


async def test_a_store_whose_index_is_off(store: SqliteStore, file: Path) -> None:
    for search, told in {"auto": "search: index", "false": "search: newest 2000"}.items():
        access, *_ = await examine_storage(store, file, NOW, lambda: NOW, search=search)
        assert told in access.text


async def test_a_store_that_cannot_be_written(store: SqliteStore, file: Path) -> None:
    (said,) = list_broken(await examine_storage(FullDisk(store), file, NOW))
    assert "database or disk is full; check its owner and disk" in said


async def test_a_file_that_others_may_read(store: SqliteStore, file: Path) -> None:
    os.chmod(file, 0o640)
    (said,) = list_broken(await examine_storage(store, file, NOW))
    assert "chmod 600" in said


async def test_forgotten_bytes_that_a_reader_holds(store: SqliteStore, file: Path) -> None:
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM thread").fetchall()
        await store.forget(KEY)
        (said,) = list_broken(await examine_storage(store, file, NOW))
    assert "forgotten bytes" in said
    assert "end the program" in said


class RewritingStore(ForwardingStore):
    """A store on a server whose log waits to be rewritten."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    @property
    def inner(self) -> Store:
        return self._inner

    async def describe(self) -> Promise:
        return (await self._inner.describe())._replace(erases="log")

    async def wait_erased(self) -> None:
        await asyncio.Event().wait()


async def test_forgotten_bytes_in_a_log(store: SqliteStore, file: Path) -> None:
    (said,) = list_broken(await examine_storage(RewritingStore(store), "a server", NOW))
    assert "let the user of storage.url run BGREWRITEAOF" in said


@pytest.mark.parametrize(("behind_s", "is_told"), [(0.9, False), (1.1, True)])
async def test_a_clock_behind_the_store(
    store: SqliteStore, file: Path, behind_s: float, is_told: bool
) -> None:
    """A turn in the future is one that another clock dated."""
    now = NOW - behind_s * MAX_CLOCK_DIFFERENCE_S
    said = list_broken(await examine_storage(store, file, now))
    assert [("66 s ahead" in text, "NTP" in text) for text in said] == [(True, True)] * is_told


@pytest.mark.parametrize(
    ("ahead_s", "words"),
    [(0.9, []), (1.1, ["1.1 s behind"]), (-0.9, []), (-120.0, ["120.0 s ahead of"])],
)
async def test_a_clock_that_differs_from_the_store_s(
    file: Path, ahead_s: float, words: list[str]
) -> None:
    """The store may be on another machine. A server goes by its clock, and people set theirs."""
    store = await SqliteStore.open(file, clock=lambda: NOW + ahead_s)
    said = list_broken(await examine_storage(store, file, NOW, lambda: NOW))
    await store.close()
    assert [
        word in text and "the store's" in text for text, word in zip(said, words, strict=True)
    ] == [True for _ in words]
    assert len(said) == len(words)
