"""Keep wrapped data keys in an SQLite file of their own.

Each piece of work opens the file and looks at its id, so a file that was replaced is noticed. Keys
are seldom asked for: a process holds those that it uses. The rollback journal is truncated by each
commit, and `secure_delete` overwrites what is removed: no byte of a destroyed key stays in a file.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from om_proxy.common.errors import StorageError, WrongKeyStore
from om_proxy.storage.encryption.key_store import FORMAT, NOT_A_KEY_STORE, RewrappedBatch
from om_proxy.storage.encryption.row_cipher import WrappedKey
from om_proxy.storage.sql.key_rows import HAS_OLDER_KEYS, rewrap_keys
from om_proxy.storage.sqlite.connection_worker import as_storage_error
from om_proxy.storage.sqlite.queries import UNIX_NOW
from om_proxy.storage.sqlite.schema import ensure_private_file
from om_proxy.storage.sqlite.session import run_in_thread, translate

if TYPE_CHECKING:
    from om_proxy.storage.encryption.master_keys import MasterKeys

T = TypeVar("T")
BUSY_TIMEOUT_S = 5.0
PRAGMAS = ("journal_mode = TRUNCATE", "synchronous = FULL", "secure_delete = ON")
KEY_STORE_TABLES = (
    """CREATE TABLE key_store (
        only   INTEGER PRIMARY KEY CHECK (only = 1),
        id     TEXT NOT NULL,
        format INTEGER NOT NULL,
        pings  INTEGER NOT NULL DEFAULT 0
    ) STRICT""",
    f"""CREATE TABLE data_key (
        id      BLOB PRIMARY KEY,
        master  TEXT NOT NULL, -- id of the master key that wraps it
        wrapped BLOB NOT NULL,
        made_at REAL NOT NULL DEFAULT {UNIX_NOW},
        is_used INTEGER NOT NULL DEFAULT 0 -- 1: a row of the data names it
    ) STRICT, WITHOUT ROWID""",
    "CREATE INDEX unused_key ON data_key (id) WHERE is_used = 0",
)
HAS_TABLES = "SELECT count(*) FROM sqlite_schema"
FIND_OWN_TABLE = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'key_store'"
SELECT_ID = "SELECT id, format FROM key_store"
INSERT_KEY = "INSERT INTO data_key (id, master, wrapped) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
SELECT_KEY = "SELECT id, master, wrapped FROM data_key WHERE id = ?"
SELECT_UNUSED = f"""SELECT id FROM data_key
    WHERE is_used = 0 AND id > ? AND made_at <= {UNIX_NOW} - ? ORDER BY id LIMIT ?"""


class SqliteKeyStore:
    """The `KeyStore` protocol on one file, which several processes may share."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._expected_id: str | None = None

    async def identify(self) -> str | None:
        return await asyncio.to_thread(self._identify)

    def _identify(self) -> str | None:
        if not self._path.exists() or not self._path.stat().st_size:
            return None
        return self._work(_read_id, checks_id=False)

    async def create(self, id_: str) -> str:
        return await asyncio.to_thread(self._found, id_)

    def _found(self, id_: str) -> str:
        def create(db: sqlite3.Connection) -> str:
            if not db.execute(HAS_TABLES).fetchone()[0]:
                for table in KEY_STORE_TABLES:
                    db.execute(table)
                db.execute("INSERT INTO key_store VALUES (1, ?, ?, 0)", (id_, FORMAT))
            return _read_id(db)

        try:
            ensure_private_file(self._path)
        except OSError as exc:
            raise StorageError(f"{self._path} cannot be made: {exc.strerror}") from exc
        return self._work(create, writes=True, checks_id=False)

    def expect(self, id_: str) -> None:
        self._expected_id = id_

    async def has_keys(self) -> bool:
        sql = "SELECT EXISTS (SELECT 1 FROM data_key)"
        return await self._run(lambda db: bool(db.execute(sql).fetchone()[0]))

    async def select(self, ids: Sequence[bytes]) -> list[WrappedKey]:
        return await self._run(
            lambda db: [WrappedKey(*row) for id_ in ids for row in db.execute(SELECT_KEY, (id_,))]
        )

    async def insert(self, keys: Sequence[WrappedKey]) -> None:
        await self._run(lambda db: db.executemany(INSERT_KEY, keys), writes=True)

    async def destroy(self, ids: Sequence[bytes]) -> None:
        sql = "DELETE FROM data_key WHERE id = ?"
        await self._run(lambda db: db.executemany(sql, [(id_,) for id_ in ids]), writes=True)

    async def select_unused(self, after: bytes, seconds: float, limit: int) -> list[bytes]:
        parameters = (after, seconds, limit)
        return await self._run(lambda db: [id_ for (id_,) in db.execute(SELECT_UNUSED, parameters)])

    async def mark_used(self, ids: Sequence[bytes]) -> None:
        sql = "UPDATE data_key SET is_used = 1 WHERE id = ?"
        await self._run(lambda db: db.executemany(sql, [(id_,) for id_ in ids]), writes=True)

    async def rewrap_batch(self, after: bytes, masters: MasterKeys) -> RewrappedBatch:
        rewrap = partial(rewrap_keys, after=after, masters=masters)
        return await self._run(partial(run_in_thread, rewrap), writes=True)

    async def has_older(self, newest_master: str) -> bool:
        sql = translate(HAS_OLDER_KEYS)
        found = await self._run(lambda db: db.execute(sql, (newest_master,)).fetchone())
        return bool(found[0])

    async def ping(self) -> None:
        # a page that would not change is not written, and a full disk would go unnoticed
        sql = "UPDATE key_store SET pings = pings + 1"
        await self._run(lambda db: db.execute(sql), writes=True)

    async def close(self) -> None:
        """Return at once: no connection is kept."""

    async def _run(self, work: Callable[[sqlite3.Connection], T], *, writes: bool = False) -> T:
        return await asyncio.to_thread(self._work, work, writes=writes)

    def _work(
        self,
        work: Callable[[sqlite3.Connection], T],
        *,
        writes: bool = False,
        checks_id: bool = True,
    ) -> T:
        """Run work in a transaction on a connection of its own. A missing file is not made."""
        uri = f"{self._path.resolve().as_uri()}?mode=rw"
        try:
            with closing(
                sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)
            ) as db:
                _refuse_other_file(db)  # `journal_mode` would change it
                for pragma in PRAGMAS:
                    db.execute(f"PRAGMA {pragma}")
                db.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
                if checks_id and (id_ := _read_id(db)) != self._expected_id:
                    raise WrongKeyStore(f"{self._path} is another key store now, {id_}")
                done = work(db)
                db.execute("COMMIT")
                return done
        except sqlite3.Error as exc:
            raise StorageError(f"{self._path}: {as_storage_error(exc)}") from exc


def _refuse_other_file(db: sqlite3.Connection) -> None:
    """Raise StorageError if the file is neither a key store nor empty."""
    # one statement: another process may make the tables meanwhile
    if db.execute(f"SELECT ({HAS_TABLES}) AND NOT EXISTS ({FIND_OWN_TABLE})").fetchone()[0]:
        raise StorageError(NOT_A_KEY_STORE)


def _read_id(db: sqlite3.Connection) -> str:
    """Return the id of the key store. Raise StorageError if the file has none."""
    if not db.execute(FIND_OWN_TABLE).fetchone():
        raise StorageError(NOT_A_KEY_STORE)
    id_, format_ = db.execute(SELECT_ID).fetchone()
    if format_ != FORMAT:
        raise StorageError("a newer om-proxy has made it: run that one")
    return str(id_)
