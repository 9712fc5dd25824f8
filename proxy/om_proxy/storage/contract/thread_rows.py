"""The part of the Store protocol that reads the rows of a thread beside its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from om_proxy.memory.model import Beginning, Generation, Key, Message
from om_proxy.storage.values.stored_rows import (
    GenerationEntries,
    GenerationSummary,
    Outline,
    StoredMessage,
    StoredObservation,
)


class ThreadRows(Protocol):
    """A part of `Store`, which says what holds of every method."""

    async def outline(self, key: Key) -> Outline:
        """Return all marks of the thread. The outline grows with the thread, so it is read only if
        the bounded memory does not suffice."""

    async def messages(
        self, key: Key, after: int, through: int | None = None, limit: int | None = None
    ) -> tuple[Message, ...]:
        """Return the live messages with `after < seq <= through`, by seq."""

    async def stored_messages(
        self, key: Key, after: int, through: int | None = None, *, limit: int
    ) -> tuple[StoredMessage, ...]:
        """Return the first `limit` messages with `after < seq <= through`, live or not, by seq.
        Nothing beyond the page is read."""

    async def messages_by_seq(self, key: Key, seqs: Sequence[int]) -> tuple[Message, ...]:
        """Return these messages, live or not, by seq. Unknown seqs are left out."""

    async def observations(
        self, key: Key, after: int, *, limit: int
    ) -> tuple[StoredObservation, ...]:
        """Return the first `limit` entries and chunks with `id > after`, of all generations, by
        id. With `generation_entries` and `stored_messages`, everything of a thread can be read
        page by page."""

    async def generations(
        self, key: Key, before: int, limit: int | None = None
    ) -> tuple[Generation, ...]:
        """Return the first `limit` generations `(number, log)` with `number < before` that
        retention kept, newest first."""

    async def generation_summaries(self, key: Key, before: int) -> tuple[GenerationSummary, ...]:
        """Return what `generations` would, without reading a text."""

    async def generation_entries(
        self, key: Key, after: int, *, limit: int
    ) -> tuple[GenerationEntries, ...]:
        """Return the first `limit` generations with `number > after`, by number. Those with an
        empty log are left out."""

    async def beginnings(self, key: Key) -> Mapping[int, Beginning]:
        """Return, by number, why and when each generation of the log began, as far as it is stored.
        The oldest generations may be missing, and always the first one."""

    async def other_thread_tails(
        self, key: Key, threads: int, messages: int
    ) -> tuple[tuple[Key, tuple[Message, ...]], ...]:
        """Return the newest `messages` of the tail, by seq, of up to `threads` other threads that
        share the resource's log: those with the latest turns, the latest first. Threads without a
        tail are left out."""
