"""The methods of the SQLite store that keep vectors of indexed messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from om_proxy.memory.model import Key
from om_proxy.memory.recall.vectors import StoredVector
from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.listing import ThreadPage, ThreadPlace
from om_proxy.storage.sqlite import vectors as statements
from om_proxy.storage.sqlite.connection_worker import ConnectionWorker, run_in_connection_thread
from om_proxy.storage.sqlite.listing import select_lacking
from om_proxy.storage.vector_index import UnembeddedMessage, VectorPage

if TYPE_CHECKING:
    from om_proxy.storage.encryption.master_keys import MasterKeys


class VectorMethods:
    """A part of `SqliteStore`. A store with encryption keeps no vectors."""

    _reader: ConnectionWorker
    _writer: ConnectionWorker
    _masters: MasterKeys | None
    _keys: Keyring

    async def read_unembedded(
        self, key: Key, model: str, limit: int
    ) -> tuple[UnembeddedMessage, ...]:
        if self._masters:
            return ()
        return await self._reader.run(
            lambda db: run_in_connection_thread(
                db, lambda sync: statements.read_unembedded(sync, key, model, limit)
            )
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
        return await self._writer.write(
            lambda db: statements.write_vectors(db, key, read, model, vectors)
        )

    async def unembedded_threads(
        self, model: str, active_before: float, after: ThreadPlace | None = None, limit: int = 100
    ) -> ThreadPage:
        if self._masters:
            return ThreadPage((), None)
        return await self._reader.run_alone(
            lambda db: select_lacking(
                db, statements.SELECT_LATEST, model, active_before, after, limit, self._keys
            )
        )

    async def read_vectors(
        self, key: Key, model: str, before: int | None = None, limit: int = 10_000
    ) -> VectorPage:
        if self._masters:
            return VectorPage((), None)
        return await self._reader.run(
            lambda db: run_in_connection_thread(
                db, lambda sync: statements.read_vectors(sync, key, model, before, limit)
            )
        )

    async def read_vectors_at(
        self, key: Key, model: str, places: Sequence[tuple[str, int]]
    ) -> tuple[StoredVector, ...]:
        if self._masters:
            return ()
        return await self._reader.run(
            lambda db: run_in_connection_thread(
                db, lambda sync: statements.read_vectors_at(sync, key, model, places)
            )
        )
