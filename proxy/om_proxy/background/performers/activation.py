"""Make buffered notes part of a log."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from om_proxy.memory.lifecycle import transitions
from om_proxy.memory.lifecycle.observable import answered_chunks
from om_proxy.memory.model import Key
from om_proxy.memory_cache import Memories


async def activate_ready_notes(memories: Memories, keys: Sequence[Key], now: float) -> bool:
    """Make the buffered notes of these threads part of the log. Return whether there were any."""
    activated = False
    for key in keys:
        memory = await memories.load(key)
        ids = tuple(c.id for c in answered_chunks(memory))
        if ids:
            await memories.update(
                key, partial(transitions.activate_chunks, ids=ids, now=now), row_id=memory.row_id
            )
            activated = True
    return activated
