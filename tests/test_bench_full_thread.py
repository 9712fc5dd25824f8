"""The benchmarks of a long thread, and of the admin API beside one, fill their stores."""

from __future__ import annotations

from pathlib import Path

from om_proxy.memory.model import Key, Memory
from om_proxy.storage.sqlite.store import SqliteStore
from tests.bench.admin import hear
from tests.bench.long_thread import TAIL, grow

KEY = Key("t", "r", "thread")
FINGERPRINTS = bytes(32)


async def test_a_long_thread_is_stored(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "om.db")
    try:
        await grow(store, KEY, FINGERPRINTS, 2 * TAIL + 100)
        memory = await store.load(KEY)
    finally:
        await store.close()
    assert (memory.count, len(memory.tail)) == (2 * TAIL + 100, TAIL)


def test_a_full_thread_hears_more() -> None:
    memory = hear(Memory(key=KEY), FINGERPRINTS, 4)
    assert [message.mark.role for message in memory.tail] == ["user", "assistant"] * 2
