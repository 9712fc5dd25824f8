"""Find the messages of a resource that mean what a query means, by vectors.

Whatever fails or takes too long, the search goes on with the words alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import NamedTuple

import structlog

from om_proxy.bounded_cache import BoundedCache
from om_proxy.errors import ModelBusy, ModelError, OmError, PromptTooLong, StorageError
from om_proxy.memory.model import Key
from om_proxy.memory.recall.found import PassageFilter, RankedMessage
from om_proxy.memory.recall.fusing import MAX_COUNTED_WORDS, Similarity, SimilarMessage
from om_proxy.memory.recall.matching import lets_message_pass
from om_proxy.memory.recall.vectors import MAX_EMBEDDED_CHARS, StoredVector
from om_proxy.message_vectors import MAX_SEARCH_S, EmbeddingChoice, MessageVectors

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
                measured = await self._measure(key, query, ranked)
                return await asyncio.to_thread(choose_similar, measured, passage_filter, ranked)
        except (StorageError, TimeoutError, ImportError) as exc:
            _log_failure(exc)
            if begun_at is not None and _is_to_blame(exc, begun_at, query.compare_s):
                until = _read_clock() + PAUSE_S
                self._resources_paused_until.put((key.tenant, key.resource), until)
            return None

    def _is_paused(self, key: Key, model: str, now: float) -> bool:
        until = self._resources_paused_until.get((key.tenant, key.resource))
        return now < max(self._models_paused_until.get(model, 0.0), until or 0.0)

    async def _measure(
        self, key: Key, query: QueryVector, ranked: Sequence[RankedMessage]
    ) -> list[SimilarMessage]:
        store = self.vectors.store
        measured: list[SimilarMessage] = []
        left = MAX_COMPARED
        page_vectors = min(PAGE_VECTORS, PAGE_BYTES // len(query.vector))
        before: int | None = None
        while left:
            limit = min(page_vectors, left)
            page = await store.read_vectors(key, query.model, before, limit)
            measured += await asyncio.to_thread(measure_similarity, page.vectors, query.vector)
            left -= len(page.vectors)
            before = page.end
            del page  # its memory goes before the next one comes
            if before is None:
                return measured
        known = {(each.thread, each.seq) for each in measured}
        places = [(hit.thread, hit.seq) for hit in ranked if (hit.thread, hit.seq) not in known]
        for begin in range(0, len(places), page_vectors):
            wanted = places[begin : begin + page_vectors]
            found = await store.read_vectors_at(key, query.model, wanted)
            measured += await asyncio.to_thread(measure_similarity, found, query.vector)
        return measured


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


def measure_similarity(found: Sequence[StoredVector], query: bytes) -> list[SimilarMessage]:
    """Return how similar these messages are to the query, without vectors of another length."""
    # those were made by another model of this name
    usable = [each for each in found if len(each.vector) == len(query)]
    if not usable:
        return []
    numpy = import_module("numpy")
    wanted = numpy.frombuffer(query, "<f2").astype("f4")
    cosines: list[float] = []
    for begin in range(0, len(usable), _CHUNK_VECTORS):
        chunk = b"".join(each.vector for each in usable[begin : begin + _CHUNK_VECTORS])
        stored = numpy.frombuffer(chunk, "<f2").reshape(-1, len(wanted))
        cosines += (stored.astype("f4") @ wanted).tolist()
    return [
        SimilarMessage(each.thread, each.seq, each.role, each.at, each.length, cosine)
        for each, cosine in zip(usable, cosines, strict=True)
    ]


def choose_similar(
    measured: Sequence[SimilarMessage],
    passage_filter: PassageFilter,
    ranked: Sequence[RankedMessage],
) -> Similarity | None:
    """Return the most similar messages that the filter lets pass, and those of `ranked`; None if
    nothing was measured."""
    if not measured:
        return None
    numpy = import_module("numpy")
    cosines = numpy.array([each.cosine for each in measured], "f4")
    by_words = {(hit.thread, hit.seq) for hit in ranked}
    room = MAX_SIMILAR
    messages = []
    for place in numpy.argsort(-cosines, kind="stable").tolist():
        each = measured[place]
        is_ranked = (each.thread, each.seq) in by_words
        if not is_ranked and (not room or not lets_message_pass(passage_filter, each)):
            continue
        room -= not is_ranked
        messages.append(each)
    mean_words = sum(min(each.length, MAX_COUNTED_WORDS) for each in measured) / len(measured)
    return Similarity(
        tuple(messages), float(numpy.median(cosines)), float(cosines.max()), mean_words
    )
