"""Index a thread in processes that are killed, each at another statement. Run as a program.

Its argument is a file; each process works on a copy of its own. The first line of its output is the
number of those that were killed: the next one ran to its end.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from om_proxy.engine.background.indexing import MessageIndex
from om_proxy.storage.sql import search
from om_proxy.storage.sqlite.session import ThreadSession
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.memory_builder import KEY


class DeadlyConnection:
    """A connection whose statement of this number, from 0, kills the process."""

    def __init__(self, db: sqlite3.Connection, deadly: int) -> None:
        self.db = db
        self.left = deadly

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        self.count()
        return self.db.execute(*arguments)

    def executemany(self, sql: str, rows: Iterable[Any]) -> None:
        """Count each row as a statement."""
        for row in rows:
            self.execute(sql, row)

    def count(self) -> None:
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)


def find_copy(path: Path, number: int) -> Path:
    return path.with_name(f"killed-{number}.db")


async def index_until_killed(path: Path, deadly: int) -> None:
    index_passages = search.index_passages

    async def index_dying(session: Any, *rest: Any) -> bool:
        watched: Any = DeadlyConnection(session.connection, deadly)
        written = await index_passages(ThreadSession(watched), *rest)
        watched.count()  # the commit
        return written

    search.index_passages = index_dying  # type: ignore[assignment]  # rest as it is given
    store = await SqliteStore.open(path)
    await MessageIndex(store).index_batch(KEY)
    await store.close()


def main(path: Path) -> None:
    killed = 0
    while True:
        copy = find_copy(path, killed)
        shutil.copy(path, copy)
        child = os.fork()
        if not child:
            asyncio.run(index_until_killed(copy, killed))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            break
        killed += 1
    print(killed if status == 0 else f"the process failed: {status}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
