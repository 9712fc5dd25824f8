"""Find the messages of a resource that mean what a query means, by vectors.

Whatever fails or takes too long, the search goes on with the words alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple

import structlog

from om_proxy.common.bounded_cache import BoundedCache
from om_proxy.common.errors import ModelBusy, ModelError, OmError, PromptTooLong, StorageError
from om_proxy.engine.background.embedding import MAX_SEARCH_S, EmbeddingChoice, MessageVectors
from om_proxy.memory.model import Key
from om_proxy.memory.recall.found import PassageFilter, RankedMessage
from om_proxy.memory.recall.vectors import (
    MAX_COUNTED_WORDS,
    MAX_EMBEDDED_CHARS,
    Similarity,
    SimilarMessage,
    StoredVector,
)

logger = structlog.get_logger("vectors")

PAUSE_S = 30.0  # a model that failed, or a resource whose vectors did, is left alone for so long
MAX_PAUSED_RESOURCES = 10_000
MAX_KEPT_QUERIES = 32  # their vectors, for a search of several resources
# a server's answers that blame the text, so that another text may do
REFUSED_TEXT_STATUSES = frozenset({400, 413, 422})
# of its time; what had less of it and is late was held up by something else
SHARE_OF_SLOW = 0.5
MAX_COMPARED = 100_000  # vectors of a resource: those that were indexed last
PAGE_VECTORS = 10_000  # in memory at a time, and no more bytes than:
PAGE_BYTES = 32 * 1_024 * 1_024
MAX_SIMILAR = 100  # messages beside those that the words found
_CHUNK_VECTORS = 1_000


class QueryVector(NamedTuple):
    """A query's vector, and how long comparing it is worth it."""

    model: str
    vector: bytes
    compare_s: float  # from when comparing begins
    search_ends_at: float  # of the event loop's clock


