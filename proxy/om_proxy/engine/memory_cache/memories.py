"""Change memories, again where another commit came first, and remove them. No other module writes
them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

from msgspec.structs import replace

from om_proxy.common.errors import Conflict, NotFound
from om_proxy.common.off_loop import MANY_MESSAGES, run_off_loop
from om_proxy.engine.memory_cache.forgettings import Forgettings, LocalTraces, create_scope_key
from om_proxy.engine.memory_cache.held_memories import DEFAULT_CACHE_BYTES, cache_sums
from om_proxy.engine.memory_cache.loading import (
    UNKNOWN_THREAD_MESSAGE,
    MemoryLoader,
    is_forgotten,
    shares_log,
)
from om_proxy.engine.memory_cache.memory_events import MemoryEvents
from om_proxy.engine.policy import PolicyInForce
from om_proxy.memory.events.changes import NO_CAUSE, Cause
from om_proxy.memory.events.parts import Event, Forgotten, format_time
from om_proxy.memory.lifecycle import log_sharing
from om_proxy.memory.lifecycle.log_limit import LogLimit, count_shortened, shorten_log
from om_proxy.memory.model import RESOURCE_THREAD, Key, Memory, Message, Scope, resource_key
from om_proxy.memory.tokens import estimate_tokens
from om_proxy.observability.facts import Facts, ForgottenMeanwhile, LogRetired
from om_proxy.storage.base import Store
from om_proxy.storage.spooling.spooling_store import SpoolingStore
from om_proxy.storage.values.changes import Change, ForgetBatch, NoteErasure, ResourceWakeup
from om_proxy.storage.values.records import ForgetResult

_T = TypeVar("_T")

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


class Memories(MemoryLoader):
    """The threads' memories. Every read goes through `load`, every write through `update` or
    `commit`.

    Every commit asks the policy when the background should look at the memory, and whether only the
    process that served its call can, so that due work is found again after a restart. For threads
    that share a log, it also asks which number of unobserved tokens makes their resource due.
    `label` names a thread in such a log, and in events.
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
        spool: SpoolingStore | None = None,
        count_tokens: Callable[[str], int] = estimate_tokens,
        finds_due_work: bool = True,
    ) -> None:
        """`finds_due_work`: False: no commit makes background work due; the next one of another
        process does."""
        super().__init__(store, label, cache_bytes)
        self.finds_due_work = finds_due_work
        self._spool = spool
        self.facts = facts or Facts()
        self._policies = policies
        self.clock = clock
        self._count_tokens = count_tokens
        self.traces = LocalTraces(self.held)
        self.events = MemoryEvents(store, policies, label, clock)
        self.forgettings = Forgettings(store, label)
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

    async def wait_for_commits(self, tenant: str, resource: str | None) -> None:
        """Wait until the commits of these threads that are under way have ended: the first one of a
        thread has no row yet that could be forgotten."""
        for key, lock in list(self._locks.items()):
            if key.tenant == tenant and resource in (None, key.resource) and lock.locked():
                async with lock:
                    pass  # whoever takes it next knows of the forgetting

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

        async def attempt() -> Memory:
            before = await self.latest_of_row(key, scope, row_id)
            if is_forgotten(before, row_id):
                if must_exist:
                    raise NotFound(UNKNOWN_THREAD_MESSAGE)
                self.emit_forgotten(key)
                return before
            after = change(before)
            return before if after == before else await self.commit(before, after, cause=cause)

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
            most = self.events.find_limits(before).max_log_entries
            limit = None if most is None else LogLimit(most, self._count_tokens)
            shortened = shorten_log(before, changed, limit, self.clock())
            shortened_count = count_shortened(changed, shortened)
            return shortened

        after = await self.update(
            key, change_and_shorten, scope, row_id=row_id, cause=cause, must_exist=must_exist
        )
        if shortened_count:
            self.facts.emit(LogRetired(key, "max_observations", shortened_count))
        return after

    async def commit(
        self,
        before: Memory,
        after: Memory,
        interrupted: Sequence[Message] = (),
        *,
        cause: Cause = NO_CAUSE,
        began_at: float | None = None,
    ) -> Memory:
        """Try once to commit, with the events of the change. Raise Conflict. The memory
        that is held is dropped first, so a failure leaves nothing stale. `began_at`: when the
        request of a turn came; raise ForgottenName if its thread has no row and was forgotten
        since."""
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
                Change(thread, thread_after, interrupted, events, began_at),
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
        self.held.drop(after.key)
        written = await self.store.commit(before, after, interrupted, events, began_at)
        self._tell_watchers(after.key, events)
        return self._hold(written)

    async def commit_shared(
        self, thread: Change, shared_log: Change | None, *, known_log: Memory | None = None
    ) -> Memory:
        """Try once to commit the thread and its resource's shared log together. Raise Conflict. A
        shared log that is committed alone is passed as `thread`. `known_log`: the shared log if it
        is not committed."""
        thread = thread._replace(after=self._with_due(thread.after))
        key = thread.after.key
        self.held.drop(key)
        if shared_log:
            if shared_log.after != shared_log.before or not shared_log.before.version:
                # Its next work needs to know the model of the thread that spoke last. The style
                # says which account of the ledger pays for it.
                spoke_last = thread.after
                after = replace(shared_log.after, model=spoke_last.model, style=spoke_last.style)
                shared_log = shared_log._replace(after=self._with_due(after))
            self.held.drop(shared_log.after.key)
        written, log = await self.store.commit_shared(
            thread, shared_log, self._find_wakeup(thread.after)
        )
        for change in (thread, shared_log) if shared_log else (thread,):
            self._tell_watchers(change.after.key, change.events)
        committed = self._hold(written)
        if log:
            log = self._hold(log)
        if not shares_log(committed):
            return committed
        # not read if it is known: what is written must not seem to have failed
        log_key = resource_key(key)
        newest = log or self.held.find(log_key) or known_log or await self._latest_alone(log_key)
        return self._attach_log(committed, newest)

    async def commit_erasing(
        self, before: Memory, after: Memory, erasures: Sequence[NoteErasure], *, cause: Cause
    ) -> tuple[Memory, ForgetResult]:
        """Try once to commit a change of a thread's own log or of a shared log, and to erase texts
        of older entries, both or neither. Raise Conflict."""
        change = Change(before, self._with_due(after), (), self._list_events(before, after, cause))
        wakeup = self._find_wakeup(after) if after.key.thread == RESOURCE_THREAD else None
        self.held.drop(after.key)
        written, erased = await self.store.commit_erasing(change, erasures, wakeup)
        self.traces.drop_texts()
        self._tell_watchers(after.key, change.events)
        return self._hold(written), erased

    # ── removing ──────────────────────────────────────────────────────────────────────────────────

    async def forget(self, key: Key, expected_version: int | None = None) -> ForgetResult:
        """Remove the thread from the store and from this process; other processes find it gone at
        their next read. A turn under way stores nothing from now on, even if it is the thread's
        first, in whichever process. Raise Conflict if the thread has another version than
        `expected_version`."""
        with self.forgettings.remember(key):
            async with self.lock(key):
                if expected_version in (None, await self.store.version(key)):
                    await self.store.note_forgotten(key, self.clock())
                forgotten = (
                    await self.store.forget(key, expected_version, self._describe_forgotten(key))
                    if await self.store.version(key)
                    else ForgetResult()
                )
                self.traces.drop_forgotten(key)
                self.traces.drop_texts()
                return forgotten

    async def forget_all(self, tenant: str, resource: str | None = None) -> ForgetResult:
        """Remove the resource, or all resources of the tenant, as `forget` removes a thread: batch
        by batch. A thread whose first turn is under way stores nothing either."""
        scope = create_scope_key(tenant, resource)
        forgotten = ForgetResult()
        is_last = False
        await self.store.note_forgotten(scope, self.clock())
        while not is_last:
            with self.forgettings.remember(scope):
                await self.wait_for_commits(tenant, resource)
                batch = await self.store.forget_batch(tenant, resource, self._describe_forgotten)
            for key in batch.threads:
                self.traces.drop_forgotten(key)
            forgotten, is_last = forgotten.add(batch.result), batch.is_last
        for key in self.held.list_keys():
            if key.tenant == tenant and resource in (None, key.resource):
                self.held.drop(key)
        self.traces.drop_texts()
        return forgotten

    async def retire(self, key: Key, expected_version: int) -> ForgetResult:
        """Remove a thread that has not been used for long. Unlike `forget`, this takes nothing from
        a turn under way: a thread that is in use has another version, and a first turn of the
        resource starts a new thread. Raise Conflict if the version is another one."""
        async with self.lock(key):
            removed = await self.store.forget(
                key, expected_version, self._describe_forgotten(key), defers_erasure=True
            )
        self.traces.drop_retired((key,))
        return removed

    async def retire_batch(self, log_key: Key, active_before: float) -> ForgetBatch:
        """Remove some threads of a resource that has not been used for long, as `retire` does; its
        shared log goes with the last. Raise Conflict if one had a turn since `active_before`."""
        batch = await self.store.forget_batch(
            log_key.tenant, log_key.resource, self._describe_forgotten, active_before
        )
        self.traces.drop_retired((*batch.threads, log_key))
        return batch

    def _describe_forgotten(self, key: Key) -> Event:
        now = self.clock()
        label = self.label(key)
        return Event(now, Forgotten(label=label, forgotten_at=format_time(now)))

    # ── beside a commit: a fault of one of these costs only that ──────────────────────────────────

    def _list_events(self, before: Memory, after: Memory, cause: Cause) -> tuple[Event, ...]:
        list_events = self.events.list_of_change
        return self.facts.try_extra("events", after.key, (), list_events, before, after, cause)

    def _with_due(self, memory: Memory) -> Memory:
        """Return the memory with when its work is due, and whether that needs a caller."""

        if not self.finds_due_work:
            return replace(memory, due_at=None, needs_caller=False)

        def find_due() -> Memory:
            policy = self._policies.current
            return replace(
                memory,
                due_at=policy.due_at(memory, self.clock()),
                needs_caller=policy.needs_caller(memory),
            )

        return self.facts.try_extra("due", memory.key, memory, find_due)

    def _find_wakeup(self, memory: Memory) -> ResourceWakeup | None:
        def find() -> ResourceWakeup | None:
            if not self.finds_due_work:
                return None
            return self._policies.current.resource_wakeup(memory, self.clock())

        return self.facts.try_extra("due", memory.key, None, find)

    def _tell_watchers(self, key: Key, events: Sequence[Event]) -> None:
        self.facts.try_extra("watchers", key, None, self.events.tell_watchers, key, events)

    def _hold(self, written: Memory) -> Memory:
        """Hold the memory for the next request. Return it with cached sums."""

        def hold() -> Memory:
            committed = cache_sums(written)
            self.held.put(committed)
            return committed

        return self.facts.try_extra("held", written.key, written, hold)

    def emit_forgotten(self, key: Key) -> None:
        """Emit the fact that work was dropped because its thread was forgotten after it began."""
        self.facts.emit(ForgottenMeanwhile(key))

    def drop_all(self) -> None:
        """Hold nothing: the store's versions and ids of events may be given out again."""
        self.held.drop_all()
        self.forgettings.read_store_anew()
