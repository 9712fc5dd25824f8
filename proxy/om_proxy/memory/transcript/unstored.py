"""Append messages whose turn could not be stored to a transcript that another process has changed
in the meantime (docs/spec/behaviour.md#concurrency).

The turn's superseded messages and its coverage may be wrong by now. Its messages are not. So only
the messages are appended, in order, after the stored ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import count

from msgspec.structs import replace

from om_proxy.memory.ledger import rebase_ledger
from om_proxy.memory.message_list import MessageList
from om_proxy.memory.model import Memory, Message, extend_chain


def append_unstored(stored_now: Memory, stored_before: Memory, spooled: Memory) -> Memory:
    """Append to `stored_now` the live messages of `spooled` that `stored_before` lacks and that
    `stored_now` does not contain yet.

    `stored_before`: the stored memory that `spooled` was made from. The messages may already be in
    `stored_now` for two reasons: the commit seemed to fail but was written, or the client sent its
    history again to another process.
    """
    new_seqs = number_unstored(stored_now, stored_before, spooled)
    missing = [m for m in spooled.tail if new_seqs.get(m.seq, 0) >= stored_now.next_seq]
    if not missing:
        return stored_now
    # of a turn that was written all the same, the costs count twice: nothing tells it apart
    ledger = rebase_ledger(stored_now.ledger, stored_before.ledger, spooled.ledger)
    return replace(_append(stored_now, spooled, missing), ledger=ledger)


def number_unstored(stored_now: Memory, stored_before: Memory, spooled: Memory) -> dict[int, int]:
    """Return the seq of each unstored message: that of the equal stored message if there is one,
    otherwise the next free one."""
    unstored = [m for m in spooled.tail if m.seq >= stored_before.next_seq]
    newer_marks = [mark for mark in stored_now.marks if mark.seq > stored_before.end]
    matches = _match_stored([mark.fp for mark in newer_marks], [m.item.fp for m in unstored])
    free_seqs = count(stored_now.next_seq)
    return {
        m.seq: newer_marks[matches[index]].seq if index in matches else next(free_seqs)
        for index, m in enumerate(unstored)
    }


def _match_stored(stored: Sequence[bytes], unstored: Sequence[bytes]) -> dict[int, int]:
    """Map each index in `unstored` to the index of its equal in `stored`, if it has one."""
    blocks = SequenceMatcher(None, stored, unstored, autojunk=False).get_matching_blocks()
    return {block.b + n: block.a + n for block in blocks for n in range(block.size)}


def _append(stored_now: Memory, spooled: Memory, missing: Sequence[Message]) -> Memory:
    chain = stored_now.chain
    new_messages: list[Message] = []
    for seq, message in enumerate(missing, stored_now.next_seq):
        chain = extend_chain(chain, message.item.fp)
        new_messages.append(replace(message, seq=seq, chain=chain))
    return replace(
        stored_now,
        tail=MessageList.of(stored_now.tail).append_messages(tuple(new_messages)),
        next_seq=stored_now.next_seq + len(new_messages),
        turns=stored_now.turns + sum(m.item.role == "assistant" for m in missing),
        turn_at=max(stored_now.turn_at or 0.0, spooled.turn_at or 0.0) or None,
        # the appended messages are the newest, so the style and model of their turn win
        style=spooled.style,
        history_after=stored_now.history_after
        if spooled.history == stored_now.history
        else stored_now.next_seq - 1,
        model=spooled.model,
        due_at=spooled.due_at if stored_now.due_at is None else stored_now.due_at,
        scope=stored_now.scope if stored_now.version else spooled.scope,
    )
