"""Wrap the keys of memories, and the store's secret, under the master key. During a rotation there
are several master keys: the first one wraps, each one unwraps.

An encrypted value is `0x01 ‖ nonce (12 bytes) ‖ ciphertext ‖ tag (16 bytes)`, by AES-256-GCM with a
random nonce. The associated data names the value's place.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from om_proxy.common.errors import UnopenedText
from om_proxy.settings.identity.encryption_keys import name_master_key
from om_proxy.storage.encryption.row_cipher import KEY_ID_BYTES, WrappedKey

FORMAT = b"\x01"
NONCE_BYTES = 12
TAG_BYTES = 16
OVERHEAD_BYTES = len(FORMAT) + NONCE_BYTES + TAG_BYTES
_BODY = len(FORMAT) + NONCE_BYTES
NOT_OPENED = "a stored value does not open: it was changed or moved"


def seal_value(key: AESGCM, value: bytes | bytearray, place: bytes) -> bytes:
    nonce = os.urandom(NONCE_BYTES)
    return FORMAT + nonce + key.encrypt(nonce, value, place)


def open_value(key: AESGCM, sealed: bytes, place: bytes) -> bytes:
    """Return the value. Raise UnopenedText if anything of it, its place or its key is another."""
    _check_format(sealed)
    try:
        return key.decrypt(sealed[1:_BODY], sealed[_BODY:], place)
    except InvalidTag:
        raise UnopenedText(NOT_OPENED) from None


def open_buffer(key: AESGCM, sealed: bytes, place: bytes) -> bytearray:
    """Return the value, as `open_value` does, in a buffer that its owner can wipe. No other copy of it
    is made."""
    _check_format(sealed)
    value = bytearray(len(sealed) - OVERHEAD_BYTES)
    try:
        key.decrypt_into(sealed[1:_BODY], sealed[_BODY:], place, value)
    except InvalidTag:
        raise UnopenedText(NOT_OPENED) from None
    return value


def wipe_buffer(buffer: bytearray) -> None:
    buffer[:] = bytes(len(buffer))  # of one length, so it is overwritten where it stands


def _check_format(sealed: bytes) -> None:
    if len(sealed) < OVERHEAD_BYTES or sealed[0] != FORMAT[0]:
        raise UnopenedText("a stored value has no known format")


DATA_KEY_BYTES = 32
# reads into a buffer, where `os.urandom` makes `bytes`, which nobody can wipe
RANDOM_DEVICE = "/dev/urandom"
_SECRET_PLACE = b"om|secret"


class NewKey(NamedTuple):
    """A data key that was just made."""

    key: DataKey
    stored: WrappedKey


class MasterKeys:
    """The master keys of this process, the newest first."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._by_id = {name_master_key(key): AESGCM(key) for key in keys}
        self.ids = tuple(self._by_id)

    def __repr__(self) -> str:
        return f"<MasterKeys {', '.join(self.ids)}>"

    @property
    def newest_id(self) -> str:
        return self.ids[0]

    def create_key(self) -> NewKey:
        id_, secret = os.urandom(KEY_ID_BYTES), create_secret()
        wrapped = self._wrap(id_, secret)
        return NewKey(DataKey(id_, secret), wrapped)

    def _wrap(self, id_: bytes, secret: bytearray) -> WrappedKey:
        wrapped = seal_value(self._by_id[self.newest_id], secret, _name_key_place(id_))
        return WrappedKey(id_, self.newest_id, wrapped)

    def unwrap(self, stored: WrappedKey) -> DataKey:
        """Return the data key. Raise UnopenedText if it does not open with any of these keys."""
        return DataKey(stored.id, self._unwrap_secret(stored))

    def _unwrap_secret(self, stored: WrappedKey) -> bytearray:
        return open_buffer(self._find(stored.master), stored.wrapped, _name_key_place(stored.id))

    def rewrap(self, stored: WrappedKey) -> WrappedKey:
        """Return the same data key, wrapped by the newest master key."""
        secret = self._unwrap_secret(stored)
        try:
            return self._wrap(stored.id, secret)
        finally:
            wipe_buffer(secret)

    def seal_secret(self, secret: bytes) -> bytes:
        """Return the store's secret as it is stored: after the id of its master key."""
        sealed = seal_value(self._by_id[self.newest_id], secret, _SECRET_PLACE)
        return bytes.fromhex(self.newest_id) + sealed

    def open_secret(self, stored: bytes) -> bytes:
        """Return the store's secret. Raise UnopenedText if it does not open."""
        id_bytes = len(bytes.fromhex(self.newest_id))
        master = self._find(stored[:id_bytes].hex())
        return open_value(master, stored[id_bytes:], _SECRET_PLACE)

    def _find(self, id_: str) -> AESGCM:
        if id_ not in self._by_id:
            raise UnopenedText(
                f"it is encrypted with the master key {id_}, and storage.encryption_key has "
                f"{', '.join(self.ids)}"
            )
        return self._by_id[id_]


def create_secret() -> bytearray:
    """Return the secret of a new data key, in a buffer that its owner can wipe."""
    secret = bytearray(DATA_KEY_BYTES)
    try:
        with open(RANDOM_DEVICE, "rb", buffering=0) as device:
            filled = device.readinto(secret)
    except OSError:
        filled = 0
    if filled != DATA_KEY_BYTES:  # no such device, or no file can be opened; this leaves a copy
        secret[:] = os.urandom(DATA_KEY_BYTES)
    return secret


def _name_key_place(id_: bytes) -> bytes:
    return b"om|data_key|%b" % id_.hex().encode()


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
