"""Texts as columns: how a row codec writes and reads a text through the cipher of its memory."""

from __future__ import annotations

from typing import Any

from om_proxy.memory.model import Message
from om_proxy.storage.encoding import decode_text, encode_look_ups, encode_text
from om_proxy.storage.encryption.row_cipher import KEY_ID_BYTES, RowCipher, ThreadCiphers


def seal_text(
    cipher: RowCipher, table: bytes, row: int, column: bytes, text: str | None
) -> bytes | None:
    """Return a text as an encrypted memory stores it."""
    return None if text is None else cipher.seal(table, row, column, encode_text(text))


def seal_look_ups(cipher: RowCipher, message: Message) -> bytes | None:
    """Return the column `look_ups` of a message."""
    look_ups = encode_look_ups(message.look_ups)
    return None if look_ups is None else cipher.seal(b"message", message.seq, b"look_ups", look_ups)


def open_text(cipher: RowCipher, table: bytes, row: int, column: bytes, value: Any) -> str:
    opened = cipher.open(table, row, column, value)
    return decode_text(opened)


def open_optional_text(
    cipher: RowCipher, table: bytes, row: int, column: bytes, value: Any
) -> str | None:
    return None if value is None else open_text(cipher, table, row, column, value)


def seal_others(ciphers: ThreadCiphers, text: str) -> bytes:
    """Return the column `others` of an encrypted memory: the id of its key, and the sealed text."""
    if not text:
        return b""
    assert ciphers.others.key_id is not None  # whoever writes a new text has made a key for it
    sealed = ciphers.others.seal(b"thread", 0, b"others", encode_text(text))
    return ciphers.others.key_id + sealed


def open_others(ciphers: ThreadCiphers, value: Any) -> str:
    """Return the text of the column `others`."""
    if ciphers.row.key_id is None:
        return decode_text(value)
    if not value:
        return ""
    return open_text(ciphers.others, b"thread", 0, b"others", bytes(value[KEY_ID_BYTES:]))
