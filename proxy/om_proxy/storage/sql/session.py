"""The connection that a shared statement runs on, how a store gets one, and parts of such statements.

They are written in PostgreSQL's form: `om.thread` is a table, `$4` a parameter, and
`= ANY ($4::bigint[])` compares with a list. SQLite's session translates them
(storage/sqlite/session.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.encryption.row_cipher import RowCipher
from om_proxy.storage.shared.row_decoding import Row
from om_proxy.storage.shared.row_encoding import RowEncoder
from om_proxy.storage.sql.columns import Columns

if TYPE_CHECKING:
    from om_proxy.storage.encryption.key_store import DoomedKeys
    from om_proxy.storage.encryption.master_keys import MasterKeys
    from om_proxy.storage.store_secret import StoreSecret

IS_THREAD = "tenant = $1 AND resource = $2 AND thread = $3"
OF_THREAD = f"thread_id = (SELECT id FROM om.thread WHERE {IS_THREAD})"
# the first column of rows of a memory: of the same snapshot as the row
KEY_OF_ROW = "(SELECT thread.key_id FROM om.thread WHERE thread.id = thread_id)"
# The clock of the machine that all processes on the database have in common.
UNIX_NOW = "extract(epoch FROM clock_timestamp())::float8"
MAX_NUMBER = 2**63 - 1  # stands for a bound or a limit that is not given

T = TypeVar("T")


class Session(Protocol):
    """One connection, for one piece of work."""

    @property
    def encoder(self) -> RowEncoder:
        """Encodes rows for its database."""

    async def select(self, sql: str, *parameters: Any) -> list[Row]:
        """Run one statement and return its rows. `sql` is one of a bounded set: values are
        parameters."""

    async def execute(self, sql: str, *parameters: Any) -> None: ...

    async def execute_many(self, sql: str, parameters: Sequence[Row]) -> None:
        """Run one statement with each of these rows of parameters."""

    async def select_many(self, sql: str, parameters: Sequence[Row]) -> list[Row]:
        """Run one statement with each of these rows of parameters, and return all rows."""

    async def insert(self, table: str, columns: Columns, rows: Sequence[Row]) -> None:
        """Write rows of these columns into a table of the store, in their order."""

    async def draw_version(self) -> int:
        """Return a version that no row has."""

    async def raise_versions(self, ids: Sequence[int]) -> None:
        """Give threads new versions, so that those who hold them read them in full."""

    async def clear_others(self, tenant: str, resource: str) -> None:
        """Take out what the threads of a resource were told of each other. Those get new versions."""

    async def request_erasure(self) -> None:
        """Ask for the bytes of removed rows to be overwritten, if the database can do that."""


Work = Callable[[Session], Awaitable[T]]


async def select_sealed_rows(
    session: Session, sql: str, parameters: Row, keys: Keyring
) -> list[tuple[RowCipher, Row]]:
    """Return rows without their first column, each with the cipher of the key that it names. The key
    is of the same snapshot as the row."""
    found = await session.select(sql, *parameters)
    held = await keys.hold(session, {row[0] for row in found})
    return [(held.find(row[0]), row[1:]) for row in found]


class SqlStore(ABC):
    """A store of an SQL database: what its parts ask of it."""

    _keys: Keyring
    _masters: MasterKeys | None  # None: the store is not encrypted
    _secret: StoreSecret
    _doomed: DoomedKeys
    _generations: int | None  # how many older generations of a log are kept; None: all
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
