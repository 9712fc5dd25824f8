"""The Store protocol. Its docstrings are the contract; tests/storage/contract.py holds every
backend to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from om_proxy.memory.events.parts import Event
from om_proxy.memory.lifecycle.batches import ThreadBacklog
from om_proxy.memory.model import (
    Beginning,
    Generation,
    Key,
    Mark,
    Memory,
    Message,
    Observation,
)
from om_proxy.storage.ledger_lines import LedgerBatch, LedgerQuery, LedgerSum
from om_proxy.storage.listing import (
    IdleThread,
    ResourceInfo,
    ThreadInfo,
    ThreadPage,
    ThreadPlace,
    ThreadSelection,
)
from om_proxy.storage.passage_index import PassageIndex
from om_proxy.storage.records import AuditRecord, ForgetResult, StoredReceipt
from om_proxy.storage.vector_index import VectorIndex

ObservationState = Literal["chunk", "log"]
# events are kept until there are so many newer ones, or so long
MAX_EVENTS = 10_000
MAX_EVENT_AGE_S = 7 * 86_400.0

Backlog = tuple[ThreadBacklog, ...]  # the threads of a resource whose tails are not empty


class Outline(NamedTuple):
    """All messages of a thread without their texts, for the slow path of reconciling."""

    live: tuple[Mark, ...]  # the active branch, by seq
    # superseded and interrupted messages, by seq, each with the seq of its parent (0: none)
    superseded: tuple[tuple[Mark, int], ...]


MessageState = Literal["live", "superseded", "interrupted"]


class StoredMessage(NamedTuple):
    """One message of a thread, live or not."""

    message: Message
    parent: int  # seq of the live message before it; 0: none
    # `superseded`: it was live once; `interrupted`: a broken reply that never was
    state: MessageState


class Change(NamedTuple):
    """Two states of one thread: the arguments of `Store.commit`."""

    before: Memory
    after: Memory
    interrupted: Sequence[Message] = ()
    events: Sequence[Event] = ()


class ResourceWakeup(NamedTuple):
    """The condition that makes the shared log of a resource due at `now`: its threads hold at least
    `tokens` unobserved tokens. If the log is due later already, only threads that are not in
    back-off count."""

    now: float
    tokens: int


class NoteErasure(NamedTuple):
    """Entries of older generations without the texts and hints that must go."""

    key: Key  # of the thread or shared log
    version: int  # that is stored
    blanks: Sequence[Observation]


class ForgetBatch(NamedTuple):
    """A part of a resource or tenant that was removed."""

    result: ForgetResult
    threads: tuple[Key, ...]  # that were removed
    is_last: bool  # nothing of the resource or tenant is left


class StoredObservation(NamedTuple):
    """One entry of any generation of a log, or a chunk."""

    entry: Observation
    state: ObservationState


class GenerationSummary(NamedTuple):
    """One generation of a log, without its texts."""

    number: int
    entries: int
    tokens: int
    reflections: int  # entries that the reflector wrote
    newest_at: float | None  # unix seconds: when the newest entry was written


def summarize_generation(generation: Generation) -> GenerationSummary:
    entries = generation.entries
    return GenerationSummary(
        generation.number,
        len(entries),
        sum(entry.tokens for entry in entries),
        sum(entry.kind == "reflection" for entry in entries),
        max((entry.at for entry in entries), default=None),
    )


class GenerationEntries(NamedTuple):
    """One generation of a log: the ids of its entries, in order."""

    number: int
    entries: tuple[int, ...]


class WholeThread(NamedTuple):
    """All rows of one thread or shared log. Only its events are left out: they belong to a store."""

    memory: Memory  # as `Store.load` returned it
    messages: tuple[StoredMessage, ...]  # by seq
    observations: tuple[StoredObservation, ...]  # by id
    generations: tuple[GenerationEntries, ...]  # by number
    beginnings: Mapping[int, Beginning]  # by number, of all generations that have one
    delivered_seq: int | None = None  # of the newest reply that went out to its last byte
    created_at: float | None = None  # unix seconds; None: not known


class MoveResult(NamedTuple):
    """The number of rows that moved to another tenant."""

    threads: int = 0
    messages: int = 0
    name_conflicts: int = 0  # threads and shared logs that both tenants have; then nothing moved


class StoredEvent(NamedTuple):
    """An event as it is stored."""

    id: int
    # of the thread; with an empty thread, of a shared log; with an empty resource too, of a thread
    # that is forgotten
    key: Key
    at: float  # unix seconds
    type: str
    data: str  # JSON in ASCII


class EventPage(NamedTuple):
    """Some events, in order."""

    events: tuple[StoredEvent, ...]
    cursor: int  # the id after which the next page begins
    has_gap: bool  # whether events that should come before these are no longer kept
    # whether events are stored that no reader may have yet: a transaction before them still runs
    is_held_back: bool = False
    # those of them that tell of forgotten threads, with this tenant: they come again in their order
    held_back_forgettings: tuple[StoredEvent, ...] = ()


class StoreTotals(NamedTuple):
    """Sums over all threads of the store, whatever their tenant."""

    messages_tokens: int = 0  # of messages that no notes cover yet
    observations_tokens: int = 0  # of notes in logs, reflections left out
    reflections_tokens: int = 0  # of notes in logs that the reflector wrote
    due_threads: int = 0  # whose work is due and not leased
    parked_threads: int = 0


# what an acknowledged commit survives. `fsync`: a power cut. `second`: a killed process; a power cut
# may lose the newest second. `none`: a killed process; a power cut may lose everything. `process`:
# nothing; the data ends with the process
Durability = Literal["fsync", "second", "none", "process"]
# when the bytes of forgotten rows leave the database. `now`: they are overwritten as soon as no
# reader holds them. `rewrite`: they stay until its tables are rewritten. `keys`: they stay, and
# cannot be read once their keys are destroyed
Erasure = Literal["now", "rewrite", "log", "keys"]


class Promise(NamedTuple):
    """What a store promises about the data that it keeps."""

    kind: str  # `sqlite`, `postgresql` …
    durable: Durability
    erases: Erasure
    schema_version: int  # number of the newest migration that the database has
    encrypted: bool = False  # whether texts are
    # whether their keys are apart from them, where copies of the data do not hold them
    separate_keys: bool = False
    # whether it can keep an index of original messages; else a search reads the newest ones
    has_index: bool = True


class WebhookState(NamedTuple):
    """How far a webhook has got."""

    cursor: int  # id of the last event that its receiver took
    failures: int  # in a row
    cause: str  # of the last failure: our words
    at: float  # of the last attempt, in unix seconds


class Store(PassageIndex, VectorIndex, Protocol):
    """The durable memories. Every method may raise `StorageError`; none blocks the event loop.

    Every row is keyed by the whole Key, tenant first: no method reaches another tenant's rows.
    """

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
    ) -> Memory:
        """Write the difference between two states of one thread, in one durable transaction, and
        return `after` with its new version. `events` are stored in the same transaction, or not at
        all.

        Raise `Conflict`, and write nothing, unless the stored version still is `before.version`.
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

    async def add_events(self, key: Key, events: Sequence[Event]) -> None:
        """Store events of a thread that no commit belongs to. The version stays. A thread that is
        not stored has no events."""

    async def events(
        self, tenant: str | None, keys: Sequence[Key] | None, after: int | None, limit: int
    ) -> EventPage:
        """Return the events with an id above `after`, in order. Ids grow in the order in which
        events become visible, so none ever appears below one that was returned.

        `tenant=None`: those of all tenants. `keys`: those of these threads and shared logs; None:
        of all. `after=None`: from the oldest that is kept. `has_gap`: events after `after` are gone
        because of their number or age, or `after` is of another database; then the page begins with
        the oldest that is kept.
        """

    async def event_position(self, before: int = 0) -> int:
        """Return the id of the newest event that was ever stored; 0: there was none. `before`: the
        id after which at most so many events stand. Ids may have gaps, so nobody counts by them."""

    async def webhook_state(self, name: str) -> WebhookState | None:
        """Return how far this webhook has got; None: it has sent nothing yet."""

    async def set_webhook_state(self, name: str, state: WebhookState) -> None:
        """Record how far this webhook has got. A state with a cursor below the stored one changes
        nothing: its sender stood still, and another one has sent more. A stored cursor that is
        above the newest event is of another database, and any state takes its place."""

    async def prune_events(self, now: float) -> None:
        """Remove the events that are older than MAX_EVENT_AGE_S by the clock of the caller. Each
        write of events removes all but the newest MAX_EVENTS, and none by its age."""

    async def resource_backlog(self, shared_log: Key) -> Backlog:
        """Return the threads that share this log and whose tails are not empty, the longest idle
        first."""

    async def other_thread_tails(
        self, key: Key, threads: int, messages: int
    ) -> tuple[tuple[Key, tuple[Message, ...]], ...]:
        """Return the newest `messages` of the tail, by seq, of up to `threads` other threads that
        share the resource's log: those with the latest turns, the latest first. Threads without a
        tail are left out."""

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

    async def generations(
        self, key: Key, before: int, limit: int | None = None
    ) -> tuple[Generation, ...]:
        """Return the first `limit` generations `(number, log)` with `number < before` that
        retention kept, newest first."""

    async def generation_summaries(self, key: Key, before: int) -> tuple[GenerationSummary, ...]:
        """Return what `generations` would, without reading a text."""

    async def beginnings(self, key: Key) -> Mapping[int, Beginning]:
        """Return, by number, why and when each generation of the log began, as far as it is stored.
        The oldest generations may be missing, and always the first one."""

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

    async def mark_delivered(self, replies: Mapping[Key, int]) -> None:
        """Record the seq of each thread's newest reply that was sent to its last byte. The recorded
        seq only grows; unknown threads are left out. The version stays. No turn waits for another
        thread than its own meanwhile."""

    async def delivered_reply(self, key: Key) -> int | None:
        """Return the seq of the newest reply that `mark_delivered` recorded; None if there is
        none."""

    async def lease(self, key: Key, holder: str, seconds: float) -> bool:
        """Take or prolong the right to work on a thread. Return False while another holder has it.
        The lease expires by itself. It only saves money: `commit` keeps the memory correct."""

    async def release(self, key: Key, holder: str) -> None:
        """Give a lease back; do nothing if another holder has it."""

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

    async def forget(
        self,
        key: Key,
        expected_version: int | None = None,
        event: Event | None = None,
        *,
        defers_erasure: bool = False,
    ) -> ForgetResult:
        """Remove every row of the thread. Return what was removed. Work in flight on the thread
        conflicts and cannot bring it back: a new thread under the same key has another `row_id`.
        Its events go too. Those of the log it shared lose their texts and its name, and go where
        they tell of a call that read this thread alone (`event_encoding.remove_thread`). `event` is
        stored instead, without the thread's name, if the thread was there.

        Raise `Conflict`, and remove nothing, if the thread is stored with another version than
        `expected_version`: the same transaction compares and removes.

        The same transaction removes what mentions the thread: its part of the log it shared, in
        every generation (`forgetting.remove_thread`), and what other threads' prompts tell of it
        (`Memory.other_threads_text`). If the log then covers less of another thread, the messages
        that are no longer covered are in that thread's tail again. The shared log is removed with
        the last thread that shares it. A thread's name in the log is its `label_thread` under the
        store's own secret.

        The bytes leave the storage too. If a reader still holds them (a backup, a shell), the rows
        are gone at once and the bytes are `pending`: the store tries again by itself until none are
        left, also after a restart. `defers_erasure`: the bytes may be `pending` for some seconds
        although no reader holds them. So the bytes of many threads go at once.
        """

    async def forget_batch(
        self,
        tenant: str,
        resource: str | None = None,
        describe_forgotten: Callable[[Key], Event] | None = None,
        active_before: float | None = None,
    ) -> ForgetBatch:
        """Remove some threads of the resource, or of all resources of the tenant, in one short
        transaction. Call it again until the batch is the last one; it removes what is left, shared
        logs and leases too. Whatever stops the calls, a later call goes on.

        `active_before`: raise `Conflict`, and remove nothing, if a thread of the resource had its
        `active_at` at this time or later.

        A thread that begins meanwhile goes as well. Bytes leave the storage as with `forget`. The
        same transaction stores the event that `describe_forgotten` returns of each thread.
        """

    async def observations(
        self, key: Key, after: int, *, limit: int
    ) -> tuple[StoredObservation, ...]:
        """Return the first `limit` entries and chunks with `id > after`, of all generations, by
        id. With `generation_entries` and `stored_messages`, everything of a thread can be read
        page by page."""

    async def generation_entries(
        self, key: Key, after: int, *, limit: int
    ) -> tuple[GenerationEntries, ...]:
        """Return the first `limit` generations with `number > after`, by number. Those with an
        empty log are left out."""

    async def drop_generations(
        self, key: Key, expected_version: int, numbers: Sequence[int]
    ) -> int:
        """Remove older generations of a log, and the entries that no other generation holds, in one
        transaction. Return how many of them were stored. The current generation, chunks and the
        version stay. Raise `Conflict`, and remove nothing, unless `expected_version` is the stored
        one."""

    async def add_audit(self, records: Sequence[AuditRecord]) -> None:
        """Append records, in one transaction. They are kept for AUDIT_KEPT_S. Nothing changes them
        but `move_tenant`: their tenant and label."""

    async def audit(
        self, tenant: str | None, before: int | None = None, limit: int = 100
    ) -> tuple[AuditRecord, ...]:
        """Return records with `id < before`, the newest first; `tenant=None`: of all tenants."""

    async def add_receipt(self, receipt: StoredReceipt) -> None:
        """Keep a receipt for RECEIPTS_KEPT_S."""

    async def prune_records(self, now: float) -> None:
        """Remove the records of the audit, and the receipts, that have been kept for so long. Nothing
        else does: not even a new one from far ahead."""

    async def receipt(self, receipt_id: str, now: float) -> StoredReceipt | None:
        """Return a receipt that is still kept. Its bytes are `gone` once they are."""

    async def commit_erasing(
        self,
        change: Change,
        erasures: Sequence[NoteErasure],
        wakeup: ResourceWakeup | None = None,
    ) -> tuple[Memory, ForgetResult]:
        """Commit the change of a thread's own log or of a shared log, and write the blank entries
        over the stored ones of the same ids: all in one transaction. Raise `Conflict`, and write
        nothing, if a stored version is another one. `wakeup`: as in `commit_shared`. Every erased
        log gets a new version, so that no turn under way stores what its prompt told of it.

        Of a shared log, the same transaction removes what prompts tell of other threads, as
        `forget` does. The bytes leave the storage as with `forget`, also those of texts that
        earlier commits have replaced or pruned. `observations` counts the entries. Earlier events
        of each erased log keep their places and lose their texts (`event_encoding.remove_texts`),
        which may be the same; of a shared log, those of its whole resource.
        """

    async def wait_erased(self) -> None:
        """Return once no forgotten bytes are `pending`."""

    async def move_tenant(
        self, old: str, new: str, fingerprint: Callable[[bytes], bytes | None]
    ) -> MoveResult:
        """Move all rows of the tenant `old` to the tenant `new`, as if they had been there from the
        start: with new fingerprints, chains, recorded attempts, and labels under the store's own
        secret. Records of the audit, and receipts, go along; those about threads that are forgotten
        keep their labels. `fingerprint` takes a message's JSON; if it returns None, the old fingerprint stays.

        If both tenants have a thread or a shared log of the same name, nothing moves. Otherwise one
        resource moves after the other, each as a whole or not at all, so that a second call
        finishes a move that was interrupted. Work in flight on a moved thread finds it gone.
        """

    async def restore(
        self, thread: WholeThread, over: int = 0, *, keeps_row: bool = False
    ) -> Memory:
        """Write a thread or a shared log as another store had it, in one durable transaction, and
        return its memory with its new version and row id. Every method then answers as the other
        store's did. Without `created_at` it begins now. It has no events.

        Raise `Conflict`, and write nothing, unless `over` is the stored version. What is stored
        with that version is removed in the same transaction, with its events; its bytes leave
        the storage as with `forget`. The shared log and the other threads of its resource stay as
        they are.

        `keeps_row`: what is written is the stored thread itself, repaired. It keeps its row id, so
        that what began on the row goes on.
        """

    async def adopt_secret(self, secret: bytes) -> bool:
        """Take the secret of another store in place of the own one, unless a thread or a shared log
        is stored. Return whether it is the store's secret now. No process may use the store
        meanwhile: it would go on with the secret that it has read."""

    async def secret(self, proposed: bytes | None = None) -> bytes:
        """Return the 32 random bytes that tenants and fingerprints are keyed with. The bytes are
        made once (`proposed`, if given) and kept with the data. Every caller gets the same bytes,
        also when two processes ask first at the same time."""

    async def add_to_ledger(self, batch: LedgerBatch) -> None:
        """Add the lines of the batch to the sums by day, in one transaction. A batch that was added
        already, or that is older than the newest one of its writer, adds nothing: after an error,
        the same batch may be sent again.

        A line of a resource that has no thread is added to the tenant's nameless one, so that
        nothing brings a forgotten name back. `forget` and `move_tenant` take the lines along: those
        of a resource that has no thread any more become nameless.
        """

    async def prune_ledger(self, now: float) -> None:
        """Remove the lines of days that are more than LEDGER_KEPT_DAYS before today."""

    async def sum_ledger(self, query: LedgerQuery) -> tuple[LedgerSum, ...]:
        """Return the sums of the first `limit` groups behind `after`, in the order of the groups."""

    async def park(self, key: Key, parked: bool) -> bool:
        """Mark a thread as given up, or revive it with 0 failures and due now. Return False for an
        unknown thread."""

    async def totals(self, now: float) -> StoreTotals:
        """Return sums over all threads, as of `now`. Each thread counts as last committed. The
        method reads in short steps, so the sums need not be those of one moment."""

    async def clock(self) -> float:
        """Return the unix seconds by which leases end: the clock that all processes on this storage
        have in common."""

    async def describe(self) -> Promise:
        """Return what this store promises."""

    async def check_schema(self) -> None:
        """Raise `StorageError` if this program is too old to write to the database: a newer one has
        changed its schema since it was opened."""

    async def ping(self) -> None:
        """Raise `StorageError` unless the store can be read and written."""

    async def close(self) -> None: ...
