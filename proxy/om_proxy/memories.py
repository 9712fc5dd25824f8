"""The memories in use: loaded once, cached while their version stands, and written nowhere but here."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from sys import getsizeof
from typing import Protocol, TypeVar
from weakref import WeakValueDictionary

import structlog
from msgspec.structs import replace

from om_proxy.errors import Conflict, OmError
from om_proxy.memory import shared
from om_proxy.memory.model import HUB, Key, Memory, Message, Observation, Reflection, Scope, hub_of
from om_proxy.memory.stretch import Stretch
from om_proxy.off_loop import MANY_MESSAGES, off_loop
from om_proxy.storage.base import Change, Forgotten, Stir, Store

log = structlog.get_logger("memory")
_T = TypeVar("_T")

CACHE_BYTES = 64 * 2**20  # as CPython holds them: a default thread takes 0.2 MB, and 0.9 MB with a full log
FORGETS_REMEMBERED = 10_000  # threads; only a turn of which nothing was stored yet depends on it
ATTEMPTS = 20  # commits of one change before giving up: each lost one means that another turn of the thread won


async def persistently(attempt: Callable[[], Awaitable[_T]]) -> _T:
    """The attempt's result, tried again on what has been committed meanwhile each time somebody came first. Raises Conflict in the end."""
    for _ in range(ATTEMPTS):
        try:
            return await attempt()
        except Conflict:
            continue
    raise Conflict(
        f"gave up after {ATTEMPTS} attempts: the thread is written to faster than this could be done; try again"
    )


class Spool(Protocol):
    """Where what cannot be stored waits (storage/spool.py)."""

    def is_degraded(self, key: Key) -> bool: ...

    async def wait_until_stored(self, key: Key) -> None: ...


