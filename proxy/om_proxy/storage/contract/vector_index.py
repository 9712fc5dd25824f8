"""The part of the Store protocol that holds a vector for each indexed message. Its docstrings are
the contract; tests/storage/vector_contract.py holds every backend to them.

A vector belongs to the first passage of its message, and goes with it. It is bytes that only
memory/recall/vectors.py reads. No bytes: the model refused this message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from om_proxy.memory.model import Key, Message
from om_proxy.memory.recall.vectors import StoredVector
from om_proxy.storage.values.listing import ThreadPage, ThreadPlace


class UnembeddedMessage(NamedTuple):
    """An indexed message that has no vector of the model."""

    passage_id: int
    message: Message
    length: int  # words
    # the indexed message right before it, of the same visit; None: there is none
    before: Message | None
    before_length: int  # words


class VectorPage(NamedTuple):
    """Some vectors of a resource, of what was indexed last first."""

    vectors: tuple[StoredVector, ...]
    end: int | None  # where the next page begins; None: this is the last one


class VectorIndex(Protocol):
    """Vectors of indexed messages. Every method may raise `StorageError`. A store without an index
    has none, and never any to be made."""

    async def read_unembedded(
        self, key: Key, model: str, limit: int
    ) -> tuple[UnembeddedMessage, ...]:
        """Return the first `limit` indexed messages of the thread that have no vector of this
        model, by seq. An unknown thread has none."""

    async def write_vectors(
        self,
        key: Key,
        read: Sequence[UnembeddedMessage],
        model: str,
        vectors: Sequence[bytes],
    ) -> int:
        """Write the vectors of messages that `read_unembedded` returned, in place of another
        model's. Return how many were written: a message that was forgotten, taken back or indexed
        anew meanwhile gets none."""

    async def unembedded_threads(
        self, model: str, active_before: float, after: ThreadPlace | None = None, limit: int = 100
    ) -> ThreadPage:
        """Look at the next `limit` threads as `PassageIndex.unindexed_threads` does. Return those of
        which an indexed message has no vector of this model."""

    async def read_vectors(
        self, key: Key, model: str, before: int | None = None, limit: int = 10_000
    ) -> VectorPage:
        """Return the next `limit` vectors of this model of the key's resource, of all its threads.
        `before`: the end of the page before. The thread of the key does not matter."""

    async def read_vectors_at(
        self, key: Key, model: str, places: Sequence[tuple[str, int]]
    ) -> tuple[StoredVector, ...]:
        """Return the vectors of this model that these messages (thread, seq) of the key's resource
        have."""
