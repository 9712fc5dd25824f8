"""The part of the Store protocol that holds the index of original messages. Its docstrings are the
contract; tests/storage/search_contract.py holds every backend to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from om_proxy.memory.model import Key, Message
from om_proxy.memory.recall.found import MAX_MATCHES, Found, PassageFilter
from om_proxy.memory.recall.matching import NO_FILTER
from om_proxy.memory.recall.passages import IndexPlace, Passage

# a store without an index reads so many of the newest messages of a resource
NEWEST_MESSAGES = 2_000


class UnindexedMessages(NamedTuple):
    """Some messages that the index lacks, and what their passages go on from."""

    row_id: int  # of the thread, as `Memory.row_id`
    place: IndexPlace
    timezone: str | None  # IANA name, of the thread
    messages: tuple[Message, ...]  # live, by seq
    is_last: bool  # whether no live message comes after them


class UnindexedThread(NamedTuple):
    """A thread that is not indexed to its end, or by older rules."""

    key: Key
    overrides: bytes | None  # as `Memory.overrides`
    active_at: float  # unix seconds of the newest turn, or of its beginning


class IndexCheck(NamedTuple):
    """What a look at the whole index found."""

    threads: int  # that have passages
    passages: int
    faults: tuple[str, ...]  # our words, without a text or a name; empty: the index is sound


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
        interrupted messages are never found. A store without an index reads the newest
        NEWEST_MESSAGES messages of the resource instead.
        """

    async def read_unindexed(self, key: Key, version: int, limit: int) -> UnindexedMessages | None:
        """Return the first `limit` live messages that the index lacks. A thread that is indexed by
        rules older than `version` (INDEX_VERSION) begins at its first message. Return None for an
        unknown thread, a shared log, and in a store without an index."""

    async def index_passages(
        self,
        key: Key,
        read: UnindexedMessages,
        version: int,
        passages: Sequence[Passage],
        place: IndexPlace,
    ) -> bool:
        """Write the passages of messages that `read_unindexed` returned, and `place` as how far the
        thread is indexed, in one short transaction. Passages by rules older than `version` are
        removed with the first ones of the new. Return False, and write nothing, if the thread or
        its place is another one by now: a fork or a forgetting came between.

        The version of the thread stays.
        """

    async def unindexed_threads(
        self,
        version: int,
        quiet_since: float | None = None,
        resource: tuple[str, str] | None = None,
        limit: int = 100,
    ) -> tuple[UnindexedThread, ...]:
        """Return threads that are not indexed to their end by the rules of `version`, the latest
        active first. `quiet_since`: only those without a turn since these unix seconds. `resource`:
        only those of this tenant and resource; None: of all tenants. A store without an index
        returns none."""

    async def drop_index(self) -> None:
        """Remove all passages; every thread counts as not indexed. The words leave the storage as
        with `forget`."""

    async def check_index(self) -> IndexCheck:
        """Compare the whole index with the messages, in short steps."""
