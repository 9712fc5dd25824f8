"""A store in memory that keeps the whole contract, slow and faulty as a seed says: interleavings happen at its awaits."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from om_proxy.errors import Conflict, StorageError
from om_proxy.memory import forgetting, identity, lifecycle, rekeying, shared
from om_proxy.memory.gathering import Waiting
from om_proxy.memory.model import (
    HUB,
    RECENT_MARKS,
    Key,
    Memory,
    Message,
    Observation,
    Reflection,
    Trouble,
    hub_of,
    weight,
)
from om_proxy.storage.base import Change, Forgotten, Moved, Outline, Stir, ThreadInfo
from om_proxy.storage.difference import Difference, Standing, difference


@dataclass(slots=True)
class Row:
    message: Message
    live: bool
    parent: int


@dataclass
class Thread:
    """One thread's rows. `head` holds what is no row: its messages and observations are never read from it."""

    number: int
    created_at: float
    head: Memory
    messages: dict[int, Row] = field(default_factory=dict)
    observations: dict[int, tuple[Observation, Standing]] = field(default_factory=dict)
    entries: dict[int, dict[int, int]] = field(default_factory=dict)  # generation → position → observation
    reflection: Reflection | None = None
    delivered: int | None = None

    def live(self) -> list[Message]:
        return [row.message for _, row in sorted(self.messages.items()) if row.live]

    def log(self, generation: int) -> tuple[Observation, ...]:
        return tuple(self.observations[id_][0] for _, id_ in sorted(self.entries.get(generation, {}).items()))

    def generations(self, before: int) -> tuple[tuple[int, tuple[Observation, ...]], ...]:
        numbers = sorted((n for n in self.entries if n < before), reverse=True)
        return tuple((n, log) for n in numbers if (log := self.log(n)))

    def memory(self, recent: int = RECENT_MARKS) -> Memory:
        """As it is loaded, with `recent` marks before coverage."""
        head, live = self.head, self.live()
        chunks = [o for o, standing in self.observations.values() if standing == "chunk"]
        return replace(
            head,
            recent=tuple(m.mark for m in live if m.seq <= head.coverage)[-recent:],
            tail=tuple(m for m in live if m.seq > head.coverage),
            log=self.log(head.generation),
            chunks=tuple(sorted(chunks, key=lambda o: (o.last, o.id))),
            reflection=self.reflection,
        )

    def write(self, after: Memory, d: Difference) -> None:
        self.head = after
        if d.supersede:
            here = {m.seq for m in after.tail}
            for seq, row in self.messages.items():
                if seq > after.coverage and seq not in here:
                    row.live = False
        for placed in d.messages:
            self.messages[placed.message.seq] = Row(placed.message, True, placed.parent)
        for placed in d.aside:
            self.messages[placed.message.seq] = Row(placed.message, False, placed.parent)
        self._write_log(after, d)
        if d.reflection:
            self.reflection = after.reflection

    def _write_log(self, after: Memory, d: Difference) -> None:
        for observation, standing in d.observations:
            self.observations[observation.id] = (observation, standing)
        entries = self.entries.setdefault(after.generation, {})
        if d.shortened:
            for position in [p for p in entries if p >= len(after.log)]:
                del entries[position]
        entries.update(d.entries)
        held = {id_ for log in self.entries.values() for id_ in log.values()}
        for id_ in d.dropped:
            if id_ in held:
                self.observations[id_] = (self.observations[id_][0], "log")
            else:
                self.observations.pop(id_, None)


Watch = Callable[[Memory, Memory, "Thread"], None]  # what was stored, what is stored now, and its rows
WatchTogether = Callable[[Memory, Memory], None]  # a thread and its hub, as both are stored now


