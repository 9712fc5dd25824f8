"""Load, cache and write memories. A cached memory is valid as long as the store has its version. No
other module writes memories."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from sys import getsizeof
from typing import Protocol, TypeVar
from uuid import uuid4
from weakref import WeakValueDictionary

import structlog
from msgspec.structs import replace

from om_proxy.bounded_cache import BoundedCache
from om_proxy.errors import ConfigError, Conflict, NotFound, OmError, StorageError
from om_proxy.facts import Facts, ForgottenMeanwhile, LogRetired
from om_proxy.memory.events.changes import NO_CAUSE, Cause, list_events, may_have_events
from om_proxy.memory.events.cycles import Subject
from om_proxy.memory.events.parts import Event, Forgotten, MarkerConfig, format_time
from om_proxy.memory.lifecycle import log_sharing
from om_proxy.memory.lifecycle.log_limit import LogLimit, count_shortened, shorten_log
from om_proxy.memory.lifecycle.thresholds import Limits
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
from om_proxy.memory.tokens import estimate_tokens
from om_proxy.off_loop import MANY_MESSAGES, run_off_loop
from om_proxy.policy import PolicyInForce
from om_proxy.storage.base import Change, ForgetBatch, NoteErasure, Store
from om_proxy.storage.forgotten_threads import ForgottenThreads
from om_proxy.storage.records import ForgetResult

logger = structlog.get_logger("memory")

_T = TypeVar("_T")

# As CPython objects: a thread with default settings takes 0.2 MB, and 0.9 MB with a full log.
DEFAULT_CACHE_BYTES = 64 * 2**20
# Threads; only a turn that has stored nothing yet depends on this.
MAX_REMEMBERED_FORGETS = 10_000
ALL_RESOURCES = ""  # in the key of a forgotten tenant: no resource has this name
UNKNOWN_THREAD_MESSAGE = "there is no memory of this thread"
# A commit conflicts only if another turn of the thread came first.
MAX_COMMIT_ATTEMPTS = 20
ADD_EVENT_TIMEOUT_S = 4.5  # as long as a commit may take


def create_cycle_id() -> str:
    """Return an id that no other cycle has."""
    return uuid4().hex


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

    Every commit asks the policy when the background should look at the memory, and whether only the
    process that served its call can, so that due work is found again after a restart. For threads
    that share a log, it also asks which number of unobserved tokens makes their resource due. `label` names a thread in such a log
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
        count_tokens: Callable[[str], int] = estimate_tokens,
    ) -> None:
        self.store = store
        self._spool = spool
        self.label = label
        self.facts = facts or Facts()
        self._policies = policies
        self._clock = clock
        self._count_tokens = count_tokens
        # called with a forgotten thread, to remove its traces in this process
        self.on_forget: list[Callable[[Key], None]] = []
        # the same with a retired thread, apart from its turns that wait
        self.on_retire: list[Callable[[Key], None]] = []
        # called when words were erased, to drop the texts that this process keeps to be fast
        self.on_words_erased: list[Callable[[], None]] = []
        # by thread or shared log: lists that each event stored by this process is added to
        self.event_watchers: dict[Key, list[list[Event]]] = {}
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
        self._forgotten_threads = ForgottenThreads(store, label)

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
        held = self._cached.get(key) or Memory(key=key)
        if not _shares_log(held, scope):
            newest = await self.store.refresh(held)
            if newest is held and held.version:  # as for nearly every request
                return held
            held = self._keep(held, newest)
            if not _shares_log(held, scope):
                return held
        return await self._refresh_shared(held, scope)

    async def load_known(self, key: Key) -> Memory:
        """Return the memory of a thread that has one. Raise NotFound for any other name, and for
        that of a shared log."""
        memory = await self.load(key) if key.thread else None
        if memory is None or not memory.version:
            raise NotFound(UNKNOWN_THREAD_MESSAGE)
        return memory

    def find_cached(self, key: Key) -> Memory | None:
        """Return what this process holds of a thread or of a shared log, without the log that a
        thread shares. It may have changed since."""
        return self._cached.get(key)

    async def _refresh(self, held: Memory) -> Memory:
        """Return the newest state of a memory that this process holds, and cache it."""
        return self._keep(held, await self.store.refresh(held))

    async def _refresh_shared(self, held: Memory, scope: Scope | None) -> Memory:
        """Return the newest state of a thread that shares its resource's log, with that log."""
        log_key = resource_key(held.key)
        held_log = self._cached.get(log_key) or Memory(key=log_key)
        thread, shared_log = await self.store.refresh_shared(held, held_log)
        thread = self._keep(held, thread)
        if not _shares_log(thread, scope):  # it has left the log since
            return thread
        attached = self._attach_log(thread, self._keep(held_log, shared_log))
        # the store has both of one snapshot, but only one of them may have turns that wait
        if attached.revision < 0 and not log_sharing.is_consistent(attached):
            raise Conflict("the shared log has changed since this thread's turns began to wait")
        return attached

    def _keep(self, held: Memory, newest: Memory) -> Memory:
        """Cache what the store returned for `held`, unless that is `held` itself. That nothing is
        stored has no version: it replaces no memory that was cached while the store was asked."""
        if newest is held and held.version:
            return held
        memory = _with_cached_sums(newest)
        cached = self._cached.get(memory.key)
        if memory.version or cached is None or cached is held:
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

    async def latest_of_row(self, key: Key, scope: Scope | None, row_id: int) -> Memory:
        """Return `latest`; but where that says that the row is gone, what the store says. `row_id`:
        of the memory that the work began on."""
        memory = await self.latest(key, scope)
        return await self.load(key, scope) if is_forgotten(memory, row_id) else memory

    async def _latest(self, key: Key) -> Memory:
        cached = self._cached.get(key)
        return cached or await self._refresh(Memory(key=key))

    async def update(
        self,
        key: Key,
        change: Callable[[Memory], Memory],
        scope: Scope | None = None,
        *,
        row_id: int = 0,
        cause: Cause = NO_CAUSE,
        must_exist: bool = False,
    ) -> Memory:
        """Apply a pure change to the current memory, and again whenever another commit came first.
        `scope`: see `load`.

        `row_id`: of the memory that the change was made from. If that memory has been forgotten
        since, nothing is written; with `must_exist`, as for what a person asks, NotFound is raised.
        `cause`: what the events of the change tell beside it.
        """
        attempt = partial(self._update, key, change, scope, row_id, cause, must_exist)
        async with self.lock(key):
            return await retry_on_conflict(attempt)

    async def update_log(
        self,
        key: Key,
        change: Callable[[Memory], Memory],
        scope: Scope | None = None,
        *,
        row_id: int = 0,
        cause: Cause = NO_CAUSE,
        must_exist: bool = False,
    ) -> Memory:
        """Apply a change that makes notes active or swaps a reflection in, as `update` does, and
        keep the log within `retention.max_observations`."""
        shortened_count = 0

        def change_and_shorten(before: Memory) -> Memory:
            nonlocal shortened_count
            changed = change(before)
            most = self.find_limits(before).max_log_entries
            limit = None if most is None else LogLimit(most, self._count_tokens)
            shortened = shorten_log(before, changed, limit, self._clock())
            shortened_count = count_shortened(changed, shortened)
            return shortened

        after = await self.update(
            key, change_and_shorten, scope, row_id=row_id, cause=cause, must_exist=must_exist
        )
        if shortened_count:
            self.facts.emit(LogRetired(key, "max_observations", shortened_count))
        return after

    async def _update(
        self,
        key: Key,
        change: Callable[[Memory], Memory],
        scope: Scope | None,
        row_id: int,
        cause: Cause,
        must_exist: bool,
    ) -> Memory:
        before = await self.latest_of_row(key, scope, row_id)
        if is_forgotten(before, row_id):
            if must_exist:
                raise NotFound(UNKNOWN_THREAD_MESSAGE)
            self.emit_forgotten(key)
            return before
        after = change(before)
        return before if after == before else await self.commit(before, after, cause=cause)

    async def commit(
        self,
        before: Memory,
        after: Memory,
        interrupted: Sequence[Message] = (),
        *,
        cause: Cause = NO_CAUSE,
    ) -> Memory:
        """Try once to commit, with the events of the change. Raise Conflict. The thread is dropped
        from the cache first, so a failure leaves nothing stale."""
        events = self._list_events(before, after, cause)
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
                Change(thread, thread_after, interrupted, events),
                Change(shared_log, shared_log_after) if must_check_log else None,
                known_log=shared_log,
            )
        if after.key.thread == RESOURCE_THREAD:
            return await self.commit_shared(Change(before, after, interrupted, events), None)
        message_count = len(after.tail)
        after = (
            self._with_due(after)
            if message_count <= MANY_MESSAGES
            else await run_off_loop(message_count, partial(self._with_due, after))
        )
        self.drop(after.key)
        committed = _with_cached_sums(await self.store.commit(before, after, interrupted, events))
        self._put(committed)
        self._tell_watchers(after.key, events)
        return committed

    async def commit_shared(
        self, thread: Change, shared_log: Change | None, *, known_log: Memory | None = None
    ) -> Memory:
        """Try once to commit the thread and its resource's shared log together. Raise Conflict. A
        shared log that is committed alone is passed as `thread`. `known_log`: the shared log if it
        is not committed."""
        thread = thread._replace(after=self._with_due(thread.after))
        key = thread.after.key
        self.drop(key)
        if shared_log:
            if shared_log.after != shared_log.before or not shared_log.before.version:
                # Its next work needs to know the model of the thread that spoke last. The style
                # says which account of the ledger pays for it.
                spoke_last = thread.after
                after = replace(shared_log.after, model=spoke_last.model, style=spoke_last.style)
                shared_log = shared_log._replace(after=self._with_due(after))
            self.drop(shared_log.after.key)
        written, log = await self.store.commit_shared(
            thread, shared_log, self._policies.current.resource_wakeup(thread.after, self._clock())
        )
        for change in (thread, shared_log) if shared_log else (thread,):
            self._tell_watchers(change.after.key, change.events)
        committed = _with_cached_sums(written)
        self._put(committed)
        if log:
            self._put(log)
        if not _shares_log(committed):
            return committed
        # not read if it is known: what is written must not seem to have failed
        log_key = resource_key(key)
        newest = log or self._cached.get(log_key) or known_log or await self._latest(log_key)
        return self._attach_log(committed, newest)

    async def commit_erasing(
        self, before: Memory, after: Memory, erasures: Sequence[NoteErasure], *, cause: Cause
    ) -> tuple[Memory, ForgetResult]:
        """Try once to commit a change of a thread's own log or of a shared log, and to erase texts
        of older entries, both or neither. Raise Conflict."""
        events = self._list_events(before, after, cause)
        change = Change(before, self._with_due(after), (), events)
        wakeup = (
            self._policies.current.resource_wakeup(after, self._clock())
            if after.key.thread == RESOURCE_THREAD
            else None
        )
        self.drop(after.key)
        written, erased = await self.store.commit_erasing(change, erasures, wakeup)
        self._drop_texts()
        committed = _with_cached_sums(written)
        self._put(committed)
        self._tell_watchers(after.key, change.events)
        return committed, erased

    def _list_events(self, before: Memory, after: Memory, cause: Cause) -> tuple[Event, ...]:
        """Return the events of a change. A turn has none, and costs three comparisons."""
        if cause is NO_CAUSE and not may_have_events(before, after):
            return ()
        subject = self.describe_subject(after)
        return list_events(before, after, cause, subject, self._clock(), create_cycle_id)

    def _tell_watchers(self, key: Key, events: Sequence[Event]) -> None:
        if events:
            for told in self.event_watchers.get(key, ()):
                told.extend(events)

    def find_limits(self, memory: Memory) -> Limits:
        """Return the thresholds in force; the defaults if overrides contradict each other."""
        try:
            return self._policies.current.thread_settings(memory).limits
        except ConfigError:
            return Limits()  # each request of the thread reports it

    def describe_subject(self, memory: Memory) -> Subject:
        """Return what an event says of the thread it is about."""
        limits = self.find_limits(memory)
        config = MarkerConfig(limits.observe_from_tokens, limits.reflect_from_tokens, memory.scope)
        return Subject(self.label(memory.key), memory.key.thread, config)

    async def add_event(self, key: Key, event: Event) -> None:
        """Store an event that no commit belongs to. The work that it tells of goes on if that
        fails."""
        try:
            async with asyncio.timeout(ADD_EVENT_TIMEOUT_S):
                await self.store.add_events(key, (event,))
            self._tell_watchers(key, (event,))
        except (StorageError, TimeoutError) as exc:
            logger.warning("events.lost", error=type(exc).__name__, type=event.part.TYPE)

    def _with_due(self, memory: Memory) -> Memory:
        """Return the memory with when its work is due, and whether that needs a caller."""
        policy = self._policies.current
        return replace(
            memory,
            due_at=policy.due_at(memory, self._clock()),
            needs_caller=policy.needs_caller(memory),
        )

    async def forget(self, key: Key, expected_version: int | None = None) -> ForgetResult:
        """Remove the thread from the store and from this process. Other processes find it gone at
        their next read. A turn under way here stores nothing from now on, even if it is the
        thread's first. Raise Conflict if the thread has another version than `expected_version`."""
        with self._marked_as_forgotten(key):
            async with self.lock(key):
                forgotten = (
                    await self.store.forget(key, expected_version, self._describe_forgotten(key))
                    if await self.store.version(key)
                    else ForgetResult()
                )
                self._drop_traces(key)
                self._drop_texts()
                return forgotten

    async def forget_all(self, tenant: str, resource: str | None = None) -> ForgetResult:
        """Remove the resource, or all resources of the tenant, as `forget` removes a thread: batch
        by batch. A thread whose first turn is under way here stores nothing either."""
        scope = Key(tenant, resource or ALL_RESOURCES, RESOURCE_THREAD)
        forgotten = ForgetResult()
        is_last = False
        while not is_last:
            with self._marked_as_forgotten(scope):
                await self._wait_for_commits(tenant, resource)
                batch = await self.store.forget_batch(tenant, resource, self._describe_forgotten)
            for key in batch.threads:
                self._drop_traces(key)
            forgotten, is_last = forgotten.add(batch.result), batch.is_last
        for key in [cached for cached in self._cached if cached.tenant == tenant]:
            if resource in (None, key.resource):
                self.drop(key)
        self._drop_texts()
        return forgotten

    async def retire(self, key: Key, expected_version: int) -> ForgetResult:
        """Remove a thread that nobody has used for long. Unlike `forget`, this takes nothing from a
        turn under way: a thread that is in use has another version, and a first turn of the
        resource starts a new thread. Raise Conflict if the version is another one."""
        async with self.lock(key):
            removed = await self.store.forget(
                key, expected_version, self._describe_forgotten(key), defers_erasure=True
            )
        self._drop_retired((key,))
        return removed

    async def retire_batch(self, log_key: Key, active_before: float) -> ForgetBatch:
        """Remove some threads of a resource that nobody has used for long, as `retire` does; its
        shared log goes with the last. Raise Conflict if one had a turn since `active_before`."""
        batch = await self.store.forget_batch(
            log_key.tenant, log_key.resource, self._describe_forgotten, active_before
        )
        self._drop_retired((*batch.threads, log_key))
        return batch

    def _drop_retired(self, keys: Sequence[Key]) -> None:
        """Remove what this process holds of retired threads, but not turns that wait."""
        resources = {key[:2] for key in keys}
        for key in keys:
            for notify in self.on_retire:
                notify(key)
        held = [cached for cached in self._cached if cached[:2] in resources]
        for cached in held:
            self.drop(cached)
        if held:  # mostly none: nobody has used them for long
            self._drop_texts()

    async def _wait_for_commits(self, tenant: str, resource: str | None) -> None:
        """Wait until the commits of these threads that are under way have ended: the first one of a
        thread has no row yet that could be forgotten."""
        for key, lock in list(self._locks.items()):
            if key.tenant == tenant and resource in (None, key.resource) and lock.locked():
                async with lock:
                    pass  # whoever takes it next knows of the forgetting

    @contextmanager
    def _marked_as_forgotten(self, scope: Key) -> Iterator[None]:
        """Mark the thread, the resource or the tenant as forgotten. If that fails in the block, its
        turns under way stay, apart from those that an earlier forgetting has dropped."""
        earlier_mark = self._forgotten.get(scope)
        self.forget_count = mark = self.forget_count + 1
        self._forgotten.put(scope, mark)
        try:
            yield
        except OmError:
            if self._forgotten.get(scope) == mark:
                self._forgotten.pop(scope)
                if earlier_mark is not None:
                    self._forgotten.put(scope, earlier_mark)
            raise

    def _drop_traces(self, key: Key) -> None:
        """Remove what this process holds of a forgotten thread."""
        for notify in self.on_forget:
            notify(key)
        # prompts of the resource's other threads may contain its text
        for cached_key in [cached for cached in self._cached if cached[:2] == key[:2]]:
            self.drop(cached_key)

    def _drop_texts(self) -> None:
        for drop in self.on_words_erased:
            drop()

    def _describe_forgotten(self, key: Key) -> Event:
        now = self._clock()
        return Event(now, Forgotten(label=self.label(key), forgotten_at=format_time(now)))

    def is_forgotten_since(self, memory: Memory, row_id: int, forget_count: int) -> bool:
        """Return whether the thread of a turn has been forgotten since the turn began. `row_id` and
        `forget_count`: as they were then."""
        if is_forgotten(memory, row_id):
            return True
        if forget_count == self.forget_count:  # as for nearly every turn
            return False
        key = memory.key
        of_tenant = Key(key.tenant, ALL_RESOURCES, RESOURCE_THREAD)
        return any(
            (self._forgotten.get(scope) or 0) > forget_count
            for scope in (key, resource_key(key), of_tenant)
        )

    async def is_forgotten_in_store(self, key: Key, since: float) -> bool:
        """Return whether any process has forgotten the thread since this time, in unix seconds of
        the store. Asks the store: use it only for work whose thread could not be read before. The
        first call reads all events of the tenant, later ones what is new."""
        forgotten_at = await self._forgotten_threads.find_time(key)
        return forgotten_at is not None and forgotten_at >= since

    async def list_forgotten_labels(self, tenant: str, since: float) -> frozenset[str]:
        """Return the labels of the tenant's threads that any process has forgotten since this time,
        in unix seconds of the store. Asks the store, as `is_forgotten_in_store` does."""
        return await self._forgotten_threads.list_labels_since(tenant, since)

    def emit_forgotten(self, key: Key) -> None:
        """Emit the fact that work was dropped because its thread was forgotten after it began."""
        self.facts.emit(ForgottenMeanwhile(key))

    def drop_all(self) -> None:
        """Empty the cache: the store's versions and ids of events may be given out again."""
        for key in list(self._cached):
            self.drop(key)
        self._forgotten_threads = ForgottenThreads(self.store, self.label)

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
