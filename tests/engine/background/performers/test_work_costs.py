"""What a piece of work has paid is stored once."""

from __future__ import annotations

from om_proxy.engine.background.performers.work_costs import WorkCosts
from om_proxy.memory.ledger import NO_MEMORY_COSTS, Account, MemoryCosts


def test_costs_are_taken_once() -> None:
    costs = WorkCosts(MemoryCosts(full=Account(calls=1, cost=3)))
    costs.add(Account(calls=1, cost=4), "full")
    costs.add(Account(calls=1, cost=5), "partial")
    assert costs.take() == MemoryCosts(Account(calls=2, cost=7), Account(calls=1, cost=5))
    assert costs.take() == NO_MEMORY_COSTS
