"""What may leave a prompt that did not fit the model's window: all but what the request itself asks
(docs/spec/behaviour.md#refused-prompts).

The request fails otherwise, so no threshold is asked: what is buffered becomes active, and the rest is observed at once, oldest
first, in batches as large as an observation reads, as many as the deadline allows.
"""

from __future__ import annotations

from om_proxy.memory import blocks
from om_proxy.memory.lifecycle import Observe, between
from om_proxy.memory.model import Memory, weight


def unobserved(memory: Memory, through: int, most: int, now: float) -> Observe | None:
    """The next batch to observe, of at most `most` tokens. `through`: seq of the newest message that may leave.

    A thread in back-off or parked is not waited for. When its back-off is over it is: below an interval the background never tries.
    """
    if memory.trouble.parked or now < memory.trouble.until:
        return None
    marks = [m.mark for m in memory.tail if memory.chunked_to < m.seq <= through]
    # up to the newest closed block that fits, not back to a user's message: nobody knows whether half would do
    count = blocks.safe_cut(marks, most, most + 1)
    if not count:
        return None
    after, last = memory.chunked_to, marks[count - 1].seq
    return Observe(after, last, weight(between(memory, after, last)), wait=True)


def ready(memory: Memory, through: int) -> tuple[int, ...]:
    """The ids of the chunks that may become active, oldest first."""
    return tuple(chunk.id for chunk in memory.chunks if chunk.last <= through)


def can_shrink(memory: Memory, received: int, through: int) -> bool:
    """Whether the client's own prompt, `received` tokens without its instructions, holds more than what has to stay: that of a
    client which sends its newest message only never does."""
    return received > weight([m for m in memory.tail if m.seq > through])
