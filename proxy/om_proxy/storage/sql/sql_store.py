"""How the methods that SQL stores share run their statements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.encryption.row_cipher import RowCipher
from om_proxy.storage.shared.row_decoding import Row
from om_proxy.storage.sql.session import Session, Work, select_sealed_rows

if TYPE_CHECKING:
    from om_proxy.storage.encryption.master_keys import MasterKeys

T = TypeVar("T")


class SqlStore(ABC):
    """A store of an SQL database: what its parts ask of it."""

    _keys: Keyring
    _masters: MasterKeys | None  # None: the store is not encrypted
    # the columns that `row_decoding.decode_info` takes
    _info_columns: ClassVar[str]

    @abstractmethod
    async def _read_one(self, work: Work[T], *, is_long: bool = False) -> T:
        """Run work that reads with one statement, which is its own snapshot. `is_long`: as in
        `_read_snapshot`."""

    @abstractmethod
    def _read_with_keys(self, work: Work[T], *, is_snapshot: bool = False) -> Awaitable[T]:
        """Run work that reads, and may wait for keys. Keys beside the data are of the same snapshot.
        `is_snapshot`: so are its statements."""

    @abstractmethod
    async def _read_snapshot(self, work: Work[T], *, is_long: bool = False) -> T:
        """Run work that reads with several statements, all of one snapshot. It waits for nothing but
        its session. `is_long`: it may take longer than what a turn waits for."""

    @abstractmethod
    async def _write(
        self, work: Work[T], *, is_long: bool = False, is_background: bool = False
    ) -> T:
        """Run work in a transaction. It waits for nothing but its session. `is_long`: as in
        `_read_snapshot`. `is_background`: so is this, and turns that wait may go first."""

    @abstractmethod
    async def _write_one(self, sql: str, *parameters: Any) -> list[Row]:
        """Run one statement that writes. Return its rows."""

    async def _read_sealed(self, work: Work[T], *, is_snapshot: bool = False) -> T:
        """Run work that reads texts as `_read_with_keys` does, again where a key is gone by then."""
        return await self._keys.retry_unopened(
            lambda: self._read_with_keys(work, is_snapshot=is_snapshot)
        )

    async def _select(self, sql: str, *parameters: Any, is_long: bool = False) -> list[Row]:
        return await self._read_one(
            lambda session: session.select(sql, *parameters), is_long=is_long
        )

    async def _select_texts(
        self, decode: Callable[[Row, RowCipher], T], sql: str, *parameters: Any
    ) -> tuple[T, ...]:
        """Return rows as `decode` makes them of all columns but the first, which names their key."""

        async def select(session: Session) -> tuple[T, ...]:
            found = await select_sealed_rows(session, sql, parameters, self._keys)
            return tuple(decode(row, cipher) for cipher, row in found)

        return await self._read_sealed(select)
