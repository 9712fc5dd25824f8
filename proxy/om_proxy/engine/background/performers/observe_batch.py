"""Perform ObserveBatch: ask the observer about several threads of a resource with one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import structlog

from om_proxy.agents.observer import Observer
from om_proxy.common.errors import ModelBusy, ModelError, OmError, Unusable
from om_proxy.engine.background.performers.call_report import (
    STOPPED_CODE,
    CycleReport,
    WorkCosts,
    report_call,
)
from om_proxy.engine.background.performers.memory_models import choose_memory_models
from om_proxy.engine.background.performers.observe import ObservePerformer
from om_proxy.engine.background.performers.observer_tasks import build_observer_task
from om_proxy.engine.background.performers.work_guard import TIMEOUT_MESSAGE, WorkGuard
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.memory_cache.memory_events import create_cycle_id
from om_proxy.engine.policy import MemoryContext, PolicyInForce
from om_proxy.memory.ledger import History
from om_proxy.memory.lifecycle import decisions
from om_proxy.memory.lifecycle.batches import ObserveBatch
from om_proxy.memory.lifecycle.decisions import Observe
from om_proxy.memory.lifecycle.observable import messages_between
from om_proxy.memory.model import Key, Memory, sum_framed_tokens

logger = structlog.get_logger("memory")

MAX_CALLS_PER_RESOURCE = 4  # at once


class CallProgress(Protocol):
    """A record of the calls of an ObserveBatch, so that a request waits only for the call that
    reads its thread."""

    def begin_call(self, keys: Sequence[Key]) -> tuple[Key, ...]:
        """Record that a call for these threads begins. Return the threads that it must read."""

    def end_call(self, keys: Sequence[Key]) -> None:
        """Record that the call for these threads has ended."""


@dataclass(frozen=True, slots=True, eq=False)
class ObserveBatchPerformer:
    """The performer that observes several threads. `alone` observes one thread by itself, and
    stores the notes of a batch."""

    memories: Memories
    observer: Observer
    count_tokens: Callable[[str], int]
    policies: PolicyInForce
    environ: Mapping[str, str] = field(repr=False)
    alone: ObservePerformer
    guard: WorkGuard

    async def perform(
        self, decision: ObserveBatch, context: MemoryContext, progress: CallProgress | None
    ) -> bool:
        """Observe all batches, a few at a time. Return whether any of them worked, so that another
        look is worth it. After one call has timed out no further one begins: a server that hangs
        would hold this slot once for each of them."""
        slots, hangs = asyncio.Semaphore(MAX_CALLS_PER_RESOURCE), False

        async def observe_in_slot(batch: Sequence[Key]) -> bool:
            nonlocal hangs
            async with slots:
                if hangs:
                    return False
                mine = progress.begin_call(batch) if progress else batch
                try:
                    return await self._observe_batch(mine, context)
                except TimeoutError:
                    hangs = True
                    return False
                finally:
                    if progress:
                        progress.end_call(mine)

        done = await asyncio.gather(
            *(observe_in_slot(batch) for batch in decision.batches), return_exceptions=True
        )
        # raise only now that all have ended: no call may continue without the lease
        for outcome in done:
            if isinstance(outcome, BaseException):
                raise outcome
        return any(done)

    async def _observe_batch(self, keys: Sequence[Key], context: MemoryContext) -> bool:
        """Observe these threads with one call, or each with its own if the answer to one call is
        unusable. Return whether anything was observed. Raise TimeoutError after recording the
        failure."""
        found = [
            (memory, due)
            for memory in [await self.memories.load(key) for key in keys]
            if (due := _decide_alone(memory, context))
        ]
        if len(found) < 2:
            return bool(found) and await self._observe_alone(*found[0], context, WorkCosts())
        costs, cycles = WorkCosts(), self._open_cycles(found)
        try:
            async with asyncio.timeout(self.policies.current.call_timeout_s):
                await self._observe_together(found, context, costs, cycles)
            return True
        except TimeoutError:
            # next time each is asked about alone (batches.split_batches)
            for (memory, due), share in zip(found, share_costs(costs, found), strict=True):
                busy = ModelBusy(TIMEOUT_MESSAGE)
                await self.guard.record_failure(memory, due, busy, share, cycles[memory.key])
            raise
        except asyncio.CancelledError:
            await _fail_all(cycles, STOPPED_CODE)
            raise
        except OmError as exc:
            await _fail_all(cycles, exc.code)
            if not isinstance(exc, ModelError):
                raise  # the store's failure
        except Exception as exc:
            await _fail_all(cycles, ModelError.code)
            logger.warning("observe.apart", error=type(exc).__name__, threads=len(found))
        # only a call for each thread alone shows which of them fails: it must not touch the others
        # (docs/contributing/behaviour.md#failures)
        shares = share_costs(costs, found)
        return any(
            [
                await self._observe_alone(memory, due, context, share)
                for (memory, due), share in zip(found, shares, strict=True)
            ]
        )

    async def _observe_alone(
        self, memory: Memory, due: Observe, context: MemoryContext, costs: WorkCosts
    ) -> bool:
        work = partial(self.alone.perform, memory, due, context, costs)
        return await self.guard.run(memory, due, work, costs, raise_timeout=True)

    def _open_cycles(self, found: Sequence[tuple[Memory, Observe]]) -> Mapping[Key, CycleReport]:
        """Return the reports of one call, by thread."""
        cycle_id = create_cycle_id()
        return {memory.key: self.guard.open_cycle(memory, due, cycle_id) for memory, due in found}

    async def _observe_together(
        self,
        found: Sequence[tuple[Memory, Observe]],
        context: MemoryContext,
        costs: WorkCosts,
        cycles: Mapping[Key, CycleReport],
    ) -> None:
        """Observe the threads with one call. A thread that is missing from the answer stays
        unobserved, and is asked about again after a pause."""
        parts = {
            self.memories.label(m.key): (m, due, messages_between(m, due.after, due.last))
            for m, due in found
        }
        names = [memory.key.thread for memory, _ in found]
        for memory, _, messages in parts.values():
            await cycles[memory.key].start(sum_framed_tokens(messages), names)
        tasks = {
            label: await asyncio.to_thread(
                build_observer_task, memory, messages, context, self.count_tokens
            )
            for label, (memory, _, messages) in parts.items()
        }
        size = sum(sum_framed_tokens(messages) for _, _, messages in parts.values())
        models = choose_memory_models(context.effective.observer_model, context, size, self.environ)
        memories = [memory for memory, _ in found]
        settings = context.effective.memory.observation.model_settings
        facts = self.memories.facts
        # one call is one line of the ledger; what it costs is not kept from the saving of a client
        # that sends its whole history
        histories = {memory.history_at(due.last) for memory, due in found}
        history: History = "full" if "full" in histories else "partial"
        async with report_call(facts, memories, "observe", models, costs, history) as report:
            made = await self.observer.observe_together(tasks, models, settings, report.bill)
            report.model = next(iter(made.values())).model
        shares = share_costs(costs, found)
        for (label, (memory, due, messages)), share in zip(parts.items(), shares, strict=True):
            cycle = cycles[memory.key]
            if label in made:
                notes = made[label]
                await self.alone.store_notes(
                    memory, due.after, messages, notes, context, share, cycle
                )
            else:
                left_out = Unusable("the answer left this thread out")
                await self.guard.record_failure(memory, due, left_out, share, cycle)


def share_costs(costs: WorkCosts, found: Sequence[tuple[Memory, Observe]]) -> list[WorkCosts]:
    """Share what a call for several threads has cost, by the tokens that each has to observe."""
    shares = costs.take().split([due.tokens for _, due in found])
    return [WorkCosts(share) for share in shares]


async def _fail_all(cycles: Mapping[Key, CycleReport], code: str) -> None:
    for cycle in cycles.values():
        await cycle.fail(code)


def _decide_alone(memory: Memory, context: MemoryContext) -> Observe | None:
    """Return what is observed of a thread together with others: all that may be, up to T."""
    return decisions.observe_everything(memory, context.effective.limits.observe_from_tokens)