@dataclass
class Disk:
    """What is durable: the same for every store opened on it, whoever crashes."""

    clock: Callable[[], float]
    secret: bytes = field(default_factory=lambda: os.urandom(32))
    threads: dict[Key, Thread] = field(default_factory=dict)
    leases: dict[Key, tuple[str, float]] = field(default_factory=dict)
    versions: int = 0
    watch: Watch | None = None  # is told of every commit, in the moment it happens
    watch_together: WatchTogether | None = None  # is told of every commit of a thread with its hub, once both are there
    checks_version: bool = True  # False: the planted bug
    recent: int = RECENT_MARKS  # marks before coverage that a memory is loaded with

    def next_version(self) -> int:
        self.versions += 1
        return self.versions

    def memory(self, key: Key) -> Memory:
        thread = self.threads.get(key)
        return thread.memory(self.recent) if thread else Memory(key=key)

    def commit(self, before: Memory, after: Memory, aside: Sequence[Message]) -> Memory:
        changes = difference(before, after, aside)
        self._must_stand(before)
        thread = self.threads.get(after.key)
        stood = self.memory(after.key) if self.watch else before
        version = self.next_version()
        if thread is None:
            thread = self.threads[after.key] = Thread(version, self.clock(), after)
        committed = replace(after, version=version, born=thread.number, recent=after.recent[-self.recent :])
        thread.write(committed, changes)
        if self.watch:
            self.watch(stood, committed, thread)
        return committed

    def _must_stand(self, before: Memory) -> None:
        thread = self.threads.get(before.key)
        if self.checks_version and (thread.head.version if thread else 0) != before.version:
            raise Conflict(f"version {before.version} is no longer the stored one")

    def commit_shared(self, thread: Change, hub: Change | None, stir: Stir | None) -> tuple[Memory, Memory | None]:
        for change in (thread, hub) if hub else (thread,):
            self._must_stand(change.before)
        differs = hub and (hub.after != hub.before or not hub.before.version)
        log = self.commit(*hub) if hub and differs else hub.after if hub else None
        committed = self.commit(*thread)
        where = self.threads.get(hub_of(thread.after.key))
        if where and stir and self._stirs(where.head, stir):
            where.head = replace(where.head, due=stir.now)
        if where and self.watch_together:
            self.watch_together(committed, where.memory())
        return committed, log

    def _stirs(self, hub: Memory, stir: Stir) -> bool:
        if hub.due is not None and hub.due <= stir.now:
            return False
        waiting = [waiting_of(t.memory()) for t in self.sharing(hub.key)]
        able = [w for w in waiting if hub.due is None or w.may_be_asked_about(stir.now)]
        return sum(w.fresh for w in able) >= stir.tokens

    def sharing(self, hub: Key) -> list[Thread]:
        """The threads that share this hub's log, the longest left alone first."""
        found = [t for key, t in self.threads.items() if key[:2] == hub[:2] and t.head.scope == "resource"]
        return sorted(found, key=lambda t: (t.head.turn_at is not None, t.head.turn_at, t.number))

    def forget(self, key: Key) -> Forgotten:
        self.leases.pop(key, None)
        thread, where = self.threads.pop(key, None), hub_of(key)
        removed = counted(thread) if thread else Forgotten()
        if hub := self.threads.get(where):
            if self.sharing(where):
                return _sum(removed, self._take_out(hub, identity.label(self.secret, key)))
            return _sum(removed, counted(self.threads.pop(where)))
        return removed

    def _take_out(self, hub: Thread, label: str) -> Forgotten:
        before = hub.memory()
        logs = [log for _, log in ((before.generation, before.log), *hub.generations(before.generation))]
        held = [[o.id for o in log if forgetting.mentions(o, label)] for log in logs]
        older = hub.generations(before.generation)
        after = forgetting.without(before, older, label)
        self._write(hub, before, after)
        gone = {o.id for log in (before.log, *(log for _, log in older)) for o in log if forgetting.mentions(o, label)}
        for entries in hub.entries.values():
            for position in [p for p, id_ in entries.items() if id_ in gone]:
                del entries[position]
        for id_ in gone:
            hub.observations.pop(id_, None)
        for thread in self.sharing(hub.head.key):
            name = identity.label(self.secret, thread.head.key)
            memory = replace(thread.memory(), others="")
            if forgetting.fallen(before.log, after.log, name):
                hub.head = replace(hub.head, due=self.clock())
                reach = shared.reach(after.log, name)
                covered, tail = (
                    [m for m in thread.live() if m.seq <= reach],
                    [m for m in thread.live() if m.seq > reach],
                )
                marks, counted = [m.mark for m in covered][-RECENT_MARKS:], (len(covered), weight(covered))
                memory = forgetting.uncovered(memory, after, name, marks, tail, counted)
            if memory != thread.memory():
                self._write(thread, thread.memory(), memory)
        ids = {id_ for log in held for id_ in log}
        return Forgotten(0, 0, len(ids), sum(map(bool, held)), int(before.reflection is not None))

    def move_tenant(self, old: str, new: str, fingerprint: Callable[[bytes], bytes | None]) -> Moved:
        moving = {key: thread for key, thread in self.threads.items() if key.tenant == old}
        if in_the_way := sum(key._replace(tenant=new) in self.threads for key in moving):
            return Moved(in_the_way=in_the_way)
        labels = {self._label(key): self._label(key._replace(tenant=new)) for key in moving if key.thread != HUB}
        shared: dict[str, rekeying.Chains] = {}
        for key, thread in sorted(moving.items(), key=lambda one: one[0].thread == HUB):
            self._move(thread, key._replace(tenant=new), fingerprint, labels, shared)
        self.leases = {key: lease for key, lease in self.leases.items() if key.tenant != old}
        return Moved(sum(key.thread != HUB for key in moving), sum(len(t.messages) for t in moving.values()))

    def _label(self, key: Key) -> str:
        return identity.label(self.secret, key)

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
        rows = [rekeying.Row(seq, r.parent, r.live, items[seq].fp, r.message.chain, moved[seq]) for seq, r in kept]
        by_seq = rekeying.chains_by_seq(rows)
        chains = shared[self._label(head.key)] = rekeying.chains_by_value(rows, by_seq)
        for seq, row in kept:
            row.message = replace(row.message, item=replace(items[seq], fp=moved[seq]), chain=by_seq[seq])
        for id_, (entry, standing) in thread.observations.items():
            thread.observations[id_] = rekeying.moved_entry(entry, chains, labels, shared), standing
        if made := thread.reflection:
            texts = [text and rekeying.relabelled(text, labels) for text in (made.text, made.task, made.suggestion)]
            thread.reflection = replace(made, text=texts[0] or "", task=texts[1], suggestion=texts[2])
        views = tuple(rekeying.moved_view(view, rows, chains) for view in head.views)
        others, version = rekeying.relabelled(head.others, labels), self.next_version()
        self.threads[key] = self.threads.pop(head.key)
        thread.head = replace(head, key=key, version=version, views=views, others=others)

    def _write(self, thread: Thread, before: Memory, after: Memory) -> None:
        thread.write(replace(after, version=self.next_version()), difference(before, after))

    def leased(self, key: Key) -> bool:
        return key in self.leases and self.leases[key][1] > self.clock()


