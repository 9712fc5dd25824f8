"""Find the part of a thread's tail that an observation can take, and the part that is observed
already."""

from __future__ import annotations

from om_proxy.memory import blocks
from om_proxy.memory.message_list import MessageList
from om_proxy.memory.model import Memory, Message, Observation, sum_framed_tokens


def last_observable_seq(memory: Memory) -> int:
    """Return the seq of the newest message before what the newest request itself asks."""
    first = blocks.first_asked_index(MessageList.of(memory.tail).marks)
    return memory.tail[first - 1].seq if first else memory.coverage


def unobserved_tail(memory: Memory) -> tuple[Message, ...]:
    """Return the messages after the newest chunk, without a newest reply that is the first of
    several choices. The client has not shown yet which one it keeps: that one will be there."""
    fresh = MessageList.of(memory.tail).messages_after(memory.chunked_to)
    for view in memory.views:
        if view.has_choices and view.reply == memory.end:
            return fresh[:-1]
    return fresh


def unobserved_tokens(memory: Memory) -> int:
    """Return the number of tokens that can be observed and are not."""
    return observable_tokens(unobserved_tail(memory))


def observable_tokens(tail: tuple[Message, ...]) -> int:
    """Return the number of tokens up to the last safe cut: all triggers measure these
    (docs/contributing/behaviour.md#safe-cut)."""
    messages = MessageList.of(tail)
    count = blocks.count_closed(messages.marks, len(messages))
    whole = count == len(messages)
    return messages.framed_tokens if whole else sum_framed_tokens(messages[:count])


def answered_chunks(memory: Memory) -> tuple[Observation, ...]:
    """Return the chunks that may become active between requests (batches.py). A chunk that covers
    an unanswered question is not among them: a client that asks it again must find it in the
    prompt."""
    return ready_chunks(memory, last_observable_seq(memory)) if memory.chunks else ()


def ready_chunks(memory: Memory, last_seq: int) -> tuple[Observation, ...]:
    """Return the oldest chunks that may become active together, up to the seq `last_seq`."""
    chunks = [chunk for chunk in memory.chunks if chunk.last <= last_seq]
    while chunks and separates_results(memory, chunks[-1].last):
        chunks.pop()
    return tuple(chunks)


def separates_results(memory: Memory, last: int) -> bool:
    """Return whether a call up to the seq `last` has a result after it: one that was stored late.
    A prompt that lacks the call may not show the result."""
    tail = MessageList.of(memory.tail)
    calls = {call for mark in tail.marks[: tail.count_to(last)] for call in mark.calls}
    if not calls:
        return False
    for mark in tail.marks[tail.count_to(last) :]:
        if mark.answers in calls:
            return True
        calls.difference_update(mark.calls)  # some servers number their calls anew each turn
    return False


def messages_between(memory: Memory, after: int, last: int) -> tuple[Message, ...]:
    """Return the messages of the tail with `after < seq <= last`."""
    return MessageList.of(memory.tail).messages_between(after + 1, last)
