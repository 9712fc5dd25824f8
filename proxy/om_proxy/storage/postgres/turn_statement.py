"""Write the statement of a turn: the thread's row, its messages, events and new keys.

It is one statement for each shape that a turn can have, and the server plans each of them once on each
connection.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from om_proxy.memory.model import Memory
from om_proxy.storage.encryption.row_cipher import ThreadCiphers
from om_proxy.storage.postgres.events import write_event_id
from om_proxy.storage.postgres.session import NEXT_VERSION, ROW_ENCODER
from om_proxy.storage.shared.row_decoding import Row
from om_proxy.storage.sql.columns import (
    DATA_KEY,
    EVENT,
    MESSAGE,
    Columns,
    list_names,
    list_parameters,
    write_unnest,
    write_values,
)
from om_proxy.storage.sql.columns import (
    THREAD as SHARED_THREAD,
)
from om_proxy.storage.sql.session import IS_THREAD, UNIX_NOW

# SQLite finds the last three in the title and the state
THREAD: Columns = {
    **SHARED_THREAD,
    "has_plain_title": "boolean",
    "log_tokens": "bigint",
    "reflected_tokens": "bigint",
}
_KEY_PARAMETERS = 3
_NAME_PARAMETERS = 2  # behind the columns of a new row
# So many messages are parameters of their own: arrays take half as much again of our time. Each
# number is another statement for the server to plan, on each connection.
MAX_MESSAGE_ROWS = 4
# A server that was promoted or restored may give a version out again, to another state. Its other
# commits were not at the same time, or did not write the same number of rows.
COMPARED: Columns = {
    "version": "bigint",
    "id": "bigint",
    "next_seq": "bigint",
    "next_id": "bigint",
    "generation": "bigint",
    "turn_at": "double precision",
}
_IS_AS_BEFORE = f"""({list_names(COMPARED, "thread.")})
    IS NOT DISTINCT FROM ROW ({list_parameters(COMPARED, 5)})"""
_KEY_ID = 5 + len(COMPARED)  # the number of a parameter
# Seldom changed: an index names the title, and texts would be encrypted again.
_TITLE = ("title", "has_plain_title")
_OTHERS = ("others",)


def has_plain_title(title: str | None) -> bool:
    """Return whether the title can be searched by what it begins with: it has no lone surrogate."""
    if title is None:
        return False
    try:
        title.encode()
    except UnicodeEncodeError:
        return False
    return True


def encode_thread(memory: Memory, ciphers: ThreadCiphers, *, writes_others: bool) -> Row:
    """Return the columns `THREAD`; see `RowEncoder.encode_thread`."""
    return (
        *ROW_ENCODER.encode_thread(memory, ciphers, writes_others=writes_others),
        ciphers.row.key_id is None and has_plain_title(memory.title),
        memory.log.tokens,
        memory.log.reflected_tokens,
    )


def _list_updated(writes_title: bool, writes_others: bool) -> dict[str, str]:
    """Return the columns of the thread's row that a commit writes."""
    kept = ("key_id", *(() if writes_title else _TITLE), *(() if writes_others else _OTHERS))
    return {name: type_ for name, type_ in THREAD.items() if name not in kept}


def _write_update(columns: Columns) -> str:
    """Return the SQL of a thread's row. $1 to $3: key; $4: whether the commit cannot be told as
    changes; then what it was computed from, the id of the thread's key, and the columns."""
    return f"""UPDATE om.thread SET version = drawn.version,
        rewound = CASE WHEN $4::boolean THEN drawn.version ELSE rewound END,
        ({list_names(columns)}) = ROW ({list_parameters(columns, _KEY_ID + 1)})
        FROM (SELECT {NEXT_VERSION} AS version) AS drawn
        WHERE {IS_THREAD} AND {_IS_AS_BEFORE} AND thread.key_id IS NOT DISTINCT FROM ${_KEY_ID}::bytea
        RETURNING id, thread.version"""


