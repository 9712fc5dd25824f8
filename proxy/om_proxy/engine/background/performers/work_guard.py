"""Run memory work with a deadline, and record its failure with the thread."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Literal

from om_proxy.common.errors import ModelError, ModelTimeout, OmError
from om_proxy.engine.background.performers.call_report import STOPPED_CODE, CycleReport, WorkCosts
from om_proxy.engine.background.performers.reflect import find_sources
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.policy import PolicyInForce
from om_proxy.memory.lifecycle import transitions
from om_proxy.memory.lifecycle.decisions import Decision, Reflect
from om_proxy.memory.model import Memory
from om_proxy.observability import facts

# a reflection writes nearly as much as it reads, so it may take the timeout once for each so many
REFLECTED_TOKENS_PER_TIMEOUT = 10_000
TIMEOUT_MESSAGE = "the memory model did not answer in time"


class WorkGuard:
    """The deadline and the failure record of memory work."""

    def __init__(
        self,
        memories: Memories,
        policies: PolicyInForce,
        *,
        clock: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._memories = memories
        self._policies = policies
        self._clock = clock
        self._jitter = jitter

    async def run(
        self,
        memory: Memory,
        decision: Decision,
        work: Callable[[CycleReport], Awaitable[None]],
        costs: WorkCosts,
        *,
        raise_timeout: bool = False,
        raise_failure: bool = False,
        cycle_id: str = "",
    ) -> bool:
        """Return whether the work ended in time and without a failure of its model. Record a
        failure with the thread, and what it has cost.

        `raise_timeout`: raise TimeoutError after recording that the deadline was missed.
        `raise_failure`: raise every ModelError after recording it. `cycle_id`: names the call in
        the events; empty: a new id does.
        """
        cycle = self.open_cycle(memory, decision, cycle_id)
        try:
            async with asyncio.timeout(self._timeout_s(memory, decision)):
                await work(cycle)
            return True
        except TimeoutError:
            failure: ModelError = ModelTimeout(TIMEOUT_MESSAGE)
            if raise_timeout:
                await self.record_failure(memory, decision, failure, costs, cycle)
                raise
        except ModelError as exc:
            failure = exc
        except OmError as exc:
            await cycle.fail(exc.code)
            raise  # a failure of the store says nothing against the model
        except asyncio.CancelledError:
            await cycle.fail(STOPPED_CODE)
            raise
        # any exception of a memory model's library counts as its failure: the thread backs off
        except Exception as exc:
            failure = ModelError(type(exc).__name__)
        await self.record_failure(memory, decision, failure, costs, cycle)
        if raise_failure:
            raise failure
        return False

    def open_cycle(self, memory: Memory, decision: Decision, cycle_id: str = "") -> CycleReport:
        """Return the report of a call that has not begun. `cycle_id`: of a call that reads several
        threads, or that a person has asked for."""
        return CycleReport(self._memories, memory, decision, self._clock, cycle_id)

    def _timeout_s(self, memory: Memory, decision: Decision) -> float:
        size = (
            sum(o.tokens for o in find_sources(memory, decision))
            if isinstance(decision, Reflect)
            else 0
        )
        return self._policies.current.call_timeout_s * max(size / REFLECTED_TOKENS_PER_TIMEOUT, 1.0)

    async def record_failure(
        self,
        memory: Memory,
        decision: Decision,
        exc: ModelError,
        costs: WorkCosts,
        cycle: CycleReport,
    ) -> None:
        await cycle.fail(exc.code)
        what: Literal["observe", "reflect"] = (
            "reflect" if isinstance(decision, Reflect) else "observe"
        )
        failures = memory.failures.count + 1
        self._memories.facts.emit(
            facts.MemoryWorkFailed(memory.key, what, exc.code, failures, exc.advice)
        )
        cause = f"{what} {exc.cause}"
        record: Callable[[Memory], Memory]
        if isinstance(decision, Reflect):
            record = partial(transitions.mark_unproductive, size=memory.log.tokens, cause=cause)
        else:
            record = partial(
                transitions.record_failure, now=self._clock(), jitter=self._jitter(), cause=cause
            )
        paid = costs.take()

        def record_with_costs(now: Memory) -> Memory:
            return transitions.add_memory_costs(record(now), paid)

        await self._memories.update(memory.key, record_with_costs, row_id=memory.row_id)
