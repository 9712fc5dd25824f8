"""Note a name that is asked to be forgotten, while first turns are written (`Store.note_forgotten`).

A statement that makes the row of a thread locks the table of names in `ROW SHARE` mode (`FOR SHARE`)
before it takes its snapshot. Who notes a name locks it in `EXCLUSIVE` mode, in a short transaction
of its own: the two never overlap. So a first turn either sees the name, or its row is stored before
the removal looks for it. Reading the table, as a dump does, stands in nobody's way.

All first turns queue behind a lock that is waited for. So it is waited for briefly, again and again: a
first turn that stands still in its transaction holds up no other one.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import asyncpg

from om_proxy.common.errors import StorageError
from om_proxy.storage.postgres.pool import ConnectionPool
from om_proxy.storage.postgres.session import Session
from om_proxy.storage.shared.limited_work import LONG_TIMEOUT_S
from om_proxy.storage.sql.forgotten_names import note_name

MAX_LOCK_WAIT_S = 0.5  # half of the time that a turn has (`storage.timeout`)
LOCK_PAUSE_S = 0.5  # in which first turns are written
# In all some 20 s: the server ends a transaction that stands still long before
# (`pool.IDLE_TRANSACTION_TIMEOUT_S`).
MAX_LOCK_ATTEMPTS = 20

LOCK_NAMES = "LOCK TABLE om.forgotten_name IN EXCLUSIVE MODE"


async def note_name_locking(pool: ConnectionPool, digest: bytes, at: float) -> None:
    """Note a name, in a transaction that does nothing else. Raise StorageError, and note nothing, if
    other transactions hold the table for too long."""
    limit = f"SET LOCAL lock_timeout = {round(MAX_LOCK_WAIT_S * 1_000)}"

    async def note(session: Session) -> None:
        try:
            await session.execute(f"{limit}; {LOCK_NAMES}")
        except asyncpg.LockNotAvailableError as exc:
            raise _NamesInUse from exc
        await note_name(session, digest, at)

    for attempt in range(MAX_LOCK_ATTEMPTS):
        if attempt:
            await asyncio.sleep(LOCK_PAUSE_S)
        with suppress(_NamesInUse):
            return await pool.transact(note, LONG_TIMEOUT_S, blocks_turns=True)
    raise StorageError(
        "another transaction holds the table forgotten_name and does not end: "
        "nothing was forgotten; try again, or end that transaction"
    )


class _NamesInUse(Exception):
    """Another transaction holds the table of names."""
