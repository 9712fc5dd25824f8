"""Find the messages of a resource that mean what a query means, by vectors.

Whatever fails or takes too long, the search goes on with the words alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple

import structlog

from om_proxy.errors import ModelError, OmError, StorageError
from om_proxy.memory.model import Key
from om_proxy.memory.recall.found import PassageFilter, RankedMessage
from om_proxy.memory.recall.fusing import MAX_COUNTED_WORDS, Similarity, SimilarMessage
from om_proxy.memory.recall.matching import lets_message_pass
from om_proxy.memory.recall.vectors import StoredVector
from om_proxy.message_vectors import MAX_SEARCH_S, EmbeddingChoice, MessageVectors

logger = structlog.get_logger("vectors")

PAUSE_S = 30.0  # after a failure, no query asks this model for so long
MAX_COMPARED = 100_000  # vectors of a resource: those that were indexed last
PAGE_VECTORS = 10_000
MAX_SIMILAR = 100  # messages beside those that the words found
_CHUNK_VECTORS = 10_000


class QueryVector(NamedTuple):
    """A query's vector, and until when it is worth comparing."""

    model: str
    vector: bytes
    deadline: float  # of the event loop's clock


@dataclass(frozen=True, slots=True, eq=False)
class SimilarMessages:
    """Compares queries with the vectors of a resource. `choose`: returns the embedding model for the
    searches of a key, or None."""

    vectors: MessageVectors
    choose: Callable[[Key], Awaitable[EmbeddingChoice | None]]
    _paused_until: dict[str, float] = field(default_factory=dict)

    async def embed(self, key: Key, query: str) -> QueryVector | None:
        """Return the query's vector; None without vectors, or if the model fails."""
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(now + MAX_SEARCH_S):
                choice = await self.choose(key)
        except (OmError, TimeoutError) as exc:
            _log_failure(exc)
            return None
        if choice is None or now < self._paused_until.get(choice.model, 0.0):
            return None
        deadline = now + choice.timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                vector = await self.vectors.embed_query(key, choice.model, query)
        except (ModelError, TimeoutError) as exc:
            self._pause(choice.model, exc)
            return None
        return QueryVector(choice.model, vector, deadline)

    async def compare(
        self,
        key: Key,
        query: QueryVector,
        passage_filter: PassageFilter,
        ranked: Sequence[RankedMessage],
    ) -> Similarity | None:
        """Return how similar the messages are that the filter lets pass; None if that is not known.
        `ranked`: what the words found."""
        try:
            async with asyncio.timeout_at(query.deadline):
                found = await self._read(key, query.model, ranked)
                return await asyncio.to_thread(
                    compare_vectors, found, query.vector, passage_filter, ranked
                )
        except (StorageError, TimeoutError, ImportError) as exc:
            self._pause(query.model, exc)
            return None

    async def _read(
        self, key: Key, model: str, ranked: Sequence[RankedMessage]
    ) -> list[StoredVector]:
        store = self.vectors.store
        found: list[StoredVector] = []
        before: int | None = None
        while len(found) < MAX_COMPARED:
            limit = min(PAGE_VECTORS, MAX_COMPARED - len(found))
            page = await store.read_vectors(key, model, before, limit)
            found += page.vectors
            before = page.end
            if before is None:
                return found
        known = {(each.thread, each.seq) for each in found}
        places = [(hit.thread, hit.seq) for hit in ranked if (hit.thread, hit.seq) not in known]
        return [*found, *(await store.read_vectors_at(key, model, places))]

    def _pause(self, model: str, exc: Exception) -> None:
        self._paused_until[model] = asyncio.get_running_loop().time() + PAUSE_S
        _log_failure(exc)


def _log_failure(exc: Exception) -> None:
    logger.warning("vectors.failed", error=type(exc).__name__, work="search")


def compare_vectors(
    found: Sequence[StoredVector],
    query: bytes,
    passage_filter: PassageFilter,
    ranked: Sequence[RankedMessage],
) -> Similarity | None:
    """Return how similar these messages are to the query; None without a vector of its length."""
    # those of another length were made by another model of this name
    usable = [each for each in found if len(each.vector) == len(query)]
    if not usable:
        return None
    cosines = _multiply([each.vector for each in usable], query)
    numpy = import_module("numpy")
    by_words = {(hit.thread, hit.seq) for hit in ranked}
    room = MAX_SIMILAR
    messages = []
    for place in numpy.argsort(-cosines, kind="stable").tolist():
        each = usable[place]
        is_ranked = (each.thread, each.seq) in by_words
        if not is_ranked and (not room or not lets_message_pass(passage_filter, each)):
            continue
        room -= not is_ranked
        messages.append(
            SimilarMessage(
                each.thread, each.seq, each.role, each.at, each.length, float(cosines[place])
            )
        )
    mean_words = sum(min(each.length, MAX_COUNTED_WORDS) for each in usable) / len(usable)
    return Similarity(
        tuple(messages), float(numpy.median(cosines)), float(cosines.max()), mean_words
    )


def _multiply(vectors: Sequence[bytes], query: bytes) -> Any:
    """Return the cosines, as single-precision floats."""
    numpy = import_module("numpy")
    wanted = numpy.frombuffer(query, "<f2").astype("f4")
    chunks = []
    for begin in range(0, len(vectors), _CHUNK_VECTORS):
        stored = numpy.frombuffer(b"".join(vectors[begin : begin + _CHUNK_VECTORS]), "<f2")
        chunks.append(stored.reshape(-1, len(wanted)).astype("f4") @ wanted)
    return numpy.concatenate(chunks)
