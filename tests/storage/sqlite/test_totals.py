"""Sums over an SQLite file are read page by page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from om_proxy.memory.model import Key
from om_proxy.storage.contract.status import StoreTotals
from om_proxy.storage.shared.row_decoding import Row
from om_proxy.storage.sqlite.session import SqliteSession
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.memory_builder import store_covered


@pytest.mark.parametrize("page_size", [1, 2, 3, 7, 8, 100])
async def test_pages_add_up_to_the_whole(
    tmp_path: Path, page_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the threads fall on pages, each counts once."""
    store = await SqliteStore.open(tmp_path / "om.db")
    try:
        for number in range(7):
            await store_covered(store, Key("t", "r", str(number)), 3 + number, 2)
        whole = await store.totals(0.0)
        page_count = 0
        select = SqliteSession.select

        async def count_pages(session: SqliteSession, sql: str, *parameters: Any) -> list[Row]:
            nonlocal page_count
            page_count += 1
            return await select(session, sql, *parameters)

        monkeypatch.setattr(SqliteSession, "select", count_pages)
        assert await store.totals(0.0, page_size) == whole
        assert page_count == 7 // page_size + 1
    finally:
        await store.close()


async def test_no_page_has_no_sums(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "om.db")
    try:
        assert await store.totals(0.0, 1) == StoreTotals()
    finally:
        await store.close()
