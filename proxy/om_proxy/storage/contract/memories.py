"""The parts of the Store protocol that load, commit and list memories, read the rows of their
threads, and hand out the work that is due."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import Beginning, Generation, Key, Memory, Message
from om_proxy.storage.values.changes import Change, ResourceWakeup
from om_proxy.storage.values.listing import (
    IdleThread,
    ResourceInfo,
    ThreadInfo,
    ThreadPage,
    ThreadPlace,
    ThreadSelection,
)
from om_proxy.storage.values.stored_rows import (
    Backlog,
    GenerationEntries,
    GenerationSummary,
    Outline,
    StoredMessage,
    StoredObservation,
)


class MemoryRows(Protocol):
    """What was committed of a thread, or of a shared log."""

    async def load(self, key: Key) -> Memory:
        """Return the memory as last committed; `Memory(key=key)` with version 0 for an unknown
        thread. The memory is bounded: `recent` holds at most RECENT_MARKS, and earlier messages are
        not read."""

    async def version(self, key: Key) -> int:
        """Return the committed version, 0 for an unknown thread. This is one point read.
        Versions come from one counter of the store: of two commits, whatever threads they change,
        the later one has the larger version."""


class MemoryCommits(Protocol):
    """Memories that a process holds: it asks what is newer, and commits."""

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


class DeliveryMarks(Protocol):
    """How far replies have gone out."""

    async def mark_delivered(self, replies: Mapping[Key, int]) -> None:
        """Record the seq of each thread's newest reply that was sent to its last byte. The recorded
        seq only grows; unknown threads are left out. The version stays. No turn waits for another
        thread than its own meanwhile."""

    async def delivered_reply(self, key: Key) -> int | None:
        """Return the seq of the newest reply that `mark_delivered` recorded; None if there is
        none."""


class ThreadRows(Protocol):
    """The rows of one thread."""

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


class ThreadLists(Protocol):
    """The lists of threads and resources."""

    async def threads(
        self,
        tenant: str | None,
        resource: str | None = None,
        cursor: Key | None = None,
        limit: int = 100,
    ) -> tuple[ThreadInfo, ...]:
        """Return threads in key order, beginning after `cursor`, without shared logs.
        `tenant=None`: the threads of all tenants (the operator's view)."""

    async def find_threads(
        self, selection: ThreadSelection, after: ThreadPlace | None = None, limit: int = 100
    ) -> ThreadPage:
        """Return a page of the threads that a person looks for, without shared logs, beginning
        after the place `after`. The time does not grow with the number of threads. `recent` order:
        the latest `active_at` first. A prefix is compared by code points, as it is written. No title
        of an encrypted thread begins with anything.
        """

    async def idle_threads(
        self, before: float, after: ThreadPlace | None = None, limit: int = 100
    ) -> tuple[IdleThread, ...]:
        """Return threads of all tenants with `active_at < before`, the longest idle first, without
        shared logs, beginning after the place `after`. The time does not grow with the number of
        threads."""

    async def resources(
        self, tenant: str, after: str | None = None, limit: int = 100
    ) -> tuple[ResourceInfo, ...]:
        """Return the tenant's resources by name, beginning after the resource `after`."""

    async def resource(self, tenant: str, resource: str) -> ResourceInfo | None:
        """Return one resource; None if nothing of it is stored."""


class StoredThreads(MemoryRows, DeliveryMarks, ThreadRows, ThreadLists, Protocol):
    """Everything that is stored of threads, for readers that take them whole."""

    async def secret(self, proposed: bytes | None = None) -> bytes:
        """Return the 32 random bytes that tenants and fingerprints are keyed with. The bytes are
        made once (`proposed`, if given) and kept with the data. Every caller gets the same bytes,
        also when two processes ask first at the same time."""


class LeaseTable(Protocol):
    """The leases of all processes, and the clock that they end by."""

    async def clock(self) -> float:
        """Return the unix seconds by which leases end: the clock that all processes on this storage
        have in common."""

    async def lease(self, key: Key, holder: str, seconds: float) -> bool:
        """Take or prolong the right to work on a thread. Return False while another holder has it.
        The lease expires by itself. It only saves money: `commit` keeps the memory correct."""

    async def release(self, key: Key, holder: str) -> None:
        """Give a lease back; do nothing if another holder has it."""


class WorkQueue(LeaseTable, Protocol):
    """The work that is due."""

    async def due_threads(self, now: float, limit: int) -> tuple[Key, ...]:
        """Return threads with `due <= now` that are not leased, the longest due first, tenants
        taking turns. For the doctor and tests; `claim` takes up work."""

    async def claim(
        self,
        now: float,
        limit: int,
        holder: str,
        seconds: float,
        *,
        callers: bool = True,
        skip: Collection[Key] = (),
    ) -> tuple[Key, ...]:
        """Lease to `holder`, for `seconds`, the first `limit` threads of `due_threads` that are not
        in `skip`. Return them in that order. `callers=False` leaves out the threads with
        `Memory.needs_caller`: their work needs the credential of a request, which another process
        may hold.

        This is one step: two claims at once never get the same thread, and none gets a leased
        thread, not even one leased to `holder`. If nothing is due, nothing is written. The holder
        prolongs such a lease with `lease` and gives it back with `release`.
        """

    async def set_due(self, key: Key, at: float | None, backlog: Backlog | None = None) -> bool:
        """Set when this thread is due; None: not until it is set again. The version stays.

        `backlog`: of the resource whose shared log this is, as it was read. If it is another one by
        now, a turn came since and may have made the log due: nothing is set, and this returns
        False. The same step compares and sets.
        """

    async def resource_backlog(self, shared_log: Key) -> Backlog:
        """Return the threads that share this log and whose tails are not empty, the longest idle
        first."""
