"""Keep what turns that store nothing add to their threads' ledgers, until another turn of the thread
is stored.

A retry that got the stored reply was paid for, but a commit of its own would delay its reply. So
would one of what a look-up's query cost, which the same turn stores a moment later. A process that
ends takes these sums with it; the sums by day have them (observability/ledger_writer.py).
"""

from __future__ import annotations

from om_proxy.memory.ledger import (
    EMPTY_LEDGER,
    MemoryCosts,
    ThreadLedger,
    TurnEntry,
    add_memory_calls,
    add_turn,
    join_ledgers,
)
from om_proxy.memory.model import Key

MAX_THREADS = 10_000


class UnstoredEntries:
    """The sums of turns that stored nothing, by thread."""

    def __init__(self) -> None:
        self._ledgers: dict[Key, ThreadLedger] = {}

    def add(self, key: Key, entry: TurnEntry) -> None:
        """Add what a turn costs. Of more threads than may wait, the oldest gives way."""
        self._put(key, add_turn(self._ledgers.get(key, EMPTY_LEDGER), entry))

    def add_memory_calls(self, key: Key, costs: MemoryCosts) -> None:
        """Add what calls of memory's models cost, likewise."""
        self._put(key, add_memory_calls(self._ledgers.get(key, EMPTY_LEDGER), costs))

    def _put(self, key: Key, ledger: ThreadLedger) -> None:
        self._ledgers[key] = ledger
        if len(self._ledgers) > MAX_THREADS:
            del self._ledgers[next(iter(self._ledgers))]

    def take(self, key: Key) -> ThreadLedger | None:
        """Remove and return the thread's sums."""
        return self._ledgers.pop(key, None)

    def put_back(self, key: Key, ledger: ThreadLedger) -> None:
        """Keep sums again that were taken, because their commit failed."""
        later = self._ledgers.get(key)
        self._ledgers[key] = join_ledgers(ledger, later) if later else ledger

    def drop(self, key: Key) -> None:
        """Drop the sums of a forgotten thread."""
        self._ledgers.pop(key, None)