class Memories:
    """`load` and `update`: the only way to a thread's memory.

    `due` says when the background should look at a memory (lifecycle.due_at with the thread's limits): it is asked at every
    commit, so that work that is due is found again after any restart. `stir` says the same of a resource whose threads share a log.
    `label` names a thread in such a log (shared.py); None where no thread shares one.
    """

    def __init__(
        self,
        store: Store,
        due: Callable[[Memory], float | None],
        cache_bytes: int = CACHE_BYTES,
        *,
        label: Callable[[Key], str] = str,
        stir: Callable[[Memory], Stir | None] = lambda _: None,
        spool: Spool | None = None,
    ) -> None:
        self.store = store
        self._spool = spool
        self.label = label
        self._due = due
        self._stir = stir
        self._cache_bytes = cache_bytes
        self._held = 0
        self.on_forget: list[Callable[[Key], None]] = []  # told which thread's traces in this process must go, too
        self.forgets = 0  # calls of `forget` so far
        self._forgotten: OrderedDict[Key, int] = OrderedDict()  # the number of each thread's last one
        self._cached: OrderedDict[Key, tuple[Memory, int]] = OrderedDict()
        # by hub: thread, hub, and the two together, of cached threads; all go with the hub, whose log they would hold for ever
        self._joint: dict[Key, dict[Key, tuple[Memory, Memory, Memory]]] = {}
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()

    def is_degraded(self, key: Key) -> bool:
        """Whether the store fails, so that what is said in this thread waits in memory."""
        return self._spool is not None and self._spool.is_degraded(key)

    async def wait_until_stored(self, key: Key) -> None:
        """Until nothing of this thread waits, or it is no use waiting."""
        if self._spool is not None:
            await self._spool.wait_until_stored(key)

    def lock(self, key: Key) -> asyncio.Lock:
        """Orders this process's commits on a thread. Correctness is the version's; the lock spares lost attempts."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock

    async def load(self, key: Key, scope: Scope | None = None) -> Memory:
        """The memory as committed; from the cache if no other process has committed since. With the resource's log in place if it
        shares that one; `scope` says so of a thread that is new."""
        memory = await self._load(key)
        if not _shares(memory, scope):
            return memory
        for _ in range(ATTEMPTS):
            joint = self._together(memory, await self._load(hub_of(key)))
            if shared.is_whole(joint):
                return joint
            memory = await self._load(key)  # both were changed between the two reads
        raise Conflict(f"gave up after {ATTEMPTS} attempts: the log is written to faster than it can be read")

    async def _load(self, key: Key) -> Memory:
        cached = self._cached.get(key)
        if cached and await self.store.version(key) == cached[0].version:
            if key in self._cached:  # a commit may have dropped it while we asked
                self._cached.move_to_end(key)
            return cached[0]
        memory = _summed(await self.store.load(key))
        self._keep(memory)
        return memory

    def _together(self, thread: Memory, hub: Memory) -> Memory:
        joint = self._joint.get(hub.key, {}).get(thread.key)
        if joint and joint[0] is thread and joint[1] is hub:
            return joint[2]
        memory = shared.together(thread, hub, self.label(thread.key))
        if thread.key in self._cached and hub.key in self._cached:
            self._joint.setdefault(hub.key, {})[thread.key] = (thread, hub, memory)
        return memory

    def stands(self, memory: Memory) -> bool:
        """Whether this process knows of no commit since."""
        cached = self._cached.get(memory.key)
        if memory.hub is None:
            return cached is not None and cached[0] is memory
        hub = self._cached.get(hub_of(memory.key))
        joint = self._joint.get(hub_of(memory.key), {}).get(memory.key)
        if cached is None or hub is None or joint is None:
            return False
        return joint[0] is cached[0] and joint[1] is hub[0] and joint[2] is memory

    async def latest(self, key: Key, scope: Scope | None = None) -> Memory:
        """The memory as this process knows it, without asking the store: for what ends in a commit, which asks."""
        memory = await self._latest(key)
        if not _shares(memory, scope):
            return memory
        joint = self._together(memory, await self._latest(hub_of(key)))
        return joint if shared.is_whole(joint) else await self.load(key, scope)

    async def _latest(self, key: Key) -> Memory:
        cached = self._cached.get(key)
        return cached[0] if cached else await self._load(key)

    async def update(
        self, key: Key, change: Callable[[Memory], Memory], scope: Scope | None = None, *, born: int = 0
    ) -> Memory:
        """Apply a pure change to the memory as it stands; computed again whenever someone committed first. `scope`: see `load`.

        `born`: of the memory that the change was made from. Where that one has been forgotten since, nothing is written.
        """
        async with self.lock(key):
            return await persistently(partial(self._update, key, change, scope, born))

    async def _update(self, key: Key, change: Callable[[Memory], Memory], scope: Scope | None, born: int) -> Memory:
        before = await self.latest(key, scope)
        if is_forgotten(before, born):
            self.tell_forgotten(key)
            return before
        after = change(before)
        return before if after == before else await self.commit(before, after)

    async def commit(self, before: Memory, after: Memory, aside: Sequence[Message] = ()) -> Memory:
        """One attempt; raises Conflict. What is cached of the thread is forgotten first, so a failure leaves nothing stale."""
        if after.hub is not None and before.hub is not None:
            thread, hub = shared.apart(before)
            thread_after, hub_after = shared.apart(after)
            # what is told of other threads is from this hub: one of them may have been forgotten since
            matters = hub_after != hub or not hub.version or thread_after.others != thread.others
            return await self.commit_shared(
                Change(thread, thread_after, aside), Change(hub, hub_after) if matters else None
            )
        if after.key.thread == HUB:
            return await self.commit_shared(Change(before, after, aside), None)
        many = len(after.tail)
        due = self._due(after) if many <= MANY_MESSAGES else await off_loop(many, partial(self._due, after))
        self.drop(after.key)
        committed = _summed(await self.store.commit(before, replace(after, due=due), aside))
        self._keep(committed)
        return committed

    async def commit_shared(self, thread: Change, hub: Change | None) -> Memory:
        """One attempt at both, the thread and its resource's hub; raises Conflict. A hub alone stands in the thread's place."""
        thread, key = self._with_due(thread), thread.after.key
        self.drop(key)
        if hub:
            if hub.after != hub.before or not hub.before.version:
                # what its next work needs to know is the model of the thread that spoke last
                hub = self._with_due(hub._replace(after=replace(hub.after, model=thread.after.model)))
            self.drop(hub.after.key)
        written, log = await self.store.commit_shared(thread, hub, self._stir(thread.after))
        committed = _summed(written)
        self._keep(committed)
        if log:
            self._keep(log)
        return self._together(committed, log or await self._latest(hub_of(key))) if _shares(committed) else committed

    def _with_due(self, change: Change) -> Change:
        return change._replace(after=replace(change.after, due=self._due(change.after)))

    async def forget(self, key: Key) -> Forgotten:
        """Remove the thread, from what this process holds as well; other processes find it gone with their next look. A turn that is
        under way here stores nothing from now on, also if it is the thread's first."""
        self.forgets += 1
        self._forgotten[key] = self.forgets
        if len(self._forgotten) > FORGETS_REMEMBERED:
            self._forgotten.popitem(last=False)
        async with self.lock(key):
            try:
                forgotten = await self.store.forget(key) if await self.store.version(key) else Forgotten()
            except OmError:
                self._forgotten.pop(key, None)  # it stands, and so does what is under way
                raise
            for tell in self.on_forget:
                tell(key)
            for held in [held for held in self._cached if held[:2] == key[:2]]:  # others may have told of it
                self.drop(held)
            return forgotten

    def is_forgotten_since(self, memory: Memory, born: int, forgets: int) -> bool:
        """Whether a turn that began on the row `born`, when `forgets` stood at this number, is of a thread forgotten since."""
        return is_forgotten(memory, born) or self._forgotten.get(memory.key, 0) > forgets

    def tell_forgotten(self, key: Key) -> None:
        """Say in the log that work was dropped because its thread has been forgotten since it began."""
        log.info("memory.forgotten_meanwhile", thread=self.label(key))

    def drop(self, key: Key) -> None:
        self._forget_joint(key)
        if cached := self._cached.pop(key, None):
            self._held -= cached[1]

    def _keep(self, memory: Memory) -> None:
        cached = self._cached.get(memory.key)
        if cached and cached[0].version > memory.version > 0:
            return  # read before a commit that has come in between; one that waits in memory has a version below 0
        self.drop(memory.key)
        size = _size(memory)
        self._cached[memory.key] = (memory, size)
        self._held += size
        while self._held > self._cache_bytes and len(self._cached) > 1:
            key, (_, freed) = self._cached.popitem(last=False)
            self._forget_joint(key)
            self._held -= freed

    def _forget_joint(self, key: Key) -> None:
        if key.thread == HUB:
            self._joint.pop(key, None)
        elif threads := self._joint.get(hub_of(key)):
            threads.pop(key, None)