# Its table is locked before the snapshot is taken (`forgotten_names`).
_IS_FORGOTTEN = f"""EXISTS (SELECT 1 FROM om.forgotten_name
    WHERE digest = ANY (${4 + len(THREAD)}::bytea[]) AND at > ${5 + len(THREAD)}::float8 FOR SHARE)"""
_INSERT_THREAD = f"""INSERT INTO om.thread (id, version, created_at, tenant, resource, thread, {list_names(THREAD)})
    SELECT drawn.version, drawn.version, {UNIX_NOW}, $1::text, $2::text, $3::text, {list_parameters(THREAD, 4)}
    FROM (SELECT {NEXT_VERSION} AS version) AS drawn WHERE NOT {_IS_FORGOTTEN}
    ON CONFLICT DO NOTHING RETURNING id, version"""
_MESSAGE_VALUES = [name for name in MESSAGE if name != "seq"]


def _write_message_upsert(first: int, count: int | None) -> str:
    """Return the part of a turn that writes messages: so many rows of parameters from `$first` on;
    None: arrays. A row that stays as it is keeps its `v`."""
    source = (
        write_unnest(MESSAGE, first, "new_message")
        if count is None
        else write_values(MESSAGE, first, count, "new_message")
    )
    return f"""INSERT INTO om.message (thread_id, v, {list_names(MESSAGE)})
        SELECT written.id, written.version, {list_names(MESSAGE, "new_message.")}
        FROM written, {source}
        ON CONFLICT (thread_id, seq) DO UPDATE
        SET (v, {list_names(_MESSAGE_VALUES)}) = ROW (excluded.v, {list_names(_MESSAGE_VALUES, "excluded.")})
        WHERE ({list_names(_MESSAGE_VALUES, "message.")}) IS DISTINCT FROM ({list_names(_MESSAGE_VALUES, "excluded.")})"""


class TurnShape(NamedTuple):
    """Which parts the statement of a turn has."""

    is_new: bool
    message_count: int | None  # None: more than MAX_MESSAGE_ROWS
    has_events: bool
    has_keys: bool
    writes_title: bool
    writes_others: bool

    @property
    def columns(self) -> Columns:
        """The columns of the thread's row."""
        return THREAD if self.is_new else _list_updated(self.writes_title, self.writes_others)


@cache
def write_turn(shape: TurnShape) -> str:
    """Return the statement of a turn. Parameters: those of the thread's row, the columns of the
    messages, then the place of the first event in its transaction and the columns of the events,
    then those of new keys."""
    head = _INSERT_THREAD if shape.is_new else _write_update(shape.columns)
    count = shape.message_count
    if count == 0 and not (shape.has_events or shape.has_keys):
        return head
    before = _KEY_PARAMETERS + _NAME_PARAMETERS if shape.is_new else _KEY_ID
    first = len(shape.columns) + before + 1
    parts = [f"written AS ({head})"]
    if count != 0:
        parts.append(f"messages AS ({_write_message_upsert(first, count)})")
        first += len(MESSAGE) * (count or 1)
    if shape.has_events:
        happened = write_unnest(EVENT, first + 1, "happened")
        parts.append(f"""events AS (INSERT INTO om.event (id, number, tenant, thread_id, {list_names(EVENT)})
            SELECT {write_event_id(f"${first}::bigint + happened.place - 1")},
                nextval('om.event_number'), $1::text, written.id, {list_names(EVENT, "happened.")}
            FROM written, {happened})""")
        first += 1 + len(EVENT)
    if shape.has_keys:
        made = write_unnest(DATA_KEY, first, "made")
        parts.append(f"""keys AS (INSERT INTO om.data_key ({list_names(DATA_KEY)})
            SELECT {list_names(DATA_KEY, "made.")} FROM written, {made})""")
    return f"WITH {', '.join(parts)} SELECT id, version FROM written"
