"""Run memory work with a deadline. Report each call of observer or reflector, however it ends, as a
fact with its price, as events, and as costs for the commit that stores the work; record a failure
with the thread.

An answer is paid for: a store that fails for a moment must not cost it, since another call would pay
for the same. It is stored without its secrets.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

from om_proxy.agents.model_access.llm import Target
from om_proxy.agents.model_access.retries import CallBill, PaidCall
from om_proxy.common.errors import (
    Conflict,
    ModelError,
    ModelTimeout,
    OmError,
    StorageError,
    Unwritable,
)
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.memory_cache.memory_events import create_cycle_id
from om_proxy.engine.policy import MemoryContext, PolicyInForce, find_token_prices
from om_proxy.memory.events.changes import Cause, Cycle, make_failed, make_start
from om_proxy.memory.events.parts import OperationType
from om_proxy.memory.ledger import (
    NO_MEMORY_COSTS,
    Account,
    History,
    MemoryCosts,
    assess_memory_call,
)
from om_proxy.memory.lifecycle import transitions
from om_proxy.memory.lifecycle.decisions import Decision, Observe, Reflect
from om_proxy.memory.model import Memory, Observation
from om_proxy.memory.notes.redaction import Notes, redact_notes
from om_proxy.memory.token_prices import Tokens
from om_proxy.observability import facts
from om_proxy.observability.facts import AgentWork, CallOutcome, Facts, MemoryCallEnded

# a reflection writes nearly as much as it reads, so it may take the timeout once for each so many
REFLECTED_TOKENS_PER_TIMEOUT = 10_000
TIMEOUT_MESSAGE = "the memory model did not answer in time"
OUTDATED_CODE = "om_outdated"  # the memory changed meanwhile, and the notes no longer fit
STOPPED_CODE = "om_stopped"  # the process ends; the work is due again at the next start
# Shorter than a lease: meanwhile no other process does the same work.
MAX_STORING_S = 20.0
RETRY_S = 1.0


class CallReport:
    """The report of one call. The caller gives it the model of the answer, and `bill` to the
    agent."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.bill = CallBill()


@asynccontextmanager
async def report_call(
    facts: Facts,
    memories: Sequence[Memory],
    work: AgentWork,
    targets: Sequence[Target],
    costs: WorkCosts,
    history: History,
) -> AsyncIterator[CallReport]:
    """Emit MemoryCallEnded at the end of the block, which makes the call for these memories. Add
    what was paid to `costs`, also if the block raises. `history`: the account that it counts in, in
    the threads' rows as in the lines by day."""
    report = CallReport(targets[0].model)
    outcome: CallOutcome = "answered"
    started = time.perf_counter()
    try:
        yield report
    except asyncio.CancelledError:
        outcome = "abandoned"
        raise
    except Exception:
        outcome = "failed"
        raise
    finally:
        accounts = price_calls(report.bill.calls)
        for account in accounts.values():
            costs.add(account, history)
        is_priced = all(account.is_priced for account in accounts.values())
        facts.emit(
            MemoryCallEnded(
                keys=tuple(memory.key for memory in memories),
                work=work,
                model=report.model,
                outcome=outcome,
                seconds=time.perf_counter() - started,
                calls=report.bill.tries,
                usage=report.bill.usage,
                cost=sum(account.cost for account in accounts.values()) if is_priced else None,
                history=history,
                accounts=tuple(accounts.items()),
            )
        )


def price_calls(calls: Iterable[PaidCall]) -> dict[str, Account]:
    """Return the sums of these calls by model: the one that was asked, at its own prices."""
    accounts: dict[str, Account] = {}
    for call in calls:
        account = assess_memory_call(
            Tokens.of(call.usage), find_token_prices(call.model), is_estimated=call.is_estimated
        )
        accounts[call.model] = accounts.get(call.model, Account()).add(account)
    return accounts


class CycleReport:
    """The events of one thread's part in a call. Every start gets one end or one failure, unless
    the process is killed or the thread is forgotten. `costs` gets what was paid and is not stored
    with the work."""

    def __init__(
        self,
        memories: Memories,
        memory: Memory,
        decision: Decision,
        clock: Callable[[], float],
        costs: WorkCosts,
        cycle_id: str = "",
    ) -> None:
        """`cycle_id`: of a call that reads several threads."""
        self.memory = memory
        self.decision = decision
        self.costs = costs
        self._memories = memories
        self._operation: OperationType = (
            "reflection" if isinstance(decision, Reflect) else "observation"
        )
        self._is_awaited = isinstance(decision, Observe | Reflect) and decision.wait
        self._clock = clock
        self._cycle_id = cycle_id or create_cycle_id()
        self._cycle: Cycle | None = None  # None: not begun, or ended

    @property
    def cause(self) -> Cause:
        """The cause of the change that stores the notes. The change tells the end itself."""
        return Cause(cycle=self._cycle)

    async def start(self, tokens: int, thread_names: Sequence[str] = ()) -> None:
        """Tell that the model is asked now. `thread_names`: of a call that reads several
        threads."""
        own_name = self.memory.key.thread
        names = tuple(thread_names) or ((own_name,) if own_name else ())
        self._cycle = Cycle(
            self._cycle_id, self._operation, self._is_awaited, self._clock(), tokens, names
        )
        subject = self._memories.events.describe_subject(self.memory)
        start = make_start(self._cycle, self.memory, subject)
        await self._memories.events.add(self.memory.key, start)

    async def finish(self, *, is_stored: bool) -> None:
        """End the cycle. Notes that are not stored no longer fit their memory."""
        if is_stored:
            self._cycle = None
        await self.fail(OUTDATED_CODE)

    async def fail(self, code: str) -> None:
        """Tell that the cycle has failed, unless it has ended. `code`: one of our own."""
        cycle, self._cycle = self._cycle, None
        if cycle is None:
            return
        subject = self._memories.events.describe_subject(self.memory)
        failed = make_failed(cycle, code, self.memory, subject, self._clock())
        await self._memories.events.add(self.memory.key, failed)


