"""The values that a store finds for the words of a query, and those that ranking makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from om_proxy.memory.recall.passages import Passage

# so many passages match a query at most; the rarest words come first
MAX_MATCHES = 1_000


class PassageFilter(NamedTuple):
    """Which passages of a resource may be found. It narrows, and never reaches beyond the key."""

    thread: str | None = None  # only this thread
    before: float | None = None  # unix seconds: only older messages
    after: float | None = None  # unix seconds: only messages of this time or newer
    roles: tuple[str, ...] = ()  # only these; none: all


class FoundPassage(NamedTuple):
    """A passage of a thread of the caller's resource."""

    thread: str
    passage: Passage


class Found(NamedTuple):
    """The passages that a store found for some words, in the caller's resource."""

    messages: int  # messages of the resource that have passages
    # of each word, the number of passages that have it, their own or beside
    counts: Mapping[str, int]
    matches: tuple[FoundPassage, ...]  # that have one of the words, their own or beside
    # the first passages of the messages right before and after those, as far as they are none
    neighbours: tuple[FoundPassage, ...]
    left_out: bool = False  # whether more passages match than MAX_MATCHES
    # messages of the resource that the index lacks, or that are older than those that were read
    unread: int = 0

    @property
    def share_read(self) -> float:
        """The share of the resource's messages that could be found."""
        total = self.messages + self.unread
        return self.messages / total if total else 1.0


class RankedMessage(NamedTuple):
    """A message that fits a query."""

    thread: str
    seq: int
    score: float
    place: int  # of its best passage
    at: float  # unix seconds
    role: str
    words: tuple[str, ...]  # of the query, that its best passage has, the rarest first
