"""Keep wrapped data keys in an SQLite file of their own.

Each piece of work opens the file and looks at its id, so a file that was replaced is noticed. Keys
are seldom asked for: a process holds those that it uses. The rollback journal is truncated by each
commit, and `secure_delete` overwrites what is removed: no byte of a destroyed key stays in a file.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar

from om_proxy.common.errors import StorageError, WrongKeyStore
from om_proxy.storage.encryption.key_store import FORMAT, NOT_A_KEY_STORE
from om_proxy.storage.sql.key_rows import SqlKeyStore
from om_proxy.storage.sql.session import Work
from om_proxy.storage.sqlite.connection_worker import as_storage_error
from om_proxy.storage.sqlite.queries import UNIX_NOW, select_wrapped_keys
from om_proxy.storage.sqlite.schema import ensure_private_file
from om_proxy.storage.sqlite.session import run_in_thread

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


class SqliteKeyStore(SqlKeyStore):
    """The `KeyStore` protocol on one file, which several processes may share."""

    _is_old = f"made_at <= {UNIX_NOW} - $2"
    # a page that would not change is not written, and a full disk would go unnoticed
    _ping = "UPDATE key_store SET pings = pings + 1"
    _select_keys = staticmethod(select_wrapped_keys)

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self._path = Path(path)

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

    async def close(self) -> None:
        """Return at once: no connection is kept."""

    async def _read(self, work: Work[T], *, is_long: bool = False) -> T:
        return await asyncio.to_thread(self._work, partial(run_in_thread, work))

    async def _write(self, work: Work[T], *, is_long: bool = False) -> T:
        return await asyncio.to_thread(self._work, partial(run_in_thread, work), writes=True)

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