class WorkCosts:
    """The costs of a piece of work that no commit has stored yet. The commit that ends the work
    takes it: the one with the notes, or the one that records the failure."""

    def __init__(self, costs: MemoryCosts = NO_MEMORY_COSTS) -> None:
        self._costs = costs

    def add(self, account: Account, history: History) -> None:
        self._costs = self._costs.add(account, history)

    def take(self) -> MemoryCosts:
        """Return what was paid since the last call of this."""
        costs, self._costs = self._costs, NO_MEMORY_COSTS
        return costs


def find_sources(memory: Memory, decision: Reflect) -> tuple[Observation, ...]:
    return memory.log.entries[decision.start : decision.start + decision.entries]


async def store_paid_answer(store: Callable[[bool], Awaitable[Memory]]) -> Memory:
    """Return the memory that `store` returns, and try again while the store fails. `store` is told
    whether an earlier attempt may have been written: then it must recognise an answer that is
    stored. Raise the error of the last attempt."""
    loop = asyncio.get_running_loop()
    until = loop.time() + MAX_STORING_S
    is_retry = False
    while True:
        try:
            return await store(is_retry)
        except (Conflict, Unwritable):
            raise
        except StorageError:
            if loop.time() + RETRY_S >= until:
                raise
        is_retry = True
        await asyncio.sleep(RETRY_S)


async def redact_answer(answer: Notes, context: MemoryContext) -> Notes:
    """Return the answer without secrets, unless `redact` is off."""
    return (
        await asyncio.to_thread(redact_notes, answer)
        if context.effective.memory.observation.redact
        else answer
    )


@dataclass(slots=True, eq=False)
class WorkGuard:
    """The deadline and the failure record of memory work."""

    memories: Memories
    policies: PolicyInForce
    clock: Callable[[], float] = time.time
    jitter: Callable[[], float] = random.random

    async def run(
        self,
        memory: Memory,
        decision: Decision,
        work: Callable[[CycleReport], Awaitable[None]],
        *,
        costs: MemoryCosts = NO_MEMORY_COSTS,
        raise_timeout: bool = False,
        raise_failure: bool = False,
        cycle_id: str = "",
    ) -> bool:
        """Return whether the work ended in time and without a failure of its model. Record a
        failure with the thread, and what it has cost.

        `costs`: what was paid for it before. `raise_timeout`: raise TimeoutError after recording that the deadline was missed.
        `raise_failure`: raise every ModelError after recording it. `cycle_id`: names the call in
        the events; empty: a new id does.
        """
        cycle = self.open_cycle(memory, decision, cycle_id, costs)
        try:
            async with asyncio.timeout(self._timeout_s(memory, decision)):
                await work(cycle)
            return True
        except TimeoutError:
            failure: ModelError = ModelTimeout(TIMEOUT_MESSAGE)
            if raise_timeout:
                await self.record_failure(failure, cycle)
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
        await self.record_failure(failure, cycle)
        if raise_failure:
            raise failure
        return False

    def open_cycle(
        self,
        memory: Memory,
        decision: Decision,
        cycle_id: str = "",
        costs: MemoryCosts = NO_MEMORY_COSTS,
    ) -> CycleReport:
        """Return the report of a call that has not begun. `cycle_id`: of a call that reads several
        threads, or that a person has asked for."""
        return CycleReport(self.memories, memory, decision, self.clock, WorkCosts(costs), cycle_id)

    def _timeout_s(self, memory: Memory, decision: Decision) -> float:
        size = (
            sum(o.tokens for o in find_sources(memory, decision))
            if isinstance(decision, Reflect)
            else 0
        )
        return self.policies.current.call_timeout_s * max(size / REFLECTED_TOKENS_PER_TIMEOUT, 1.0)

    async def record_failure(self, exc: ModelError, cycle: CycleReport) -> None:
        """Record it with what was paid and is not stored."""
        memory, is_reflection = cycle.memory, isinstance(cycle.decision, Reflect)
        await cycle.fail(exc.code)
        what: Literal["observe", "reflect"] = "reflect" if is_reflection else "observe"
        failures = memory.failures.count + 1
        self.memories.facts.emit(
            facts.MemoryWorkFailed(memory.key, what, exc.code, failures, exc.advice)
        )
        cause = f"{what} {exc.cause}"
        record: Callable[[Memory], Memory]
        if is_reflection:
            record = partial(transitions.mark_unproductive, size=memory.log.tokens, cause=cause)
        else:
            record = partial(
                transitions.record_failure, now=self.clock(), jitter=self.jitter(), cause=cause
            )
        paid = cycle.costs.take()

        def record_with_costs(now: Memory) -> Memory:
            return transitions.add_memory_costs(record(now), paid)

        await self.memories.update(memory.key, record_with_costs, row_id=memory.row_id)
