"""Add up what all threads hold, page by page: no script runs for long."""

from __future__ import annotations

from om_proxy.storage.redis.listing import ListedRow, read_page
from om_proxy.storage.redis.session import Session
from om_proxy.storage.values.store_description import MAX_COUNTED_TOKENS, StoreTotals

THREADS_PER_PAGE = 500  # some milliseconds


async def add_up_threads(
    session: Session, now: float, page_size: int = THREADS_PER_PAGE
) -> StoreTotals:
    """Return `Store.totals`."""
    totals, last_id = StoreTotals(), 0
    while True:
        page = await read_page(session, "id", None, last_id, "", page_size)
        for listed in page:
            totals = StoreTotals(*map(sum, zip(totals, _count(listed, now), strict=True)))
        if len(page) < page_size:
            return totals
        last_id = page[-1].row_id


def _count(listed: ListedRow, now: float) -> StoreTotals:
    """Return what one row adds. A thread that shares its resource's log has none of its own."""
    row = listed.row
    is_due = listed.due is not None and listed.due <= now and not listed.is_leased
    pending, log, reflected = (
        max(0, min(MAX_COUNTED_TOKENS, tokens))
        for tokens in (row.pending, row.log_tokens, row.reflected_tokens)
    )
    return StoreTotals(
        pending,
        max(0, log - reflected),
        reflected,
        int(is_due),
        int(row.parked),
    )
