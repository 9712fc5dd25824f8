"""Read the ledger for a person: sums by day, model, resource or thread."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from om_proxy.observability.ledger_writer import LedgerWriter
from om_proxy.storage.contract.records import LedgerSums
from om_proxy.storage.values.ledger_lines import NAMELESS_RESOURCE, LedgerQuery, LedgerSum

# what this process has counted is written first; a store that is slow does not hold an answer up
MAX_WRITE_WAIT_S = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class LedgerReader:
    """Reads what is stored, with what this process has counted and not written yet."""

    store: LedgerSums
    writer: LedgerWriter

    async def sum_up(self, query: LedgerQuery) -> Sequence[LedgerSum]:
        # a write that is given up here is told once all the same
        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_WRITE_WAIT_S):
                await self.writer.write()
        return await self.store.sum_ledger(query)

    async def sum_resource(self, tenant: str, resource: str) -> Sequence[LedgerSum]:
        """Return the sums of one resource, over all days."""
        return await self.sum_up(LedgerQuery(tenant, "resource", resource=resource))

    async def sum_resources(
        self, tenant: str, after: str | None, limit: int
    ) -> Mapping[str, Sequence[LedgerSum]]:
        """Return the sums of the first `limit` resources after the name `after`, by name, over all
        days."""
        cursor = (tenant, NAMELESS_RESOURCE if after is None else after)
        sums = await self.sum_up(LedgerQuery(tenant, "resource", after=cursor, limit=limit))
        by_name: dict[str, list[LedgerSum]] = {}
        for found in sums:
            by_name.setdefault(str(found.group[1]), []).append(found)
        return by_name

    def as_of(self) -> float:
        """Return the unix seconds up to which everything that this process counted is stored."""
        return self.writer.as_of()
