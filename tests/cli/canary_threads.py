"""Store threads, for the tests of the commands that change them."""

from __future__ import annotations

from pathlib import Path

from om_proxy.memory.model import Item, Key, Memory, Message
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.sqlite.store import SqliteStore


async def store_canary_threads(path: Path, *keys: Key, masters: MasterKeys | None = None) -> None:
    store = await SqliteStore.open(path, masters=masters)
    for key in keys:
        item = Item(b'{"role":"user","content":"canary"}', "user", bytes(16))
        said = Message(1, item, bytes(16), 3, 1.7e9)
        await store.commit(
            Memory(key=key), Memory(key=key, tail=(said,), next_seq=2, title="Ways\x1b[31m home")
        )
    await store.close()


def count_canaries(path: Path) -> int:
    return sum(file.read_bytes().count(b"canary") for file in path.parent.glob("om.db*"))
