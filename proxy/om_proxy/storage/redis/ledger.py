"""Add to the ledger by day, sum it up, and remove its old lines. A resource has a hash of its lines:
which day, model, caller and kind of history, each with its sums."""

from __future__ import annotations

from collections.abc import AsyncIterator
from operator import attrgetter

from msgspec.structs import astuple

from om_proxy.common.errors import Unwritable
from om_proxy.memory.ledger import Account
from om_proxy.storage.encoding import decode_text, encode_text
from om_proxy.storage.redis.keys import LAST_BYTE, pack_names, unpack_names
from om_proxy.storage.redis.rows import decode_row, encode
from om_proxy.storage.redis.session import Session
from om_proxy.storage.values.ledger_lines import (
    LEDGER_KEPT_DAYS,
    SECONDS_PER_DAY,
    WRITER_RETENTION_S,
    LedgerBatch,
    LedgerGroup,
    LedgerLine,
    LedgerQuery,
    LedgerSum,
)

RESOURCES_PER_PAGE = 100
MAX_SUM = 2**53  # Lua counts no further
MAX_PRUNED_LINES = 1_000  # by one script


async def add_batch(session: Session, batch: LedgerBatch) -> None:
    """Add the lines, unless this batch or a later one of its writer was added already."""
    parts = [
        part
        for line, account in batch.lines.items()
        for part in (line.tenant, line.resource, _encode_line(line), _encode_sums(account))
    ]
    await session.run(
        "add_to_ledger", batch.writer, batch.number, WRITER_RETENTION_S, len(batch.lines), *parts
    )


def _encode_line(line: LedgerLine) -> bytes:
    if not isinstance(line.day, int):
        raise Unwritable("a line of the ledger has no day")
    return encode((line.day, encode_text(line.model), line.who, line.history))


def _encode_sums(account: Account) -> str:
    if max(map(abs, astuple(account))) > MAX_SUM:
        raise Unwritable("a sum of the ledger is too large for Redis")
    return " ".join(map(str, astuple(account)))


async def select_sums(session: Session, query: LedgerQuery) -> tuple[LedgerSum, ...]:
    sums: dict[tuple[LedgerGroup, str, str], LedgerSum] = {}
    async for line, account in _read_lines(session, query.tenant, query.resource):
        if _is_asked_for(line, query):
            found = LedgerSum(_find_group(line, query), line.who, line.history, account)
            known = sums.get(found[:3])
            sums[found[:3]] = found._replace(account=known.account.add(account)) if known else found
    groups = sorted({group for group, _, _ in sums})
    behind = [group for group in groups if query.after is None or group > query.after]
    wanted = set(behind[: query.limit])
    chosen = [found for found in sums.values() if found.group in wanted]
    return tuple(sorted(chosen, key=attrgetter("group", "who", "history")))


def _is_asked_for(line: LedgerLine, query: LedgerQuery) -> bool:
    if query.model not in (None, line.model):
        return False
    is_late_enough = query.first_day is None or line.day >= query.first_day
    return is_late_enough and (query.last_day is None or line.day <= query.last_day)


def _find_group(line: LedgerLine, query: LedgerQuery) -> LedgerGroup:
    match query.by:
        case "day":
            return (line.day,)
        case "model":
            return (line.model,)
        case "resource":
            return (line.tenant, line.resource)


async def _read_lines(
    session: Session, tenant: str | None, resource: str | None
) -> AsyncIterator[tuple[LedgerLine, Account]]:
    async for page in _list_resources(session, tenant):
        owners = [owner for owner in page if resource in (None, owner[1])]
        names = [session.keys.of_ledger(*owner) for owner in owners]
        found = await session.call_many([("HGETALL", name) for name in names])
        for owner, lines in zip(owners, found, strict=True):
            for line, sums in zip(lines[::2], lines[1::2], strict=True):
                yield _decode_line(*owner, line), _decode_sums(sums)


def _decode_sums(data: bytes) -> Account:
    """Return the sums of a line, which an older program wrote with fewer, or a newer with more."""
    return Account(*map(int, data.split()[: len(Account.__struct_fields__)]))


def _decode_line(tenant: str, resource: str, data: bytes) -> LedgerLine:
    day, model, who, history = decode_row(data)
    return LedgerLine(tenant, resource, day, decode_text(model), who, history)


async def _list_resources(
    session: Session, tenant: str | None
) -> AsyncIterator[list[tuple[str, str]]]:
    """Yield the resources that have lines, in order, some at a time."""
    first = b"-" if tenant is None else b"[" + pack_names(tenant)
    last = b"+" if tenant is None else b"(" + pack_names(tenant) + LAST_BYTE
    while True:
        page = await session.call(
            "ZRANGEBYLEX",
            session.keys.of_store("ledger_resources"),
            first,
            last,
            "LIMIT",
            0,
            RESOURCES_PER_PAGE,
        )
        names = [unpack_names(packed) for packed in page]
        yield [(name[0], name[1]) for name in names]
        if len(page) < RESOURCES_PER_PAGE:
            return
        first = b"(" + page[-1]


async def delete_old_lines(session: Session, now: float) -> None:
    first_day = int(now // SECONDS_PER_DAY) - LEDGER_KEPT_DAYS
    async for owners in _list_resources(session, None):
        for owner in owners:
            lines = await session.call("HKEYS", session.keys.of_ledger(*owner))
            old = [line for line in lines if decode_row(line)[0] < first_day]
            for first in range(0, len(old), MAX_PRUNED_LINES):
                some = old[first : first + MAX_PRUNED_LINES]
                await session.run("prune_ledger", *owner, len(some), *some)
