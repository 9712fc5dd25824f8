"""A page of a list looks at a bounded number of rows of an SQLite file, however long the list."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from om_proxy.storage.shared.row_decoding import Row
from om_proxy.storage.sql import listing
from om_proxy.storage.sqlite.session import SqliteSession
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.values.listing import ThreadSelection
from tests.storage.listing_contract import (
    ORDERS,
    THREAD_STATES,
    compare_lists,
    list_pages,
    make_threads,
)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "memory.db")
    yield store
    await store.close()


@pytest.mark.parametrize(("candidates", "walked"), [(0, 7), (6, 5)])
async def test_lists_are_whole_whatever_the_bounds(
    store: SqliteStore, candidates: int, walked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short walks make pages short, even empty ones, and lose no thread."""
    monkeypatch.setattr(listing, "MAX_CANDIDATES", candidates)
    monkeypatch.setattr(listing, "MAX_WALKED_ROWS", walked)
    await make_threads(store)
    sizes = await compare_lists(store, (3,))
    assert 0 in sizes


async def test_every_list_goes_along_an_index(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No list reads a table from end to end. Only candidates and the resources of a page,
    which are few, are sorted."""
    plans: list[tuple[str, str]] = []

    select = SqliteSession.select

    async def explain(session: SqliteSession, sql: str, *parameters: Any) -> list[Row]:
        for *_, step in await select(session, f"EXPLAIN QUERY PLAN {sql}", *parameters):
            plans.append((sql, step))
        return await select(session, sql, *parameters)

    monkeypatch.setattr(SqliteSession, "select", explain)
    await make_threads(store)
    for limit in (1_000, 0):
        monkeypatch.setattr(listing, "MAX_CANDIDATES", limit)
        for selection in (
            ThreadSelection(tenant, resource, prefix, state, order)
            for tenant, resource, prefix, state, order in product(
                ("s", None), ("ab", None), ("a", None), THREAD_STATES, ORDERS
            )
        ):
            await list_pages(store, selection, 9)
    await store.resources("s")
    for sql, step in plans:
        if step.startswith(("SCAN thread", "SEARCH thread")):
            assert "USING" in step, (sql, step)
        if "TEMP B-TREE" in step:
            assert "candidate" in sql or "FROM listed" in sql, (sql, step)
    steps = {step for _, step in plans}
    for deep_page in ("(tenant=? AND (resource,thread)>(?,?)", "(tenant=? AND <expr><?"):
        assert any(deep_page in step for step in steps), (deep_page, steps)
    for index in ("recent", "recent_of_all", "name", "title", "failing", "parked"):
        assert any(f"INDEX thread_{index} " in f"{step} " for step in steps), (index, steps)