@dataclass(frozen=True, slots=True, eq=False)
class SimilarMessages:
    """Compares queries with the vectors of a resource. `choose`: returns the embedding model for the
    searches of a key, or None."""

    vectors: MessageVectors
    choose: Callable[[Key], Awaitable[EmbeddingChoice | None]]
    _models_paused_until: dict[str, float] = field(default_factory=dict)
    # by tenant and resource
    _resources_paused_until: BoundedCache[tuple[str, str], float] = field(
        default_factory=lambda: BoundedCache(max_items=MAX_PAUSED_RESOURCES)
    )
    # by tenant, model and query
    _query_vectors: BoundedCache[tuple[str, str, str], bytes] = field(
        default_factory=lambda: BoundedCache(max_items=MAX_KEPT_QUERIES)
    )

    async def embed_query(self, key: Key, query: str) -> QueryVector | None:
        """Return the query's vector; None without vectors, or if the model fails."""
        now = _read_clock()
        try:
            async with asyncio.timeout_at(now + MAX_SEARCH_S):
                choice = await self.choose(key)
        except (OmError, TimeoutError) as exc:
            _log_failure(exc)
            return None
        if choice is None or self._is_paused(key, choice.model, now):
            return None
        begun_at = _read_clock()
        search_ends_at = now + choice.search_s
        try:
            async with asyncio.timeout_at(min(begun_at + choice.timeout_s, search_ends_at)):
                vector = await self._embed_once(key, choice.model, query[:MAX_EMBEDDED_CHARS])
        except (ModelError, TimeoutError) as exc:
            _log_failure(exc)
            if _is_to_blame(exc, begun_at, choice.timeout_s) and not _blames_text(exc):
                self._models_paused_until[choice.model] = _read_clock() + PAUSE_S
            return None
        return QueryVector(choice.model, vector, choice.timeout_s, search_ends_at)

    async def is_switched_on(self, key: Key) -> bool:
        """Return whether searches of the key go by meaning, too, while nothing fails."""
        try:
            async with asyncio.timeout(MAX_SEARCH_S):
                return await self.choose(key) is not None
        except (OmError, TimeoutError):
            return True  # nobody knows, and this one went by words alone

    def drop_queries(self) -> None:
        self._query_vectors.clear()

    async def _embed_once(self, key: Key, model: str, query: str) -> bytes:
        kept_as = key.tenant, model, query
        if (kept := self._query_vectors.get(kept_as)) is not None:
            return kept
        vector = await self.vectors.embed_query(key, model, query)
        self._query_vectors.put(kept_as, vector)
        return vector

    async def compare(
        self,
        key: Key,
        query: QueryVector,
        passage_filter: PassageFilter,
        ranked: Sequence[RankedMessage],
    ) -> Similarity | None:
        """Return how similar the messages are that the filter lets pass; None if that is not known.
        `ranked`: what the words found."""
        begun_at: float | None = None
        ends_at = min(_read_clock() + query.compare_s, query.search_ends_at)
        try:
            async with asyncio.timeout_at(ends_at), self.vectors.comparing:
                begun_at = _read_clock()
                return await self._compare_pages(key, query, passage_filter, ranked)
        except (StorageError, TimeoutError, ImportError) as exc:
            _log_failure(exc)
            if begun_at is not None and _is_to_blame(exc, begun_at, query.compare_s):
                until = _read_clock() + PAUSE_S
                self._resources_paused_until.put((key.tenant, key.resource), until)
            return None

    def _is_paused(self, key: Key, model: str, now: float) -> bool:
        until = self._resources_paused_until.get((key.tenant, key.resource))
        return now < max(self._models_paused_until.get(model, 0.0), until or 0.0)

    async def _compare_pages(
        self,
        key: Key,
        query: QueryVector,
        passage_filter: PassageFilter,
        ranked: Sequence[RankedMessage],
    ) -> Similarity | None:
        store = self.vectors.store
        # numpy is imported in a thread too
        comparison = await asyncio.to_thread(Comparison, query.vector, passage_filter, ranked)
        left = MAX_COMPARED
        page_vectors = min(PAGE_VECTORS, PAGE_BYTES // len(query.vector))
        before: int | None = None
        while left:
            limit = min(page_vectors, left)
            page = await store.read_vectors(key, query.model, before, limit)
            await asyncio.to_thread(comparison.add, page.vectors)
            left -= len(page.vectors)
            before = page.end
            del page  # its memory goes before the next one comes
            if before is None:
                return await asyncio.to_thread(comparison.choose)
        places = [
            (hit.thread, hit.seq)
            for hit in ranked
            if (hit.thread, hit.seq) not in comparison.compared
        ]
        for begin in range(0, len(places), page_vectors):
            wanted = places[begin : begin + page_vectors]
            found = await store.read_vectors_at(key, query.model, wanted)
            await asyncio.to_thread(comparison.add, found)
        return await asyncio.to_thread(comparison.choose)


def _read_clock() -> float:
    return asyncio.get_running_loop().time()


def _is_to_blame(exc: Exception, begun_at: float, limit_s: float) -> bool:
    """Return whether what began then failed of itself. What had little of its time did not."""
    return not isinstance(exc, TimeoutError) or _read_clock() - begun_at >= SHARE_OF_SLOW * limit_s


def _blames_text(exc: ModelError | TimeoutError) -> bool:
    """Return whether the model refuses this text, and may take others."""
    if isinstance(exc, ModelBusy | TimeoutError):
        return False
    return isinstance(exc, PromptTooLong) or exc.server_status in REFUSED_TEXT_STATUSES


def _log_failure(exc: Exception) -> None:
    logger.warning("vectors.failed", error=type(exc).__name__, work="search")


class Comparison:
    """Compares a query with the vectors of a resource, page by page. Of each page only what may be
    chosen is kept: making a value of every message takes half of the time of comparing it.

    `ranked`: what the words found, which is kept whatever its similarity.
    """

    def __init__(
        self, query: bytes, passage_filter: PassageFilter, ranked: Sequence[RankedMessage]
    ) -> None:
        self._query = query
        self._filter = passage_filter
        self._by_words = {(hit.thread, hit.seq) for hit in ranked}
        self._numpy = import_module("numpy")
        self._cosines: list[Any] = []  # arrays
        self._words = 0
        self._kept: list[SimilarMessage] = []
        self.compared: set[tuple[str, int]] = set()  # of what the words found

    def add(self, found: Sequence[StoredVector]) -> None:
        """Compare these messages, without vectors of another length: those were made by another
        model of this name."""
        usable = [each for each in found if len(each.vector) == len(self._query)]
        if not usable:
            return
        cosines = self._measure(usable)
        self._cosines.append(cosines)
        self._words += sum(min(each.length, MAX_COUNTED_WORDS) for each in usable)
        ranked = {
            place for place, each in enumerate(usable) if (each.thread, each.seq) in self._by_words
        }
        self.compared |= {(usable[place].thread, usable[place].seq) for place in ranked}
        places = sorted(ranked.union(self._list_best(usable, cosines, ranked)))
        self._kept += (
            SimilarMessage(each.thread, each.seq, each.role, each.at, each.length, cosine)
            for each, cosine in ((usable[place], float(cosines[place])) for place in places)
        )

    def _measure(self, usable: Sequence[StoredVector]) -> Any:
        numpy = self._numpy
        wanted = numpy.frombuffer(self._query, "<f2").astype("f4")
        parts = []
        for begin in range(0, len(usable), _CHUNK_VECTORS):
            chunk = b"".join(each.vector for each in usable[begin : begin + _CHUNK_VECTORS])
            stored = numpy.frombuffer(chunk, "<f2").reshape(-1, len(wanted))
            parts.append(stored.astype("f4") @ wanted)
        return numpy.concatenate(parts)

    def _list_best(
        self, usable: Sequence[StoredVector], cosines: Any, ranked: Container[int]
    ) -> list[int]:
        """Return the places of the most similar messages that the filter lets pass, beside those
        that the words found."""
        best: list[int] = []
        for place in self._numpy.argsort(-cosines, kind="stable"):
            if len(best) == MAX_SIMILAR:
                break
            each = usable[place]
            if place not in ranked and self._filter.lets_pass(each.thread, each.at, each.role):
                best.append(int(place))
        return best

    def choose(self) -> Similarity | None:
        """Return the most similar messages that the filter lets pass, and those that the words
        found; None if nothing was measured."""
        if not self._cosines:
            return None
        room = MAX_SIMILAR
        messages = []
        for each in sorted(self._kept, key=lambda each: -each.cosine):
            is_ranked = (each.thread, each.seq) in self._by_words
            if is_ranked or room:
                room -= not is_ranked
                messages.append(each)
        cosines = self._numpy.concatenate(self._cosines)
        return Similarity(
            tuple(messages),
            float(self._numpy.median(cosines)),
            float(cosines.max()),
            self._words / len(cosines),
        )
