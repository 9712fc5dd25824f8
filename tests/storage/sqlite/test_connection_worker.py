"""Background units give way, and still come."""

from __future__ import annotations

from typing import Any

import pytest

from om_proxy.storage.sqlite.connection_worker import MAX_YIELD_S, WorkQueue, WorkUnit


async def no_work(_: Any) -> None:
    """Any work: the queue does not run it."""


def fill(queue: WorkQueue, units: str, now: float = 0.0) -> dict[int, str]:
    """Add a unit for each letter: t, a turn; c, a checkpoint that people wait for; b, a background
    unit. Return the letter of each by its id."""
    letters = {}
    for letter in units:
        unit = WorkUnit(no_work, needs_no_transaction=letter == "c", is_background=letter == "b")
        letters[id(unit)] = letter
        queue.add(unit, now)
    return letters


def take_all(queue: WorkQueue, letters: dict[int, str], now: float) -> str:
    """Take everything at one time: the letters of each group, with a space between."""
    groups = []
    while queue:
        groups.append("".join(letters[id(unit)] for unit in queue.take_group(now)))
    return " ".join(groups)


@pytest.mark.parametrize(
    ("units", "waited_s", "expected"),
    [
        ("ttt", 0.0, "ttt"),
        ("tctt", 0.0, "t c tt"),
        ("btbt", 0.0, "tt b b"),  # turns come first; background units share no transaction
        ("bbcb", 0.0, "c b b b"),
        ("bbtt", MAX_YIELD_S, "b tt b"),  # it has waited for long enough, but only one goes first
        ("bbctcb", MAX_YIELD_S, "b c b t b c"),
    ],
)
async def test_the_order_of_groups(units: str, waited_s: float, expected: str) -> None:
    queue = WorkQueue()
    letters = fill(queue, units)
    assert take_all(queue, letters, waited_s) == expected


async def test_a_turn_waits_for_one_background_unit_at_most() -> None:
    """Whenever a turn comes, and however long background units have waited, at most one of them
    comes between the unit that runs then and the turn."""
    queue = WorkQueue()
    letters = fill(queue, "b" * 10 + "t" * 10)
    for now in range(1, 11):
        letters |= fill(queue, "t", now)
        behind = 0
        while "t" not in [letters[id(unit)] for unit in queue.take_group(now)]:
            behind += 1
        assert behind <= 1


async def test_a_busy_store_starves_no_background_unit() -> None:
    """Turns that never stop coming hold a background unit up for MAX_YIELD_S."""
    queue = WorkQueue(max_units=1)
    letters = fill(queue, "b")
    now = 0.0
    while True:
        letters |= fill(queue, "t", now)
        [unit] = queue.take_group(now)
        if letters[id(unit)] == "b":
            break
        now += 0.01
    assert now == pytest.approx(MAX_YIELD_S, abs=0.011)


async def test_a_group_is_bounded() -> None:
    queue = WorkQueue(max_units=2)
    letters = fill(queue, "ttttt")
    assert take_all(queue, letters, 0.0) == "tt tt t"
