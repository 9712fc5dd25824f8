"""Load, cache and write memories. A cached memory is valid as long as the store has its version. No
other module writes memories."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from sys import getsizeof
from typing import Protocol, TypeVar
from weakref import WeakValueDictionary

from msgspec.structs import replace

from om_proxy.bounded_cache import BoundedCache
from om_proxy.errors import Conflict, NotFound, OmError
from om_proxy.facts import Facts, ForgottenMeanwhile
from om_proxy.memory.lifecycle import log_sharing
from om_proxy.memory.message_list import MessageList
from om_proxy.memory.model import (
    RESOURCE_THREAD,
    Key,
    Memory,
    Message,
    Observation,
    Reflection,
    Scope,
    resource_key,
)
from om_proxy.off_loop import MANY_MESSAGES, run_off_loop
from om_proxy.policy import PolicyInForce
from om_proxy.storage.base import Change, ForgetResult, Store

_T = TypeVar("_T")

# As CPython objects: a thread with default settings takes 0.2 MB, and 0.9 MB with a full log.
DEFAULT_CACHE_BYTES = 64 * 2**20
# Threads; only a turn that has stored nothing yet depends on this.
MAX_REMEMBERED_FORGETS = 10_000
UNKNOWN_THREAD_MESSAGE = "there is no memory of this thread"
# A commit conflicts only if another turn of the thread came first.
MAX_COMMIT_ATTEMPTS = 20


async def retry_on_conflict(attempt: Callable[[], Awaitable[_T]]) -> _T:
    """Run the attempt, and again each time another commit came first. Return its result, or raise
    Conflict after the last attempt."""
    for _ in range(MAX_COMMIT_ATTEMPTS):
        try:
            return await attempt()
        except Conflict:
            continue
    raise Conflict(
        f"gave up after {MAX_COMMIT_ATTEMPTS} attempts: other changes to the thread always came first; try again"
    )


class Spool(Protocol):
    """The place for turns that wait to be stored (storage/spooling_store.py)."""

    def is_degraded(self, key: Key) -> bool: ...

    async def wait_until_stored(self, key: Key) -> None: ...


class Memories:
    """The threads' memories. Every read goes through `load`, every write through `update` or
    `commit`.

    Every commit asks the policy when the background should look at the memory, so that due work is
    found again after a restart. For threads that share a log, it also asks which number of
    unobserved tokens makes their resource due. `label` names a thread in such a log
    (memory/lifecycle/log_sharing.py).
    """

    def __init__(
        self,
        store: Store,
        policies: PolicyInForce,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        *,
        clock: Callable[[], float] = time.time,
        label: Callable[[Key], str] = str,
        facts: Facts | None = None,
        spool: Spool | None = None,
    ) -> None:
        self.store = store
        self._spool = spool
        self.label = label
        self.facts = facts or Facts()
        self._policies = policies
        self._clock = clock
        # called with a forgotten thread, to remove its traces in this process
        self.on_forget: list[Callable[[Key], None]] = []
        self.forget_count = 0  # calls of `forget` so far
        # by thread: `forget_count` at its last `forget`
        self._forgotten: BoundedCache[Key, int] = BoundedCache(max_items=MAX_REMEMBERED_FORGETS)
        self._cached: BoundedCache[Key, Memory] = BoundedCache(
            max_bytes=cache_bytes, min_items=1, on_evict=lambda key, _: self._forget_attached(key)
        )
        # by shared log, then by cached thread: the thread, the shared log, and the thread with the
        # log attached. They are dropped with the shared log, or they would hold its entries for ever.
        self._attached: dict[Key, dict[Key, tuple[Memory, Memory, Memory]]] = {}
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()

    def is_degraded(self, key: Key) -> bool:
        """Return whether the store fails, so that this thread's turns wait in memory."""
        return self._spool is not None and self._spool.is_degraded(key)

    async def wait_until_stored(self, key: Key) -> None:
        """Wait until nothing of this thread waits to be stored, or waiting is of no use."""
        if self._spool is not None:
            await self._spool.wait_until_stored(key)

    def lock(self, key: Key) -> asyncio.Lock:
        """Return the lock that orders this process's commits on a thread. The version keeps the
        commits correct; the lock only saves lost attempts."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock

    async def load(self, key: Key, scope: Scope | None = None) -> Memory:
        """Return the memory as committed, from the cache if no other process has committed since.

        A thread that shares its resource's log comes with that log. For a new thread, `scope` says
        whether it shares one.
        """
        memory = await self._load(key)
        if not _shares_log(memory, scope):
            return memory
        for _ in range(MAX_COMMIT_ATTEMPTS):
            attached = self._attach_log(memory, await self._load(resource_key(key)))
            if log_sharing.is_consistent(attached):
                return attached
            memory = await self._load(key)  # both were changed between the two reads
        raise Conflict(
            f"gave up after {MAX_COMMIT_ATTEMPTS} attempts: the shared log changed during every read"
        )

    async def load_known(self, key: Key) -> Memory:
        """Return the memory of a thread that has one. Raise NotFound for any other name, and for
        that of a shared log."""
        memory = await self.load(key) if key.thread else None
        if memory is None or not memory.version:
            raise NotFound(UNKNOWN_THREAD_MESSAGE)
        return memory

    async def _load(self, key: Key) -> Memory:
        cached = self._cached.get(key)
        if cached and await self.store.version(key) == cached.version:
            return cached
        memory = _with_cached_sums(await self.store.load(key))
        self._put(memory)
        return memory

    def _attach_log(self, thread: Memory, shared_log: Memory) -> Memory:
        attached = self._attached.get(shared_log.key, {}).get(thread.key)
        if attached and attached[0] is thread and attached[1] is shared_log:
            return attached[2]
        memory = log_sharing.attach_log(thread, shared_log, self.label(thread.key))
        if thread.key in self._cached and shared_log.key in self._cached:
            self._attached.setdefault(shared_log.key, {})[thread.key] = (thread, shared_log, memory)
        return memory

    def is_current(self, memory: Memory) -> bool:
        """Return whether this process knows of no later commit."""
        cached = self._cached.get(memory.key)
        if memory.shared_log_ref is None:
            return cached is not None and cached is memory
        shared_log = self._cached.get(resource_key(memory.key))
        attached = self._attached.get(resource_key(memory.key), {}).get(memory.key)
        if cached is None or shared_log is None or attached is None:
            return False
        return attached[0] is cached and attached[1] is shared_log and attached[2] is memory

    async def latest(self, key: Key, scope: Scope | None = None) -> Memory:
        """Return the memory as this process knows it, without asking the store. Use it only for
        changes that end in a commit, because the commit asks."""
        memory = await self._latest(key)
        if not _shares_log(memory, scope):
            return memory
        attached = self._attach_log(memory, await self._latest(resource_key(key)))
        return attached if log_sharing.is_consistent(attached) else await self.load(key, scope)

    async def _latest(self, key: Key) -> Memory:
        cached = self._cached.get(key)
        return cached if cached else await self._load(key)

    async def update(
        self,
        key: Key,
        change: Callable[[Memory], Memory],
        scope: Scope | None = None,
        *,
        row_id: int = 0,
    ) -> Memory:
        """Apply a pure change to the current memory, and again whenever another commit came first.
        `scope`: see `load`.

        `row_id`: of the memory that the change was made from. If that memory has been forgotten
        since, nothing is written.
        """
        async with self.lock(key):
            return await retry_on_conflict(partial(self._update, key, change, scope, row_id))

    async def _update(
        self, key: Key, change: Callable[[Memory], Memory], scope: Scope | None, row_id: int
    ) -> Memory:
        before = await self.latest(key, scope)
        if is_forgotten(before, row_id):
            self.emit_forgotten(key)
            return before
        after = change(before)
        return before if after == before else await self.commit(before, after)

    async def commit(
        self, before: Memory, after: Memory, interrupted: Sequence[Message] = ()
    ) -> Memory:
        """Try once to commit. Raise Conflict. The thread is dropped from the cache first, so a
        failure leaves nothing stale."""
        if after.shared_log_ref is not None and before.shared_log_ref is not None:
            thread, shared_log = log_sharing.detach_log(before)
            thread_after, shared_log_after = log_sharing.detach_log(after)
            # the text about other threads comes from this shared log: one of them may have been
            # forgotten since
            must_check_log = (
                shared_log_after != shared_log
                or not shared_log.version
                or thread_after.other_threads_text != thread.other_threads_text
            )
            return await self.commit_shared(
                Change(thread, thread_after, interrupted),
                Change(shared_log, shared_log_after) if must_check_log else None,
            )
        if after.key.thread == RESOURCE_THREAD:
            return await self.commit_shared(Change(before, after, interrupted), None)
        message_count = len(after.tail)
        due = (
            self._due_at(after)
            if message_count <= MANY_MESSAGES
            else await run_off_loop(message_count, partial(self._due_at, after))
        )
        self.drop(after.key)
        committed = _with_cached_sums(
            await self.store.commit(before, replace(after, due_at=due), interrupted)
        )
        self._put(committed)
        return committed

    async def commit_shared(self, thread: Change, shared_log: Change | None) -> Memory:
        """Try once to commit the thread and its resource's shared log together. Raise Conflict. A
        shared log that is committed alone is passed as `thread`."""
        thread = self._with_due(thread)
        key = thread.after.key
        self.drop(key)
        if shared_log:
            if shared_log.after != shared_log.before or not shared_log.before.version:
                # its next work needs to know the model of the thread that spoke last
                shared_log = self._with_due(
                    shared_log._replace(after=replace(shared_log.after, model=thread.after.model))
                )
            self.drop(shared_log.after.key)
        written, log = await self.store.commit_shared(
            thread, shared_log, self._policies.current.resource_wakeup(thread.after, self._clock())
        )
        committed = _with_cached_sums(written)
        self._put(committed)
        if log:
            self._put(log)
        return (
            self._attach_log(committed, log or await self._latest(resource_key(key)))
            if _shares_log(committed)
            else committed
        )

    def _with_due(self, change: Change) -> Change:
        return change._replace(after=replace(change.after, due_at=self._due_at(change.after)))

    def _due_at(self, memory: Memory) -> float | None:
        return self._policies.current.due_at(memory, self._clock())

    async def forget(self, key: Key) -> ForgetResult:
        """Remove the thread from the store and from this process. Other processes find it gone at
        their next read. A turn under way here stores nothing from now on, even if it is the
        thread's first."""
        self.forget_count += 1
        self._forgotten.put(key, self.forget_count)
        async with self.lock(key):
            try:
                forgotten = (
                    await self.store.forget(key)
                    if await self.store.version(key)
                    else ForgetResult()
                )
            except OmError:
                self._forgotten.pop(key)  # the thread and its turns under way stay
                raise
            for notify in self.on_forget:
                notify(key)
            # prompts of the resource's other threads may contain its text
            for cached_key in [cached for cached in self._cached if cached[:2] == key[:2]]:
                self.drop(cached_key)
            return forgotten

    def is_forgotten_since(self, memory: Memory, row_id: int, forget_count: int) -> bool:
        """Return whether the thread of a turn has been forgotten since the turn began. `row_id` and
        `forget_count`: as they were then."""
        return is_forgotten(memory, row_id) or (self._forgotten.get(memory.key) or 0) > forget_count

    def emit_forgotten(self, key: Key) -> None:
        """Emit the fact that work was dropped because its thread was forgotten after it began."""
        self.facts.emit(ForgottenMeanwhile(key))

    def drop(self, key: Key) -> None:
        self._forget_attached(key)
        self._cached.pop(key)

    def _put(self, memory: Memory) -> None:
        cached = self._cached.get(memory.key)
        if cached and cached.version > memory.version > 0:
            # it was read before a later commit; a memory that waits to be stored has a version
            # below 0
            return
        self.drop(memory.key)
        self._cached.put(memory.key, memory, _estimate_bytes(memory))

    def _forget_attached(self, key: Key) -> None:
        if key.thread == RESOURCE_THREAD:
            self._attached.pop(key, None)
        elif threads := self._attached.get(resource_key(key)):
            threads.pop(key, None)


