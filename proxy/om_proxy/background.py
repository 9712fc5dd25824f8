"""The work after the reply: one at a time per thread, held until done, found again after a restart.

A thread that is woken waits in line for one of `concurrency` places. The line is fair between tenants and bounded; what found
no room in it is found again by the next look at the store. What a request waits for needs neither line nor place.
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

import structlog
from msgspec.structs import replace

from om_proxy.errors import OmError
from om_proxy.memories import Memories
from om_proxy.memory import gathering, lifecycle
from om_proxy.memory.gathering import Gather, Settle
from om_proxy.memory.lifecycle import Decision, Observe
from om_proxy.memory.model import HUB, Key, Memory, hub_of
from om_proxy.observing import Call, Observing
from om_proxy.off_loop import MANY_MESSAGES, off_loop

log = structlog.get_logger("background")

# seconds a crashed process keeps a thread; with the look that finds it less than 120
# (docs/spec/behaviour.md#concurrency)
LEASE = 100.0
CALLS = 10_000  # threads whose newest call is remembered, for models that are inherited from it
DUE_AT_ONCE = 100  # threads fetched by one look at the store
WAITING = 1_000  # threads in line; ten looks at the store


class Line:
    """Threads waiting for a place. Next is the tenant that holds the fewest places; of equals, in turn; within it, first come.

    Where the line is full, the tenant with the most threads in it loses its newest: a flood crowds out nobody but itself.
    """

    def __init__(self, most: int = WAITING) -> None:
        self._most = most
        self._tenants: OrderedDict[str, OrderedDict[Key, None]] = OrderedDict()  # none of them empty
        self._served = ""  # the tenant that had the last turn

    def __len__(self) -> int:
        return sum(map(len, self._tenants.values()))

    def join(self, key: Key) -> None:
        """Behind its tenant's others; if it stands there already, it keeps its place."""
        self._tenants.setdefault(key.tenant, OrderedDict()).setdefault(key)
        if len(self) > self._most:
            longest = max(reversed(self._tenants.values()), key=len)
            self.leave(next(reversed(longest)))

    def leave(self, key: Key) -> None:
        if threads := self._tenants.get(key.tenant):
            threads.pop(key, None)
            if not threads:
                del self._tenants[key.tenant]

    def next(self, held: Mapping[str, int]) -> Key | None:
        """Take the next thread out of the line. `held`: places by tenant, 0 for tenants without any."""
        if not self._tenants:
            return None
        self._served = tenant = min(self._tenants, key=lambda t: (held.get(t, 0), t == self._served))
        self._tenants.move_to_end(tenant)
        key = next(iter(self._tenants[tenant]))
        self.leave(key)
        return key

    def holds_another(self, tenant: str) -> bool:
        """Whether some other tenant waits."""
        return len(self._tenants) > (tenant in self._tenants)


class Patience:
    """How long requests still wait for one piece of work: `seconds` from when the first of them began to, then no longer.

    So a memory call that hangs makes one request late, or those that came together, and not every
    later one.
    """

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since: float | None = None

    def left(self, seconds: float, now: float) -> float:
        """`now`: the event loop's time."""
        return seconds if self._since is None else self._since + seconds - now

    def begin(self, now: float) -> None:
        self._since = now if self._since is None else self._since


