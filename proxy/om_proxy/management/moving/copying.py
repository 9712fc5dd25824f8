"""Copy all memories of one store into another (docs/contributing/storage.md#copying-a-store).

Threads come first, each in one transaction of the target, then the sums of the ledger and the
records of the audit. What the target has already in the same state is left alone, so a copy that
was interrupted goes on when it is run again. At the end the source is looked through once more: a
turn that came meanwhile is never missed in silence.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field

from msgspec.structs import astuple, replace

from om_proxy.common.errors import UnopenedText, UsageError
from om_proxy.management.moving.importing import is_same_thread, without_origin
from om_proxy.memory.ledger import EMPTY_ACCOUNT, Account
from om_proxy.memory.model import RESOURCE_THREAD, Key, resource_key
from om_proxy.storage.base import Store
from om_proxy.storage.contract.records import LedgerSums, RecordKeeping
from om_proxy.storage.values.records import (
    AuditRecord,
    LedgerBatch,
    LedgerLine,
    LedgerQuery,
    LedgerSum,
)
from om_proxy.storage.whole_threads import find_listed, list_keys, read_whole_thread

KEYS_PER_BATCH = 500
THREADS_AT_ONCE = 8
GROUPS_PER_PAGE = 1_000
RECORDS_PER_PAGE = 1_000


@dataclass(slots=True)
class CopyResult:
    """The result of a copy, and the differences between it and its source."""

    threads: int = 0  # that were written
    messages: int = 0
    present_threads: int = 0  # that the target had in the same state already
    # that the target has in another state, and keeps
    differing: list[Key] = field(default_factory=list)
    # that changed in the source after they were copied, or began after it was listed
    changed: list[Key] = field(default_factory=list)
    # that the source does not have, or has no more
    surplus: list[Key] = field(default_factory=list)
    # that were compared in every field after the copy, and are not the same
    unequal: list[Key] = field(default_factory=list)
    # of which a stored value cannot be read, or the shared log's cannot
    unreadable: list[Key] = field(default_factory=list)
    lacking_sums: int = 0  # lines of the ledger that the target lacks after the copy

    @property
    def is_complete(self) -> bool:
        """Whether the target has what the source has."""
        return not (
            self.differing
            or self.changed
            or self.surplus
            or self.unequal
            or self.unreadable
            or self.lacking_sums
        )


@dataclass(frozen=True, slots=True, eq=False)
class StoreCopier:
    """Copies one store into another. `updates`: threads that the target has in another state are
    replaced. `on_batch`: called with the result so far."""

    source: Store
    target: Store
    _: KW_ONLY
    updates: bool = False
    on_batch: Callable[[CopyResult], None] = lambda _: None
    _result: CopyResult = field(default_factory=CopyResult)
    # of the source, as they were copied
    _versions: dict[Key, int] = field(default_factory=dict)
    _places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(THREADS_AT_ONCE))

    async def copy(self, *, verifies: bool = False) -> CopyResult:
        """Copy everything. `verifies`: read all of it again and compare every field. Raise UsageError
        if the target has threads under another secret."""
        if not await self.target.adopt_secret(await self.source.secret()):
            raise UsageError(
                "the target has threads under another secret, so neither could read the other's; "
                "copy into an empty store, or use om-proxy export and import"
            )
        async for batch in _take_batches(list_keys(self.source)):
            # a shared log stands before the threads whose notes it holds
            logs = [place for place in batch if place[0].thread == RESOURCE_THREAD]
            threads = [place for place in batch if place[0].thread != RESOURCE_THREAD]
            await self._copy_at_once(logs)
            await self._copy_at_once(threads)
            self.on_batch(self._result)
        await self._copy_ledger()
        await self._copy_audit()
        await self._look_for_changes()
        if verifies:
            await self._compare_everything()
        return self._result

    async def _copy_at_once(self, places: Iterable[tuple[Key, float]]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for key, created_at in places:
                    group.create_task(self._copy_in_place(key, created_at))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _copy_in_place(self, key: Key, created_at: float) -> None:
        """Copy the thread, unless a value of it cannot be read: the others go on."""
        async with self._places:
            try:
                await self._copy_thread(key, created_at)
            except UnopenedText:
                self._result.unreadable.append(key)
                self._versions[key] = await self.source.version(key)

    async def _copy_thread(self, key: Key, created_at: float) -> None:
        version = await self.target.version(key)
        if version and await self._is_present(key):
            return
        if version and not self.updates:
            self._result.differing.append(key)
            self._versions[key] = await self.source.version(key)
            return
        whole = await read_whole_thread(self.source, key, created_at)
        if whole is None:  # forgotten since it was listed
            return
        if whole.memory.scope == "resource" and resource_key(key) in self._result.unreadable:
            raise UnopenedText("the shared log cannot be read")
        row_id = await self._find_same_row(key, whole.created_at) if version else 0
        if row_id:
            whole = whole._replace(memory=replace(whole.memory, row_id=row_id))
        await self.target.restore(whole, version, keeps_row=bool(row_id))
        self._versions[key] = whole.memory.version
        self._result.threads += key.thread != RESOURCE_THREAD
        self._result.messages += len(whole.messages)

    async def _find_same_row(self, key: Key, created_at: float | None) -> int:
        """Return the id of the target's row if it is an earlier or later state of this thread: a
        turn that is under way there goes on, on top of what is copied. 0: the source has forgotten
        that thread and begun another one, or `key` is that of a shared log, whose threads have rows
        of their own."""
        if key.thread == RESOURCE_THREAD:
            return 0
        info = await find_listed(self.target, key)
        return info.row_id if info and info.created_at == created_at else 0

    async def _is_present(self, key: Key) -> bool:
        """Return whether both stores load the same memory."""
        stored = await self.source.load(key)
        if without_origin(stored) != without_origin(await self.target.load(key)):
            return False
        self._versions[key] = stored.version
        self._result.present_threads += key.thread != RESOURCE_THREAD
        return True

    async def _copy_ledger(self) -> None:
        """Add what is missing from the target's sums. A line that has grown there is left as it
        is."""
        async for lacking in self._read_lacking_lines():
            batch = LedgerBatch(os.urandom(16).hex(), 1, lacking)
            await self.target.add_to_ledger(batch)

    async def _read_lacking_lines(self) -> AsyncIterator[dict[LedgerLine, Account]]:
        """Yield what is missing from the target's sums, by tenant and day."""
        async for tenant in _list_ledger_tenants(self.source):
            async for day in _list_days(self.source, tenant):
                lacking = subtract_lines(
                    await read_ledger_day(self.source, tenant, day),
                    await read_ledger_day(self.target, tenant, day),
                )
                if lacking:
                    yield lacking

    async def _copy_audit(self) -> None:
        """Append the records that are missing from the target, the oldest first."""
        present = {_identify(record) async for record in _read_audit(self.target)}
        lacking = [
            record async for record in _read_audit(self.source) if _identify(record) not in present
        ]
        lacking.reverse()
        for first in range(0, len(lacking), RECORDS_PER_PAGE):
            await self.target.add_audit(lacking[first : first + RECORDS_PER_PAGE])

    async def _look_for_changes(self) -> None:
        stored = set()
        async for key, _ in list_keys(self.source):
            stored.add(key)
            if await self.source.version(key) != self._versions.get(key):
                self._result.changed.append(key)
        async for key, _ in list_keys(self.target):
            if key not in stored:
                self._result.surplus.append(key)

    async def _compare_everything(self) -> None:
        async for key, _ in list_keys(self.source):
            if key in self._result.unreadable:
                continue
            try:
                first = await read_whole_thread(self.source, key)
                second = await read_whole_thread(self.target, key)
            except UnopenedText:
                self._result.unreadable.append(key)
                continue
            if first and not (second and is_same_thread(first, second)):
                self._result.unequal.append(key)
        async for lacking in self._read_lacking_lines():
            self._result.lacking_sums += len(lacking)


