"""Give a memory another data key, and encrypt all its rows with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, NamedTuple, cast

from om_proxy.storage.encoding import decode_state, write_state
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.encryption.row_cipher import RowCipher
from om_proxy.storage.shared.event_encoding import SealedEvent, reseal_event
from om_proxy.storage.shared.row_decoding import Row
from om_proxy.storage.sql.columns import DATA_KEY, list_names
from om_proxy.storage.sql.session import Session

ROWS_PER_PAGE = 500
SELECT_ROW = "SELECT key_id, title, state FROM om.thread WHERE id = $1 FOR UPDATE"
UPDATE_ROW = "UPDATE om.thread SET (key_id, title, state) = ($2, $3, $4) WHERE id = $1"


class SealedTable(NamedTuple):
    """A table whose texts are sealed one by one."""

    name: str
    number: str  # the column that numbers the rows of a memory
    columns: tuple[str, ...]


SEALED_TABLES = (
    SealedTable("message", "seq", ("raw", "look_ups")),
    SealedTable("observation", "id", ("text", "task", "suggestion", "title")),
    SealedTable("reflection", "generation", ("text", "task", "suggestion")),
)


def _write_page(table: str, number: str, columns: Iterable[str]) -> str:
    return f"""SELECT {number}, {list_names(columns)} FROM om.{table}
        WHERE thread_id = $1 AND {number} > $2 ORDER BY {number} LIMIT {ROWS_PER_PAGE}"""


def _write_update(table: str, number: str, columns: Sequence[str]) -> str:
    values = ", ".join(f"${place}" for place in range(3, 3 + len(columns)))
    return f"""UPDATE om.{table} SET ({list_names(columns)}) = ({values})
        WHERE thread_id = $1 AND {number} = $2"""


SELECT_EVENTS = _write_page("event", "id", ("at", "type", "data", "sealed"))
UPDATE_EVENT = _write_update("event", "id", ("data", "sealed"))


async def change_key(session: Session, thread_id: int, keys: Keyring) -> bytes | None:
    """Write all rows of a memory under a new key, inside a transaction. The row gets a new version.
    What it tells of others keeps the key of its own. The old key goes with the transaction, or soon
    after it where keys are apart. Return its id; None: the store is not encrypted."""
    new = keys.create_key()
    if new is None:
        return None
    [(key_id, title, state)] = await session.select(SELECT_ROW, thread_id)
    old = (await keys.hold_row(session, key_id)).row
    await session.insert("data_key", DATA_KEY, await keys.write_key(new.stored))
    for table in SEALED_TABLES:
        async for page in _read_pages(session, _write_page(*table), thread_id):
            rows = [
                (thread_id, number, *_reseal(table, number, texts, old, new.key))
                for number, *texts in page
            ]
            await session.execute_many(_write_update(*table), rows)
    async for page in _read_pages(session, SELECT_EVENTS, thread_id):
        events = [
            (id_, reseal_event(SealedEvent(*columns), old, new.key)) for id_, *columns in page
        ]
        rows = [(thread_id, id_, event.data, event.sealed) for id_, event in events]
        await session.execute_many(UPDATE_EVENT, rows)
    [new_title] = _reseal(SealedTable("thread", "id", ("title",)), 0, [title], old, new.key)
    new_state = write_state(decode_state(state, old), new.key)
    await session.execute(UPDATE_ROW, thread_id, new.stored.id, new_title, new_state)
    await session.raise_versions([thread_id])
    keys.drop([key_id])
    return cast(bytes, key_id)


async def _read_pages(session: Session, sql: str, thread_id: int) -> AsyncIterator[list[Row]]:
    last = -1
    while page := await session.select(sql, thread_id, last):
        yield page
        last = page[-1][0]


def _reseal(
    table: SealedTable, number: int, texts: Sequence[Any], old: RowCipher, new: RowCipher
) -> list[bytes | None]:
    """Return the columns of one row under the new key."""
    name = table.name.encode()
    return [
        None
        if text is None
        else new.seal(name, number, column, old.open(name, number, column, text))
        for column, text in zip(map(str.encode, table.columns), texts, strict=True)
    ]
