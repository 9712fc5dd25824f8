"""How PostgreSQL holds what is in the rows of a memory. Every text from outside becomes bytes."""

from __future__ import annotations

from om_proxy.memory.model import Memory
from om_proxy.storage.encoding import encode_text
from om_proxy.storage.encryption.row_cipher import ThreadCiphers
from om_proxy.storage.shared.row_decoding import Row
from om_proxy.storage.shared.row_encoding import RowEncoder
from om_proxy.storage.sql import columns
from om_proxy.storage.sql.columns import Columns

ROW_ENCODER = RowEncoder(encode_text)


# SQLite finds the last three in the title and the state
THREAD: Columns = {
    **columns.THREAD,
    "has_plain_title": "boolean",
    "log_tokens": "bigint",
    "reflected_tokens": "bigint",
}


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