def is_forgotten(memory: Memory, born: int) -> bool:
    """Whether work that stood on the row `born` finds that row gone, or another in its place. Work that stood on nothing finds none."""
    return bool(born) and memory.born != born


def _shares(memory: Memory, scope: Scope | None = None) -> bool:
    if memory.key.thread == HUB:
        return False
    return memory.scope == "resource" or (memory.version == 0 and scope == "resource")


def _summed(memory: Memory) -> Memory:
    """With a tail that keeps its sums, for all turns until it changes."""
    return memory if isinstance(memory.tail, Stretch) else replace(memory, tail=Stretch(memory.tail))


def _size(memory: Memory) -> int:
    """Roughly the bytes it holds. The numbers are what CPython needs around a message, a mark, a view with its cells, and notes."""
    text = Stretch.of(memory.tail).text + 500 * len(memory.tail) + getsizeof(memory.others)
    notes = sum(_text(o) + 450 for o in memory.log + memory.chunks)
    views = sum(350 + 200 * len(view.cells) for view in memory.views)
    return (
        text + notes + views + (_text(memory.reflection) if memory.reflection else 0) + 320 * len(memory.recent) + 1_500
    )


def _text(notes: Observation | Reflection) -> int:
    """Bytes, not characters: where a line is marked with a 🔴, each character of the text takes four."""
    return getsizeof(notes.text) + getsizeof(notes.task) + getsizeof(notes.suggestion)
