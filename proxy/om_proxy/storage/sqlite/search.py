"""Keep the index of messages in an SQLite file, and find words in it.

Triggers of the schema write and delete the words beside each passage. `bm25()` of FTS5 is never
called: it reads each word's passages of all tenants.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from om_proxy.memory.recall.found import NO_FILTER, PassageFilter
from om_proxy.storage.contract.passage_index import IndexCheck
from om_proxy.storage.sql.search import FoundWord, SearchMethods, check_index
from om_proxy.storage.sql.session import Session
from om_proxy.storage.sqlite.connection_worker import ConnectionWorker
from om_proxy.storage.sqlite.eraser import Eraser
from om_proxy.storage.sqlite.session import run_in_thread

COUNT_WORD = "SELECT count(*) FROM passage_words WHERE passage_words MATCH ?"
FIND_WORD = (
    "SELECT rowid FROM passage_words WHERE passage_words MATCH ? ORDER BY rowid DESC LIMIT ?"
)
# `+`: along the word's passages, not along a thread's
FIND_FILTERED_WORD = """SELECT passage.id FROM passage_words
    CROSS JOIN passage ON passage.id = passage_words.rowid CROSS JOIN thread ON thread.id = thread_id
    WHERE passage_words MATCH ?1 AND (?3 IS NULL OR thread = ?3) AND (?4 IS NULL OR at < ?4)
    AND (?5 IS NULL OR at >= ?5) AND (?6 = '[]' OR role IN (SELECT value FROM json_each(?6)))
    ORDER BY passage_words.rowid DESC LIMIT ?2"""
CHECK_WORDS = "INSERT INTO passage_words (passage_words) VALUES ('integrity-check')"


class SqliteSearch(SearchMethods):
    """The `PassageIndex` of an SQLite file."""

    _writer: ConnectionWorker
    _eraser: Eraser | None

    async def _find_words(
        self,
        session: Session,
        scope: int,
        words: Sequence[str],
        chosen_by: PassageFilter,
        limit: int,
    ) -> dict[str, FoundWord]:
        found: dict[str, FoundWord] = {}
        for word in words:
            match = f'"{scope}z{word}"'
            [(count,)] = await session.select(COUNT_WORD, match)
            if not count:
                rows = []
            elif chosen_by == NO_FILTER:
                rows = await session.select(FIND_WORD, match, limit)
            else:
                bounds = (chosen_by.thread, chosen_by.before, chosen_by.after)
                roles = [*chosen_by.roles]
                rows = await session.select(FIND_FILTERED_WORD, match, limit, *bounds, roles)
            found[word] = FoundWord(count, [id_ for (id_,) in rows])
        return found

    async def drop_index(self) -> None:
        await super().drop_index()
        if self._eraser:
            await self._eraser.erase()

    async def check_index(self) -> IndexCheck:
        return await self._writer.write(_check_words_and_index)


def _check_words_and_index(db: sqlite3.Connection) -> IndexCheck:
    damaged: tuple[str, ...] = ()
    try:
        db.execute(CHECK_WORDS)
    except sqlite3.DatabaseError:
        damaged = ("the words of the index are damaged",)
    check = run_in_thread(check_index, db)
    return check._replace(faults=(*damaged, *check.faults))
