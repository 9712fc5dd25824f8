"""Choose what leaves a prompt that did not fit the model's window: everything but what the request
itself asks (docs/contributing/behaviour.md#refused-prompts).

Otherwise the request fails, so no threshold counts. Buffered notes become active. The other
messages are observed at once, oldest first, in batches as large as an observation reads, as many as
the deadline allows.
"""

from __future__ import annotations

from om_proxy.memory import blocks
from om_proxy.memory.lifecycle import observable
from om_proxy.memory.lifecycle.decisions import Observe
from om_proxy.memory.model import Memory, sum_framed_tokens


def next_batch(memory: Memory, through: int, most: int, now: float) -> Observe | None:
    """Return the next batch to observe, of at most `most` tokens. `through`: seq of the newest
    message that may leave.

    The request does not wait for a thread that is suspended or in back-off. Once the back-off is
    over it does, because the background never tries below an interval.
    """
    if memory.failures.suspended or now < memory.failures.retry_at:
        return None
    marks = [m.mark for m in memory.tail if memory.chunked_to < m.seq <= through]
    # up to the newest closed block that fits, not back to a user's message: half may not suffice
    count = blocks.find_safe_cut(marks, most, most + 1)
    if not count:
        return None
    after = memory.chunked_to
    last = marks[count - 1].seq
    return Observe(
        after, last, sum_framed_tokens(observable.messages_between(memory, after, last)), wait=True
    )


def ready_chunks(memory: Memory, through: int) -> tuple[int, ...]:
    """Return the ids of the chunks that may become active, oldest first."""
    return tuple(chunk.id for chunk in observable.ready_chunks(memory, through))


def can_shrink(memory: Memory, refused: int, through: int) -> bool:
    """Return whether the prompt that was refused, `refused` tokens without instructions, holds more
    than what has to stay."""
    return refused > sum_framed_tokens([m for m in memory.tail if m.seq > through])
