"""A store in memory that keeps the whole contract, slow and faulty as a seed says: interleavings
happen at its awaits."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from om_proxy.errors import Conflict, StorageError
from om_proxy.identity.keyed_hashes import label_thread
from om_proxy.memory.lifecycle import log_sharing, rekeying, thread_removal
from om_proxy.memory.lifecycle.batches import ThreadBacklog
from om_proxy.memory.lifecycle.observable import answered_chunks, unobserved_tokens
from om_proxy.memory.model import (
    RECENT_MARKS,
    RESOURCE_THREAD,
    Failures,
    Generation,
    Key,
    Memory,
    Message,
    Observation,
    Reflection,
    resource_key,
    sum_framed_tokens,
)
from om_proxy.storage.base import (
    Change,
    ForgetResult,
    MoveResult,
    Outline,
    ResourceWakeup,
    ThreadInfo,
)
from om_proxy.storage.difference import Difference, ObservationState, compute_difference


@dataclass(slots=True)
class Row:
    message: Message
    live: bool
    parent: int


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
            self.messages[placed.message.seq] = Row(placed.message, False, placed.parent)
        self._write_log(after, d)
        if d.has_new_reflection:
            self.reflection = after.log.reflection

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
    leases: dict[Key, tuple[str, float]] = field(default_factory=dict)
    versions: int = 0
    watch: Watch | None = None  # is told of every commit, in the moment it happens
    # is told of every commit of a thread with its shared log, once both are there
    watch_together: WatchTogether | None = None
    checks_version: bool = True  # False: the planted bug
    recent: int = RECENT_MARKS  # marks before coverage that a memory is loaded with

    def next_version(self) -> int:
        self.versions += 1
        return self.versions

    def memory(self, key: Key) -> Memory:
        thread = self.threads.get(key)
        return thread.memory(self.recent) if thread else Memory(key=key)

    def commit(self, before: Memory, after: Memory, interrupted: Sequence[Message]) -> Memory:
        changes = compute_difference(before, after, interrupted)
        self._must_stand(before)
        thread = self.threads.get(after.key)
        stood = self.memory(after.key) if self.watch else before
        version = self.next_version()
        if thread is None:
            thread = self.threads[after.key] = Thread(version, self.clock(), after)
        committed = replace(
            after, version=version, row_id=thread.number, recent=after.recent[-self.recent :]
        )
        thread.write(committed, changes)
        if self.watch:
            self.watch(stood, committed, thread)
        return committed

    def _must_stand(self, before: Memory) -> None:
        thread = self.threads.get(before.key)
        if self.checks_version and (thread.head.version if thread else 0) != before.version:
            raise Conflict(f"version {before.version} is no longer the stored one")

    def commit_shared(
        self, thread: Change, shared_log: Change | None, wakeup: ResourceWakeup | None
    ) -> tuple[Memory, Memory | None]:
        for change in (thread, shared_log) if shared_log else (thread,):
            self._must_stand(change.before)
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

    def forget(self, key: Key) -> ForgetResult:
        self.leases.pop(key, None)
        thread, where = self.threads.pop(key, None), resource_key(key)
        removed = counted(thread) if thread else ForgetResult()
        if shared_log := self.threads.get(where):
            if self.sharing(where):
                return _sum(removed, self._take_out(shared_log, label_thread(self.secret, key)))
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
        held = [[o.id for o in log if thread_removal.mentions_thread(o, label)] for log in logs]
        older = shared_log.generations(before.log.generation)
        after = thread_removal.remove_thread(before, older, label)
        self._write(shared_log, before, after)
        gone = {
            o.id
            for log in (before.log.entries, *(log for _, log in older))
            for o in log
            if thread_removal.mentions_thread(o, label)
        }
        for entries in shared_log.entries.values():
            for position in [p for p, id_ in entries.items() if id_ in gone]:
                del entries[position]
        for id_ in gone:
            shared_log.observations.pop(id_, None)
        for thread in self.sharing(shared_log.head.key):
            name = label_thread(self.secret, thread.head.key)
            memory = replace(thread.memory(), other_threads_text="")
            if thread_removal.covers_less(before.log.entries, after.log.entries, name):
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
                memory = thread_removal.uncover_thread(memory, after, name, marks, tail, counted)
            if memory != thread.memory():
                self._write(thread, thread.memory(), memory)
        ids = {id_ for log in held for id_ in log}
        return ForgetResult(
            0, 0, len(ids), sum(map(bool, held)), int(before.log.reflection is not None)
        )

    def move_tenant(
        self, old: str, new: str, fingerprint: Callable[[bytes], bytes | None]
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
        fingerprint: Callable[[bytes], bytes | None],
        labels: dict[str, str],
        shared: dict[str, rekeying.Chains],
    ) -> None:
        head, kept = thread.head, sorted(thread.messages.items())
        items = {seq: row.message.item for seq, row in kept}
        moved = {seq: fingerprint(item.raw) or item.fp for seq, item in items.items()}
        rows = [
            rekeying.Row(seq, r.parent, r.live, items[seq].fp, r.message.chain, moved[seq])
            for seq, r in kept
        ]
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
        thread.head = replace(
            head, key=key, version=version, views=views, other_threads_text=others
        )

    def _write(self, thread: Thread, before: Memory, after: Memory) -> None:
        thread.write(replace(after, version=self.next_version()), compute_difference(before, after))

    def leased(self, key: Key) -> bool:
        return key in self.leases and self.leases[key][1] > self.clock()


async def _at_once() -> None:
    await asyncio.sleep(0)


class SimulatedStore:
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

    async def messages_by_seq(self, key: Key, seqs: Sequence[int]) -> tuple[Message, ...]:
        rows = await self._rows(key)
        found = tuple(rows[seq].message for seq in sorted(set(seqs)) if seq in rows)
        await self._return()
        return found

    async def generations(self, key: Key, before: int) -> tuple[Generation, ...]:
        thread = (await self._reach()).threads.get(key)
        found = thread.generations(before) if thread else ()
        await self._return()
        return found

    async def _rows(self, key: Key) -> dict[int, Row]:
        thread = (await self._reach()).threads.get(key)
        return thread.messages if thread else {}

    # ── writing ──

    async def commit(
        self, before: Memory, after: Memory, interrupted: Sequence[Message] = ()
    ) -> Memory:
        committed = (await self._reach()).commit(before, after, interrupted)
        await self._return()
        return committed

    async def commit_shared(
        self, thread: Change, shared_log: Change | None, wakeup: ResourceWakeup | None = None
    ) -> tuple[Memory, Memory | None]:
        committed = (await self._reach()).commit_shared(thread, shared_log, wakeup)
        await self._return()
        return committed

    async def forget(self, key: Key) -> ForgetResult:
        forgotten = (await self._reach()).forget(key)
        await self._return()
        return forgotten

    async def move_tenant(
        self, old: str, new: str, fingerprint: Callable[[bytes], bytes | None]
    ) -> MoveResult:
        moved = (await self._reach()).move_tenant(old, new, fingerprint)
        await self._return()
        return moved

    async def wait_erased(self) -> None:
        await self._reach()

    async def park(self, key: Key, parked: bool) -> bool:
        disk = await self._reach()
        thread = disk.threads.get(key)
        if thread:
            failures = replace(thread.head.failures, suspended=True) if parked else Failures()
            due = None if parked else disk.clock()
            thread.head = replace(
                thread.head, version=disk.next_version(), failures=failures, due_at=due
            )
        await self._return()
        return thread is not None

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

    async def set_due(self, key: Key, at: float | None) -> None:
        if thread := (await self._reach()).threads.get(key):
            thread.head = replace(thread.head, due_at=at)
        await self._return()

    async def due_threads(self, now: float, limit: int) -> tuple[Key, ...]:
        found = tuple(_in_turns(await self._reach(), now))[:limit]
        await self._return()
        return found

    async def claim(
        self, now: float, limit: int, holder: str, seconds: float, *, skip: Collection[Key] = ()
    ) -> tuple[Key, ...]:
        disk = await self._reach()
        found = tuple(key for key in _in_turns(disk, now) if key not in skip)[:limit]
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
        listed = sorted((await self._reach()).threads.items())
        found = [
            _info(thread)
            for key, thread in listed
            if key.thread != RESOURCE_THREAD
            if tenant in (None, key.tenant)
            and resource in (None, key.resource)
            and (cursor is None or key > cursor)
        ]
        await self._return()
        return tuple(found[:limit])

    async def secret(self, proposed: bytes | None = None) -> bytes:
        return (await self._reach()).secret

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


def _in_turns(disk: Disk, now: float) -> Iterator[Key]:
    due = [t for t in disk.threads.values() if t.head.due_at is not None and t.head.due_at <= now]
    due = [t for t in due if not disk.leased(t.head.key)]
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


def _info(thread: Thread) -> ThreadInfo:
    head = thread.head
    live = sum(row.live for row in thread.messages.values())
    row_id, failures = thread.created_at, head.failures
    told = (
        head.turn_at,
        live,
        head.log.generation,
        head.title,
        failures.count,
        failures.suspended,
        failures.cause,
    )
    return ThreadInfo(head.key, row_id, *told)
