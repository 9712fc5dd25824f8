"""The methods of the PostgreSQL store that keep and search the index of original messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from om_proxy.memory.model import Key
from om_proxy.memory.recall.found import MAX_MATCHES, Found, PassageFilter
from om_proxy.memory.recall.matching import NO_FILTER
from om_proxy.memory.recall.passages import IndexPlace, Passage
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.limited_work import LONG_TIMEOUT_S
from om_proxy.storage.listing import ThreadInfo, ThreadPage, ThreadPlace
from om_proxy.storage.newest_passages import find_newest_passages
from om_proxy.storage.passage_index import IndexCheck, UnindexedMessages
from om_proxy.storage.postgres import search
from om_proxy.storage.postgres.pool import ConnectionPool

if TYPE_CHECKING:
    from om_proxy.storage.base import Store
    from om_proxy.storage.encryption.master_keys import MasterKeys

DROPPED_AT_ONCE = 500  # passages in one transaction


class SearchMethods:
    """A part of `PostgresStore`."""

    _pool: ConnectionPool
    _masters: MasterKeys | None
    _keys: Keyring

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
        return await self._pool.read(
            lambda s: search.find_passages(s, key, words, passage_filter, limit), is_snapshot=True
        )

    async def read_unindexed(self, key: Key, rules: int, limit: int) -> UnindexedMessages | None:
        if self._masters:
            return None
        return await self._pool.read(
            lambda s: search.read_unindexed(s, key, rules, limit), is_snapshot=True
        )

    async def index_passages(
        self,
        key: Key,
        read: UnindexedMessages,
        rules: int,
        passages: Sequence[Passage],
        place: IndexPlace,
    ) -> bool:
        return await self._pool.transact(
            lambda s: search.index_passages(s, key, read, rules, passages, place), LONG_TIMEOUT_S
        )

    async def unindexed_threads(
        self, rules: int, active_before: float, after: ThreadPlace | None = None, limit: int = 100
    ) -> ThreadPage:
        if self._masters:
            return ThreadPage((), None)
        return await self._pool.read(
            lambda s: search.select_latest(s, rules, active_before, after, limit, self._keys)
        )

    async def unindexed_of_resource(
        self, rules: int, key: Key, limit: int
    ) -> tuple[ThreadInfo, ...]:
        if self._masters:
            return ()
        return await self._pool.read(
            lambda s: search.select_of_resource(s, rules, key, limit, self._keys)
        )

    async def outdate_index(self) -> None:
        await self._pool.transact(lambda s: s.execute(search.OUTDATE_ALL), LONG_TIMEOUT_S)

    async def drop_index(self) -> None:
        while not await self._pool.transact(
            lambda s: search.drop_some(s, DROPPED_AT_ONCE), LONG_TIMEOUT_S
        ):
            continue

    async def check_index(self) -> IndexCheck:
        return await self._pool.read(search.check_index, LONG_TIMEOUT_S, is_snapshot=True)
