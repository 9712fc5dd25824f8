"""The work after the reply: one at a time per thread, held until done, found again after a restart."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from typing import Any

import structlog

from proxy.errors import OmError
from proxy.memories import Memories
from proxy.memory import lifecycle
from proxy.memory.lifecycle import Decision, Observe
from proxy.memory.model import Key, Memory
from proxy.observing import Call, Observing

log = structlog.get_logger("background")

LEASE = 120.0  # seconds after which another process may take over a crashed one's thread (behaviour.md 13)
CALLS = 10_000  # threads whose newest call is remembered, for models that are inherited from it
DUE_AT_ONCE = 100  # threads fetched by one look at the store


class Run:
    """The work under way on one thread. `done` resolves when the decision being performed is through, or the run has ended."""

    __slots__ = ("decision", "done", "task")

    def __init__(self) -> None:
        self.decision: Decision | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None

    def step_done(self) -> None:
        done, self.done = self.done, asyncio.get_running_loop().create_future()
        self.decision = None
        done.set_result(None)


class Background:
    """Starts every task of this program that outlives a request, and holds it: a task nobody holds can be collected mid-flight."""

    def __init__(
        self,
        memories: Memories,
        observing: Observing,
        call_for: Callable[[Memory], Call | None],
        *,
        concurrency: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._memories = memories
        self._observing = observing
        self._call_for = call_for
        self._clock = clock
        self._slots = asyncio.Semaphore(concurrency)
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

    def wake(self, key: Key, call: Call | None = None, first: Decision | None = None) -> None:
        """Look at this thread soon. `call` carries what an inherited model needs; `first` is done before anything else."""
        if call is not None:
            self._remember(key, call)
        if self._closing:
            return
        if key in self._running:
            self._again.add(key)
            return
        run = self._running[key] = Run()
        run.task = asyncio.create_task(self._run(key, run, first))
        run.task.add_done_callback(lambda _: self._ended(key))

    def reading_to(self, key: Key) -> int:
        """seq up to which an observation under way reads: the text of these messages may not change; 0 if none is."""
        run = self._running.get(key)
        return run.decision.last if run and isinstance(run.decision, Observe) else 0

    async def done_within(self, key: Key, decision: Decision, call: Call, seconds: float) -> bool:
        """Have this done, or join what is under way on the thread; False when the deadline passed first. The work goes on."""
        try:
            async with asyncio.timeout(seconds):
                while run := self._running.get(key):
                    joined = run.decision
                    await asyncio.shield(run.done)
                    if type(joined) is type(decision):
                        return True
                self.wake(key, call, decision)
                await asyncio.shield(self._running[key].done)
                return True
        except TimeoutError:
            return False

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
        self._calls[key] = call
        self._calls.move_to_end(key)
        while len(self._calls) > CALLS:
            self._calls.popitem(last=False)

    def _ended(self, key: Key) -> None:
        run = self._running.pop(key)
        run.step_done()
        again = key in self._again
        self._again.discard(key)
        task = run.task
        if task is None or task.cancelled():
            return
        if exc := task.exception():
            log.error("background.failed", error=type(exc).__name__)
        if again:
            self.wake(key)

    async def _run(self, key: Key, run: Run, first: Decision | None) -> None:
        # what a request waits for takes no place: others' slow models must not make it late
        async with self._slots if first is None else nullcontext():
            if first is None and await self._next(key) is None:
                return  # mostly: a lease costs two commits, so it is taken only where there is work
            leased = await self._memories.store.lease(key, self._holder, LEASE)
            if not leased and first is None:
                return  # but a request does not wait for a process that may have crashed: a lease only saves money
            renewing = self.hold(self._renew(key))
            try:
                await self._work(key, run, first, more=leased)
            finally:
                renewing.cancel()
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

    async def _work(self, key: Key, run: Run, first: Decision | None, *, more: bool) -> None:
        """Perform what is due until nothing is, or something failed: its back-off then says when to come again. Without `more`,
        only `first`."""
        going = True
        while going:
            due = await self._next(key, first)
            first = None
            if due is None:
                return
            run.decision, call = due
            going = await self._observing.perform(key, run.decision, call) and more
            run.step_done()

    async def _next(self, key: Key, first: Decision | None = None) -> tuple[Decision, Call] | None:
        """What to do next on this thread, and with what; None also for an inherited model whose credential went with the
        last process: the next request brings it."""
        memory = await self._memories.load(key)
        call = self._calls.get(key) or self._call_for(memory)
        if call is None:
            if len(self._left) < CALLS:
                self._left.add(key)
            return None
        decision = first or self._due(memory, call)
        return (decision, call) if decision else None

    def _due(self, memory: Memory, call: Call) -> Decision | None:
        if memory.trouble.parked or self._clock() < memory.trouble.until:
            return None
        return lifecycle.after_reply(memory, call.effective.limits)
