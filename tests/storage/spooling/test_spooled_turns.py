"""Above the byte budget, the owner that has waited longest loses its turns."""

from __future__ import annotations

from functools import partial

from om_proxy.storage.spooling.spooled_turns import SpoolBudget


class Owners:
    """Owners that record when their turns are dropped."""

    def __init__(self, max_bytes: int) -> None:
        self.budget = SpoolBudget(max_bytes)
        self.dropped: list[str] = []

    def charge(self, owner: str, size: int) -> None:
        self.budget.charge(owner, size, partial(self.dropped.append, owner))


def test_the_oldest_goes_first() -> None:
    owners = Owners(100)
    for owner in ("a", "b", "c"):
        owners.charge(owner, 40)
    assert (owners.dropped, owners.budget.held_bytes) == (["a"], 80)


def test_one_that_is_too_large_for_all_of_it_goes_alone() -> None:
    """A single huge owner must not make the others lose their turns."""
    owners = Owners(100)
    owners.charge("a", 40)
    owners.charge("b", 40)
    owners.charge("large", 101)
    assert (owners.dropped, owners.budget.held_bytes) == (["large"], 80)
    owners.charge("a", 61)
    assert (owners.dropped, owners.budget.held_bytes) == (["large", "a"], 40)