async def _list_ledger_tenants(store: LedgerSums) -> AsyncIterator[str]:
    """Yield the tenants that have sums, also those without a thread."""
    before: str | None = None
    async for found in _read_sums(store, LedgerQuery(None, "resource", limit=GROUPS_PER_PAGE)):
        tenant = str(found.group[0])
        if tenant != before:
            yield tenant
        before = tenant


async def _take_batches(
    keys: AsyncIterator[tuple[Key, float]],
) -> AsyncIterator[list[tuple[Key, float]]]:
    batch = []
    async for place in keys:
        batch.append(place)
        if len(batch) == KEYS_PER_BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


async def _list_days(store: LedgerSums, tenant: str) -> AsyncIterator[int]:
    async for found in _read_sums(store, LedgerQuery(tenant, "day", limit=GROUPS_PER_PAGE)):
        yield int(found.group[0])


async def read_ledger_day(store: LedgerSums, tenant: str, day: int) -> dict[LedgerLine, Account]:
    """Return the lines of one day of a tenant."""
    lines = {}
    of_day = LedgerQuery(tenant, "resource", day, day, limit=GROUPS_PER_PAGE)
    resources = {str(found.group[-1]): None async for found in _read_sums(store, of_day)}
    for resource in resources:
        by_model = of_day._replace(by="model", resource=resource)
        async for found in _read_sums(store, by_model):
            line = LedgerLine(tenant, resource, day, str(found.group[-1]), found.who, found.history)
            lines[line] = found.account
    return lines


async def _read_sums(store: LedgerSums, query: LedgerQuery) -> AsyncIterator[LedgerSum]:
    """Yield the sums of all groups."""
    while True:
        page = await store.sum_ledger(query)
        for found in page:
            yield found
        if len({found.group for found in page}) < query.limit:
            return
        query = query._replace(after=page[-1].group)


def subtract_lines(
    source: dict[LedgerLine, Account], target: dict[LedgerLine, Account]
) -> dict[LedgerLine, Account]:
    """Return what is missing from the lines of the target. Those that have more than the source's
    in any figure lack nothing: the target has counted itself."""
    lacking = {}
    for line, account in source.items():
        present = astuple(target.get(line, EMPTY_ACCOUNT))
        rest = [mine - theirs for mine, theirs in zip(astuple(account), present, strict=True)]
        if any(rest) and min(rest) >= 0:
            lacking[line] = Account(*rest)
    return lacking


async def _read_audit(store: RecordKeeping) -> AsyncIterator[AuditRecord]:
    """Yield all records, the newest first."""
    before: int | None = None
    while page := await store.audit(None, before, RECORDS_PER_PAGE):
        for record in page:
            yield record
        before = page[-1].id


def _identify(record: AuditRecord) -> tuple[object, ...]:
    """Return what tells one record from another in any store."""
    return (*record[:5], tuple(sorted(record.counts.items())))
