"""Search the messages of a resource."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from om_proxy.memory.model import Key
from om_proxy.memory.recall.snippets import FindWords


class SearchFilter(NamedTuple):
    """Which messages of a resource may be found."""

    thread: str | None = None  # only this thread
    before: float | None = None  # unix seconds: only older messages
    after: float | None = None  # unix seconds: only messages of this time or newer
    roles: tuple[str, ...] = ()  # only these; none: all


class SearchHit(NamedTuple):
    """A message that fits a query."""

    thread: str
    seq: int
    score: float


class SearchResult(NamedTuple):
    """What a search found, the best first."""

    words: tuple[str, ...]  # of the query: index words
    counts: Mapping[str, int]  # of each word: in how many passages it is
    hits: tuple[SearchHit, ...]
    share_read: float = 1.0  # of the messages that could be found


class MessageSearch(Protocol):
    """Finds messages by words."""

    @property
    def find_words(self) -> FindWords:
        """The places of a text that have index words."""

    async def search(self, key: Key, query: str, search_filter: SearchFilter) -> SearchResult:
        """Return the messages of the key's resource that fit the query. Raise StorageError."""
