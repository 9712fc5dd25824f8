"""The parts of the Store protocol that hold the index of original messages, and the vectors of those.
Their docstrings are the contract; tests/storage/search_contract.py and vector_contract.py hold every
backend to them.

A vector belongs to the first passage of its message, and goes with it. It is bytes that only
memory/recall/vectors.py reads. No bytes: the model refused this message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from om_proxy.memory.model import Key, Message
from om_proxy.memory.recall.found import MAX_MATCHES, NO_FILTER, Found, PassageFilter
from om_proxy.memory.recall.passages import IndexPlace, Passage
from om_proxy.memory.recall.vectors import StoredVector
from om_proxy.storage.values.listing import ThreadInfo, ThreadPage, ThreadPlace


class UnindexedMessages(NamedTuple):
    """Some messages that are missing from the index, and what their passages go on from."""

    row_id: int  # of the thread, as `Memory.row_id`
    version: int  # of the thread
    place: IndexPlace
    timezone: str | None  # IANA name, of the thread
    messages: tuple[Message, ...]  # live, by seq
    is_last: bool  # whether no live message comes after them


class IndexedState(NamedTuple):
    """How far a thread is indexed, as it is stored."""

    rules: int = 0  # INDEX_VERSION that its passages were made by; 0: not indexed
    indexed_to: int = 0  # seq
    remade_to: int = 0  # seq up to which the passages are of newer rules already

    def begin_at(self, rules: int) -> int:
        """Return the seq after which the work by these rules goes on."""
        return self.indexed_to if self.rules == rules else self.remade_to

    def advance(self, rules: int, through: int, *, is_last: bool) -> IndexedState:
        """Return the state once messages up to `through` are indexed by these rules. A thread stays
        at older rules until all that they found is made anew; so it is found all the time."""
        if self.rules == rules or is_last or through >= self.indexed_to:
            return IndexedState(rules, through)
        return self._replace(remade_to=through)


class IndexCheck(NamedTuple):
    """The result of checking the whole index."""

    threads: int  # that are indexed
    passages: int
    faults: tuple[str, ...]  # our words, without a text or a name; empty: the index is sound
    vectors: int = 0  # of messages


class PassageIndex(Protocol):
    """The index of original messages. Every method may raise `StorageError`."""

    async def find_passages(
        self,
        key: Key,
        words: Sequence[str],
        passage_filter: PassageFilter = NO_FILTER,
        limit: int = MAX_MATCHES,
    ) -> Found:
        """Return the passages of the key's resource that have one of these index words
        (`memory.recall.words.query_words`), of all its threads, as `match_passages` chooses at most
        `limit` of them. The thread of the key does not matter; the filter may name one.

        What another tenant or resource stores changes nothing of the result. Superseded and
        interrupted messages are never found. A store without an index reads the newest messages of
        the resource instead (`newest_passages`).
        """

    async def read_unindexed(self, key: Key, rules: int, limit: int) -> UnindexedMessages | None:
        """Return the first `limit` live messages that are missing from the index by these rules
        (INDEX_VERSION). Return None if it lacks none, for an unknown thread, and in a store without
        an index."""

    async def index_passages(
        self,
        key: Key,
        read: UnindexedMessages,
        rules: int,
        passages: Sequence[Passage],
        place: IndexPlace,
    ) -> bool:
        """Write the passages of the messages that `read_unindexed` returned, and `place` as how far
        the thread is indexed, in one short transaction. Passages by other rules in this range are
        replaced. Return False, and write nothing, if the thread has changed since it was read.

        The version of the thread stays.
        """

    async def unindexed_threads(
        self, rules: int, active_before: float, after: ThreadPlace | None = None, limit: int = 100
    ) -> ThreadPage:
        """Look at the next `limit` threads of all tenants with `active_at < active_before`, the
        latest first, beginning after the place `after`. Return those that are not indexed to their
        end by these rules. A store without an index returns none."""

    async def unindexed_of_resource(
        self, rules: int, key: Key, limit: int
    ) -> tuple[ThreadInfo, ...]:
        """Return the first `limit` threads of the key's resource that `unindexed_threads` would
        return, the latest active first."""

    async def outdate_index(self) -> None:
        """Mark every thread as indexed by older rules: it is made anew, and found until then."""

    async def drop_index(self) -> None:
        """Remove all passages. Every thread counts as not indexed. The words leave the storage as
        with `forget`."""

    async def check_index(self) -> IndexCheck:
        """Compare the index with the messages."""


# ── vectors ──


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
