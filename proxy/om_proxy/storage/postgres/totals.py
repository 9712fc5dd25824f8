"""Add up what all threads hold, page by page: no statement runs for long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from om_proxy.storage.row_decoding import Row
from om_proxy.storage.sql.session import UNIX_NOW
from om_proxy.storage.store_description import MAX_COUNTED_TOKENS, StoreTotals

THREADS_PER_PAGE = 2_000  # some milliseconds

# Of the page: its number of threads and its last id, then the fields of StoreTotals. A thread that
# shares its resource's log has none of its own.
SELECT_PAGE_TOTALS = f"""SELECT count(*), max(id), sum(pending)::bigint, sum(greatest(log_tokens - reflected_tokens, 0))::bigint,
    sum(reflected_tokens)::bigint, count(*) FILTER (WHERE is_due), count(*) FILTER (WHERE parked) FROM (
        SELECT id, parked, least(greatest(pending, 0), {MAX_COUNTED_TOKENS}) AS pending,
            least(greatest(log_tokens, 0), {MAX_COUNTED_TOKENS}) AS log_tokens,
            least(greatest(reflected_tokens, 0), {MAX_COUNTED_TOKENS}) AS reflected_tokens,
            coalesce(due <= $1, false) AND NOT EXISTS (
                SELECT FROM om.lease WHERE (lease.tenant, lease.resource, lease.thread)
                    = (thread.tenant, thread.resource, thread.thread) AND until > {UNIX_NOW}
            ) AS is_due
        FROM om.thread WHERE id > $2 ORDER BY id LIMIT $3) AS page"""

ReadRows = Callable[..., Awaitable[list[Row]]]


async def add_up_threads(
    read_rows: ReadRows, now: float, page_size: int = THREADS_PER_PAGE
) -> StoreTotals:
    """Return `Store.totals`. `read_rows` runs one statement."""
    totals, last_id, count = StoreTotals(), 0, page_size
    while count == page_size:
        [(count, last_id, *sums)] = await read_rows(SELECT_PAGE_TOTALS, now, last_id, page_size)
        if count:
            pairs: list[Any] = list(zip(totals, sums, strict=True))
            totals = StoreTotals(*map(sum, pairs))
    return totals
