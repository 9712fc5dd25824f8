"""Store what a memory model has answered, without its secrets. The answer is paid for: a store
that fails for a moment must not cost it, since another call would pay for the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from om_proxy.common.errors import Conflict, StorageError, Unwritable
from om_proxy.engine.policy import MemoryContext
from om_proxy.memory.model import Memory
from om_proxy.memory.notes.redaction import Notes, redact_notes

# Shorter than a lease: meanwhile no other process does the same work.
MAX_STORING_S = 20.0
RETRY_S = 1.0


async def store_paid_answer(store: Callable[[bool], Awaitable[Memory]]) -> Memory:
    """Return the memory that `store` returns, and try again while the store fails. `store` is told
    whether an earlier attempt may have been written: then it must recognise an answer that is
    stored. Raise the error of the last attempt."""
    loop = asyncio.get_running_loop()
    until = loop.time() + MAX_STORING_S
    is_retry = False
    while True:
        try:
            return await store(is_retry)
        except (Conflict, Unwritable):
            raise
        except StorageError:
            if loop.time() + RETRY_S >= until:
                raise
        is_retry = True
        await asyncio.sleep(RETRY_S)


async def redact_answer(answer: Notes, context: MemoryContext) -> Notes:
    """Return the answer without secrets, unless `redact` is off."""
    return (
        await asyncio.to_thread(redact_notes, answer)
        if context.effective.memory.observation.redact
        else answer
    )
