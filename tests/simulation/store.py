"""A store in memory that keeps the whole contract, slow and faulty as a seed says: interleavings
happen at its awaits."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

from om_proxy.common.errors import Conflict, ForgottenName, StorageError
from om_proxy.memory.events.parts import Event
from om_proxy.memory.lifecycle import branch, log_sharing, rekeying
from om_proxy.memory.lifecycle.batches import ThreadBacklog
from om_proxy.memory.lifecycle.observable import answered_chunks, unobserved_tokens
from om_proxy.memory.model import (
    RECENT_MARKS,
    RESOURCE_THREAD,
    Beginning,
    Generation,
    Key,
    Memory,
    Message,
    Observation,
    Reflection,
    resource_key,
    sum_framed_tokens,
)
from om_proxy.memory.recall.kept_look_ups import quotes_thread
from om_proxy.memory.rounds import LookedUp
from om_proxy.settings.identity.keyed_hashes import label_thread
from om_proxy.storage.contract.status import Promise, StoreTotals
from om_proxy.storage.shared import forgetting
from om_proxy.storage.shared.difference import Difference, compute_difference, find_new_quotes
from om_proxy.storage.shared.newest_passages import SearchedWithoutIndex
from om_proxy.storage.values.changes import (
    Change,
    ForgetBatch,
    MoveResult,
    NoteErasure,
    ResourceWakeup,
)
from om_proxy.storage.values.listing import (
    MAX_COUNTED_THREADS,
    IdleThread,
    ResourceInfo,
    ThreadInfo,
    ThreadPage,
    ThreadPlace,
    ThreadSelection,
    find_place,
    is_selected,
)
from om_proxy.storage.values.records import (
    AUDIT_KEPT_S,
    LEDGER_KEPT_DAYS,
    MAX_EVENT_AGE_S,
    RECEIPTS_KEPT_S,
    SECONDS_PER_DAY,
    AuditRecord,
    EventPage,
    ForgetResult,
    LedgerBatch,
    LedgerQuery,
    LedgerSum,
    StoredReceipt,
    WebhookState,
)
from om_proxy.storage.values.stored_rows import (
    Backlog,
    GenerationEntries,
    GenerationSummary,
    MessageState,
    ObservationState,
    Outline,
    StoredMessage,
    StoredObservation,
    summarize_generation,
)
from tests.simulation.events import EventLog
from tests.simulation.ledger import DayLedger

BATCH_THREADS = 3


@dataclass(slots=True)
class Row:
    message: Message
    live: bool
    parent: int
    interrupted: bool = False  # and never live since

    @property
    def stored(self) -> StoredMessage:
        not_live: MessageState = "interrupted" if self.interrupted else "superseded"
        return StoredMessage(self.message, self.parent, "live" if self.live else not_live)


@dataclass
class Thread:
    """One thread's rows. `head` holds what is no row: its messages and observations are never read
    from it."""

    number: int
    created_at: float
    head: Memory
    messages: dict[int, Row] = field(default_factory=dict)
    observations: dict[int, tuple[Observation, ObservationState]] = field(default_factory=dict)
    entries: dict[int, dict[int, int]] = field(
        default_factory=dict
    )  # generation → position → observation
    beginnings: dict[int, Beginning] = field(default_factory=dict)  # by generation
    reflection: Reflection | None = None
    delivered: int | None = None

    def live(self) -> list[Message]:
        return [row.message for _, row in sorted(self.messages.items()) if row.live]

    def log(self, generation: int) -> tuple[Observation, ...]:
        return tuple(
            self.observations[id_][0] for _, id_ in sorted(self.entries.get(generation, {}).items())
        )

    def generations(self, before: int) -> tuple[Generation, ...]:
        numbers = sorted((n for n in self.entries if n < before), reverse=True)
        return tuple(Generation(n, log) for n in numbers if (log := self.log(n)))

    def memory(self, recent: int = RECENT_MARKS) -> Memory:
        """As it is loaded, with `recent` marks before coverage."""
        head, live = self.head, self.live()
        chunks = [o for o, standing in self.observations.values() if standing == "chunk"]
        return replace(
            head,
            recent=tuple(m.mark for m in live if m.seq <= head.coverage)[-recent:],
            tail=tuple(m for m in live if m.seq > head.coverage),
            log=replace(
                head.log, entries=self.log(head.log.generation), reflection=self.reflection
            ),
            chunks=tuple(sorted(chunks, key=lambda o: (o.last, o.id))),
        )

    def drop_look_ups(self, is_dropped: Callable[[LookedUp], bool] = lambda _: True) -> bool:
        """Drop look-ups, all or some. Return whether it kept any of them."""
        quoting = [
            row
            for row in self.messages.values()
            if row.message.look_ups and is_dropped(row.message.look_ups)
        ]
        for row in quoting:
            row.message = replace(row.message, look_ups=None)
        return bool(quoting)

    def write(self, after: Memory, d: Difference) -> None:
        self.head = after
        if d.may_supersede:
            here = {m.seq for m in after.tail}
            for seq, row in self.messages.items():
                if seq > after.coverage and seq not in here:
                    row.live = False
        for placed in d.messages:
            self.messages[placed.message.seq] = Row(placed.message, True, placed.parent)
        for placed in d.interrupted:
            self.messages[placed.message.seq] = Row(placed.message, False, placed.parent, True)
        self._write_log(after, d)
        if d.has_new_reflection:
            self.reflection = after.log.reflection
        if d.began:
            self.beginnings[after.log.generation] = d.began

    def _write_log(self, after: Memory, d: Difference) -> None:
        for observation, standing in d.observations:
            self.observations[observation.id] = (observation, standing)
        entries = self.entries.setdefault(after.log.generation, {})
        if d.is_shortened:
            for position in [p for p in entries if p >= len(after.log.entries)]:
                del entries[position]
        entries.update(d.entries)
        held = {id_ for log in self.entries.values() for id_ in log.values()}
        for id_ in d.dropped_chunks:
            if id_ in held:
                self.observations[id_] = (self.observations[id_][0], "log")
            else:
                self.observations.pop(id_, None)


Watch = Callable[
    [Memory, Memory, "Thread"], None
]  # what was stored, what is stored now, and its rows
# a thread and its shared log, as both are stored now
WatchTogether = Callable[[Memory, Memory], None]


@dataclass
class Disk:
    """What is durable: the same for every store opened on it, whoever crashes."""

    clock: Callable[[], float]
    secret: bytes = field(default_factory=lambda: os.urandom(32))
    threads: dict[Key, Thread] = field(default_factory=dict)
    audit: list[AuditRecord] = field(default_factory=list)
    receipts: dict[str, StoredReceipt] = field(default_factory=dict)
    leases: dict[Key, tuple[str, float]] = field(default_factory=dict)
    versions: int = 0
    forgotten: dict[Key, float] = field(default_factory=dict)  # names, by when they were
    events: EventLog = field(default_factory=EventLog)
    watch: Watch | None = None  # is told of every commit, in the moment it happens
    # is told of every commit of a thread with its shared log, once both are there
    watch_together: WatchTogether | None = None
    checks_version: bool = True  # False: the planted bug
    recent: int = RECENT_MARKS  # marks before coverage that a memory is loaded with
    ledger: DayLedger = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = DayLedger(
            lambda *owner: any((key.tenant, key.resource) == owner for key in self.threads)
        )

    def next_version(self) -> int:
        self.versions += 1
        return self.versions

    def memory(self, key: Key) -> Memory:
        thread = self.threads.get(key)
        return thread.memory(self.recent) if thread else Memory(key=key)

    def commit(
        self,
        before: Memory,
        after: Memory,
        interrupted: Sequence[Message],
        events: Sequence[Event] = (),
        began_at: float | None = None,
    ) -> Memory:
        changes = compute_difference(before, after, interrupted)
        self._must_stand(before, began_at)
        self._must_quote_nothing_gone(before, changes)
        thread = self.threads.get(after.key)
        stood = self.memory(after.key) if self.watch else before
        version = self.next_version()
        if thread is None:
            thread = self.threads[after.key] = Thread(version, self.clock(), after)
        committed = replace(
            after, version=version, row_id=thread.number, recent=after.recent[-self.recent :]
        )
        thread.write(committed, changes)
        self.events.add(after.key, events)
        if self.watch:
            self.watch(stood, committed, thread)
        return committed

    def forgotten_at(self, key: Key) -> float:
        names = (key, resource_key(key), Key(key.tenant, "", RESOURCE_THREAD))
        return max(self.forgotten.get(name, 0.0) for name in names)

    def _must_stand(self, before: Memory, began_at: float | None = None) -> None:
        thread = self.threads.get(before.key)
        if self.checks_version and (thread.head.version if thread else 0) != before.version:
            raise Conflict(f"version {before.version} is no longer the stored one")
        if thread is None and began_at is not None and self.forgotten_at(before.key) > began_at:
            raise ForgottenName("it was forgotten after the turn began")

    def _must_quote_nothing_gone(self, before: Memory, changes: Difference) -> None:
        quotes = find_new_quotes(before, changes)
        if quotes and self.events.tells_forgetting(before.key.tenant, quotes):
            raise Conflict("a thread that it quotes was forgotten meanwhile")

    def commit_shared(
        self, thread: Change, shared_log: Change | None, wakeup: ResourceWakeup | None
    ) -> tuple[Memory, Memory | None]:
        self._must_quote_nothing_gone(thread.before, compute_difference(*thread[:3]))
        for change in (thread, shared_log) if shared_log else (thread,):
            self._must_stand(change.before, change.began_at)
        differs = shared_log and (
            shared_log.after != shared_log.before or not shared_log.before.version
        )
        log = (
            self.commit(*shared_log)
            if shared_log and differs
            else shared_log.after
            if shared_log
            else None
        )
        committed = self.commit(*thread)
        where = self.threads.get(resource_key(thread.after.key))
        if where and wakeup and self._wakes(where.head, wakeup):
            where.head = replace(where.head, due_at=wakeup.now)
        if where and self.watch_together:
            self.watch_together(committed, where.memory())
        return committed, log

    def _wakes(self, shared_log: Memory, wakeup: ResourceWakeup) -> bool:
        if shared_log.due_at is not None and shared_log.due_at <= wakeup.now:
            return False
        waiting = [waiting_of(t.memory()) for t in self.sharing(shared_log.key)]
        able = [w for w in waiting if shared_log.due_at is None or w.can_be_observed(wakeup.now)]
        return sum(w.unobserved_tokens for w in able) >= wakeup.tokens

    def sharing(self, shared_log: Key) -> list[Thread]:
        """The threads that share this shared log, the longest left alone first."""
        found = [
            t
            for key, t in self.threads.items()
            if key[:2] == shared_log[:2] and t.head.scope == "resource"
        ]
        return sorted(found, key=lambda t: (t.head.turn_at is not None, t.head.turn_at, t.number))

    def commit_erasing(
        self, change: Change, erasures: Sequence[NoteErasure], wakeup: ResourceWakeup | None
    ) -> tuple[Memory, ForgetResult]:
        self._must_stand(change.before)
        for erasure in erasures:
            found = self.threads.get(erasure.key)
            if found is None or found.head.version != erasure.version:
                raise Conflict("the notes have changed since")
        for erasure in erasures:
            self._erase_notes(erasure)
            if erasure.key != change.before.key:
                erased = self.threads[erasure.key]
                erased.head = replace(erased.head, version=self.next_version())
        committed, _ = self.commit_shared(change, None, wakeup)
        return committed, ForgetResult(observations=sum(len(e.blanks) for e in erasures))

    def _erase_notes(self, erasure: NoteErasure) -> None:
        key = erasure.key
        for gone in [key, *(t.head.key for t in self.threads.values())]:
            if gone == key or (key.thread == RESOURCE_THREAD and gone[:2] == key[:2]):
                self.events.erase(gone)
        for blank in erasure.blanks:
            self.threads[key].observations[blank.id] = (blank, "log")
        for other in self.sharing(key) if key.thread == RESOURCE_THREAD else ():
            if other.head.other_threads_text:
                other.head = replace(other.head, other_threads_text="", version=self.next_version())

    def forget(self, key: Key, event: Event | None = None) -> ForgetResult:
        is_stored, event_count = key in self.threads, len(self.events.kept)
        removed = self._forget(key)
        label = label_thread(self.secret, key)
        self.drop_look_ups(key, lambda look_ups: quotes_thread(look_ups, label))
        removed = removed._replace(events=event_count - len(self.events.kept))
        if event and is_stored:
            self.events.add(Key(key.tenant, "", ""), (event,))
        return removed

    def drop_look_ups(
        self, of: Key, is_dropped: Callable[[LookedUp], bool] = lambda _: True
    ) -> None:
        """Drop look-ups that threads of the same resource keep, all or some."""
        for key, thread in self.threads.items():
            if key[:2] == of[:2] and thread.drop_look_ups(is_dropped):
                thread.head = replace(thread.head, version=self.next_version())

    def _forget(self, key: Key) -> ForgetResult:
        self.events.drop(key)
        self.leases.pop(key, None)
        thread, where = self.threads.pop(key, None), resource_key(key)
        removed = counted(thread) if thread else ForgetResult()
        if shared_log := self.threads.get(where):
            if self.sharing(where):
                self.events.take_out(where, key.thread)
                return _sum(removed, self._take_out(shared_log, label_thread(self.secret, key)))
            self.events.drop(where)
            return _sum(removed, counted(self.threads.pop(where)))
        return removed

    def _take_out(self, shared_log: Thread, label: str) -> ForgetResult:
        before = shared_log.memory()
        logs = [
            log
            for _, log in (
                (before.log.generation, before.log.entries),
                *shared_log.generations(before.log.generation),
            )
        ]
        held = [[o.id for o in log if branch.mentions_thread(o, label)] for log in logs]
        older = shared_log.generations(before.log.generation)
        after = branch.remove_thread(before, older, label, self.clock())
        self._write(shared_log, before, after)
        gone = {
            o.id
            for log in (before.log.entries, *(log for _, log in older))
            for o in log
            if branch.mentions_thread(o, label)
        }
        for entries in shared_log.entries.values():
            for position in [p for p, id_ in entries.items() if id_ in gone]:
                del entries[position]
        for id_ in gone:
            shared_log.observations.pop(id_, None)
        for thread in self.sharing(shared_log.head.key):
            name = label_thread(self.secret, thread.head.key)
            memory = replace(thread.memory(), other_threads_text="")
            if branch.covers_less(before.log.entries, after.log.entries, name):
                shared_log.head = replace(shared_log.head, due_at=self.clock())
                reach = log_sharing.find_thread_coverage(after.log.entries, name)
                covered, tail = (
                    [m for m in thread.live() if m.seq <= reach],
                    [m for m in thread.live() if m.seq > reach],
                )
                marks, counted = (
                    [m.mark for m in covered][-RECENT_MARKS:],
                    (len(covered), sum_framed_tokens(covered)),
                )
                memory = branch.uncover_thread(memory, after, name, marks, tail, counted)
            if memory != thread.memory():
                self._write(thread, thread.memory(), memory)
        ids = {id_ for log in held for id_ in log}
        return ForgetResult(
            0, 0, len(ids), sum(map(bool, held)), int(before.log.reflection is not None)
        )

    def move_tenant(
        self, old: str, new: str, fingerprint: Callable[[bytes, str], bytes | None]
    ) -> MoveResult:
        moving = {key: thread for key, thread in self.threads.items() if key.tenant == old}
        if name_conflicts := sum(key._replace(tenant=new) in self.threads for key in moving):
            return MoveResult(name_conflicts=name_conflicts)
        labels = {
            self._label(key): self._label(key._replace(tenant=new))
            for key in moving
            if key.thread != RESOURCE_THREAD
        }
        shared: dict[str, rekeying.Chains] = {}
        for key, thread in sorted(moving.items(), key=lambda one: one[0].thread == RESOURCE_THREAD):
            self._move(thread, key._replace(tenant=new), fingerprint, labels, shared)
        self.leases = {key: lease for key, lease in self.leases.items() if key.tenant != old}
        self.events.move(Key(old, "", ""), Key(new, "", ""), {})
        labels |= {
            self._label(log): self._label(log._replace(tenant=new))
            for log in (resource_key(key) for key in moving)
        }
        self.audit = [_move_record(record, old, new, labels) for record in self.audit]
        self.receipts = {
            id_: _move_record(receipt, old, new, labels) for id_, receipt in self.receipts.items()
        }
        return MoveResult(
            sum(key.thread != RESOURCE_THREAD for key in moving),
            sum(len(t.messages) for t in moving.values()),
        )

    def _label(self, key: Key) -> str:
        return label_thread(self.secret, key)

    def _move(
        self,
        thread: Thread,
        key: Key,
        fingerprint: Callable[[bytes, str], bytes | None],
        labels: dict[str, str],
        shared: dict[str, rekeying.Chains],
    ) -> None:
        head, kept = thread.head, sorted(thread.messages.items())
        items = {seq: row.message.item for seq, row in kept}
        moved = {seq: fingerprint(item.raw, item.api) or item.fp for seq, item in items.items()}
        rows = [
            rekeying.Row(seq, r.parent, r.live, items[seq].fp, r.message.chain, moved[seq])
            for seq, r in kept
        ]
        thread.drop_look_ups()  # they name threads by labels of the old tenant
        by_seq = rekeying.chains_by_seq(rows)
        chains = shared[self._label(head.key)] = rekeying.chains_by_value(rows, by_seq)
        for seq, row in kept:
            row.message = replace(
                row.message, item=replace(items[seq], fp=moved[seq]), chain=by_seq[seq]
            )
        for id_, (entry, standing) in thread.observations.items():
            thread.observations[id_] = rekeying.rekey_entry(entry, chains, labels, shared), standing
        if made := thread.reflection:
            texts = [
                text and rekeying.replace_labels(text, labels)
                for text in (made.text, made.task, made.suggestion)
            ]
            thread.reflection = replace(
                made, text=texts[0] or "", task=texts[1], suggestion=texts[2]
            )
        views = tuple(rekeying.rekey_view(view, rows, chains) for view in head.views)
        others, version = (
            rekeying.replace_labels(head.other_threads_text, labels),
            self.next_version(),
        )
        self.threads[key] = self.threads.pop(head.key)
        self.events.move(head.key, key, labels | {self._label(head.key): self._label(key)})
        thread.head = replace(
            head, key=key, version=version, views=views, other_threads_text=others
        )

    def _write(self, thread: Thread, before: Memory, after: Memory) -> None:
        thread.write(replace(after, version=self.next_version()), compute_difference(before, after))

    def leased(self, key: Key) -> bool:
        return key in self.leases and self.leases[key][1] > self.clock()


async def _at_once() -> None:
    await asyncio.sleep(0)


class SimulatedStore(SearchedWithoutIndex):
    """One process's connection to the disk. `pause` is awaited before and after everything it does,
    and may raise StorageError."""

    def __init__(self, disk: Disk, pause: Callable[[], Awaitable[None]] = _at_once) -> None:
        self._disk = disk
        self._pause = pause
        self._closed = False
        self.dead = False  # its process crashed: it does nothing any more

    async def _reach(self) -> Disk:
        self._usable()
        await self._pause()
        self._usable()
        return self._disk

    async def _return(self) -> None:
        await self._pause()
        self._usable()

    def _usable(self) -> None:
        if self.dead:
            raise asyncio.CancelledError
        if self._closed:
            raise StorageError("the store is closed")

    # ── reading ──

    async def load(self, key: Key) -> Memory:
        found = (await self._reach()).memory(key)
        await self._return()
        return found

    async def version(self, key: Key) -> int:
        thread = (await self._reach()).threads.get(key)
        found = thread.head.version if thread else 0
        await self._return()
        return found

    async def refresh(self, held: Memory) -> Memory:
        newest = _refresh(await self._reach(), held)
        await self._return()
        return newest

    async def refresh_shared(self, thread: Memory, shared_log: Memory) -> tuple[Memory, Memory]:
        disk = await self._reach()
        newest = _refresh(disk, thread), _refresh(disk, shared_log)
        await self._return()
        return newest

    async def outline(self, key: Key) -> Outline:
        rows = sorted((await self._rows(key)).items())
        live = tuple(row.message.mark for _, row in rows if row.live)
        found = Outline(
            live, tuple((row.message.mark, row.parent) for _, row in rows if not row.live)
        )
        await self._return()
        return found

    async def messages(
        self, key: Key, after: int, through: int | None = None, limit: int | None = None
    ) -> tuple[Message, ...]:
        rows = sorted((await self._rows(key)).items())
        found = [
            r.message
            for seq, r in rows
            if r.live and seq > after and (through is None or seq <= through)
        ]
        await self._return()
        return tuple(found[:limit])

    async def stored_messages(
        self, key: Key, after: int, through: int | None = None, *, limit: int
    ) -> tuple[StoredMessage, ...]:
        rows = sorted((await self._rows(key)).items())
        end = rows[-1][0] if rows and through is None else through or 0
        found = [row.stored for seq, row in rows if after < seq <= end]
        await self._return()
        return tuple(found[:limit])

    async def messages_by_seq(self, key: Key, seqs: Sequence[int]) -> tuple[Message, ...]:
        rows = await self._rows(key)
        found = tuple(rows[seq].message for seq in sorted(set(seqs)) if seq in rows)
        await self._return()
        return found

    async def generations(
        self, key: Key, before: int, limit: int | None = None
    ) -> tuple[Generation, ...]:
        thread = (await self._reach()).threads.get(key)
        found = thread.generations(before)[:limit] if thread else ()
        await self._return()
        return found

    async def generation_summaries(self, key: Key, before: int) -> tuple[GenerationSummary, ...]:
        return tuple(map(summarize_generation, await self.generations(key, before)))

    async def beginnings(self, key: Key) -> Mapping[int, Beginning]:
        thread = (await self._reach()).threads.get(key)
        found = dict(thread.beginnings) if thread else {}
        await self._return()
        return found

    async def _rows(self, key: Key) -> dict[int, Row]:
        thread = (await self._reach()).threads.get(key)
        return thread.messages if thread else {}

    # ── writing ──

    async def commit(
        self,
        before: Memory,
        after: Memory,
        interrupted: Sequence[Message] = (),
        events: Sequence[Event] = (),
        began_at: float | None = None,
    ) -> Memory:
        committed = (await self._reach()).commit(before, after, interrupted, events, began_at)
        await self._return()
        return committed

    async def commit_shared(
        self, thread: Change, shared_log: Change | None, wakeup: ResourceWakeup | None = None
    ) -> tuple[Memory, Memory | None]:
        committed = (await self._reach()).commit_shared(thread, shared_log, wakeup)
        await self._return()
        return committed

    async def add_events(self, key: Key, events: Sequence[Event]) -> None:
        disk = await self._reach()
        if key in disk.threads:
            disk.events.add(key, events)
        await self._return()

    async def events(
        self, tenant: str | None, keys: Sequence[Key] | None, after: int | None, limit: int
    ) -> EventPage:
        page = (await self._reach()).events.read(tenant, keys, after, limit)
        await self._return()
        return page

    async def event_position(self, before: int = 0) -> int:
        return max(0, (await self._reach()).events.newest - before)

    async def webhook_state(self, name: str) -> WebhookState | None:
        return (await self._reach()).events.hooks.get(name)

    async def set_webhook_state(self, name: str, state: WebhookState) -> None:
        events = (await self._reach()).events
        known = events.hooks.get(name)
        if known is None or state.cursor >= known.cursor or known.cursor > events.newest:
            events.hooks[name] = state
        await self._return()

    async def prune(self, now: float) -> None:
        disk = await self._reach()
        disk.events.prune(now)
        oldest_at, newest_at = now - MAX_EVENT_AGE_S, now + forgetting.MAX_NAME_AHEAD_S
        kept = {name: at for name, at in disk.forgotten.items() if oldest_at <= at <= newest_at}
        disk.forgotten = kept
        disk.audit[:] = [record for record in disk.audit if record.at >= now - AUDIT_KEPT_S]
        for receipt in list(disk.receipts.values()):
            if receipt.at < now - RECEIPTS_KEPT_S:
                del disk.receipts[receipt.id]
        disk.ledger.prune(int(now // SECONDS_PER_DAY) - LEDGER_KEPT_DAYS)
        await self._return()

    async def note_forgotten(self, key: Key, at: float) -> None:
        disk = await self._reach()
        disk.forgotten[key] = max(at, disk.forgotten.pop(key, at))
        for name in sorted(disk.forgotten, key=disk.forgotten.__getitem__)[
            : -forgetting.MAX_FORGOTTEN_NAMES
        ]:
            del disk.forgotten[name]
        await self._return()

    async def forgotten_at(self, key: Key) -> float | None:
        at = (await self._reach()).forgotten_at(key)
        await self._return()
        return at or None

    async def forget(
        self,
        key: Key,
        expected_version: int | None = None,
        event: Event | None = None,
        *,
        defers_erasure: bool = False,
    ) -> ForgetResult:
        disk = await self._reach()
        thread = disk.threads.get(key)
        if thread and expected_version not in (None, thread.head.version):
            raise Conflict(f"version {expected_version} is no longer the stored one")
        forgotten = disk.forget(key, event)
        disk.ledger.rename(lambda line: line)
        await self._return()
        return forgotten

    async def forget_batch(
        self,
        tenant: str,
        resource: str | None = None,
        describe_forgotten: Callable[[Key], Event] | None = None,
        active_before: float | None = None,
    ) -> ForgetBatch:
        disk = await self._reach()
        keys = sorted(
            key
            for key in {*disk.threads, *disk.leases}
            if key.tenant == tenant and resource in (None, key.resource)
        )
        for info in _list_infos(disk, ThreadSelection(tenant, resource)):
            if active_before is not None and info.active_at >= active_before:
                raise Conflict("a thread of the resource had a turn since")
        batch = [key for key in keys if key.thread and key in disk.threads][:BATCH_THREADS]
        is_last = not any(key.thread and key in disk.threads for key in keys if key not in batch)
        result, event_count = ForgetResult(), len(disk.events.kept)
        for key in keys if is_last else batch:
            disk.leases.pop(key, None)
            disk.events.drop(key)
            if thread := disk.threads.pop(key, None):
                result = result.add(counted(thread))
        disk.ledger.rename(lambda line: line)
        for gone in batch:
            disk.drop_look_ups(gone)
        for key, thread in disk.threads.items():
            if any(key[:2] == gone[:2] for gone in batch) and thread.head.other_threads_text:
                version = disk.next_version()
                thread.head = replace(thread.head, other_threads_text="", version=version)
        result = result._replace(events=event_count - len(disk.events.kept))
        if describe_forgotten:
            disk.events.add(Key(tenant, "", ""), [describe_forgotten(key) for key in batch])
        await self._return()
        return ForgetBatch(result, tuple(batch), is_last)

    async def observations(
        self, key: Key, after: int, *, limit: int
    ) -> tuple[StoredObservation, ...]:
        thread = (await self._reach()).threads.get(key)
        found = sorted(thread.observations.items()) if thread else []
        await self._return()
        return tuple(StoredObservation(*row) for id_, row in found if id_ > after)[:limit]

    async def generation_entries(
        self, key: Key, after: int, *, limit: int
    ) -> tuple[GenerationEntries, ...]:
        thread = (await self._reach()).threads.get(key)
        found = sorted(thread.entries.items()) if thread else []
        await self._return()
        return tuple(
            GenerationEntries(number, tuple(id_ for _, id_ in sorted(entries.items())))
            for number, entries in found
            if number > after and entries
        )[:limit]

    async def add_audit(self, records: Sequence[AuditRecord]) -> None:
        disk = await self._reach()
        for record in records:
            disk.audit.append(record._replace(id=len(disk.audit) + 1))
        await self._return()

    async def audit(
        self, tenant: str | None, before: int | None = None, limit: int = 100
    ) -> tuple[AuditRecord, ...]:
        disk = await self._reach()
        found = [
            record
            for record in reversed(disk.audit)
            if tenant in (None, record.tenant) and (before is None or record.id < before)
        ]
        await self._return()
        return tuple(found[:limit])

    async def add_receipt(self, receipt: StoredReceipt) -> None:
        (await self._reach()).receipts[receipt.id] = receipt
        await self._return()

    async def receipt(self, receipt_id: str, now: float) -> StoredReceipt | None:
        found = (await self._reach()).receipts.get(receipt_id)
        await self._return()
        if found is None or found.at < now - RECEIPTS_KEPT_S:
            return None
        return found._replace(result=found.result._replace(database="gone", log="gone"))

    async def move_tenant(
        self, old: str, new: str, fingerprint: Callable[[bytes, str], bytes | None]
    ) -> MoveResult:
        disk = await self._reach()
        moved = disk.move_tenant(old, new, fingerprint)
        if not moved.name_conflicts:
            disk.ledger.rename(
                lambda line: line._replace(tenant=new) if line.tenant == old else line
            )
        await self._return()
        return moved

    async def commit_erasing(
        self,
        change: Change,
        erasures: Sequence[NoteErasure],
        wakeup: ResourceWakeup | None = None,
    ) -> tuple[Memory, ForgetResult]:
        written = (await self._reach()).commit_erasing(change, erasures, wakeup)
        await self._return()
        return written

    async def drop_generations(
        self, key: Key, expected_version: int, numbers: Sequence[int]
    ) -> int:
        disk = await self._reach()
        thread = disk.threads.get(key)
        if thread is None or thread.head.version != expected_version:
            raise Conflict("it has changed since")
        current = thread.head.log.generation
        gone = [number for number in numbers if number in thread.entries and number < current]
        for number in gone:
            del thread.entries[number]
            thread.beginnings.pop(number, None)
        held = {id_ for ids in thread.entries.values() for id_ in ids.values()}
        for id_, (_, state) in list(thread.observations.items()):
            if state == "log" and id_ not in held:
                del thread.observations[id_]
        await self._return()
        return len(gone)

    async def add_to_ledger(self, batch: LedgerBatch) -> None:
        (await self._reach()).ledger.add(batch)
        await self._return()

    async def sum_ledger(self, query: LedgerQuery) -> tuple[LedgerSum, ...]:
        found = (await self._reach()).ledger.sum_up(query)
        await self._return()
        return found

    async def wait_erased(self) -> None:
        await self._reach()

    # ── work ──

    async def resource_backlog(self, shared_log: Key) -> tuple[ThreadBacklog, ...]:
        memories = [t.memory() for t in (await self._reach()).sharing(shared_log)]
        await self._return()
        return tuple(waiting_of(m) for m in memories if m.pending_tokens)

    async def other_thread_tails(
        self, key: Key, threads: int, messages: int
    ) -> tuple[tuple[Key, tuple[Message, ...]], ...]:
        others = [
            t.memory()
            for t in (await self._reach()).sharing(resource_key(key))
            if t.head.key != key
        ]
        await self._return()
        latest = [m for m in reversed(others) if m.tail][:threads]
        return tuple((m.key, m.tail[-messages:]) for m in latest)

    async def mark_delivered(self, replies: Mapping[Key, int]) -> None:
        disk = await self._reach()
        for key, reply_seq in replies.items():
            if thread := disk.threads.get(key):
                thread.delivered = max(reply_seq, thread.delivered or 0)
        await self._return()

    async def delivered_reply(self, key: Key) -> int | None:
        thread = (await self._reach()).threads.get(key)
        await self._return()
        return thread.delivered if thread else None

    async def set_due(self, key: Key, at: float | None, backlog: Backlog | None = None) -> bool:
        disk = await self._reach()
        memories = [t.memory() for t in disk.sharing(key)]
        newest = tuple(waiting_of(m) for m in memories if m.pending_tokens)
        stands = backlog is None or newest == backlog
        if stands and (thread := disk.threads.get(key)):
            thread.head = replace(thread.head, due_at=at)
        await self._return()
        return stands

    async def due_threads(self, now: float, limit: int) -> tuple[Key, ...]:
        found = tuple(_in_turns(await self._reach(), now))[:limit]
        await self._return()
        return found

    async def totals(self, now: float) -> StoreTotals:
        disk = await self._reach()
        memories = [thread.memory() for thread in disk.threads.values()]
        entries = [
            entry
            for memory in memories
            if memory.scope == "thread" or memory.key.thread == RESOURCE_THREAD
            for entry in memory.log.entries
        ]
        reflected = sum(entry.tokens for entry in entries if entry.kind == "reflection")
        found = StoreTotals(
            sum(memory.pending_tokens for memory in memories),
            sum(entry.tokens for entry in entries) - reflected,
            reflected,
            len(list(_in_turns(disk, now))),
            sum(memory.failures.suspended for memory in memories),
        )
        await self._return()
        return found

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
        disk = await self._reach()
        free = [key for key in _in_turns(disk, now, callers=callers) if key not in skip]
        found = tuple(free[:limit])
        for key in found:
            disk.leases[key] = (holder, disk.clock() + seconds)
        await self._return()
        return found

    async def lease(self, key: Key, holder: str, seconds: float) -> bool:
        disk = await self._reach()
        taken = not disk.leased(key) or disk.leases[key][0] == holder
        if taken:
            disk.leases[key] = (holder, disk.clock() + seconds)
        await self._return()
        return taken

    async def release(self, key: Key, holder: str) -> None:
        disk = await self._reach()
        if key in disk.leases and disk.leases[key][0] == holder:
            del disk.leases[key]
        await self._return()

    # ── the store itself ──

    async def threads(
        self,
        tenant: str | None,
        resource: str | None = None,
        cursor: Key | None = None,
        limit: int = 100,
    ) -> tuple[ThreadInfo, ...]:
        listed = _list_infos(await self._reach(), ThreadSelection(tenant, resource))
        await self._return()
        return tuple([info for info in listed if cursor is None or info.key > cursor][:limit])

    async def find_threads(
        self, selection: ThreadSelection, after: ThreadPlace | None = None, limit: int = 100
    ) -> ThreadPage:
        listed = _list_infos(await self._reach(), selection)
        found = [info for info in listed if after is None or _is_behind(info, after, selection)]
        await self._return()
        page = tuple(found[:limit])
        return ThreadPage(page, find_place(page[-1]) if page and len(found) > limit else None)

    async def idle_threads(
        self, before: float, after: ThreadPlace | None = None, limit: int = 100
    ) -> tuple[IdleThread, ...]:
        disk = await self._reach()
        listed = [
            _idle_thread(disk, info)
            for info in _list_infos(disk, ThreadSelection(None))
            if info.active_at < before
        ]
        await self._return()
        places = (0.0, 0) if after is None else (after.active_at, after.row_id)
        ordered = sorted(listed, key=lambda idle: (idle.active_at, idle.row_id))
        return tuple([idle for idle in ordered if (idle.active_at, idle.row_id) > places][:limit])

    async def resources(
        self, tenant: str, after: str | None = None, limit: int = 100
    ) -> tuple[ResourceInfo, ...]:
        disk = await self._reach()
        names = {key.resource for key in disk.threads if key.tenant == tenant}
        listed = sorted(name for name in names if after is None or name > after)
        await self._return()
        return tuple(_resource_info(disk, tenant, name) for name in listed[:limit])

    async def resource(self, tenant: str, resource: str) -> ResourceInfo | None:
        disk = await self._reach()
        await self._return()
        found = _resource_info(disk, tenant, resource)
        return found if found.threads or found.shared_log else None

    async def secret(self, proposed: bytes | None = None) -> bytes:
        return (await self._reach()).secret

    async def clock(self) -> float:
        now = (await self._reach()).clock()
        await self._return()
        return now

    async def describe(self) -> Promise:
        return Promise("simulated", "fsync", "now", 0, has_index=False)

    async def check_schema(self) -> None:
        await self._reach()

    async def ping(self) -> None:
        await self._reach()

    async def close(self) -> None:
        self._closed = True


def counted(thread: Thread) -> ForgetResult:
    held = sum(map(bool, thread.entries.values()))
    reflections = int(thread.reflection is not None)
    return ForgetResult(
        int(thread.head.key.thread != RESOURCE_THREAD),
        len(thread.messages),
        len(thread.observations),
        held,
        reflections,
    )


def _sum(one: ForgetResult, other: ForgetResult) -> ForgetResult:
    counts = [a + b for a, b in zip(one[:5], other[:5], strict=True)]
    return ForgetResult(*counts)


def _refresh(disk: Disk, held: Memory) -> Memory:
    newest = disk.memory(held.key)
    return held if newest.version == held.version else newest


def _in_turns(disk: Disk, now: float, *, callers: bool = True) -> Iterator[Key]:
    due = [t for t in disk.threads.values() if t.head.due_at is not None and t.head.due_at <= now]
    due = [t for t in due if not disk.leased(t.head.key)]
    due = [t for t in due if callers or not t.head.needs_caller]
    due.sort(key=lambda t: (t.head.due_at, t.number))
    turns: dict[str, int] = {}
    placed = []
    for thread in due:
        tenant = thread.head.key.tenant
        turns[tenant] = turns.get(tenant, 0) + 1
        placed.append((turns[tenant], thread.head.due_at, thread.number, thread.head.key))
    return (key for *_, key in sorted(placed))


def waiting_of(memory: Memory) -> ThreadBacklog:
    return ThreadBacklog(
        key=memory.key,
        turn_at=memory.turn_at or 0.0,
        pending_tokens=memory.pending_tokens,
        unobserved_tokens=unobserved_tokens(memory),
        chunked_tokens=sum(o.source_tokens for o in answered_chunks(memory)),
        failures=memory.failures,
    )


def _info(disk: Disk, thread: Thread) -> ThreadInfo:
    head, memory = thread.head, thread.memory()
    shared_log = disk.threads.get(resource_key(head.key))
    read_log = shared_log if shared_log and head.scope == "resource" else thread
    return ThreadInfo(
        head.key,
        thread.created_at,
        head.turn_at,
        len(thread.live()),
        head.log.generation,
        head.title,
        head.failures.count,
        head.failures.suspended,
        head.failures.cause,
        thread.number,
        head.coverage > 0,
        memory.pending_tokens,
        read_log.memory().log.tokens,
        head.model,
        head.overrides,
        head.ledger,
    )


def _list_infos(disk: Disk, selection: ThreadSelection) -> list[ThreadInfo]:
    infos = [_info(disk, t) for key, t in disk.threads.items() if key.thread != RESOURCE_THREAD]
    found = [info for info in infos if is_selected(info, selection)]
    found.sort(key=lambda info: info.key)
    if selection.order == "recent":
        found.sort(key=lambda info: (info.active_at, info.row_id), reverse=True)
    return found


def _idle_thread(disk: Disk, info: ThreadInfo) -> IdleThread:
    head = disk.threads[info.key].head
    shares_log = head.scope == "resource"
    is_leased = disk.leased(info.key) or (shares_log and disk.leased(resource_key(info.key)))
    return IdleThread(info.key, head.version, info.active_at, info.row_id, shares_log, is_leased)


def _is_behind(info: ThreadInfo, place: ThreadPlace, selection: ThreadSelection) -> bool:
    if selection.order == "name":
        return info.key > place.key
    return (info.active_at, info.row_id) < (place.active_at, place.row_id)


def _resource_info(disk: Disk, tenant: str, resource: str) -> ResourceInfo:
    keys = [key for key in disk.threads if key[:2] == (tenant, resource) and key.thread]
    shared_log = disk.threads.get(Key(tenant, resource, RESOURCE_THREAD))
    return ResourceInfo(
        tenant,
        resource,
        min(len(keys), MAX_COUNTED_THREADS),
        len(keys) > MAX_COUNTED_THREADS,
        _info(disk, shared_log) if shared_log else None,
    )


_Record = TypeVar("_Record", AuditRecord, StoredReceipt)


def _move_record(record: _Record, old: str, new: str, labels: Mapping[str, str]) -> _Record:
    if record.tenant != old:
        return record
    return record._replace(tenant=new, label=labels.get(record.label, record.label))
