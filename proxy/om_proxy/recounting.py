"""Counts a tail anew that was counted for a model with another encoding: after a reply, never on a
request's way (docs/spec/behaviour.md#count)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import structlog

from om_proxy.catalogue import Catalogue
from om_proxy.errors import OmError
from om_proxy.memories import Memories
from om_proxy.memory import turns
from om_proxy.memory.model import Key, Memory, Message
from om_proxy.memory.stretch import Stretch

log = structlog.get_logger("tokens")

MAX_RECOUNTED_BYTES = 2**20  # of messages, after one reply: about 50 ms of CPU; the following replies do the rest


class Recounting:
    """One recount at a time for a thread."""

    def __init__(self, memories: Memories, catalogue: Catalogue) -> None:
        self._memories = memories
        self._catalogue = catalogue
        self._under_way: set[Key] = set()

    def is_due(self, memory: Memory) -> bool:
        """Whether some count of the tail is not by the encoding of the thread's newest model. Costs nothing as a tail grows."""
        others = Stretch.of(memory.tail).encodings - {self._catalogue.encoding(memory.model or "")}
        return bool(others) and memory.key not in self._under_way

    async def recount(self, memory: Memory, then: Callable[[], None]) -> None:
        """Count the oldest of those, as many as one reply may cost. `then`: told once other sums may have made work due."""
        self._under_way.add(memory.key)
        try:
            if await self._recount(memory):
                then()
        except OmError as exc:  # the counts there are serve until the next reply
            log.warning("recount.failed", thread=self._memories.label(memory.key), error=type(exc).__name__)
        finally:
            self._under_way.discard(memory.key)

    async def _recount(self, memory: Memory) -> bool:
        """Whether a count has changed."""
        model = memory.model or ""
        encoding = self._catalogue.encoding(model)
        stale = {m.seq: m for m in _within_bound(m for m in memory.tail if m.encoding != encoding)}
        counted = await self._catalogue.count({seq: m.item.raw for seq, m in stale.items()}, model)
        counts = {seq: (stale[seq].item, tokens) for seq, tokens in counted.items()}
        change = partial(turns.recounted, counts=counts, encoding=encoding)
        await self._memories.update(memory.key, change, born=memory.born)
        return any(tokens != stale[seq].tokens for seq, tokens in counted.items())


def _within_bound(messages: Iterator[Message]) -> Iterator[Message]:
    """The first ones, at least one of them, whose JSON is no longer than one reply may cost."""
    size = 0
    for message in messages:
        size += len(message.item.raw)
        if size > MAX_RECOUNTED_BYTES and size > len(message.item.raw):
            return
        yield message
