"""Add up what all threads hold, page by page: no statement runs for long."""

from __future__ import annotations

from typing import Any, ClassVar

from om_proxy.storage.sql.session import UNIX_NOW
from om_proxy.storage.sql.sql_store import SqlStore
from om_proxy.storage.values.store_description import MAX_COUNTED_TOKENS, StoreTotals

THREADS_PER_PAGE = 2_000  # some milliseconds


class TotalsMethods(SqlStore):
    """`Store.totals` of an SQL store."""

    # SQL for the tokens of a thread's own log, and for those of them that are reflected
    _log_tokens: ClassVar[str]
    _reflected_tokens: ClassVar[str]

    async def totals(self, now: float, page_size: int = THREADS_PER_PAGE) -> StoreTotals:
        totals, last_id, count = StoreTotals(), 0, page_size
        sql = self._write_page()
        while count == page_size:
            [(count, last_id, *sums)] = await self._select(
                sql, now, last_id, page_size, is_long=True
            )
            if count:
                pairs: list[Any] = list(zip(totals, sums, strict=True))
                totals = StoreTotals(*map(sum, pairs))
        return totals

    def _write_page(self) -> str:
        """Return the statement of a page: its number of threads and its last id, then the fields of
        StoreTotals. A thread that shares its resource's log has none of its own."""
        pending, log_tokens, reflected_tokens = (
            f"least(greatest({tokens}, 0), {MAX_COUNTED_TOKENS})"
            for tokens in ("pending", self._log_tokens, self._reflected_tokens)
        )
        return f"""SELECT count(*), max(id), sum(pending)::bigint,
                sum(greatest(log_tokens - reflected_tokens, 0))::bigint, sum(reflected_tokens)::bigint,
                count(*) FILTER (WHERE is_due), count(*) FILTER (WHERE parked) FROM (
            SELECT id, parked, {pending} AS pending, {log_tokens} AS log_tokens,
                {reflected_tokens} AS reflected_tokens,
                coalesce(due <= $1, false) AND NOT EXISTS (
                    SELECT 1 FROM om.lease WHERE (lease.tenant, lease.resource, lease.thread)
                        = (thread.tenant, thread.resource, thread.thread) AND until > {UNIX_NOW}
                ) AS is_due
            FROM om.thread WHERE id > $2 ORDER BY id LIMIT $3) AS page"""
