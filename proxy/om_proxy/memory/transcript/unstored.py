"""Append messages that could not be stored in time to a transcript that has moved on since
(docs/spec/behaviour.md#concurrency).

A turn that waits outside the store was computed from a memory that another process may have changed
meanwhile. What it takes back and what it covers may no longer hold; what was said still holds. So
only the messages are kept: in their order, behind what stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import count

from msgspec.structs import replace

from om_proxy.memory.message_list import MessageList
from om_proxy.memory.model import Memory, Message, extend_chain


def append_unstored(stood: Memory, base: Memory, spooled: Memory) -> Memory:
    """`stood` with the live messages that `spooled` has beyond `base` and that do not stand there
    already.

    `base`: the stored memory that `spooled` was made from. The same messages may stand in `stood`:
    a commit that seemed to fail was written, or a client that resends its history has sent them to
    another process.
    """
    numbers = number_unstored(stood, base, spooled)
    missing = [m for m in spooled.tail if numbers.get(m.seq, 0) >= stood.next_seq]
    return _append(stood, spooled, missing) if missing else stood


def number_unstored(stood: Memory, base: Memory, spooled: Memory) -> dict[int, int]:
    """The seq that `append_unstored` gives each message which waited: that of its equal where one
    stands, else the next one behind."""
    unstored = [m for m in spooled.tail if m.seq >= base.next_seq]
    since = [mark for mark in stood.marks if mark.seq > base.end]
    standing = _find_standing([mark.fp for mark in since], [m.item.fp for m in unstored])
    following = count(stood.next_seq)
    return {
        m.seq: since[standing[n]].seq if n in standing else next(following)
        for n, m in enumerate(unstored)
    }


def _find_standing(since: Sequence[bytes], unstored: Sequence[bytes]) -> dict[int, int]:
    """Map each place in `unstored` to the place of its equal in `since`, where it has one."""
    blocks = SequenceMatcher(None, since, unstored, autojunk=False).get_matching_blocks()
    return {block.b + n: block.a + n for block in blocks for n in range(block.size)}


def _append(stood: Memory, spooled: Memory, missing: Sequence[Message]) -> Memory:
    chain, fresh = stood.chain, list[Message]()
    for seq, message in enumerate(missing, stood.next_seq):
        chain = extend_chain(chain, message.item.fp)
        fresh.append(replace(message, seq=seq, chain=chain))
    return replace(
        stood,
        tail=MessageList.of(stood.tail).append_messages(tuple(fresh)),
        next_seq=stood.next_seq + len(fresh),
        turns=stood.turns + sum(m.item.role == "assistant" for m in missing),
        turn_at=max(stood.turn_at or 0.0, spooled.turn_at or 0.0) or None,
        style=spooled.style,
        model=spooled.model,
        due_at=spooled.due_at if stood.due_at is None else stood.due_at,
        scope=stood.scope if stood.version else spooled.scope,
    )
