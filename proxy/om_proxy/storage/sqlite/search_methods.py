"""The methods of the SQLite store that keep and search the index of original messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

import aiosqlite

from om_proxy.memory.model import Key
from om_proxy.memory.recall.found import MAX_MATCHES, Found, PassageFilter
from om_proxy.memory.recall.matching import NO_FILTER
from om_proxy.memory.recall.passages import IndexPlace, Passage
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.listing import ThreadInfo, ThreadPage, ThreadPlace
from om_proxy.storage.newest_passages import find_newest_passages
from om_proxy.storage.passage_index import IndexCheck, UnindexedMessages
from om_proxy.storage.sqlite import search
from om_proxy.storage.sqlite.connection_worker import ConnectionWorker, run_in_connection_thread
from om_proxy.storage.sqlite.eraser import Eraser
from om_proxy.storage.sqlite.listing import decode_infos, select_lacking
from om_proxy.storage.sqlite.queries import select_rows

if TYPE_CHECKING:
    import sqlite3

    from om_proxy.storage.base import Store
    from om_proxy.storage.encryption.master_keys import MasterKeys

_Read = TypeVar("_Read")
DROPPED_AT_ONCE = 500  # passages in one transaction


class SearchMethods:
    """A part of `SqliteStore`."""

    _reader: ConnectionWorker
    _writer: ConnectionWorker
    _masters: MasterKeys | None
    _keys: Keyring
    _eraser: Eraser | None

    async def find_passages(
        self,
        key: Key,
        words: Sequence[str],
        passage_filter: PassageFilter = NO_FILTER,
        limit: int = MAX_MATCHES,
    ) -> Found:
        if self._masters:
            store = cast("Store", self)
            return await find_newest_passages(store, key, words, passage_filter, limit)
        return await self._read_in_thread(
            lambda db: search.find_passages(db, key, words, passage_filter, limit)
        )

    async def read_unindexed(self, key: Key, rules: int, limit: int) -> UnindexedMessages | None:
        if self._masters:
            return None
        return await self._read_in_thread(lambda db: search.read_unindexed(db, key, rules, limit))

    async def _read_in_thread(self, read: Callable[[sqlite3.Connection], _Read]) -> _Read:
        return await self._reader.run(lambda db: run_in_connection_thread(db, read))

    async def index_passages(
        self,
        key: Key,
        read: UnindexedMessages,
        rules: int,
        passages: Sequence[Passage],
        place: IndexPlace,
    ) -> bool:
        return await self._writer.write(
            lambda db: search.index_passages(db, key, read, rules, passages, place)
        )

    async def unindexed_threads(
        self, rules: int, active_before: float, after: ThreadPlace | None = None, limit: int = 100
    ) -> ThreadPage:
        if self._masters:
            return ThreadPage((), None)
        return await self._reader.run_alone(
            lambda db: select_lacking(
                db, search.SELECT_LATEST, rules, active_before, after, limit, self._keys
            )
        )

    async def unindexed_of_resource(
        self, rules: int, key: Key, limit: int
    ) -> tuple[ThreadInfo, ...]:
        if self._masters:
            return ()
        parameters = (rules, key.tenant, key.resource, limit)

        async def select(db: aiosqlite.Connection) -> tuple[ThreadInfo, ...]:
            found = await select_rows(db, search.SELECT_OF_RESOURCE, parameters)
            return await decode_infos(db, found, self._keys)

        return await self._reader.run_alone(select)

    async def outdate_index(self) -> None:
        await self._writer.run(lambda db: select_rows(db, search.OUTDATE_ALL, ()))

    async def drop_index(self) -> None:
        while not await self._writer.write(lambda db: search.drop_some(db, DROPPED_AT_ONCE)):
            continue
        if self._eraser:
            await self._eraser.erase()

    async def check_index(self) -> IndexCheck:
        return await self._writer.write(search.check_index)
