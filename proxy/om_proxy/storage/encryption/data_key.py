"""The key of one memory. Its id is random and never used again, so a place that is named by it is no
other memory's, whatever becomes of the numbers of rows."""

from __future__ import annotations

from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from om_proxy.storage.encryption.sealed_value import open_value, seal_value, wipe_buffer


class DataKey:
    """Seals and opens the values of one memory. It takes over the buffer of its secret, and wipes it
    when nothing uses the key any more. OpenSSL clears what it has made of it."""

    __slots__ = ("_aead", "_name", "_secret", "key_id")

    def __init__(self, key_id: bytes, secret: bytearray) -> None:
        self.key_id: bytes | None = key_id
        self._name = key_id.hex().encode()
        # Not wiped at once: on OpenSSL before 3.2, `cryptography` reads it at each use.
        self._secret = secret
        self._aead = AESGCM(secret)

    def __del__(self) -> None:
        wipe_buffer(self._secret)

    def __repr__(self) -> str:
        return f"<DataKey {self._name[:8].decode()}>"

    def seal(self, table: bytes, row: int | bytes, column: bytes, value: bytes) -> bytes:
        return seal_value(self._aead, value, b"om|%b|%b|%a|%b" % (table, self._name, row, column))

    def open(self, table: bytes, row: int | bytes, column: bytes, value: Any) -> bytes:
        return open_value(self._aead, value, b"om|%b|%b|%a|%b" % (table, self._name, row, column))
