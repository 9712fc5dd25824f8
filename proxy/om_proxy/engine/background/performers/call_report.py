"""Report each call of observer or reflector as a fact, however it ends, and price it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from om_proxy.agents.model_access.call_bill import CallBill, PaidCall
from om_proxy.agents.model_access.llm import Target
from om_proxy.engine.background.performers.work_costs import WorkCosts
from om_proxy.engine.policy import find_token_prices
from om_proxy.memory.ledger import Account, History, assess_memory_call
from om_proxy.memory.model import Memory
from om_proxy.memory.token_prices import Tokens
from om_proxy.observability.facts import AgentWork, CallOutcome, Facts, MemoryCallEnded


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
