"""Report each call of observer or reflector, however it ends, as a fact with its price, as events,
and as costs for the commit that stores the work; and store what it answered, without its secrets.

The answer is paid for: a store that fails for a moment must not cost it, since another call would
pay for the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

from om_proxy.agents.model_access.llm import Target
from om_proxy.agents.model_access.retries import CallBill, PaidCall
from om_proxy.common.errors import Conflict, StorageError, Unwritable
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.memory_cache.memory_events import create_cycle_id
from om_proxy.engine.policy import MemoryContext, find_token_prices
from om_proxy.memory.events.changes import Cause
from om_proxy.memory.events.cycles import Cycle, make_failed, make_start
from om_proxy.memory.events.parts import OperationType
from om_proxy.memory.ledger import (
    NO_MEMORY_COSTS,
    Account,
    History,
    MemoryCosts,
    assess_memory_call,
)
from om_proxy.memory.lifecycle.decisions import Decision, Observe, Reflect
from om_proxy.memory.model import Memory
from om_proxy.memory.notes.redaction import Notes, redact_notes
from om_proxy.memory.token_prices import Tokens
from om_proxy.observability.facts import AgentWork, CallOutcome, Facts, MemoryCallEnded

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
    the process is killed or the thread is forgotten."""

    def __init__(
        self,
        memories: Memories,
        memory: Memory,
        decision: Decision,
        clock: Callable[[], float],
        cycle_id: str = "",
    ) -> None:
        """`cycle_id`: of a call that reads several threads."""
        self._memories = memories
        self._memory = memory
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
        own_name = self._memory.key.thread
        names = tuple(thread_names) or ((own_name,) if own_name else ())
        self._cycle = Cycle(
            self._cycle_id, self._operation, self._is_awaited, self._clock(), tokens, names
        )
        subject = self._memories.events.describe_subject(self._memory)
        start = make_start(self._cycle, self._memory, subject)
        await self._memories.events.add(self._memory.key, start)

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
        subject = self._memories.events.describe_subject(self._memory)
        failed = make_failed(cycle, code, self._memory, subject, self._clock())
        await self._memories.events.add(self._memory.key, failed)


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
