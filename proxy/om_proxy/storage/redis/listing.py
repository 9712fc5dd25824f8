"""Read the lists of threads that people page through, and their sums, in bounded time over many
threads.

A list is a walk along an ordered set. What a filter leaves out makes that walk longer, so a page
walks over at most MAX_WALKED_ROWS threads, and ends there: with fewer threads than asked for, maybe
none, and the place where the next page begins. Sums are added up page by page too.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from om_proxy.memory.model import RESOURCE_THREAD, Key
from om_proxy.storage.contract.status import MAX_COUNTED_TOKENS, StoreTotals
from om_proxy.storage.encryption.keyring import NO_HELD_KEYS
from om_proxy.storage.encryption.row_cipher import HeldKeys
from om_proxy.storage.redis.keys import LAST_BYTE, pack_names, unpack_key, unpack_names
from om_proxy.storage.redis.rows import ThreadRow, decode_thread_row
from om_proxy.storage.redis.session import Argument, Session
from om_proxy.storage.shared import row_decoding
from om_proxy.storage.values.listing import (
    MAX_COUNTED_THREADS,
    IdleThread,
    ResourceInfo,
    ThreadInfo,
    ThreadPage,
    ThreadPlace,
    ThreadSelection,
    find_place,
    is_selected,
)

MAX_WALKED_ROWS = 2_000
ROWS_PER_SCRIPT = 200


Order = Literal["name", "recent", "idle", "id"]
THREADS_PER_PAGE = 500  # some milliseconds


class ListedRow(NamedTuple):
    """A thread's row, as the script `list` returns it."""

    key: Key
    row_id: int
    created_at: float
    row: ThreadRow
    due: float | None
    shared_log: ThreadRow | None  # of a thread that shares its log
    is_leased: bool  # it, or in the list `idle` the log that it shares
    version: int

    def show(self, keys: HeldKeys) -> ThreadInfo:
        """Return what a list shows. A thread whose key is not among these has no title."""
        row = self.row
        shared_tokens = self.shared_log.log_tokens if self.shared_log else None
        return row_decoding.decode_info(
            (
                *self.key,
                self.created_at,
                row.turn_at,
                row.live_count,
                row.generation,
                row.title,
                row.failures,
                row.parked,
                self.row_id,
                row.coverage > 0,
                row.pending,
                row.model,
                row.state,
                shared_tokens,
                row.key_id,
            ),
            keys,
        )

    @property
    def active_at(self) -> float:
        return self.show(NO_HELD_KEYS).active_at

    @property
    def place(self) -> ThreadPlace:
        return find_place(self.show(NO_HELD_KEYS))

    @property
    def idle(self) -> IdleThread:
        shares_log = self.shared_log is not None
        return IdleThread(
            self.key, self.version, self.active_at, self.row_id, shares_log, self.is_leased
        )


async def read_page(
    session: Session,
    order: Order,
    tenant: str | None,
    first: Argument,
    last: Argument,
    limit: int,
) -> list[ListedRow]:
    """Return some rows along a list. `name`: from the packed name `first` to `last`, as bounds of
    ZRANGEBYLEX; `recent` and `idle`: after the place with the time `first` and the id `last`;
    `id`: with ids above `first`."""
    owner = "" if tenant is None else f"={tenant}"
    found = await session.run("list", order, owner, first, last, limit)
    return [_decode_listed(*values) for values in found if values[3] is not None]


def _decode_listed(
    packed: bytes,
    row_id: bytes,
    created_at: bytes,
    row: bytes,
    due: bytes | None,
    log: bytes | None,
    is_leased: int,
    version: bytes,
) -> ListedRow:
    return ListedRow(
        unpack_key(packed),
        int(row_id),
        float(created_at),
        decode_thread_row(row),
        None if due is None else float(due),
        None if log is None else decode_thread_row(log),
        bool(is_leased),
        int(version),
    )


def _bound_names(tenant: str | None, resource: str | None) -> tuple[bytes, bytes]:
    """Return the bounds of all threads of a tenant, of its resource, or of all tenants."""
    if tenant is None:
        return b"-", b"+"
    prefix = pack_names(tenant) if resource is None else pack_names(tenant, resource)
    return b"[" + prefix, b"(" + prefix + LAST_BYTE


async def select_all(
    session: Session,
    tenant: str | None,
    resource: str | None = None,
    cursor: Key | None = None,
    limit: int = 100,
) -> tuple[ThreadInfo, ...]:
    """Return `Store.threads`."""
    selection = ThreadSelection(tenant, resource)
    infos: list[ThreadInfo] = []
    after = None if cursor is None else ThreadPlace(cursor, 0.0, 0)
    while len(infos) < limit:
        page = await select_threads(session, selection, after, limit - len(infos))
        infos += page.threads
        after = page.end
        if after is None:
            break
    return tuple(infos)


async def select_threads(
    session: Session,
    selection: ThreadSelection,
    after: ThreadPlace | None = None,
    limit: int = 100,
) -> ThreadPage:
    """Return `Store.find_threads`."""
    chosen, end = await _choose_rows(session, selection, after, limit)
    held = await session.keyring.hold(session, {one.row.key_id for one in chosen})
    return ThreadPage(tuple(one.show(held) for one in chosen), end)