async def _at_once() -> None:
    await asyncio.sleep(0)


class SimulatedStore:
    """One process's connection to the disk. `pause` is awaited before and after everything it does, and may raise StorageError."""

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
        found = Outline(live, tuple((row.message.mark, row.parent) for _, row in rows if not row.live))
        await self._return()
        return found

    async def messages(
        self, key: Key, after: int, through: int | None = None, limit: int | None = None
    ) -> tuple[Message, ...]:
        rows = sorted((await self._rows(key)).items())
        found = [r.message for seq, r in rows if r.live and seq > after and (through is None or seq <= through)]
        await self._return()
        return tuple(found[:limit])

    async def by_seq(self, key: Key, seqs: Sequence[int]) -> tuple[Message, ...]:
        rows = await self._rows(key)
        found = tuple(rows[seq].message for seq in sorted(set(seqs)) if seq in rows)
        await self._return()
        return found

    async def generations(self, key: Key, before: int) -> tuple[tuple[int, tuple[Observation, ...]], ...]:
        thread = (await self._reach()).threads.get(key)
        found = thread.generations(before) if thread else ()
        await self._return()
        return found

    async def _rows(self, key: Key) -> dict[int, Row]:
        thread = (await self._reach()).threads.get(key)
        return thread.messages if thread else {}

    # ── writing ──

    async def commit(self, before: Memory, after: Memory, aside: Sequence[Message] = ()) -> Memory:
        committed = (await self._reach()).commit(before, after, aside)
        await self._return()
        return committed

    async def commit_shared(
        self, thread: Change, hub: Change | None, stir: Stir | None = None
    ) -> tuple[Memory, Memory | None]:
        committed = (await self._reach()).commit_shared(thread, hub, stir)
        await self._return()
        return committed

    async def forget(self, key: Key) -> Forgotten:
        forgotten = (await self._reach()).forget(key)
        await self._return()
        return forgotten

    async def move_tenant(self, old: str, new: str, fingerprint: Callable[[bytes], bytes | None]) -> Moved:
        moved = (await self._reach()).move_tenant(old, new, fingerprint)
        await self._return()
        return moved

    async def wait_erased(self) -> None:
        await self._reach()

    async def park(self, key: Key, parked: bool) -> bool:
        disk = await self._reach()
        thread = disk.threads.get(key)
        if thread:
            trouble = replace(thread.head.trouble, parked=True) if parked else Trouble()
            due = None if parked else disk.clock()
            thread.head = replace(thread.head, version=disk.next_version(), trouble=trouble, due=due)
        await self._return()
        return thread is not None

    # ── work ──

    async def waiting(self, hub: Key) -> tuple[Waiting, ...]:
        memories = [t.memory() for t in (await self._reach()).sharing(hub)]
        await self._return()
        return tuple(waiting_of(m) for m in memories if m.pending)

    async def elsewhere(self, key: Key, threads: int, messages: int) -> tuple[tuple[Key, tuple[Message, ...]], ...]:
        others = [t.memory() for t in (await self._reach()).sharing(hub_of(key)) if t.head.key != key]
        await self._return()
        latest = [m for m in reversed(others) if m.tail][:threads]
        return tuple((m.key, m.tail[-messages:]) for m in latest)

    async def mark_delivered(self, replies: Mapping[Key, int]) -> None:
        disk = await self._reach()
        for key, reply_seq in replies.items():
            if thread := disk.threads.get(key):
                thread.delivered = max(reply_seq, thread.delivered or 0)
        await self._return()

    async def delivered(self, key: Key) -> int | None:
        thread = (await self._reach()).threads.get(key)
        await self._return()
        return thread.delivered if thread else None

    async def look_again(self, key: Key, at: float | None) -> None:
        if thread := (await self._reach()).threads.get(key):
            thread.head = replace(thread.head, due=at)
        await self._return()

    async def due(self, now: float, limit: int) -> tuple[Key, ...]:
        found = tuple(_in_turns(await self._reach(), now))[:limit]
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
        self, tenant: str | None, resource: str | None = None, cursor: Key | None = None, limit: int = 100
    ) -> tuple[ThreadInfo, ...]:
        listed = sorted((await self._reach()).threads.items())
        found = [
            _info(thread)
            for key, thread in listed
            if key.thread != HUB
            if tenant in (None, key.tenant) and resource in (None, key.resource) and (cursor is None or key > cursor)
        ]
        await self._return()
        return tuple(found[:limit])

    async def secret(self, proposed: bytes | None = None) -> bytes:
        return (await self._reach()).secret

    async def ping(self) -> None:
        await self._reach()

    async def close(self) -> None:
        self._closed = True


