"""The index in PostgreSQL: what stands in its rows and reads it, and what is left of it when the
server or this process fails in the middle of writing it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from om_proxy.common.errors import StorageError
from om_proxy.engine.background.indexing import MessageIndex
from om_proxy.storage.postgres.search import HAS_WORD
from om_proxy.storage.postgres.session import Session
from om_proxy.storage.sql import search
from tests.storage.contract import Opener
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.storage.search_contract import add_said, index_all, store_thread
from tests.support.indexing import index_thread


async def test_the_words_of_a_passage_stand_in_its_row_once(
    opener: Opener, url: str, schema: str
) -> None:
    """The index makes them from what ranking reads, by the expression that a search asks for, and
    no statistics copy them."""
    store = await opener()
    thread = add_said(MemoryBuilder(), *["quorum canary"] * 9)
    await store_thread(store, thread)
    await index_all(store, thread.key)
    await store.close()
    connection = await asyncpg.connect(url, server_settings={"search_path": schema})
    try:
        row: dict[str, Any] = dict(await connection.fetchrow("SELECT * FROM passage LIMIT 1"))
        scope, words = row["scope"], row["words"]
        assert [value for value in row.values() if "quorum" in str(value)] == [words]
        await connection.execute("ANALYZE passage; SET enable_seqscan = off")
        found = f"FROM passage, (SELECT '{scope}zquorum') AS of (word) WHERE {HAS_WORD}"
        assert await connection.fetchval(f"SELECT count(*) {found}") == len(thread.live)
        plan = await connection.fetch(f"EXPLAIN SELECT id {found}")
        assert any("Index Scan on passage_words" in step for (step,) in plan)
        copied = (
            "SELECT count(*) FROM pg_stats WHERE schemaname = $1 AND tablename = 'passage_words'"
        )
        assert await connection.fetchval(copied, schema) == 0
    finally:
        await connection.close()


def raise_error(connection: asyncpg.Connection) -> None:
    raise asyncpg.DiskFullError("no space left")


def end_process(connection: asyncpg.Connection) -> None:
    """Close the socket without a word, as a killed process does."""
    connection.terminate()


class FailingSession(Session):
    """A session whose statement of this number, from 0, fails."""

    def __init__(
        self, session: Session, failing: int, fail: Callable[[asyncpg.Connection], None]
    ) -> None:
        self.connection = session.connection
        self._qualify = session._qualify
        self._left = failing
        self._fail = fail

    def count(self) -> None:
        self._left -= 1
        if self._left == -1:
            self._fail(self.connection)

    async def select(self, sql: str, *parameters: Any) -> Any:
        self.count()
        return await super().select(sql, *parameters)

    async def execute(self, sql: str, *parameters: Any) -> None:
        self.count()  # each insert is one
        await super().execute(sql, *parameters)


@pytest.mark.parametrize("fail", [raise_error, end_process])
async def test_an_end_at_any_statement_leaves_the_index_true(
    opener: Opener, monkeypatch: pytest.MonkeyPatch, fail: Callable[[asyncpg.Connection], None]
) -> None:
    """Nothing of the batch is written, also if it ends before the commit; then the work goes on."""
    index_passages = search.index_passages
    store = await opener()
    index = MessageIndex(store)
    failing = failed = 0
    try:
        while failed == failing:
            key = KEY._replace(thread=str(failing))
            await store_thread(store, add_said(MemoryBuilder(key), "quorum", "zeta", "camping"))
            assert await index.index_batch(key, 1) == 1
            number = failing

            async def index_failing(session: Session, *rest: Any, at: int = number) -> bool:
                watched = FailingSession(session, at, fail)
                written = await index_passages(watched, *rest)
                watched.count()  # the commit
                return written

            with monkeypatch.context() as patch:
                patch.setattr(search, "index_passages", index_failing)
                try:
                    await index_thread(index, key)
                except StorageError:
                    failed += 1
                    found = await store.find_passages(key, ["zeta"])
                    assert (found.unread, found.messages) == (2, 3 * failing + 1)
            assert (await store.check_index()).faults == ()
            await index_thread(index, key)
            found = await store.find_passages(key, ["zeta"])
            assert (found.unread, found.messages) == (0, 3 * (failing + 1))
            assert (await store.check_index()).faults == ()
            failing += 1
    finally:
        await store.close()
    assert failed >= 7  # six statements and the commit