class Run:
    """The work under way on one thread. `done` resolves when the decision being performed is through, or the run has ended; of a
    Gather also whenever one of its calls is."""

    __slots__ = ("_running", "decision", "done", "in_place", "patience", "reading", "task")

    def __init__(self, running: Mapping[Key, Run], *, in_place: bool) -> None:
        self._running = running  # all there are
        self.in_place = in_place  # it holds one of the places
        self.decision: Decision | Gather | Settle | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None
        self.patience = Patience()
        self.reading: dict[Key, Patience] = {}  # the threads of a Gather whose call is under way; of one call the same

    def step_done(self) -> None:
        self.decision, self.patience, self.reading = None, Patience(), {}
        self._tell()

    def _tell(self) -> None:
        done, self.done = self.done, asyncio.get_running_loop().create_future()
        done.set_result(None)

    # ── a Gather tells how far it is (observing.Progress) ────────────────────────────────────────────────────────────

    def begin(self, keys: Sequence[Key]) -> tuple[Key, ...]:
        mine = tuple(key for key in keys if key not in self._running)  # a request has one of the others observed
        self.reading |= dict.fromkeys(mine, Patience())
        return mine

    def end(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self.reading.pop(key, None)
        self._tell()

    def patience_of(self, key: Key) -> Patience:
        return self.reading.get(key, self.patience)


class Background:
    """Starts every task of this program that outlives a request, and holds it: a task nobody holds can be collected mid-flight."""

    def __init__(
        self,
        memories: Memories,
        observing: Observing,
        call_for: Callable[[Memory], Call | None],
        *,
        concurrency: int,
        waiting: int = WAITING,
        clock: Callable[[], float] = time.time,
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """`busy`: whether chat needs all there is; nothing is begun then, and nothing waited for."""
        self._busy = busy
        self._memories = memories
        self._observing = observing
        self._call_for = call_for
        self._clock = clock
        self._concurrency = concurrency
        self._held: Counter[str] = Counter()  # places, by tenant
        self._line = Line(waiting)
        self._holder = uuid.uuid4().hex
        self._calls: OrderedDict[Key, Call] = OrderedDict()
        self._running: dict[Key, Run] = {}
        self._again: set[Key] = set()
        self._others: set[asyncio.Task[Any]] = set()
        self._left: set[Key] = set()  # due, and nothing at hand to do it with; they must not hide the others
        self._closing = False

    # ── what others ask of it ────────────────────────────────────────────────────────────────────────────────────────

    def hold(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something that must survive its request, without awaiting it."""
        task = asyncio.create_task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)
        return task

    def wake(self, key: Key, call: Call | None = None) -> None:
        """Look at this thread soon. `call` carries what an inherited model needs."""
        if call is not None:
            self._remember(key, call)
        if key in self._running:
            self._again.add(key)
        elif not self._closing:
            self._line.join(key)
            self._give_places()

    def reading_to(self, key: Key) -> int:
        """seq up to which an observation under way reads: the text of these messages may not change; 0 if none is."""
        match run.decision if (run := self._under_way(key)) else None:
            case Observe(last=last):
                return last
            case Gather():
                return sys.maxsize  # all there was when its call was begun
            case _:
                return 0

    def _under_way(self, key: Key) -> Run | None:
        """The work on this thread: its own, or that of its resource while a call reads it together with others. A batch that has not
        begun is no work on it: who waited for it would stand behind the calls before it."""
        if own := self._running.get(key):
            return own
        run = self._running.get(hub_of(key))
        return run if run is not None and key in run.reading else None

    def patience_left(self, key: Key, seconds: float) -> float:
        """How long a request that waits `seconds` at most may still wait for what is under way on this thread; 0: not at all."""
        if self._busy():
            return 0.0
        run = self._under_way(key)
        return seconds if run is None else max(run.patience_of(key).left(seconds, _loop_time()), 0.0)

    async def done_within(self, key: Key, decision: Decision, call: Call, seconds: float) -> bool:
        """Have this done, or join what is under way on the thread; False when the deadline passed first, which is counted from when
        the first request waited for that work. The work goes on."""
        if self._busy() or self._memories.is_degraded(key):
            return False
        ends = _loop_time() + seconds
        while run := self._under_way(key):
            joined = run.decision
            if not await _done_by(run, key, seconds, ends):
                return False
            if type(joined) is type(decision) or (isinstance(joined, Gather) and isinstance(decision, Observe)):
                return True
        if self._closing:
            return False
        self._remember(key, call)
        return await _done_by(self._start(key, decision), key, seconds, ends)

    async def wait_idle(self) -> None:
        """Until nothing is under way."""
        while tasks := {*self._tasks(), *self._others}:
            await asyncio.wait(tasks)
            await asyncio.sleep(0)  # let their callbacks start what follows

    async def look_for_due(self, interval: Callable[[], float]) -> None:
        """For ever: at once and then every `interval()` seconds, take up the work the store says is due."""
        while True:
            try:
                found = await self._memories.store.due(self._clock(), DUE_AT_ONCE + len(self._left))
                for key in found:
                    if key not in self._left:
                        self.wake(key)
                self._give_places()  # to who waits in line since it was busy
            except OmError as exc:
                log.warning("due.failed", error=type(exc).__name__)
            await asyncio.sleep(interval())

    async def close(self, grace: float = 5.0) -> None:
        """End: commits under way are finished, model calls are given up (their work is due again at the next start)."""
        self._closing = True
        tasks = self._tasks()
        for task in tasks:
            task.cancel()
        if tasks := tasks | self._others:
            await asyncio.wait(tasks, timeout=grace)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _tasks(self) -> set[asyncio.Task[Any]]:
        return {run.task for run in self._running.values() if run.task}

    def _remember(self, key: Key, call: Call) -> None:
        self._left.discard(key)
        self._calls[key] = call.overridden(
            None
        )  # a thread's own settings are laid over it at use: they may be taken back
        self._calls.move_to_end(key)
        while len(self._calls) > CALLS:
            self._calls.popitem(last=False)

    def _give_places(self) -> None:
        while not self._busy() and self._held.total() < self._concurrency and (key := self._line.next(self._held)):
            self._held[key.tenant] += 1
            self._start(key)

    def _start(self, key: Key, waited_for: Decision | None = None) -> Run:
        """What a request waits for takes no place: others' slow models must not make it late. What is due besides comes
        after it, in a place."""
        run = self._running[key] = Run(self._running, in_place=waited_for is None)
        if waited_for:
            self._line.leave(key)
            self._again.add(key)
        run.task = asyncio.create_task(self._run(key, run, waited_for))
        run.task.add_done_callback(lambda _: self._ended(key))
        return run

    def _ended(self, key: Key) -> None:
        run = self._running.pop(key)
        run.step_done()
        if run.in_place:
            self._held -= Counter([key.tenant])  # which forgets tenants without a place
        again = key in self._again
        self._again.discard(key)
        if run.task and not run.task.cancelled() and (exc := run.task.exception()):
            log.error("background.failed", error=type(exc).__name__)
        if self._closing:
            return  # what is due is found again at the next start
        if again:
            self.wake(key)
        self._give_places()

    async def _run(self, key: Key, run: Run, waited_for: Decision | None) -> None:
        if waited_for is None and await self._next(key) is None:
            return  # mostly: a lease costs two commits, so it is taken only where there is work
        renewing: asyncio.Task[None] | None = None
        leased: bool | None = None  # not known: it may be taken while this is cancelled
        try:
            leased = await self._memories.store.lease(key, self._holder, LEASE)
            if not leased and waited_for is None:
                return  # but a request does not wait for a process that may have crashed: a lease only saves money
            renewing = self.hold(self._renew(key))
            await self._work(key, run, waited_for)
        finally:
            if renewing is not None:
                renewing.cancel()
            if leased is not False:
                await self._memories.store.release(key, self._holder)

    async def _renew(self, key: Key) -> None:
        while True:
            await asyncio.sleep(LEASE / 3)
            try:
                await self._memories.store.lease(key, self._holder, LEASE)
            except OmError as exc:
                log.warning(
                    "lease.failed", error=type(exc).__name__
                )  # the next renewal may do; losing it costs money only

    async def _work(self, key: Key, run: Run, waited_for: Decision | None) -> None:
        """Perform what is waited for, or else what is due until nothing is, or something failed (its back-off then says when
        to come again), or another tenant waits for the place."""
        going = True
        while going and (due := await self._next(key, waited_for)):
            run.decision, call = due
            going = await self._observing.perform(key, run.decision, call, run) and waited_for is None
            run.step_done()
            if going and self._line.holds_another(key.tenant):
                self._again.add(key)
                return

    async def _next(
        self, key: Key, waited_for: Decision | None = None
    ) -> tuple[Decision | Gather | Settle, Call] | None:
        """What to do next on this thread, and with what; None also for an inherited model whose credential went with the
        last process: the next request brings it."""
        if self._memories.is_degraded(key):
            return None  # nobody pays for what cannot be kept; it is due again once it is stored
        memory = await self._memories.load(key)
        call = self._calls.get(key) or self._call_for(memory)
        if call is None:
            if len(self._left) < CALLS:
                self._left.add(key)
            return None
        call = call.overridden(memory.overrides)
        if waited_for:
            return waited_for, call
        if key.thread == HUB:
            decided = await self._due_together(memory, call)
            return (decided, call) if decided else None
        many = len(memory.tail)
        look = partial(self._due, memory, call)
        if decision := look() if many <= MANY_MESSAGES else await off_loop(many, look):
            return decision, call
        if memory.due is not None and memory.due <= self._clock():  # by thresholds that have changed since
            await self._memories.update(key, lambda m: replace(m, due=None))  # the commit says it anew
        return None

    async def _due_together(self, hub: Memory, call: Call) -> Decision | Gather | Settle | None:
        """What is due for the threads that share this log, or for the log itself."""
        waiting = await self._memories.store.waiting(hub.key)
        limits, now = call.effective.limits, self._clock()
        most = call.effective.memory.observation.max_tokens_per_batch
        if decision := gathering.due(waiting, limits, hub.log_tokens, most, now):
            return decision
        pending = sum(w.pending for w in waiting)
        if reflection := lifecycle.reflection_due(hub, limits.for_memory(log=hub.log_tokens, pending=pending)):
            return reflection
        await self._memories.store.look_again(hub.key, gathering.again_at(waiting, limits, hub.log_tokens, now))
        return None

    def _due(self, memory: Memory, call: Call) -> Decision | None:
        if memory.trouble.parked or self._clock() < memory.trouble.until:
            return None
        return lifecycle.after_reply(memory, call.effective.limits, self._clock())


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


async def _done_by(run: Run, key: Key, seconds: float, ends: float) -> bool:
    """Wait for the next piece of this work, until `ends` or as long as requests wait for it at all; whether it is done."""
    now, patience, is_read = _loop_time(), run.patience_of(key), key in run.reading
    patience.begin(now)
    try:
        async with asyncio.timeout_at(min(ends, now + patience.left(seconds, now))):
            await asyncio.shield(run.done)
            while is_read and key in run.reading:  # another call of the same Gather was through
                await asyncio.shield(run.done)
            return True
    except TimeoutError:
        return False
