"""Find where each message of a transcript is: raw in the tail, in a chunk that waits, or in an
entry of the log."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Literal, NamedTuple

from om_proxy.memory.model import Memory, Observation

# of a message that is live
LiveState = Literal["raw", "buffered", "observed"]


class MessagePlace(NamedTuple):
    """The place of a live message."""

    state: LiveState
    entry: int | None = None  # the id of the entry that covers it, as far as one can be told
    chunk: int | None = None  # the id of the chunk


class _Range(NamedTuple):
    last: int
    after: int
    id: int


class MessagePlaces:
    """The places of one thread's messages. It is made once for a page of them."""

    def __init__(self, memory: Memory) -> None:
        self._coverage = memory.coverage
        self._entries = sorted(_list_ranges(memory.log.entries, memory.thread_label))
        self._chunks = sorted(_list_ranges(memory.chunks, ""))

    def find(self, seq: int) -> MessagePlace:
        """Return the place of a live message."""
        if seq <= self._coverage:
            return MessagePlace("observed", entry=_find_range(self._entries, seq))
        chunk = _find_range(self._chunks, seq)
        return MessagePlace("raw") if chunk is None else MessagePlace("buffered", chunk=chunk)


def _list_ranges(entries: Iterable[Observation], label: str) -> Iterable[_Range]:
    """Yield what each entry covers of the thread. `label`: of the thread, if it shares its log."""
    for entry in entries:
        if entry.parts:
            for part in entry.parts:
                if part.label == label and not part.covers_nothing:
                    yield _Range(part.last, part.after, entry.id)
        elif entry.last > entry.after and not label:
            yield _Range(entry.last, entry.after, entry.id)


def _find_range(ranges: list[_Range], seq: int) -> int | None:
    at = bisect_left(ranges, seq, key=lambda covered: covered.last)
    if at == len(ranges) or ranges[at].after >= seq:
        return None
    return ranges[at].id
