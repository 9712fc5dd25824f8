"""Index a thread to its end, as the background does in steps."""

from __future__ import annotations

from om_proxy.engine.background.indexing import MessageIndex
from om_proxy.memory.model import Key


async def index_thread(index: MessageIndex, key: Key) -> int:
    """Return the number of messages."""
    count = 0
    while (indexed := await index.index_batch(key)) is not None:
        count += indexed
    return count
