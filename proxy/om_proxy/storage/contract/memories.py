"""The part of the Store protocol that loads and commits memories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import Key, Memory, Message
from om_proxy.storage.values.changes import Change, ResourceWakeup


class MemoryRows(Protocol):
    """A part of `Store`, which says what holds of every method."""

    async def load(self, key: Key) -> Memory:
        """Return the memory as last committed; `Memory(key=key)` with version 0 for an unknown
        thread. The memory is bounded: `recent` holds at most RECENT_MARKS, and earlier messages are
        not read."""

    async def version(self, key: Key) -> int:
        """Return the committed version, 0 for an unknown thread. This is one point read.
        Versions come from one counter of the store: of two commits, whatever threads they change,
        the later one has the larger version."""

    async def refresh(self, held: Memory) -> Memory:
        """Return the newest committed memory of a thread, given one that this store returned: `held`
        itself, the same object, if nothing was committed since. This is one round trip, and it
        reads no more than what has changed, as far as the backend can tell.

        The result equals that of `load` in every field, whatever happened between the two. Only of
        `held` itself `due_at` may be an older one: it moves without a version. For a thread that
        nothing is known of, pass `Memory(key=key)`.
        """

    async def refresh_shared(self, thread: Memory, shared_log: Memory) -> tuple[Memory, Memory]:
        """Return what `refresh` returns of a thread and of its resource's shared log, both of one
        snapshot: no commit lies between the two."""

    async def commit(
        self,
        before: Memory,
        after: Memory,
        interrupted: Sequence[Message] = (),
        events: Sequence[Event] = (),
        began_at: float | None = None,
    ) -> Memory:
        """Write the difference between two states of one thread, in one durable transaction, and
        return `after` with its new version. `events` are stored in the same transaction, or not at
        all.

        Raise `Conflict`, and write nothing, unless the stored version still is `before.version`;
        also if look-ups of a new message quote a thread of the tenant that was forgotten 30 s
        before that message or later, by the events of forgettings.
        Raise `ForgottenName`, and write nothing, if the commit would make the thread's row and the
        thread, its resource or its tenant has been forgotten after `began_at` (`note_forgotten`):
        when the request of this turn came, in unix seconds; None: it is no turn.
        Durable means: after this returns, the commit survives what `describe` says; of a store on
        disk, a killed process at least. The returned `row_id` is that of the row, whatever `after` says.

        The difference: messages of `after.tail` unknown to the store are inserted; changed items
        are replaced. Live messages with `seq > after.coverage` that are missing from `after.tail`
        are superseded: kept, no longer live. Superseded messages that appear in `after.tail` are
        live again. `interrupted` is inserted as not live (an interrupted reply). A message's parent
        is the live message before it. Entries new to the log are added to `after.log.generation`.
        If that differs from `before.log.generation`, the old generation stays readable and the new
        one is `after.log`. Chunks that are in neither `after.chunks` nor `after.log` are deleted.
        Writes grow with the difference, never with the thread.
        """

    async def commit_shared(
        self, thread: Change, shared_log: Change | None, wakeup: ResourceWakeup | None = None
    ) -> tuple[Memory, Memory | None]:
        """Commit a thread that shares its resource's log and, if that changes too, the shared log:
        both in one transaction, or neither. Raise `Conflict` if the version of either has changed.
        A shared log that does not differ is not written, but its version is checked. The events of
        both are stored with them."""

    async def mark_delivered(self, replies: Mapping[Key, int]) -> None:
        """Record the seq of each thread's newest reply that was sent to its last byte. The recorded
        seq only grows; unknown threads are left out. The version stays. No turn waits for another
        thread than its own meanwhile."""

    async def delivered_reply(self, key: Key) -> int | None:
        """Return the seq of the newest reply that `mark_delivered` recorded; None if there is
        none."""