def is_forgotten(memory: Memory, row_id: int) -> bool:
    """Return whether the row that work began on is gone, or another row has its place. Work that
    began on no row loses none."""
    return bool(row_id) and memory.row_id != row_id


def _shares_log(memory: Memory, scope: Scope | None = None) -> bool:
    if memory.key.thread == RESOURCE_THREAD:
        return False
    return memory.scope == "resource" or (memory.version == 0 and scope == "resource")


def _with_cached_sums(memory: Memory) -> Memory:
    """Return the memory with a tail that caches its sums, for all turns until it changes."""
    return (
        memory
        if isinstance(memory.tail, MessageList)
        else replace(memory, tail=MessageList(memory.tail))
    )


def _estimate_bytes(memory: Memory) -> int:
    """Estimate the bytes that a memory holds. The numbers are what CPython needs for a message, a
    mark, a view with its cells, and notes."""
    messages = MessageList.of(memory.tail).json_bytes + 500 * len(memory.tail)
    notes = sum(_notes_bytes(o) + 450 for o in memory.log.entries + memory.chunks)
    views = sum(350 + 200 * len(view.cells) for view in memory.views)
    return (
        messages
        + getsizeof(memory.other_threads_text)
        + notes
        + views
        + (_notes_bytes(memory.log.reflection) if memory.log.reflection else 0)
        + 320 * len(memory.recent)
        + 1_500
    )


def _notes_bytes(notes: Observation | Reflection) -> int:
    """Return the bytes of notes, not their characters: in a text with one 🔴, each character takes
    four bytes."""
    return getsizeof(notes.text) + getsizeof(notes.task) + getsizeof(notes.suggestion)
