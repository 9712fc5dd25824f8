"""The seam between the rows of a store and its encryption. A row codec of any backend passes each
protected value through a `RowCipher`; without encryption that is `PLAIN`.

A value names its place: table, row and column. It opens at this place only, and only under the key of
its memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from om_proxy.common.errors import UnopenedText

KEY_ID_BYTES = 16


class RowCipher(Protocol):
    """A cipher that seals and opens the values of one memory. `row`: the seq or id of the row in
    its table; 0 in the memory's own row."""

    @property
    def key_id(self) -> bytes | None:
        """The id of the data key; None: values are stored as they are."""

    def seal(self, table: bytes, row: int | bytes, column: bytes, value: bytes) -> bytes: ...

    def open(self, table: bytes, row: int | bytes, column: bytes, value: Any) -> Any:
        """Return the value that was sealed. Raise UnopenedText if it was sealed elsewhere or with
        another key, or was changed since."""


class PlainCipher:
    """The cipher of each memory of a store that is not encrypted."""

    key_id: bytes | None = None

    def seal(self, table: bytes, row: int | bytes, column: bytes, value: bytes) -> bytes:
        return value

    def open(self, table: bytes, row: int | bytes, column: bytes, value: Any) -> Any:
        return value


class UnknownKeyCipher:
    """The cipher of a memory whose key this process cannot have."""

    def __init__(self, key_id: bytes, why: str) -> None:
        self.key_id = key_id
        self._why = why

    def seal(self, table: bytes, row: int | bytes, column: bytes, value: bytes) -> bytes:
        raise UnopenedText(self._why)

    def open(self, table: bytes, row: int | bytes, column: bytes, value: Any) -> Any:
        raise UnopenedText(self._why)


PLAIN: RowCipher = PlainCipher()
# else whoever may write to the database could bring texts of their own in
NO_DATA_KEY = "this thread is not encrypted, and its store is"
REFUSED_PLAIN: RowCipher = UnknownKeyCipher(bytes(KEY_ID_BYTES), NO_DATA_KEY)
NO_MASTER_KEY = "this thread is encrypted: set storage.encryption_key"
KEY_DESTROYED = (
    "the key of this thread is gone: it was forgotten, or its keys are in another store "
    "(om-proxy store verify lists such threads)"
)


class WrappedKey(NamedTuple):
    """A data key as it is stored."""

    id: bytes
    master: str  # the id of the master key that wraps it
    wrapped: bytes


class ThreadCiphers(NamedTuple):
    """The ciphers of one memory. What its prompt tells of other threads has a key of its own: the
    text goes, with this key, when any of them is forgotten."""

    row: RowCipher = PLAIN
    others: RowCipher = PLAIN


PLAIN_CIPHERS = ThreadCiphers()


class HeldKeys:
    """The ciphers of the memories that one piece of work reads, by key id; by None that of memories
    without a key, if the store may have such."""

    def __init__(
        self,
        ciphers: Mapping[bytes | None, RowCipher],
        why_unknown: str,
        row_key_id: bytes | None = None,
    ) -> None:
        self._ciphers = ciphers
        self._why_unknown = why_unknown
        self.row_key_id = row_key_id  # of the one memory that is asked for

    def find(self, key_id: bytes | None) -> RowCipher:
        if key_id is None:
            return self._ciphers.get(None, REFUSED_PLAIN)
        return self._ciphers.get(key_id) or UnknownKeyCipher(key_id, self._why_unknown)

    @property
    def row(self) -> RowCipher:
        """The cipher of that memory."""
        return self.find(self.row_key_id)

    def require_row(self) -> HeldKeys:
        """Return these keys. Raise UnopenedText if that memory's is not among them."""
        if self.row_key_id not in self._ciphers:
            raise UnopenedText(NO_DATA_KEY if self.row_key_id is None else self._why_unknown)
        return self

    def of_row(self, key_id: bytes | None) -> HeldKeys:
        return HeldKeys(self._ciphers, self._why_unknown, key_id)

    def find_thread(self, key_id: bytes | None, others: Any) -> ThreadCiphers:
        """Return the ciphers of a memory, given these two columns of its row."""
        row = self.find(key_id)
        if key_id is None:
            return ThreadCiphers(row, row)
        others_key_id = read_others_key(key_id, others)
        return ThreadCiphers(row, PLAIN if others_key_id is None else self.find(others_key_id))


def read_others_key(key_id: bytes | None, others: Any) -> bytes | None:
    """Return the id of the key of the column `others`; None: it is not encrypted, or empty."""
    return bytes(others[:KEY_ID_BYTES]) if key_id is not None and others else None


def list_key_ids(rows: Iterable[tuple[bytes | None, Any]]) -> set[bytes | None]:
    """Return the ids of all keys of memories, given the columns `key_id` and `others` of each."""
    ids: set[bytes | None] = set()
    for key_id, others in rows:
        ids |= {key_id, read_others_key(key_id, others)}
    return ids
