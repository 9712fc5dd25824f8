"""A second process that has an SQLite store open. Run as a program, with the file as its argument.

It stores a thread, says so, and holds its connections. At a line of its input it reads the thread,
stores more of it, and says how many messages it has.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from om_proxy.memory.model import Memory
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.memory_builder import KEY, MemoryBuilder

KEPT = KEY._replace(thread="kept")


async def hold_open(path: Path) -> None:
    store = await SqliteStore.open(path)
    thread = MemoryBuilder(KEPT)
    memory = await store.commit(Memory(key=KEPT), thread.chat(3).memory())
    print("open", flush=True)
    for _ in sys.stdin:
        assert await store.load(KEPT) == memory
        memory = await store.commit(memory, thread.chat(2).memory())
        print(memory.count, flush=True)
    await store.close()


if __name__ == "__main__":
    asyncio.run(hold_open(Path(sys.argv[1])))
