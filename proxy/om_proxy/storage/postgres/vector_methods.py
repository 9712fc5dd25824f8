"""The methods of the PostgreSQL store that keep vectors of indexed messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from om_proxy.memory.model import Key
from om_proxy.memory.recall.vectors import StoredVector
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.limited_work import LONG_TIMEOUT_S
from om_proxy.storage.listing import ThreadPage, ThreadPlace
from om_proxy.storage.postgres import vectors as statements
from om_proxy.storage.postgres.pool import ConnectionPool
from om_proxy.storage.vector_index import UnembeddedMessage, VectorPage

if TYPE_CHECKING:
    from om_proxy.storage.encryption.master_keys import MasterKeys


class VectorMethods:
    """A part of `PostgresStore`. A store with encryption keeps no vectors."""

    _pool: ConnectionPool
    _masters: MasterKeys | None
    _keys: Keyring

    async def read_unembedded(
        self, key: Key, model: str, limit: int
    ) -> tuple[UnembeddedMessage, ...]:
        if self._masters:
            return ()
        return await self._pool.read(
            lambda s: statements.read_unembedded(s, key, model, limit), is_snapshot=True
        )

    async def write_vectors(
        self,
        key: Key,
        read: Sequence[UnembeddedMessage],
        model: str,
        vectors: Sequence[bytes],
    ) -> int:
        if self._masters:
            return 0
        return await self._pool.transact(
            lambda s: statements.write_vectors(s, key, read, model, vectors), LONG_TIMEOUT_S
        )

    async def unembedded_threads(
        self, model: str, active_before: float, after: ThreadPlace | None = None, limit: int = 100
    ) -> ThreadPage:
        if self._masters:
            return ThreadPage((), None)
        return await self._pool.read(
            lambda s: statements.select_latest(s, model, active_before, after, limit, self._keys)
        )

    async def read_vectors(
        self, key: Key, model: str, before: int | None = None, limit: int = 10_000
    ) -> VectorPage:
        if self._masters:
            return VectorPage((), None)
        return await self._pool.read(
            lambda s: statements.read_vectors(s, key, model, before, limit)
        )

    async def read_vectors_at(
        self, key: Key, model: str, places: Sequence[tuple[str, int]]
    ) -> tuple[StoredVector, ...]:
        if self._masters:
            return ()
        return await self._pool.read(lambda s: statements.read_vectors_at(s, key, model, places))
