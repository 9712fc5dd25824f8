"""Add up what all threads of a file hold, page by page: a load never waits for the whole scan."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from om_proxy.storage.row_decoding import Row
from om_proxy.storage.sqlite.queries import UNIX_NOW
from om_proxy.storage.store_description import MAX_COUNTED_TOKENS, StoreTotals

THREADS_PER_PAGE = 2_000  # some milliseconds


def _count_in_state(name: str) -> str:
    """Return the SQL for a number of the state; 0 for what is none."""
    text = "CAST(state AS TEXT)"
    value = f"ifnull(CAST(json_extract({text}, '$.{name}') AS INTEGER), 0)"
    return f"iif(json_valid({text}), max(0, min({MAX_COUNTED_TOKENS}, {value})), 0)"


# Of the page: its number of threads and its last id, then the fields of StoreTotals. A thread that
# shares its resource's log has none of its own.
SELECT_PAGE_TOTALS = f"""SELECT count(*), max(id), sum(pending), sum(max(0, log_tokens - reflected_tokens)),
    sum(reflected_tokens), sum(is_due), sum(parked) FROM (
        SELECT id, parked, max(0, min({MAX_COUNTED_TOKENS}, pending)) AS pending,
            {_count_in_state("log_tokens")} AS log_tokens,
            {_count_in_state("reflected_tokens")} AS reflected_tokens,
            ifnull(due <= ?, 0) AND NOT EXISTS (
                SELECT 1 FROM lease WHERE (lease.tenant, lease.resource, lease.thread)
                    = (thread.tenant, thread.resource, thread.thread) AND until > {UNIX_NOW}
            ) AS is_due
        FROM thread WHERE id > ? ORDER BY id LIMIT ?)"""

ReadRows = Callable[..., Awaitable[list[Row]]]


async def add_up_threads(
    read_rows: ReadRows, now: float, page_size: int = THREADS_PER_PAGE
) -> StoreTotals:
    """Return `Store.totals`. `read_rows` runs one statement."""
    totals, last_id, count = StoreTotals(), 0, page_size
    while count == page_size:
        [(count, last_id, *sums)] = await read_rows(SELECT_PAGE_TOTALS, now, last_id, page_size)
        if count:
            totals = StoreTotals(*map(sum, zip(totals, sums, strict=True)))
    return totals
