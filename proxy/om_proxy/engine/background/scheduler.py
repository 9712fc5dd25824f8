"""Run the work after the reply: one run at a time for a thread. The task of a run is referenced
until it ends, and due work is found again after a restart.

A thread that is woken waits in a queue for one of `concurrency` slots. The queue is fair between
tenants and bounded. A thread that the queue drops is found again by the next look at the store.
Work that a request waits for needs neither queue nor slot.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

import structlog

from om_proxy.common.errors import OmError, Overloaded
from om_proxy.engine.background.due_work import DueWork
from om_proxy.engine.background.leases import LEASE_S, Leases
from om_proxy.engine.background.thread_run import (
    STOPPING_MESSAGE,
    RequestedWork,
    RequestedWorkQueue,
    ThreadRun,
    loop_time,
)
from om_proxy.engine.background.worker import MemoryWorker
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.policy import MemoryContext, PolicyInForce
from om_proxy.memory.events.parts import OperationType
from om_proxy.memory.lifecycle.batches import ObserveBatch
from om_proxy.memory.lifecycle.decisions import Decision, Observe, Reflect
from om_proxy.memory.model import Key, Memory, resource_key

MAX_WAITING_THREADS = 1_000


logger = structlog.get_logger("background")
# until work that a person has asked for is tried again, after it could not begin
REQUEST_RETRY_S = 2.0
# until a request that waits for another process asks for the lease again
LEASE_RETRY_S = 0.5
JOIN_SHARE = 0.5  # of the time that a request waits, for the work of another process
CLAIMS_PER_SLOT = 2  # due threads this process keeps from others until it begins them


class ThreadQueue:
    """A queue that serves the tenant with the fewest slots. Tenants with equally many slots take
    turns. Within a tenant, the first thread to come is served first.

    A full queue drops the newest thread of the tenant with the most threads in it: a flood crowds
    out only itself.
    """

    def __init__(self, max_threads: int = MAX_WAITING_THREADS) -> None:
        self._max_threads = max_threads
        # every tenant in it has threads
        self._tenants: OrderedDict[str, OrderedDict[Key, None]] = OrderedDict()
        self._last_served = ""  # a tenant

    def __len__(self) -> int:
        return sum(map(len, self._tenants.values()))

    @property
    def free_places(self) -> int:
        return self._max_threads - len(self)

    def join(self, key: Key) -> Key | None:
        """Put the thread after its tenant's others; a thread that waits already keeps its place.
        Return the thread that was dropped for it."""
        self._tenants.setdefault(key.tenant, OrderedDict()).setdefault(key)
        if len(self) > self._max_threads:
            longest = max(reversed(self._tenants.values()), key=len)
            dropped = next(reversed(longest))
            self.leave(dropped)
            return dropped
        return None

    def leave(self, key: Key) -> None:
        if threads := self._tenants.get(key.tenant):
            threads.pop(key, None)
            if not threads:
                del self._tenants[key.tenant]

    def take_next(self, slots: Mapping[str, int]) -> Key | None:
        """Take the next thread out. `slots`: how many each tenant holds; a tenant without any may
        be missing."""
        if not self._tenants:
            return None
        self._last_served = tenant = min(
            self._tenants,
            key=lambda candidate: (slots.get(candidate, 0), candidate == self._last_served),
        )
        self._tenants.move_to_end(tenant)
        key = next(iter(self._tenants[tenant]))
        self.leave(key)
        return key

    def has_other_tenant(self, tenant: str) -> bool:
        return len(self._tenants) > (tenant in self._tenants)


class Background:
    """The tasks of this program that outlive a request. It refers to each, because the event loop
    may collect a task without a reference."""

    def __init__(
        self,
        memories: Memories,
        worker: MemoryWorker,
        policies: PolicyInForce,
        *,
        concurrency: int,
        max_waiting: int = MAX_WAITING_THREADS,
        clock: Callable[[], float] = time.time,
        is_busy: Callable[[], bool] = lambda: False,
        is_external: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_busy`: whether chat needs the whole machine. Then no work begins and no request
        waits. `is_external`: whether other processes do the due work (`background.external`)."""
        self._is_busy = is_busy
        self._memories = memories
        self._worker = worker
        self._concurrency = concurrency
        self._slots: Counter[str] = Counter()  # taken slots, by tenant
        self._queue = ThreadQueue(max_waiting)
        self._leases = Leases(memories.store, clock)
        self._due = DueWork(memories, policies, clock, is_external)
        self._running: dict[Key, ThreadRun] = {}
        self._run_again: set[Key] = set()  # threads woken during their run
        self._requested = RequestedWorkQueue()
        self._detached: set[asyncio.Task[Any]] = set()
        self._claims_work = True
        self._closing = False

    # ── called by other modules ─────────────────────────────────────────────────────────────────────

    def run_detached(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run work that must survive its request, without awaiting it."""
        task = asyncio.create_task(work)
        self._detached.add(task)
        task.add_done_callback(self._detached.discard)
        return task

    @property
    def running_count(self) -> int:
        """The threads whose work is under way."""
        return len(self._running)

    def wake(self, key: Key, context: MemoryContext | None = None) -> None:
        """Look at this thread soon. `context` has what an inherited model needs."""
        if context is not None:
            self._due.remember_context(key, context)
        if key in self._running:
            self._run_again.add(key)
        elif not self._closing and self._may_have_work(key):
            self._join_queue(key)
            self._fill_slots()

    def _may_have_work(self, key: Key) -> bool:
        """Return whether a look at this thread may find work for this process. A claimed thread is
        looked at in any case: the store says that it is due."""
        if key in self._requested or self._leases.is_claimed(key):
            return True
        held = self._memories.held.find(key)
        return not (self._due.leave_to_others(held) or self._due.is_known_idle(key))

    def last_seq_being_read(self, key: Key) -> int:
        """Return the seq up to which an observation under way reads; 0: there is none. The text of
        these messages may not change."""
        match run.step if (run := self._find_run(key)) else None:
            case Observe(last=last):
                return last
            case ObserveBatch():
                return sys.maxsize  # every message that was there when its call began
            case _:
                return 0

    def find_operation(self, key: Key) -> OperationType | None:
        """Return the work of a memory model that is under way on this thread in this process."""
        match run.step if (run := self._find_run(key)) else None:
            case Observe() | ObserveBatch():
                return "observation"
            case Reflect():
                return "reflection"
            case _:
                return None

    def _find_run(self, key: Key) -> ThreadRun | None:
        """Return the run of this thread, or of its resource while one of its calls reads the
        thread. A batch that has not begun does not count: a request would wait for the calls before
        it."""
        if not self._running:
            return None
        return self._running.get(key) or self._find_batch(key)

    def remaining_wait(self, key: Key, seconds: float) -> float:
        """Return how long a request that waits at most `seconds` may still wait for the work under
        way on this thread; 0: not at all."""
        if self._is_busy():
            return 0.0
        run = self._find_run(key)
        if run is None:
            return seconds
        return max(run.deadline_of(key).remaining(seconds, loop_time()), 0.0)

    async def wait_for_work(
        self, key: Key, decision: Decision, context: MemoryContext, seconds: float
    ) -> bool:
        """Have this decision performed, or join work of the same kind under way on the thread.
        Return whether it ended in time.

        False: the deadline passed first, and the work continues; or no work was started, because
        the process is busy or closing, the thread's notes could not be stored, or no model is there
        to ask. The deadline counts from when the first request waited for that work.
        """
        if self._is_busy() or self._memories.is_degraded(key) or context.lacks_observer:
            return False
        deadline = loop_time() + seconds
        while run := self._find_run(key):
            joined_step = run.step
            if not await run.wait_for_step(key, seconds, deadline):
                return False
            is_same_kind = type(joined_step) is type(decision)
            reads_thread = isinstance(joined_step, ObserveBatch) and isinstance(decision, Observe)
            if is_same_kind or reads_thread:
                return True
        if self._closing:
            return False
        self._due.remember_context(key, context)
        run = self._start(key, decision, seconds * JOIN_SHARE)
        return await run.wait_for_step(key, seconds, deadline)

    def find_context(
        self, memory: Memory, requested: MemoryContext | None = None
    ) -> MemoryContext | None:
        """Return the context in which requested work on this memory would be done; None: its model
        is inherited, and no credential is at hand."""
        return self._due.find_context(memory, requested)

    def request_work(self, work: RequestedWork) -> RequestedWork:
        """Have a person's work done once its thread and a slot are free. Return it, or equal work
        that waits already. Raise Overloaded if too much waits or the process ends."""
        if self._closing:
            raise Overloaded(STOPPING_MESSAGE)
        work = self._requested.add(work)
        self.wake(work.key)
        return work

    async def wait_idle(self) -> None:
        while tasks := {*self._run_tasks(), *self._detached}:
            await asyncio.wait(tasks)
            await asyncio.sleep(0)  # let their callbacks start what follows

    async def look_for_due(self, interval: Callable[[], float]) -> None:
        """Start the work that the store lists as due, at once and then every `interval()` seconds,
        for ever. Between two looks, claim more threads once the last claim is in use, none
        twice."""
        next_look = float("-inf")
        while True:
            if loop_time() >= next_look:
                self._leases.begin_look()
                self._wake_due_with_caller()
                next_look = loop_time() + interval()
            # detached: a lease that was taken and forgotten would keep others from the thread
            await asyncio.shield(self.run_detached(self._claim_due()))
            with suppress(TimeoutError):
                async with asyncio.timeout_at(next_look):
                    await self._leases.wants_claims.wait()

    def leave_due_work(self) -> None:
        """Claim no more threads, and give back those whose work has not begun: this process ends
        soon. Work under way goes on, and so does work for its own requests."""
        self._claims_work = False
        for key in self._leases.unused_claims:
            if key not in self._requested:
                self._queue.leave(key)
        self.run_detached(self._try_release_claims())

    async def _try_release_claims(self) -> None:
        with suppress(OmError):  # the leases end by themselves
            await self._leases.release_claims()

    async def close(self, grace: float = 5.0) -> None:
        """Finish commits under way, and give up model calls: their work is due again at the next
        start. Wait `grace` seconds for that, and as many for giving leases back."""
        self._closing = True
        self._requested.give_up(Overloaded(STOPPING_MESSAGE))
        tasks = self._run_tasks()
        for task in tasks:
            task.cancel()
        if tasks := tasks | self._detached:
            await asyncio.wait(tasks, timeout=grace)
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._try_release_claims()

    def _run_tasks(self) -> set[asyncio.Task[Any]]:
        return {run.task for run in self._running.values() if run.task}

    # ── queue and slots ───────────────────────────────────────────────────────────────────────────

    async def _claim_due(self) -> None:
        """Lease due threads, as many as will soon begin, and put them in the queue."""
        limit = CLAIMS_PER_SLOT * self._concurrency - len(self._leases.unused_claims)
        limit = max(min(limit, self._queue.free_places), 0)
        if self._is_busy() or self._closing or not self._claims_work:
            limit = 0
        if self._due.is_external():
            self._fill_slots()
            return
        try:
            claimed = await self._leases.claim_due(
                limit, self._due.without_context, callers=self._due.claims_callers
            )
        except OmError as exc:
            logger.warning("due.failed", error=type(exc).__name__)
            return
        if not self._claims_work:  # since the claim was sent
            await self._try_release_claims()
            return
        for key in claimed:
            self.wake(key)
        self._fill_slots()  # also with threads that waited while chat was busy

    def _wake_due_with_caller(self) -> None:
        """Look at the due threads whose call only this process holds: no claim finds them."""
        for key in self._due.list_due_with_caller()[: self._queue.free_places]:
            if key not in self._running:
                self.wake(key)

    def _join_queue(self, key: Key) -> None:
        dropped = self._queue.join(key)
        if dropped is not None and self._leases.is_claimed(dropped):
            self.run_detached(self._leases.release(dropped))

    def _fill_slots(self) -> None:
        while (
            not self._is_busy()
            and self._slots.total() < self._concurrency
            and (key := self._queue.take_next(self._slots))
        ):
            self._slots[key.tenant] += 1
            self._start(key)

    # ── a run ─────────────────────────────────────────────────────────────────────────────────────

    def _start(
        self, key: Key, waited_for: Decision | None = None, join_s: float = 0.0
    ) -> ThreadRun:
        """Start a run. Work that a request waits for takes no slot: slow models of other threads
        must not delay it. Other due work on its thread comes after it, in a slot. `join_s`: how
        long it may leave the work to another process that has the thread."""
        run = self._running[key] = ThreadRun(self._running, holds_slot=waited_for is None)
        if waited_for:
            self._queue.leave(key)
            self._run_again.add(key)
        run.task = asyncio.create_task(self._run(key, run, waited_for, join_s))
        run.task.add_done_callback(lambda _: self._end(key))
        return run

    def _end(self, key: Key) -> None:
        run = self._running.pop(key)
        run.end_step()
        if run.holds_slot:
            self._slots -= Counter([key.tenant])  # the subtraction removes tenants without a slot
        runs_again = key in self._run_again
        self._run_again.discard(key)
        if run.task and not run.task.cancelled() and (exc := run.task.exception()):
            logger.error("background.failed", error=type(exc).__name__)
        if self._closing:
            return  # what is due is found again at the next start
        if runs_again:
            self.wake(key)
        elif key in self._requested:  # another process has the lease, or the store has failed
            self.run_detached(self._wake_later(key))
        self._fill_slots()

    async def _run(
        self, key: Key, run: ThreadRun, waited_for: Decision | None, join_s: float
    ) -> None:
        claim_ends = self._leases.use_claim(key)
        renewing: asyncio.Task[None] | None = None
        leased: bool | None = claim_ends is not None
        try:
            if claim_ends is None or claim_ends < loop_time() + LEASE_S / 2:
                is_asked = waited_for is not None or key in self._requested
                if not is_asked and await self._due.find(key) is None:
                    return  # the usual case; a lease costs two commits, so only due work takes one
                leased = None  # unknown: the lease may be taken while this is cancelled
                leased = await self._leases.acquire(key)
                if not leased and waited_for is None:
                    return
                # Work that a request waits for goes on without a lease: the other process may have
                # crashed, and a lease only saves money. Where others do all due work, one of them
                # is at it as a rule: it gets the first part of the wait.
                if not leased and self._due.is_external():
                    leased = None
                    if await self._join_other_process(key, join_s):
                        return
            renewing = self.run_detached(self._leases.renew_forever(key))
            await self._perform_due(key, run, waited_for)
        finally:
            if renewing is not None:
                renewing.cancel()
            if leased is not False:
                await self._leases.release(key)

    async def _join_other_process(self, key: Key, seconds: float) -> bool:
        """Wait until the other process gives the thread's lease back, and acquire it; not longer
        than this, because that process may not have begun. Return whether it has changed the
        thread: then the work is done."""
        ends_at = loop_time() + seconds
        before = await self._memories.load(key)
        while not await self._leases.acquire(key) and loop_time() < ends_at:  # noqa: ASYNC110 - the store sends no event of it
            await asyncio.sleep(LEASE_RETRY_S)
        return (await self._memories.load(key)).version != before.version

    async def _perform_due(self, key: Key, run: ThreadRun, waited_for: Decision | None) -> None:
        """Perform `waited_for`, or otherwise due work until nothing is due, a step fails, or
        another tenant waits for the slot. After a failure, its back-off says when to come again.
        What people have asked for comes before due work."""
        while waited_for is None and (requested := self._requested.take(key)):
            await self._perform_requested(requested, run)
            if self._queue.has_other_tenant(key.tenant):
                self._run_again.add(key)
                return
        while work_and_context := await self._due.find(key, waited_for):
            run.step, context = work_and_context
            has_worked = await self._worker.perform(key, run.step, context, run)
            run.end_step()
            if not has_worked or waited_for is not None:
                return
            if self._queue.has_other_tenant(key.tenant):
                self._run_again.add(key)
                return

    async def _perform_requested(self, work: RequestedWork, run: ThreadRun) -> None:
        """Perform a piece of what a person has asked for, once no other call reads the thread."""
        await self._wait_until_unread(work.key, run)
        if await self._worker.perform_requested(work, run, self._due.find_context):
            self._requested.put_back(work)

    async def _wait_until_unread(self, key: Key, run: ThreadRun) -> None:
        """Wait while a call for the thread's resource reads the thread."""
        while (other := self._find_batch(key)) and other is not run:
            await asyncio.shield(other.step_done)

    def _find_batch(self, key: Key) -> ThreadRun | None:
        run = self._running.get(resource_key(key))
        return run if run is not None and key in run.being_read else None

    async def _wake_later(self, key: Key) -> None:
        """Look again at a thread whose work could not begin."""
        await asyncio.sleep(REQUEST_RETRY_S)
        self.wake(key)
