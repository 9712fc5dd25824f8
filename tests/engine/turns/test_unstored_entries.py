"""What turns that store nothing add to a ledger waits for the thread's next commit."""

from __future__ import annotations

from om_proxy.engine.turns import unstored_entries
from om_proxy.engine.turns.unstored_entries import UnstoredEntries
from om_proxy.memory.ledger import Account, TurnEntry
from tests.memory.building import KEY

ENTRY = TurnEntry(Account(calls=1, cost=5))


def cost(entries: UnstoredEntries) -> int | None:
    ledger = entries.take(KEY)
    return ledger and ledger.full.cost


def test_entries_are_taken_once() -> None:
    """Entries sum up, and are gone when they are taken."""
    entries = UnstoredEntries()
    entries.add(KEY, ENTRY)
    entries.add(KEY, ENTRY)
    assert [cost(entries), cost(entries)] == [10, None]


def test_a_commit_that_fails_puts_them_back() -> None:
    """Entries that came meanwhile stay too."""
    entries = UnstoredEntries()
    entries.add(KEY, ENTRY)
    taken = entries.take(KEY)
    assert taken
    entries.add(KEY, ENTRY)
    entries.put_back(KEY, taken)
    assert cost(entries) == 10


def test_a_forgotten_thread_leaves_nothing() -> None:
    entries = UnstoredEntries()
    entries.add(KEY, ENTRY)
    entries.drop(KEY)
    assert cost(entries) is None


def test_they_are_bounded() -> None:
    """Of more threads than may wait, the oldest give way."""
    entries = UnstoredEntries()
    for number in range(unstored_entries.MAX_THREADS + 1):
        entries.add(KEY._replace(thread=str(number)), ENTRY)
    assert entries.take(KEY._replace(thread="0")) is None
    assert entries.take(KEY._replace(thread="1"))
