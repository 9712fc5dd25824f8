"""Find what an earlier try of the very same request has stored.

A request may store its messages ahead of its reply, and then lose the store. A commit that was cut
may have been written. The next try finds the message by the time at which the request came, which
its recorded view names. The thread records only its newest views, so the message itself is looked
for as well.
"""

from __future__ import annotations

from itertools import pairwise

from om_proxy.memory.model import Cell, Memory, View, extend_chain
from om_proxy.memory.transcript.sent_history import SentHistory
from om_proxy.memory.transcript.verdict import shows_message


def find_own_attempt(
    memory: Memory,
    sent: SentHistory,
    asked_at: float,
    reply_fp: bytes | None,
    *,
    may_be_stored: bool,
) -> View | None:
    """Return the recorded attempt of the request that came at `asked_at`; None: nothing of it is
    stored. Its reply is 0 if the message is alone. `reply_fp`: of the reply that it got.
    `may_be_stored`: a commit of the turn with that reply was cut.

    The whole turn is its own, too, if a later request shows it: another process has stored it."""
    recorded = find_recorded_attempt(memory, sent, asked_at)
    if recorded is not None:
        return recorded
    return _find_lone_message(memory, sent, asked_at, reply_fp, may_be_stored=may_be_stored)


def find_recorded_attempt(memory: Memory, sent: SentHistory, asked_at: float) -> View | None:
    """Return the view of the request that came at `asked_at`; None: it is not recorded, or its
    message is not live."""
    identity = (sent.count, sent.digest, asked_at)
    live_seqs = {mark.seq for mark in memory.marks}
    for view in memory.views:
        if (view.count, view.digest, view.asked_at) == identity and view.seq in live_seqs:
            return view
    return None


def _find_lone_message(
    memory: Memory,
    sent: SentHistory,
    asked_at: float,
    reply_fp: bytes | None,
    *,
    may_be_stored: bool,
) -> View | None:
    """Return an attempt made from the newest message that says the same, was stored since the
    request came, is no earlier request's, and has no reply, or has this one and is known to be its
    own."""
    if sent.count != 1:
        return None
    fp = sent.item(0).fp
    earlier = {view.seq for view in memory.views if view.asked_at < asked_at}
    later_views = [view for view in memory.views if view.asked_at > asked_at]
    since = [mark for mark in memory.marks if mark.at >= asked_at]
    reply_seq = 0
    for message, following in reversed([*pairwise([*since, None])]):
        if message is None or message.fp != fp:
            reply_seq = message.seq if message and message.fp == reply_fp else reply_seq
            continue
        is_alone = following is None or following.role != "assistant"
        is_own_turn = reply_seq > 0 and (
            may_be_stored
            or any(
                shows_message(view, message.seq) and shows_message(view, reply_seq)
                for view in later_views
            )
        )
        if message.seq in earlier or not (is_own_turn or is_alone):
            continue
        return View(
            count=1,
            digest=sent.digest,
            chain=extend_chain(bytes(16), fp),
            seq=message.seq,
            end=message.seq - 1,
            reply=reply_seq if is_own_turn else 0,
            cells=(Cell("same", 0, 1, message.seq, message.seq),),
            asked_at=asked_at,
        )
    return None
