"""Add up what model calls cost, by day and resource, and write the sums every few seconds.

One write serves all turns of an interval, so no turn pays for a write or locks a row. A process
that is killed loses at most one interval; `as_of` says up to when the sums are complete.

An error in the middle of a write leaves unknown whether it was written. So what is written is a
numbered batch that no longer changes, and the store adds each number once
(`Store.add_to_ledger`). What comes during the write is added up for the next batch. While the store
is away, both are bounded: beyond that, lines are merged and lose names, and no figure is lost.

A turn is priced before it is stored, and the store gives no line to a resource of which it has
nothing. So the lines of a resource that is new to this process wait until the store has the thread
they came from, but no longer than an interval after the store was seen without it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import structlog

from om_proxy.common.bounded_cache import BoundedCache
from om_proxy.common.errors import StorageError
from om_proxy.memory.ledger import EMPTY_ACCOUNT, Account, History
from om_proxy.memory.model import Key
from om_proxy.observability.facts import AgentWork, Facts, MemoryCallEnded, TurnPriced
from om_proxy.storage.contract.memories import MemoryRows
from om_proxy.storage.contract.records import LedgerSums
from om_proxy.storage.values.records import (
    NAMELESS_RESOURCE,
    SECONDS_PER_DAY,
    LedgerBatch,
    LedgerLine,
    LedgerQuery,
    LedgerSum,
    Who,
)

logger = structlog.get_logger("storage")

WRITE_INTERVAL_S = 10.0
WRITE_TIMEOUT_S = 15.0  # above what the store waits for another process's lock
LAST_WRITE_S = 3.0  # at the end of the process
MAX_READ_WAIT_S = 1.0  # of a reader: a store that is slow to be written does not hold it up
# Beyond so many waiting lines, new ones lose resource and model, and beyond twice as many the
# tenant: the operator's totals stay true.
MAX_WAITING_LINES = 10_000
MAX_KNOWN_RESOURCES = 10_000  # of which the store had a thread
MERGED_MODEL = "other"
MAX_MODEL_CHARS = 200
WHO_BY_WORK: dict[AgentWork, Who] = {
    "observe": "observer",
    "reflect": "reflector",
    "embed": "embedder",
}


_Line = tuple[str, str, int, str | None, Who, History]  # the fields of a LedgerLine
_Owner = tuple[str, str]  # a tenant and its resource


@dataclass(slots=True)
class _NewResource:
    """A resource whose lines wait until a thread of it is stored."""

    key: Key  # of the thread that the first line came from
    since: float  # unix seconds: when that line came
    missing_at: float | None = None  # when the store was first seen without the thread


class LedgerStore(LedgerSums, MemoryRows, Protocol):
    """Sums, and the threads that they are of."""


class LedgerWriter:
    """Adds up what turns and calls of memory cost. Its owner keeps `write_forever` running, and
    calls `close` at the end."""

    def __init__(self, store: LedgerStore, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._writer = os.urandom(16).hex()
        self._number = 0  # of the newest batch
        self._batch: LedgerBatch | None = None  # may be written already
        self._lines: dict[_Line, Account] = {}  # of the next batch
        self._waiting_since: float | None = None  # unix seconds; None: nothing waits
        self._next_since: float | None = None  # of `_lines`
        self._new_resources: dict[_Owner, _NewResource] = {}
        self._known: BoundedCache[_Owner, bool] = BoundedCache(max_items=MAX_KNOWN_RESOURCES)
        self._writing = asyncio.Lock()
        self._has_failed = False
        self._drop_cause: str | None = None  # of all lines from then on

    def subscribe_to(self, facts: Facts) -> None:
        facts.subscribe(self.add_turn, TurnPriced)
        facts.subscribe(self.add_memory_calls, MemoryCallEnded)

    def add_turn(self, fact: TurnPriced) -> None:
        self._add(fact.key, fact.model, "actor", fact.history, fact.account)

    def add_memory_calls(self, fact: MemoryCallEnded) -> None:
        for model, account in fact.accounts:
            self._add(fact.keys[0], model, WHO_BY_WORK[fact.work], fact.history, account)

    def _add(
        self, key: Key, model: str | None, who: Who, history: History, account: Account
    ) -> None:
        if self._drop_cause:  # the end of a call that began before
            logger.error("ledger.lost", error=self._drop_cause, lines=1)
            return
        now = self._clock()
        day = int(now // SECONDS_PER_DAY)
        # a plain tuple takes a third of the time of a LedgerLine, and every turn makes one
        line = (key.tenant, key.resource, day, model, who, history)
        lines = self._lines
        known = lines.get(line)
        if known is not None:
            lines[line] = known.add(account)
            return
        if self._next_since is None:
            self._next_since = now
        if len(lines) >= MAX_WAITING_LINES:
            tenant = key.tenant if len(lines) < 2 * MAX_WAITING_LINES else ""
            line = (tenant, NAMELESS_RESOURCE, day, MERGED_MODEL, who, history)
        elif (owner := line[:2]) not in self._known and owner not in self._new_resources:
            self._new_resources[owner] = _NewResource(key, now)
        lines[line] = lines.get(line, EMPTY_ACCOUNT).add(account)

    def as_of(self) -> float:
        """Return the unix seconds up to which the store has what this process has counted."""
        since = self._waiting_since if self._batch is not None else self._next_since
        return self._clock() if since is None else since

    async def sum_up(self, query: LedgerQuery) -> Sequence[LedgerSum]:
        """Return the stored sums. What this process has counted is written first."""
        # a write that is given up here is told once all the same
        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_READ_WAIT_S):
                await self.write()
        return await self._store.sum_ledger(query)

    async def write_forever(self) -> None:
        while True:
            await asyncio.sleep(WRITE_INTERVAL_S)
            await self.write()

    async def write(self) -> None:
        """Write what waits, the batch of the last attempt first. If the store fails, it waits for
        the next time."""
        async with self._writing:
            try:
                while batch := await self._take_batch():
                    async with asyncio.timeout(WRITE_TIMEOUT_S):
                        await self._store.add_to_ledger(batch)
                    self._batch = None
                    self._has_failed = False
            except (StorageError, TimeoutError) as exc:
                self._report_failure(exc, self._count_lines())

    async def _take_batch(self) -> LedgerBatch | None:
        """Return the batch to write; None: nothing may be written now."""
        if self._batch is None and self._lines:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self._look_for_new_resources()
            held = {line: self._lines[line] for line in self._lines if self._is_held(line)}
            ready = {line: self._lines[line] for line in self._lines if line not in held}
            if ready:
                self._number += 1
                self._batch = LedgerBatch(self._writer, self._number, _name_lines(ready))
                self._waiting_since, self._lines = self._next_since, held
                held_since = [new.since for new in self._new_resources.values()]
                self._next_since = min(held_since, default=None)
        return self._batch

    def _is_held(self, line: _Line) -> bool:
        return line[:2] in self._new_resources

    async def _look_for_new_resources(self) -> None:
        """Let the lines of new resources go, where the store has their thread or has been without it
        for an interval."""
        for owner, new in list(self._new_resources.items()):
            # a thread that only waits for the store has a negative version
            version = await self._store.version(new.key)
            now = self._clock()
            if version > 0:
                self._known.put(owner, True)
            elif new.missing_at is None or version < 0:
                new.missing_at = now
                continue
            elif now - new.missing_at < WRITE_INTERVAL_S:
                continue
            self._new_resources.pop(owner, None)

    def _count_lines(self) -> int:
        return len(self._lines) + (len(self._batch.lines) if self._batch else 0)

    def _report_failure(self, exc: Exception, line_count: int) -> None:
        if not self._has_failed:
            self._has_failed = True
            logger.warning("ledger.unwritten", error=type(exc).__name__, lines=line_count)

    def drop_all(self, cause: str) -> None:
        """Give up what waits and what comes later, and report it. `cause`: a word for the log."""
        self._drop_cause = cause
        if lost := self._count_lines():
            logger.error("ledger.lost", error=cause, lines=lost)
        self._lines, self._batch, self._new_resources = {}, None, {}
        self._waiting_since = self._next_since = None

    async def close(self) -> None:
        """Write what waits, and report what is lost with the process."""
        self._new_resources.clear()  # their lines wait no longer
        try:
            async with asyncio.timeout(LAST_WRITE_S):
                await self.write()
        except TimeoutError:
            pass  # reported below
        if lost := self._count_lines():
            logger.error("ledger.lost", lines=lost)


def _name_lines(lines: Mapping[_Line, Account]) -> dict[LedgerLine, Account]:
    named: dict[LedgerLine, Account] = {}
    for (tenant, resource, day, model, who, history), account in lines.items():
        line = LedgerLine(tenant, resource, day, _clean_name(model), who, history)
        named[line] = named.get(line, EMPTY_ACCOUNT).add(account)
    return named


def _clean_name(model: str | None) -> str:
    """Return the model's name as a store can hold it: lone surrogates become question marks."""
    name = (model or "")[:MAX_MODEL_CHARS]
    return name if name.isascii() else name.encode("utf-8", "replace").decode()
