"""The methods of a store that keeps no index of original messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from om_proxy.errors import Unwritable
from om_proxy.memory.model import Key
from om_proxy.memory.recall.found import MAX_MATCHES, Found, PassageFilter
from om_proxy.memory.recall.matching import NO_FILTER
from om_proxy.memory.recall.passages import IndexPlace, Passage
from om_proxy.memory.recall.vectors import StoredVector
from om_proxy.storage.listing import ThreadInfo, ThreadPage, ThreadPlace
from om_proxy.storage.newest_passages import find_newest_passages
from om_proxy.storage.passage_index import IndexCheck, UnindexedMessages
from om_proxy.storage.vector_index import UnembeddedMessage, VectorPage

if TYPE_CHECKING:
    from om_proxy.storage.base import Store


class SearchedWithoutIndex:
    """The `PassageIndex` protocol: a search reads the newest messages, and nothing is indexed."""

    async def find_passages(
        self,
        key: Key,
        words: Sequence[str],
        passage_filter: PassageFilter = NO_FILTER,
        limit: int = MAX_MATCHES,
    ) -> Found:
        return await find_newest_passages(cast("Store", self), key, words, passage_filter, limit)

    async def read_unindexed(self, key: Key, rules: int, limit: int) -> UnindexedMessages | None:
        return None

    async def index_passages(
        self,
        key: Key,
        read: UnindexedMessages,
        rules: int,
        passages: Sequence[Passage],
        place: IndexPlace,
    ) -> bool:
        raise Unwritable("this store keeps no index")

    async def unindexed_threads(
        self, rules: int, active_before: float, after: ThreadPlace | None = None, limit: int = 100
    ) -> ThreadPage:
        return ThreadPage((), None)

    async def unindexed_of_resource(
        self, rules: int, key: Key, limit: int
    ) -> tuple[ThreadInfo, ...]:
        return ()

    async def outdate_index(self) -> None:
        """Do nothing: there is none."""

    async def drop_index(self) -> None:
        """Do nothing: there is none."""

    async def check_index(self) -> IndexCheck:
        return IndexCheck(0, 0, ())

    async def read_unembedded(
        self, key: Key, model: str, limit: int
    ) -> tuple[UnembeddedMessage, ...]:
        return ()

    async def write_vectors(
        self,
        key: Key,
        read: Sequence[UnembeddedMessage],
        model: str,
        vectors: Sequence[bytes],
    ) -> int:
        return 0

    async def unembedded_threads(
        self, model: str, active_before: float, after: ThreadPlace | None = None, limit: int = 100
    ) -> ThreadPage:
        return ThreadPage((), None)

    async def read_vectors(
        self, key: Key, model: str, before: int | None = None, limit: int = 10_000
    ) -> VectorPage:
        return VectorPage((), None)

    async def read_vectors_at(
        self, key: Key, model: str, places: Sequence[tuple[str, int]]
    ) -> tuple[StoredVector, ...]:
        return ()
