"""Remove secrets from the answer of a memory model."""

from __future__ import annotations

import asyncio

from om_proxy.engine.policy import MemoryContext
from om_proxy.memory.notes.redaction import Notes, redact_notes


async def redact_answer(answer: Notes, context: MemoryContext) -> Notes:
    """Return the answer without secrets, unless `redact` is off."""
    return (
        await asyncio.to_thread(redact_notes, answer)
        if context.effective.memory.observation.redact
        else answer
    )
