"""Nothing of what was forgotten is left in a file's tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from om_proxy.storage.base import Store
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.canary_threads import Cells, read_sqlite
from tests.storage.contract import Opener
from tests.storage.erasure_contract import ErasureContract, ReadCells


class TestSqliteErasure(ErasureContract):
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return tmp_path / "om.db"

    @pytest.fixture
    def opener(self, file: Path) -> Opener:
        async def open_store() -> Store:
            return await SqliteStore.open(file)

        return open_store

    @pytest.fixture
    def read_cells(self, file: Path) -> ReadCells:
        async def read() -> Cells:
            return read_sqlite(file)

        return read

    @pytest.fixture
    def raise_ids(self, file: Path) -> Callable[[int], Awaitable[None]]:
        async def raised(first: int) -> None:
            with closing(sqlite3.connect(file)) as db, db:
                db.execute("UPDATE sequence SET value = ?", (first,))

        return raised
