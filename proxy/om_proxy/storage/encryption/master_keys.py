"""Wrap data keys, and the store's secret, under the master key. During a rotation there are several
master keys: the first one wraps, each one unwraps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from om_proxy.errors import UnopenedText
from om_proxy.identity.encryption_keys import name_master_key
from om_proxy.storage.encryption.data_key import DataKey
from om_proxy.storage.encryption.row_cipher import KEY_ID_BYTES, WrappedKey
from om_proxy.storage.encryption.sealed_value import open_value, seal_value

DATA_KEY_BYTES = 32
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
        id_, secret = os.urandom(KEY_ID_BYTES), os.urandom(DATA_KEY_BYTES)
        return NewKey(DataKey(id_, secret), self._wrap(id_, secret))

    def _wrap(self, id_: bytes, secret: bytes) -> WrappedKey:
        wrapped = seal_value(self._by_id[self.newest_id], secret, _name_key_place(id_))
        return WrappedKey(id_, self.newest_id, wrapped)

    def unwrap(self, stored: WrappedKey) -> DataKey:
        """Return the data key. Raise UnopenedText if it does not open with any of these keys."""
        return DataKey(stored.id, self._unwrap_secret(stored))

    def _unwrap_secret(self, stored: WrappedKey) -> bytes:
        return open_value(self._find(stored.master), stored.wrapped, _name_key_place(stored.id))

    def rewrap(self, stored: WrappedKey) -> WrappedKey:
        """Return the same data key, wrapped by the newest master key."""
        return self._wrap(stored.id, self._unwrap_secret(stored))

    def seal_secret(self, secret: bytes) -> bytes:
        """Return the store's secret as it is stored: behind the id of its master key."""
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


def _name_key_place(id_: bytes) -> bytes:
    return b"om|data_key|%b" % id_.hex().encode()
