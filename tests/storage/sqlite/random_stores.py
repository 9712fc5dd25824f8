"""Random stores that forget some of their threads: is a forgotten word left in a byte of the files?

Each thread says a word of its own in its name, its messages, its notes and the index. Threads grow
in turns and are forgotten in between, so that SQLite moves rows within and between pages.

Many of them: .venv/bin/python -m tests.storage.sqlite.random_stores 300
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from om_proxy.memory.model import Key, Memory
from om_proxy.memory.recall.passages import IndexPlace, Passage
from om_proxy.storage.sqlite.store import SqliteStore
from tests.storage.memory_builder import MemoryBuilder

MAX_THREADS = 24
STEPS = (40, 120)
MESSAGE_WORDS = (1, 150)


class RandomStore:
    """One store, whose steps follow from its seed."""

    def __init__(self, store: SqliteStore, folder: Path, seed: int) -> None:
        self._store = store
        self._folder = folder
        self._random = random.Random(seed)
        self._threads: dict[str, tuple[MemoryBuilder, Memory]] = {}
        self._forgotten: set[str] = set()

    async def run(self) -> set[str]:
        """Take all steps. Return the forgotten words that were found after one of them."""
        found: set[str] = set()
        for _ in range(self._random.randint(*STEPS)):
            if len(self._threads) > 1 and self._random.random() < 0.2:
                await self._forget()
                found |= set(self._find_words())
            else:
                await self._grow()
        return found

    async def _grow(self) -> None:
        if len(self._threads) < MAX_THREADS and self._random.random() < 0.4:
            word = f"quorum{self._random.getrandbits(48):012x}"
            key = Key("tenant", f"resource {self._random.randint(1, 3)}", f"thread {word}")
            thread, before = MemoryBuilder(key), Memory(key=key)
        else:
            if not self._threads:
                return
            word = self._random.choice(sorted(self._threads))
            thread, before = self._threads[word]
        for _ in range(self._random.randint(1, 6)):
            thread.chat(1, self._say(word))
        thread.more["title"] = self._say(word)[:60]
        stored = await self._store.commit(before, thread.memory())
        if self._random.random() < 0.5 and len(thread.open) > 2:
            thread.chunk(self._random.randint(1, len(thread.open)), self._say(word))
            thread.activate(1)
            stored = await self._store.commit(stored, thread.memory())
        await self._index(stored.key, word)
        self._threads[word] = thread, stored

    def _say(self, word: str) -> str:
        return " ".join([word] * self._random.randint(*MESSAGE_WORDS))

    async def _index(self, key: Key, word: str) -> None:
        read = await self._store.read_unindexed(key, 1, 100)
        if read and read.messages:
            last = read.messages[-1].seq
            passage = Passage(last, 0, 1, 1, word, 1.0, 1, (word,), (word,))
            await self._store.index_passages(key, read, 1, [passage], IndexPlace(last))

    async def _forget(self) -> None:
        word = self._random.choice(sorted(self._threads))
        thread, _ = self._threads.pop(word)
        result = await self._store.forget(thread.key)
        assert (result.database, result.log) == ("gone", "gone")
        self._forgotten.add(word)

    def _find_words(self) -> Iterator[str]:
        for file in self._folder.iterdir():
            read = file.read_bytes()
            yield from (word for word in self._forgotten if word.encode() in read)


async def find_forgotten_words(folder: Path, seed: int) -> set[str]:
    """Run one random store in an empty folder. Return the forgotten words in its files."""
    store = await SqliteStore.open(folder / "memory.db")
    try:
        return await RandomStore(store, folder, seed).run()
    finally:
        await store.close()


def main(count: int) -> int:
    faulty = 0
    for seed in range(count):
        with tempfile.TemporaryDirectory() as folder:
            faulty += bool(asyncio.run(find_forgotten_words(Path(folder), seed)))
    print(f"{faulty} of {count} stores hold forgotten words")
    return int(faulty > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
