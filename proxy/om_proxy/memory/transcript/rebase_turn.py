"""Rebase a turn that overlaps with another one: move its verdict on top of what was committed
since."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace

from om_proxy.memory.model import EMPTY_CHAIN, Cell, Mark, Memory, View, extend_chain
from om_proxy.memory.transcript.corrections import await_corrections
from om_proxy.memory.transcript.sent_history import SentHistory
from om_proxy.memory.transcript.stored_transcript import StoredTranscript
from om_proxy.memory.transcript.verdict import (
    Verdict,
    delay_corrections,
    is_shown,
    is_unsent,
    merge_neighbours,
    shows_message,
)


def keeps_numbers(memory: Memory, earlier: Memory) -> bool:
    """Return whether what `earlier` numbered has these numbers in `memory`. What waits to be stored
    is numbered anew if others came first."""
    if earlier.version >= 0:
        return True
    chain = next((mark.chain for mark in reversed(memory.marks) if mark.seq == earlier.end), None)
    return chain == earlier.chain


def rebase_turn(
    memory: Memory, verdict: Verdict, sent: SentHistory, asked_at: float = 0.0
) -> Verdict | None:
    """Return the verdict of the same turn on top of what was committed since. None: the messages
    before it are gone, or a text that it replaces is noted by now, or what came since had ended
    before this request came, and was only stored late. So reconcile again. `asked_at`: when the
    request came; 0: not known.

    The client had not seen the messages after `verdict.end`, so it cannot have meant to take them
    back. They are never superseded, and this turn follows them. The one exception is a reply to the
    very same position: the later of two such replies stays, so a retry that overtook its first
    attempt stores nothing twice.
    """
    if memory.end == verdict.end:
        is_noted = any(seq <= memory.chunked_to for seq, _ in verdict.swaps)
        return None if is_noted else verdict
    verdict = delay_corrections(verdict)
    transcript = StoredTranscript.of(memory)
    if verdict.revive or (verdict.end and not transcript.is_live(verdict.end)):
        return None
    since = transcript.marks_after(verdict.end)
    equal = _find_equal_view(memory, sent)
    if equal and (
        equal.seq > verdict.end or (verdict.forks and verdict.repeats and equal.reply > verdict.end)
    ):
        return _rebase_onto_same_turn(memory, verdict, sent, equal.cells, equal.seq)
    is_stored_ahead = not (verdict.new or verdict.forks)  # where it stands, it is known
    if not is_stored_ahead and _has_ended_before(since, asked_at):
        return None
    verdict = _delay_noted_swaps(memory, transcript, verdict)
    if verdict.forks:
        return _fork_behind_others(memory, verdict, sent, since)
    return _append_behind_others(memory, verdict, sent, since)


def _has_ended_before(since: Sequence[Mark], asked_at: float) -> bool:
    """Return whether all of `since` had ended before the request came: it is no turn beside this
    one. A message without a reply may still get one."""
    return since[-1].role == "assistant" and all(mark.at < asked_at for mark in since)


def _delay_noted_swaps(memory: Memory, transcript: StoredTranscript, verdict: Verdict) -> Verdict:
    """Return the verdict that replaces no text that is noted by now."""
    noted = [seq for seq, _ in verdict.swaps if seq <= memory.chunked_to]
    if not noted:
        return verdict
    swaps = tuple(swap for swap in verdict.swaps if swap[0] not in noted)
    return replace(verdict, swaps=swaps, cells=await_corrections(transcript, verdict.cells, noted))


def _append_behind_others(
    memory: Memory, verdict: Verdict, sent: SentHistory, since: Sequence[Mark]
) -> Verdict:
    """Return the verdict of new messages after what others said since. Those that others said too
    appear once."""
    shared = 0
    while (
        shared < min(len(verdict.new), len(since))
        and sent.item(verdict.new[shared]).fp == since[shared].fp
    ):
        shared += 1
    cells = (
        verdict.cells
        + tuple(
            Cell("same", i, i + 1, m.seq, m.seq) for i, m in zip(verdict.new, since, strict=False)
        )[:shared]
    )
    unseen_marks = since[shared:]
    new = verdict.new[shared:]
    after_seq = since[shared - 1].seq if shared else verdict.after_seq
    if not new:
        return _rebase_onto_same_turn(memory, verdict, sent, merge_neighbours(cells), after_seq)
    if unseen_marks:
        unseen = Cell("unsent", new[0], new[0], unseen_marks[0].seq, unseen_marks[-1].seq)
        cells = _insert_unsent(cells, unseen, new)
    return replace(
        verdict, end=memory.end, after_seq=memory.end, new=new, cells=merge_neighbours(cells)
    )


def _fork_behind_others(
    memory: Memory, verdict: Verdict, sent: SentHistory, since: Sequence[Mark]
) -> Verdict:
    """Return the verdict of a fork after what others said since."""
    unseen = Cell("unsent", sent.count, sent.count, since[0].seq, since[-1].seq)
    return replace(
        verdict,
        cut_seq=None,
        end=memory.end,
        after_seq=memory.end,
        cells=_insert_unsent(verdict.cells, unseen, verdict.new),
    )


def resume_turn(memory: Memory, sent: SentHistory, own: View) -> Verdict:
    """Return the verdict of a turn that an earlier try has stored, whole or without its reply, as
    this attempt says."""
    transcript = StoredTranscript.of(memory)
    verdict = Verdict(
        case="retry",
        end=memory.end,
        after_seq=own.seq,
        cells=own.cells,
        style=transcript.style,
    )
    verdict = _rebase_onto_same_turn(memory, verdict, sent, own.cells, own.seq)
    return replace(verdict, repeats=own)


def _find_equal_view(memory: Memory, sent: SentHistory) -> View | None:
    """Return the recorded attempt with the same bytes."""
    identity = (sent.count, sent.digest)
    return next((v for v in memory.views if (v.count, v.digest) == identity), None)


def _rebase_onto_same_turn(
    memory: Memory, verdict: Verdict, sent: SentHistory, cells: tuple[Cell, ...], after_seq: int
) -> Verdict:
    """Rebase a turn whose messages are stored already: the other turn asked the same, or they were
    stored ahead of their reply.

    Other clients may have spoken before that reply came: with a message, or with the reply to one.
    Then the reply follows what they said. But if a later request has shown a reply of this turn,
    that reply stays: the client has gone on with it.
    """
    since = [m for m in memory.marks if m.seq > after_seq]
    replies = {view.reply: _asks_the_same(view, sent, cells, after_seq) for view in memory.views}
    # a message that no attempt accounts for is never superseded by this turn
    unaccounted = [m for m in since if not replies.get(m.seq)]
    follows = bool(unaccounted) and since[0].role == "assistant" and replies.get(since[0].seq, True)
    has_stored_reply = follows and is_shown(memory.views, since[0], unaccounted)
    cut_seq = after_seq if since and not unaccounted else None
    if unaccounted and not has_stored_reply:
        cells = (*cells, Cell("unsent", sent.count, sent.count, unaccounted[0].seq, since[-1].seq))
        after_seq = memory.end
    return replace(
        verdict,
        case="retry",
        cut_seq=cut_seq,
        end=memory.end,
        after_seq=after_seq,
        new=(),
        cells=cells,
        repeats=_find_equal_view(memory, sent),
        has_stored_reply=has_stored_reply,
    )


def _asks_the_same(view: View, sent: SentHistory, cells: Sequence[Cell], seq: int) -> bool:
    """Return whether the attempt asked what this request asks, whose question is at `seq`: with
    the same bytes, or with the same message shown differently.

    A reply that follows what other clients said comes right after their message. Its place says
    nothing about the question that it answers.
    """
    if (view.count, view.digest) == (sent.count, sent.digest):
        return True
    return view.seq == seq and not is_unsent(cells, seq) and not is_unsent(view.cells, seq)


def _insert_unsent(cells: tuple[Cell, ...], cell: Cell, new: Sequence[int]) -> tuple[Cell, ...]:
    """Put an unsent stretch right before the new messages."""
    place = new[0] if new else cell.sent_from
    return (*cells, cell._replace(sent_from=place, sent_to=place))


# ── what an earlier try has stored ────────────────────────────────────────────────────────────────
#
# A request may store its messages ahead of its reply, and then lose the store. A commit that was cut
# may have been written. The next try finds the message by the time at which the request came, which
# its recorded view names. The thread records only its newest views, so the message itself is looked
# for as well.


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
            chain=extend_chain(EMPTY_CHAIN, fp),
            seq=message.seq,
            end=message.seq - 1,
            reply=reply_seq if is_own_turn else 0,
            cells=(Cell("same", 0, 1, message.seq, message.seq),),
            asked_at=asked_at,
        )
    return None
