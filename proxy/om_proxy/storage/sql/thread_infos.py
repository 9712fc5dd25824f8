"""Lists of threads that both SQL databases select in the same way."""

from __future__ import annotations

import math
from collections.abc import Sequence

from om_proxy.memory.model import RESOURCE_THREAD
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.shared import row_decoding
from om_proxy.storage.shared.row_decoding import Row
from om_proxy.storage.sql.session import Session
from om_proxy.storage.values.listing import ThreadInfo, ThreadPage, ThreadPlace, find_place

ACTIVE_AT = "coalesce(turn_at, created_at)"  # as in the indexes of the schema
# literals: a partial index serves no parameter
IS_NO_SHARED_LOG = f"thread <> '{RESOURCE_THREAD}'"


async def decode_infos(
    session: Session, found: Sequence[Row], keys: Keyring
) -> tuple[ThreadInfo, ...]:
    """Return the threads of rows with the columns that a store names `_info_columns`."""
    held = await keys.hold(session, {row[-1] for row in found})
    return tuple(row_decoding.decode_info(row, held) for row in found)


def write_lacking(lacks: str, info_columns: str) -> str:
    """Return the statement of `select_lacking`. `lacks`: whether a thread lacks it, where `$1` is
    what."""
    return f"""SELECT {lacks}, {info_columns} FROM om.thread /* INDEXED BY thread_recent_of_all */
        WHERE {IS_NO_SHARED_LOG} AND {ACTIVE_AT} < $2 AND ({ACTIVE_AT}, id) < ($3, $4::bigint)
        ORDER BY {ACTIVE_AT} DESC, id DESC LIMIT $5"""


async def select_lacking(
    session: Session,
    sql: str,
    lacked: int | str,
    active_before: float,
    after: ThreadPlace | None,
    limit: int,
    keys: Keyring,
) -> ThreadPage:
    """Return those of the threads after a place, the latest first, that lack something. `lacked`: the
    first parameter of the statement."""
    active_at, row_id = (after.active_at, after.row_id) if after else (math.inf, 0)
    found = await session.select(sql, lacked, active_before, active_at, row_id, limit)
    infos = await decode_infos(session, [row[1:] for row in found], keys)
    lacking = tuple(info for info, row in zip(infos, found, strict=True) if row[0])
    return ThreadPage(lacking, find_place(infos[-1]) if len(found) == limit else None)
