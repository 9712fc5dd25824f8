"""A store that forwards every call to another store. A subclass overrides what it does differently.

Each method is written out, so that type checkers compare it with the protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence

from om_proxy.memory.events.parts import Event
from om_proxy.memory.model import Beginning, Generation, Key, Memory, Message
from om_proxy.memory.recall.found import MAX_MATCHES, Found, PassageFilter
from om_proxy.memory.recall.matching import NO_FILTER
from om_proxy.memory.recall.passages import IndexPlace, Passage
from om_proxy.memory.recall.vectors import StoredVector
from om_proxy.storage.base import Store
from om_proxy.storage.changes import Change, ForgetBatch, MoveResult, NoteErasure, ResourceWakeup
from om_proxy.storage.ledger_lines import LedgerBatch, LedgerQuery, LedgerSum
from om_proxy.storage.listing import (
    IdleThread,
    ResourceInfo,
    ThreadInfo,
    ThreadPage,
    ThreadPlace,
    ThreadSelection,
)
from om_proxy.storage.passage_index import IndexCheck, UnindexedMessages
from om_proxy.storage.records import AuditRecord, ForgetResult, StoredReceipt
from om_proxy.storage.store_description import Promise, StoreTotals
from om_proxy.storage.stored_events import EventPage, WebhookState
from om_proxy.storage.stored_rows import (
    Backlog,
    GenerationEntries,
    GenerationSummary,
    Outline,
    StoredMessage,
    StoredObservation,
    WholeThread,
)
from om_proxy.storage.vector_index import UnembeddedMessage, VectorPage


class ForwardingStore(ABC):
    """The `Store` protocol, with each method forwarded to `inner`."""

    @property
    @abstractmethod
    def inner(self) -> Store:
        """The store that is used now. Raise StorageError if there is none at the moment."""

    async def load(self, key: Key) -> Memory:
        return await self.inner.load(key)

    async def version(self, key: Key) -> int:
        return await self.inner.version(key)

    async def refresh(self, held: Memory) -> Memory:
        return await self.inner.refresh(held)

    async def refresh_shared(self, thread: Memory, shared_log: Memory) -> tuple[Memory, Memory]:
        return await self.inner.refresh_shared(thread, shared_log)

    async def commit(
        self,
        before: Memory,
        after: Memory,
        interrupted: Sequence[Message] = (),
        events: Sequence[Event] = (),
        began_at: float | None = None,
    ) -> Memory:
        return await self.inner.commit(before, after, interrupted, events, began_at)

    async def commit_shared(
        self, thread: Change, shared_log: Change | None, wakeup: ResourceWakeup | None = None
    ) -> tuple[Memory, Memory | None]:
        return await self.inner.commit_shared(thread, shared_log, wakeup)

    async def add_events(self, key: Key, events: Sequence[Event]) -> None:
        await self.inner.add_events(key, events)

    async def events(
        self, tenant: str | None, keys: Sequence[Key] | None, after: int | None, limit: int
    ) -> EventPage:
        return await self.inner.events(tenant, keys, after, limit)

    async def event_position(self, before: int = 0) -> int:
        return await self.inner.event_position(before)

    async def webhook_state(self, name: str) -> WebhookState | None:
        return await self.inner.webhook_state(name)

    async def set_webhook_state(self, name: str, state: WebhookState) -> None:
        await self.inner.set_webhook_state(name, state)

    async def prune_events(self, now: float) -> None:
        await self.inner.prune_events(now)

    async def resource_backlog(self, shared_log: Key) -> Backlog:
        return await self.inner.resource_backlog(shared_log)

    async def other_thread_tails(
        self, key: Key, threads: int, messages: int
    ) -> tuple[tuple[Key, tuple[Message, ...]], ...]:
        return await self.inner.other_thread_tails(key, threads, messages)

    async def outline(self, key: Key) -> Outline:
        return await self.inner.outline(key)

    async def messages(
        self, key: Key, after: int, through: int | None = None, limit: int | None = None
    ) -> tuple[Message, ...]:
        return await self.inner.messages(key, after, through, limit)

    async def stored_messages(
        self, key: Key, after: int, through: int | None = None, *, limit: int
    ) -> tuple[StoredMessage, ...]:
        return await self.inner.stored_messages(key, after, through, limit=limit)

    async def messages_by_seq(self, key: Key, seqs: Sequence[int]) -> tuple[Message, ...]:
        return await self.inner.messages_by_seq(key, seqs)

    async def find_passages(
        self,
        key: Key,
        words: Sequence[str],
        passage_filter: PassageFilter = NO_FILTER,
        limit: int = MAX_MATCHES,
    ) -> Found:
        return await self.inner.find_passages(key, words, passage_filter, limit)

    async def read_unindexed(self, key: Key, rules: int, limit: int) -> UnindexedMessages | None:
        return await self.inner.read_unindexed(key, rules, limit)

    async def index_passages(
        self,
        key: Key,
        read: UnindexedMessages,
        rules: int,
        passages: Sequence[Passage],
        place: IndexPlace,
    ) -> bool:
        return await self.inner.index_passages(key, read, rules, passages, place)

    async def unindexed_threads(
        self, rules: int, active_before: float, after: ThreadPlace | None = None, limit: int = 100
    ) -> ThreadPage:
        return await self.inner.unindexed_threads(rules, active_before, after, limit)

    async def unindexed_of_resource(
        self, rules: int, key: Key, limit: int
    ) -> tuple[ThreadInfo, ...]:
        return await self.inner.unindexed_of_resource(rules, key, limit)

    async def outdate_index(self) -> None:
        await self.inner.outdate_index()

    async def drop_index(self) -> None:
        await self.inner.drop_index()

    async def check_index(self) -> IndexCheck:
        return await self.inner.check_index()

    async def read_unembedded(
        self, key: Key, model: str, limit: int
    ) -> tuple[UnembeddedMessage, ...]:
        return await self.inner.read_unembedded(key, model, limit)

    async def write_vectors(
        self,
        key: Key,
        read: Sequence[UnembeddedMessage],
        model: str,
        vectors: Sequence[bytes],
    ) -> int:
        return await self.inner.write_vectors(key, read, model, vectors)

    async def unembedded_threads(
        self, model: str, active_before: float, after: ThreadPlace | None = None, limit: int = 100
    ) -> ThreadPage:
        return await self.inner.unembedded_threads(model, active_before, after, limit)

    async def read_vectors(
        self, key: Key, model: str, before: int | None = None, limit: int = 10_000
    ) -> VectorPage:
        return await self.inner.read_vectors(key, model, before, limit)

    async def read_vectors_at(
        self, key: Key, model: str, places: Sequence[tuple[str, int]]
    ) -> tuple[StoredVector, ...]:
        return await self.inner.read_vectors_at(key, model, places)

    async def generations(
        self, key: Key, before: int, limit: int | None = None
    ) -> tuple[Generation, ...]:
        return await self.inner.generations(key, before, limit)

    async def generation_summaries(self, key: Key, before: int) -> tuple[GenerationSummary, ...]:
        return await self.inner.generation_summaries(key, before)

    async def beginnings(self, key: Key) -> Mapping[int, Beginning]:
        return await self.inner.beginnings(key)

    async def due_threads(self, now: float, limit: int) -> tuple[Key, ...]:
        return await self.inner.due_threads(now, limit)

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
        return await self.inner.claim(now, limit, holder, seconds, callers=callers, skip=skip)

    async def set_due(self, key: Key, at: float | None, backlog: Backlog | None = None) -> bool:
        return await self.inner.set_due(key, at, backlog)

    async def lease(self, key: Key, holder: str, seconds: float) -> bool:
        return await self.inner.lease(key, holder, seconds)

    async def release(self, key: Key, holder: str) -> None:
        await self.inner.release(key, holder)

    async def threads(
        self,
        tenant: str | None,
        resource: str | None = None,
        cursor: Key | None = None,
        limit: int = 100,
    ) -> tuple[ThreadInfo, ...]:
        return await self.inner.threads(tenant, resource, cursor, limit)

    async def find_threads(
        self, selection: ThreadSelection, after: ThreadPlace | None = None, limit: int = 100
    ) -> ThreadPage:
        return await self.inner.find_threads(selection, after, limit)

    async def idle_threads(
        self, before: float, after: ThreadPlace | None = None, limit: int = 100
    ) -> tuple[IdleThread, ...]:
        return await self.inner.idle_threads(before, after, limit)

    async def resources(
        self, tenant: str, after: str | None = None, limit: int = 100
    ) -> tuple[ResourceInfo, ...]:
        return await self.inner.resources(tenant, after, limit)

    async def resource(self, tenant: str, resource: str) -> ResourceInfo | None:
        return await self.inner.resource(tenant, resource)

    async def mark_delivered(self, replies: Mapping[Key, int]) -> None:
        await self.inner.mark_delivered(replies)

    async def delivered_reply(self, key: Key) -> int | None:
        return await self.inner.delivered_reply(key)

    async def note_forgotten(self, key: Key, at: float) -> None:
        await self.inner.note_forgotten(key, at)

    async def forgotten_at(self, key: Key) -> float | None:
        return await self.inner.forgotten_at(key)

    async def forget(
        self,
        key: Key,
        expected_version: int | None = None,
        event: Event | None = None,
        *,
        defers_erasure: bool = False,
    ) -> ForgetResult:
        return await self.inner.forget(key, expected_version, event, defers_erasure=defers_erasure)

    async def forget_batch(
        self,
        tenant: str,
        resource: str | None = None,
        describe_forgotten: Callable[[Key], Event] | None = None,
        active_before: float | None = None,
    ) -> ForgetBatch:
        return await self.inner.forget_batch(tenant, resource, describe_forgotten, active_before)

    async def observations(
        self, key: Key, after: int, *, limit: int
    ) -> tuple[StoredObservation, ...]:
        return await self.inner.observations(key, after, limit=limit)

    async def generation_entries(
        self, key: Key, after: int, *, limit: int
    ) -> tuple[GenerationEntries, ...]:
        return await self.inner.generation_entries(key, after, limit=limit)

    async def drop_generations(
        self, key: Key, expected_version: int, numbers: Sequence[int]
    ) -> int:
        return await self.inner.drop_generations(key, expected_version, numbers)

    async def add_audit(self, records: Sequence[AuditRecord]) -> None:
        await self.inner.add_audit(records)

    async def audit(
        self, tenant: str | None, before: int | None = None, limit: int = 100
    ) -> tuple[AuditRecord, ...]:
        return await self.inner.audit(tenant, before, limit)

    async def add_receipt(self, receipt: StoredReceipt) -> None:
        await self.inner.add_receipt(receipt)

    async def receipt(self, receipt_id: str, now: float) -> StoredReceipt | None:
        return await self.inner.receipt(receipt_id, now)

    async def commit_erasing(
        self,
        change: Change,
        erasures: Sequence[NoteErasure],
        wakeup: ResourceWakeup | None = None,
    ) -> tuple[Memory, ForgetResult]:
        return await self.inner.commit_erasing(change, erasures, wakeup)

    async def wait_erased(self) -> None:
        await self.inner.wait_erased()

    async def move_tenant(
        self, old: str, new: str, fingerprint: Callable[[bytes], bytes | None]
    ) -> MoveResult:
        return await self.inner.move_tenant(old, new, fingerprint)

    async def restore(
        self, thread: WholeThread, over: int = 0, *, keeps_row: bool = False
    ) -> Memory:
        return await self.inner.restore(thread, over, keeps_row=keeps_row)

    async def adopt_secret(self, secret: bytes) -> bool:
        return await self.inner.adopt_secret(secret)

    async def secret(self, proposed: bytes | None = None) -> bytes:
        return await self.inner.secret(proposed)

    async def add_to_ledger(self, batch: LedgerBatch) -> None:
        await self.inner.add_to_ledger(batch)

    async def prune_records(self, now: float) -> None:
        await self.inner.prune_records(now)

    async def prune_ledger(self, now: float) -> None:
        await self.inner.prune_ledger(now)

    async def sum_ledger(self, query: LedgerQuery) -> tuple[LedgerSum, ...]:
        return await self.inner.sum_ledger(query)

    async def park(self, key: Key, parked: bool) -> bool:
        return await self.inner.park(key, parked)

    async def totals(self, now: float) -> StoreTotals:
        return await self.inner.totals(now)

    async def clock(self) -> float:
        return await self.inner.clock()

    async def describe(self) -> Promise:
        return await self.inner.describe()

    async def check_schema(self) -> None:
        await self.inner.check_schema()

    async def ping(self) -> None:
        await self.inner.ping()

    async def close(self) -> None:
        await self.inner.close()
