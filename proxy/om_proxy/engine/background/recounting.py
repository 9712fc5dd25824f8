"""Count a tail again that was counted for a model with another encoding: after the reply, never
before a request goes on (docs/contributing/behaviour.md#count)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import structlog

from om_proxy.agents.models import TokenCounter
from om_proxy.common.errors import OmError
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.memory.message_list import MessageList
from om_proxy.memory.model import Key, Memory, Message
from om_proxy.memory.transcript.apply_turn import apply_counts

logger = structlog.get_logger("tokens")

# Of messages after one reply: about 50 ms of CPU. The next replies count the others.
MAX_RECOUNTED_BYTES = 2**20


class Recounter:
    """Recounts of tails, at most one of a thread at a time."""

    def __init__(self, memories: Memories, token_counter: TokenCounter) -> None:
        self._memories = memories
        self._token_counter = token_counter
        self._in_progress: set[Key] = set()

    def is_due(self, memory: Memory) -> bool:
        """Return whether any message of the tail is counted by another encoding than that of the
        thread's newest model. This takes the same time for a tail of any length."""
        encoding = self._token_counter.encoding(memory.model or "")
        other_encodings = MessageList.of(memory.tail).encodings - {encoding}
        return bool(other_encodings) and memory.key not in self._in_progress

    async def recount(self, memory: Memory, then: Callable[[], None]) -> None:
        """Count the oldest of those messages again, as many as one reply may cost. Call `then` if a
        sum changed, which may make work due."""
        self._in_progress.add(memory.key)
        try:
            if await self._recount(memory):
                then()
        except OmError as exc:  # the old counts serve until the next reply
            logger.warning(
                "recount.failed", thread=self._memories.label(memory.key), error=type(exc).__name__
            )
        finally:
            self._in_progress.discard(memory.key)

    async def _recount(self, memory: Memory) -> bool:
        """Count again and store the counts. Return whether a count has changed."""
        model = memory.model or ""
        encoding = self._token_counter.encoding(model)
        outdated = (message for message in memory.tail if message.encoding != encoding)
        by_seq = {message.seq: message for message in _take_affordable(outdated)}
        counted: dict[int, int] = {}
        for api in {message.item.api for message in by_seq.values()}:
            raws = {seq: m.item.raw for seq, m in by_seq.items() if m.item.api == api}
            counted |= await self._token_counter.count(raws, model, api)
        counts = {seq: (by_seq[seq].item, tokens) for seq, tokens in counted.items()}
        change = partial(apply_counts, counts=counts, encoding=encoding)
        await self._memories.update(memory.key, change, row_id=memory.row_id)
        return any(tokens != by_seq[seq].tokens for seq, tokens in counted.items())


def _take_affordable(messages: Iterator[Message]) -> Iterator[Message]:
    """Yield the first messages whose JSON is no longer than one reply may cost, at least one."""
    total_bytes = 0
    for message in messages:
        is_first = total_bytes == 0
        total_bytes += len(message.item.raw)
        if total_bytes > MAX_RECOUNTED_BYTES and not is_first:
            return
        yield message
