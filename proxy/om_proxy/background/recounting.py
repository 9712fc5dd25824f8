"""Counts a tail again that was counted for a model with another encoding: after the reply, never
before a request goes on (docs/spec/behaviour.md#count)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import structlog

from om_proxy.errors import OmError
from om_proxy.memory.message_list import MessageList
from om_proxy.memory.model import Key, Memory, Message
from om_proxy.memory.transcript.apply_turn import apply_counts
from om_proxy.memory_cache import Memories
from om_proxy.models import TokenCounter

log = structlog.get_logger("tokens")

# bytes of messages after one reply: about 50 ms of CPU; the following replies do the rest
MAX_RECOUNTED_BYTES = 2**20


class Recounter:
    """Runs at most one recount of a thread at a time."""

    def __init__(self, memories: Memories, catalogue: TokenCounter) -> None:
        self._memories = memories
        self._catalogue = catalogue
        self._in_progress: set[Key] = set()

    def is_due(self, memory: Memory) -> bool:
        """Whether any message of the tail is counted by another encoding than that of the thread's
        newest model. Takes the same time for a tail of any length."""
        others = MessageList.of(memory.tail).encodings - {
            self._catalogue.encoding(memory.model or "")
        }
        return bool(others) and memory.key not in self._in_progress

    async def recount(self, memory: Memory, then: Callable[[], None]) -> None:
        """Count the oldest of those messages again, as many as one reply may cost. `then` is called
        if a sum changed, which may make work due."""
        self._in_progress.add(memory.key)
        try:
            if await self._recount(memory):
                then()
        except OmError as exc:  # the old counts serve until the next reply
            log.warning(
                "recount.failed", thread=self._memories.label(memory.key), error=type(exc).__name__
            )
        finally:
            self._in_progress.discard(memory.key)

    async def _recount(self, memory: Memory) -> bool:
        """Return whether a count has changed."""
        model = memory.model or ""
        encoding = self._catalogue.encoding(model)
        stale = {
            m.seq: m for m in _take_affordable(m for m in memory.tail if m.encoding != encoding)
        }
        counted = await self._catalogue.count({seq: m.item.raw for seq, m in stale.items()}, model)
        counts = {seq: (stale[seq].item, tokens) for seq, tokens in counted.items()}
        change = partial(apply_counts, counts=counts, encoding=encoding)
        await self._memories.update(memory.key, change, row_id=memory.row_id)
        return any(tokens != stale[seq].tokens for seq, tokens in counted.items())


def _take_affordable(messages: Iterator[Message]) -> Iterator[Message]:
    """Yield the first messages whose JSON is no longer than one reply may cost, at least one."""
    size = 0
    for message in messages:
        size += len(message.item.raw)
        if size > MAX_RECOUNTED_BYTES and size > len(message.item.raw):
            return
        yield message