def counted(thread: Thread) -> Forgotten:
    held = sum(map(bool, thread.entries.values()))
    reflections = int(thread.reflection is not None)
    return Forgotten(
        int(thread.head.key.thread != HUB), len(thread.messages), len(thread.observations), held, reflections
    )


def _sum(one: Forgotten, other: Forgotten) -> Forgotten:
    counts = [a + b for a, b in zip(one[:5], other[:5], strict=True)]
    return Forgotten(*counts)


def _in_turns(disk: Disk, now: float) -> Iterator[Key]:
    due = [t for t in disk.threads.values() if t.head.due is not None and t.head.due <= now]
    due = [t for t in due if not disk.leased(t.head.key)]
    due.sort(key=lambda t: (t.head.due, t.number))
    turns: dict[str, int] = {}
    placed = []
    for thread in due:
        tenant = thread.head.key.tenant
        turns[tenant] = turns.get(tenant, 0) + 1
        placed.append((turns[tenant], thread.head.due, thread.number, thread.head.key))
    return (key for *_, key in sorted(placed))


def waiting_of(memory: Memory) -> Waiting:
    return Waiting(
        key=memory.key,
        turn_at=memory.turn_at or 0.0,
        pending=memory.pending,
        fresh=lifecycle.fresh(memory),
        chunked=sum(o.source_tokens for o in lifecycle.settling(memory)),
        trouble=memory.trouble,
    )


def _info(thread: Thread) -> ThreadInfo:
    head = thread.head
    live = sum(row.live for row in thread.messages.values())
    born, failures = thread.created_at, head.trouble.failures
    trouble = head.trouble
    told = (head.turn_at, live, head.generation, head.title, failures, trouble.parked, trouble.cause)
    return ThreadInfo(head.key, born, *told)
