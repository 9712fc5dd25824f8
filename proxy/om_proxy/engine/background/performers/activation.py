"""Make buffered notes part of a log."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.memory.events.changes import Cause, describe_trigger
from om_proxy.memory.lifecycle import transitions
from om_proxy.memory.lifecycle.observable import answered_chunks
from om_proxy.memory.model import Key


async def activate_ready_notes(
    memories: Memories, keys: Sequence[Key], now: float, why: Literal["ttl", "threshold"]
) -> bool:
    """Make the buffered notes of these threads part of the log. Return whether there were any.
    `why`: their prompt cache is cold, or the tails of all threads have reached the threshold."""
    activated = False
    for key in keys:
        memory = await memories.load(key)
        ids = tuple(c.id for c in answered_chunks(memory))
        if ids:
            await memories.update_log(
                key,
                partial(transitions.activate_chunks, ids=ids, now=now),
                row_id=memory.row_id,
                cause=Cause(trigger=describe_trigger(memory, why, now)),
            )
            activated = True
    return activated
