"""Carry what a piece of memory work has paid to the commit that stores it."""

from __future__ import annotations

from om_proxy.memory.ledger import NO_MEMORY_COSTS, Account, History, MemoryCosts


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
