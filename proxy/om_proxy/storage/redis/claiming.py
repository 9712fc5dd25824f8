"""Find the work that is due in a Redis, lease it, and set when it is due again."""

from __future__ import annotations

from collections.abc import Collection

from om_proxy.memory.model import Key
from om_proxy.storage.redis.keys import pack_names, unpack_key
from om_proxy.storage.redis.queries import select_waiting
from om_proxy.storage.redis.session import Session
from om_proxy.storage.shared import row_decoding
from om_proxy.storage.values.stored_rows import Backlog


async def claim_due(
    session: Session,
    now: float,
    limit: int,
    *,
    callers: bool = True,
    skip: Collection[Key] = (),
    holder: str = "",
    seconds: float = 0.0,
) -> tuple[Key, ...]:
    """Return what is due; with a holder, leased to it."""
    lease_ms = _count_ms(seconds)
    skipped = [pack_names(*key) for key in skip]
    found = await session.run(
        "claim", now, limit, int(callers), holder, lease_ms, len(skipped), *skipped
    )
    return tuple(map(unpack_key, found))


async def select_due(session: Session, now: float, limit: int) -> tuple[Key, ...]:
    """Return `Store.due_threads`."""
    return await claim_due(session, now, limit)


async def take_lease(session: Session, key: Key, holder: str, seconds: float) -> bool:
    return bool(await session.run("lease", *key, holder, _count_ms(seconds)))


async def release(session: Session, key: Key, holder: str) -> None:
    await session.run("lease", *key, holder, "")


def _count_ms(seconds: float) -> int:
    """Return a lease's time as Redis takes it; 0: over at once."""
    return max(0, round(seconds * 1_000))


async def select_backlog(session: Session, shared_log: Key) -> Backlog:
    waiting = await select_waiting(session, shared_log)
    waiting.sort(key=lambda one: (one[2].turn_at is not None, one[2].turn_at or 0.0, one[1]))
    return row_decoding.decode_backlog(
        (
            *key,
            row.turn_at,
            row.pending,
            row.fresh,
            row.chunked,
            row.failures,
            row.retry_at,
            row.parked,
        )
        for key, _, row in waiting
    )


async def set_due(
    session: Session, key: Key, at: float | None, backlog: Backlog | None = None
) -> bool:
    """Return `Store.set_due`."""
    expected: bytes = b""
    if backlog is not None:
        # first the revision: what is written after it makes the script set nothing
        name = session.keys.of_resource("revision", key.tenant, key.resource)
        expected = await session.call("GET", name) or b"0"
        if await select_backlog(session, key) != backlog:
            return False
    return bool(await session.run("set_due", *key, "" if at is None else at, expected))
