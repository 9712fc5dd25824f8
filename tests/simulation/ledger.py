"""The ledger by day of a simulated disk."""

from __future__ import annotations

from collections.abc import Callable

from om_proxy.common.errors import Unwritable
from om_proxy.memory.ledger import EMPTY_ACCOUNT, Account
from om_proxy.storage.values.records import (
    NAMELESS_RESOURCE,
    Grouping,
    LedgerBatch,
    LedgerGroup,
    LedgerLine,
    LedgerQuery,
    LedgerSum,
)


class DayLedger:
    """Sums by line. `has_resource`: whether a resource of a tenant has a thread."""

    def __init__(self, has_resource: Callable[[str, str], bool]) -> None:
        self._has_resource = has_resource
        self._lines: dict[LedgerLine, Account] = {}
        self._newest: dict[str, int] = {}

    def add(self, batch: LedgerBatch) -> None:
        if any(account.calls >= 2**63 for account in batch.lines.values()):
            raise Unwritable("a database's numbers have 63 bits")
        if self._newest.get(batch.writer, 0) >= batch.number:
            return
        self._newest[batch.writer] = batch.number
        for line, account in batch.lines.items():
            self._add(line, account)

    def _add(self, line: LedgerLine, account: Account) -> None:
        if not self._has_resource(line.tenant, line.resource):
            line = line._replace(resource=NAMELESS_RESOURCE)
        self._lines[line] = self._lines.get(line, EMPTY_ACCOUNT).add(account)

    def rename(self, change: Callable[[LedgerLine], LedgerLine]) -> None:
        """Add every line anew, as it is called now."""
        lines, self._lines = self._lines, {}
        for line, account in lines.items():
            self._add(change(line), account)

    def prune(self, first_day: int) -> None:
        self._lines = {line: sums for line, sums in self._lines.items() if line.day >= first_day}

    def sum_up(self, query: LedgerQuery) -> tuple[LedgerSum, ...]:
        sums: dict[tuple[LedgerGroup, str, str], Account] = {}
        for line, account in self._lines.items():
            if self._is_asked(line, query):
                kind = (_group(line, query.by), line.who, line.history)
                sums[kind] = sums.get(kind, EMPTY_ACCOUNT).add(account)
        groups = sorted({group for group, _, _ in sums})
        page = [g for g in groups if query.after is None or g > query.after][: query.limit]
        found = [LedgerSum(*kind, account) for kind, account in sorted(sums.items())]  # type: ignore[arg-type] # names of a line
        return tuple(one for one in found if one.group in page)

    @staticmethod
    def _is_asked(line: LedgerLine, query: LedgerQuery) -> bool:
        return (
            query.tenant in (None, line.tenant)
            and query.resource in (None, line.resource)
            and query.model in (None, line.model)
            and (query.first_day is None or line.day >= query.first_day)
            and (query.last_day is None or line.day <= query.last_day)
        )


def _group(line: LedgerLine, by: Grouping) -> LedgerGroup:
    groups: dict[Grouping, LedgerGroup] = {
        "day": (line.day,),
        "model": (line.model,),
        "resource": (line.tenant, line.resource),
    }
    return groups[by]