async def _choose_rows(
    session: Session, selection: ThreadSelection, after: ThreadPlace | None, limit: int
) -> tuple[list[ListedRow], ThreadPlace | None]:
    """Return the rows of a page, and where the next one begins."""
    chosen: list[ListedRow] = []
    walked, place = 0, after
    while walked < MAX_WALKED_ROWS:
        count = min(ROWS_PER_SCRIPT, MAX_WALKED_ROWS - walked)
        page = await _read_behind(session, selection, place, count)
        for one in page:
            # a title that is encrypted begins with nothing that anybody looks for
            if not is_selected(one.show(NO_HELD_KEYS), selection):
                continue
            if len(chosen) == limit:
                return chosen, chosen[-1].place if chosen else after
            chosen.append(one)
        if len(page) < count:
            return chosen, None
        walked += count
        place = page[-1].place
    return chosen, place


async def _read_behind(
    session: Session, selection: ThreadSelection, place: ThreadPlace | None, count: int
) -> list[ListedRow]:
    """Return the threads of the list after a place, without looking at filters."""
    tenant = selection.tenant
    if selection.order == "recent":
        bounds: tuple[Argument, Argument] = ("", "")
        if place is not None:
            bounds = (float(place.active_at), f"{place.row_id:016d}")
        return await read_page(session, "recent", tenant, *bounds, count)
    first, last = _bound_names(tenant, selection.resource)
    if place is not None:
        first = max(first[1:], pack_names(*place.key))
        first = b"(" + first
    return await read_page(session, "name", tenant, first, last, count)


async def list_rows(
    session: Session, tenant: str, resource: str | None, limit: int
) -> list[ListedRow]:
    """Return the first threads of a tenant, or of its resource, without shared logs."""
    return await read_page(session, "name", tenant, *_bound_names(tenant, resource), limit)


# ── what nobody uses ──


async def select_idle(
    session: Session, before: float, after: ThreadPlace | None = None, limit: int = 100
) -> tuple[IdleThread, ...]:
    """Return `Store.idle_threads`."""
    bounds: tuple[Argument, Argument] = ("", "")
    if after is not None:
        bounds = (float(after.active_at), f"{after.row_id:016d}")
    listed = await read_page(session, "idle", None, *bounds, limit)
    return tuple(one.idle for one in listed if one.active_at < before)


async def has_active_since(
    session: Session, tenant: str, resource: str | None, since: float
) -> bool:
    """Return whether a thread of the tenant, or of its resource, was active at this time or
    later."""
    first, last = _bound_names(tenant, resource)
    while page := await read_page(session, "name", tenant, first, last, ROWS_PER_SCRIPT):
        if any(one.active_at >= since for one in page):
            return True
        first = b"(" + pack_names(*page[-1].key)
    return False


# ── resources ──


async def select_resource_names(
    session: Session, tenant: str, resource: str | None = None
) -> list[str]:
    """Return the names of the tenant's resources, or this one if it is there."""
    first, last = _bound_names(tenant, resource)
    found = await session.call("ZRANGEBYLEX", session.keys.of_store("resources"), first, last)
    return [unpack_names(packed)[1] for packed in found]


async def select_resources(
    session: Session, tenant: str, after: str | None = None, limit: int = 100
) -> tuple[ResourceInfo, ...]:
    """Return `Store.resources`."""
    first = b"[" + pack_names(tenant)
    if after is not None:
        first = b"(" + pack_names(tenant, after)
    last = b"(" + pack_names(tenant) + LAST_BYTE
    listed = await session.call(
        "ZRANGEBYLEX", session.keys.of_store("resources"), first, last, "LIMIT", 0, limit
    )
    names = [unpack_names(one)[1] for one in listed]
    found = [await select_resource(session, tenant, name) for name in names]
    return tuple(info for info in found if info is not None)


async def select_resource(session: Session, tenant: str, resource: str) -> ResourceInfo | None:
    """Return `Store.resource`."""
    log_key = Key(tenant, resource, RESOURCE_THREAD)
    count, log = await session.call_many(
        [
            ("HLEN", session.keys.of_resource("threads", tenant, resource)),
            ("HMGET", session.keys.of_thread("row", log_key), "id", "created_at", "row"),
        ]
    )
    if not count:
        return None
    shared_log = None
    threads = count
    if log[2] is not None:
        threads -= 1
        row = decode_thread_row(log[2])
        held = await session.keyring.hold(session, [row.key_id])
        listed = ListedRow(log_key, int(log[0]), float(log[1]), row, None, None, False, 0)
        shared_log = listed.show(held)
    return ResourceInfo(
        tenant,
        resource,
        min(threads, MAX_COUNTED_THREADS),
        threads > MAX_COUNTED_THREADS,
        shared_log,
    )


async def add_up_threads(session: Session, now: float) -> StoreTotals:
    """Return `Store.totals`."""
    totals, last_id = StoreTotals(), 0
    while True:
        page = await read_page(session, "id", None, last_id, "", THREADS_PER_PAGE)
        for listed in page:
            totals = StoreTotals(*map(sum, zip(totals, _count(listed, now), strict=True)))
        if len(page) < THREADS_PER_PAGE:
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
