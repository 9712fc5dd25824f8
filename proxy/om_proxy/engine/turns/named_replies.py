"""Find the stored replies that a request names: the one that it follows, and those whose items it
sends as references.

Clients mostly name what is in the tail. Anything else is looked for page by page in the store, and
only a request that names it pays for that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Set

from om_proxy.memory.model import Memory, Message
from om_proxy.storage.base import Store
from om_proxy.wire.apis.api import ReferenceApi, Request

MESSAGES_PER_PAGE = 200


async def find_named_reply(store: Store, memory: Memory, id_: bytes) -> Message | None:
    """Return the reply of the thread whose origin has this id; None: it has none."""
    async for message in _list_stored(store, memory):
        if message.item.origin is not None and message.item.origin.id == id_:
            return message
    return None


async def find_items(
    store: Store, memory: Memory, request: Request, half: ReferenceApi, ids: Set[str]
) -> bool:
    """Fill `request.items` with these items of the thread's replies. Return whether all were
    found."""
    missing = ids - request.items.keys()
    if not missing:
        return True
    async for message in _list_stored(store, memory):
        if message.item.api == request.api.name and message.item.role == "assistant":
            request.items.update(half.find_items(message.item.raw, missing))
            missing = missing - request.items.keys()
            if not missing:
                return True
    return False


async def _list_stored(store: Store, memory: Memory) -> AsyncIterator[Message]:
    """Yield the messages of the tail, the newest first, and then those of the store, live or not."""
    for message in reversed(memory.tail):
        yield message
    after, is_whole = 0, memory.next_seq - 1 == len(memory.tail)
    while not is_whole:
        page = await store.stored_messages(memory.key, after, limit=MESSAGES_PER_PAGE)
        for stored in page:
            yield stored.message
        is_whole = len(page) < MESSAGES_PER_PAGE
        after = page[-1].message.seq if page else after
