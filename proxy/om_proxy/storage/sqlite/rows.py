"""How SQLite holds what is in the rows of a memory."""

from __future__ import annotations

from om_proxy.storage import encoding
from om_proxy.storage.shared.row_encoding import RowEncoder

# a thread that shares its log reads that of its resource
INFO_COLUMNS = """thread.tenant, thread.resource, thread.thread, created_at, turn_at, live_count, generation, title, failures, parked,
    thread.id, coverage > 0, pending, model, state, CASE shared WHEN 1 THEN (
        SELECT ifnull(json_extract(CAST(state AS TEXT), '$.log_tokens'), 0) FROM thread AS shared_log
        WHERE (shared_log.tenant, shared_log.resource, shared_log.thread) = (thread.tenant, thread.resource, '')) END, thread.key_id"""


def write_count_in_state(name: str) -> str:
    """Return the SQL for a number of the state; 0 for what is none."""
    text = "CAST(state AS TEXT)"
    return (
        f"iif(json_valid({text}), ifnull(CAST(json_extract({text}, '$.{name}') AS INTEGER), 0), 0)"
    )


def encode_text(text: str) -> str | bytes:
    """Return the text as SQLite can hold it. TEXT cannot hold a lone surrogate, so a text with one
    is a BLOB."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return encoding.encode_text(text)
    return text


ROW_ENCODER = RowEncoder(encode_text)
