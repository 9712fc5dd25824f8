"""The methods of a store that keeps no index of original messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

from om_proxy.common.errors import Unwritable
from om_proxy.memory.model import Key
from om_proxy.memory.recall.found import MAX_MATCHES, Found, PassageFilter
from om_proxy.memory.recall.matching import NO_FILTER
from om_proxy.memory.recall.passages import IndexPlace, Passage
from om_proxy.storage.contract.passage_index import IndexCheck, PassageIndex, UnindexedMessages
from om_proxy.storage.contract.vector_index import VectorIndex, VectorPage
from om_proxy.storage.forwarding_store import Method
from om_proxy.storage.shared.newest_passages import find_newest_passages
from om_proxy.storage.values.listing import ThreadPage

if TYPE_CHECKING:
    from om_proxy.storage.base import Store

P = ParamSpec("P")
T = TypeVar("T")


def answer(_method: Method[P, T], always: T) -> Method[P, T]:
    """Return this method of a store as one with the same answer to every call."""

    async def answered(_self: SearchedWithoutIndex, /, *_args: P.args, **_options: P.kwargs) -> T:
        return always

    return answered


class SearchedWithoutIndex:
    """The `PassageIndex` protocol: a search reads the newest messages, and nothing is indexed."""

    read_unindexed = answer(PassageIndex.read_unindexed, None)
    unindexed_threads = answer(PassageIndex.unindexed_threads, ThreadPage((), None))
    unindexed_of_resource = answer(PassageIndex.unindexed_of_resource, ())
    outdate_index = answer(PassageIndex.outdate_index, None)
    drop_index = answer(PassageIndex.drop_index, None)
    check_index = answer(PassageIndex.check_index, IndexCheck(0, 0, ()))
    read_unembedded = answer(VectorIndex.read_unembedded, ())
    write_vectors = answer(VectorIndex.write_vectors, 0)
    unembedded_threads = answer(VectorIndex.unembedded_threads, ThreadPage((), None))
    read_vectors = answer(VectorIndex.read_vectors, VectorPage((), None))
    read_vectors_at = answer(VectorIndex.read_vectors_at, ())

    async def find_passages(
        self,
        key: Key,
        words: Sequence[str],
        passage_filter: PassageFilter = NO_FILTER,
        limit: int = MAX_MATCHES,
    ) -> Found:
        return await find_newest_passages(cast("Store", self), key, words, passage_filter, limit)

    async def index_passages(
        self,
        key: Key,
        read: UnindexedMessages,
        rules: int,
        passages: Sequence[Passage],
        place: IndexPlace,
    ) -> bool:
        raise Unwritable("this store keeps no index")
