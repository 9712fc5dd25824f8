"""Reconcile what a client sent with what is stored: find what is known, what is new, and what the
client took back.

Most clients send everything they hold on every call; some send a window or only the newest message;
agents compact, fold and prune; people edit, regenerate and go back to an older branch. The cases
are named in the table of docs/contributing/reconcile.md#cases. `reconcile` walks from the cheapest
certainty to the dearest guess:

1. a recorded attempt with the same bytes, or one that this request begins with: nothing of the
known prefix is parsed;
2. lone messages and lone tool results, which have rules of their own (lone_messages.py);
3. the chain of fingerprints: a prefix of the transcript from its first message on;
4. a window: a run that ends exactly where the transcript ends;
5. the weighted alignment of the residue (alignment.py).

Steps 3 to 5: placement.py. Where they leave a message of the past without a place, texts are
compared (wordings.py), and what says something else is a correction (corrections.py).

A request that names the stored reply that it follows needs none of this (lone_messages.py).

One rule comes before all: *destructive needs proof*. A duplicate can be repaired, a false
supersession cannot.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from om_proxy.memory.model import Memory, Style
from om_proxy.memory.transcript.corrections import (
    NeedTexts,
    list_compared_seqs,
    place_corrections,
    restore_fingerprints,
    show_corrections,
    skip_outdated_view,
    take_corrections,
)
from om_proxy.memory.transcript.lone_messages import (
    match_single_message,
    match_tool_results,
    place_answer,
)
from om_proxy.memory.transcript.matching import Pair, pair_leading
from om_proxy.memory.transcript.placement import (
    certain_prefix,
    pair_residue,
    place_by_calls,
    place_history,
    prefer_other_branch,
    shared_prefix_length,
    shift_pairs,
)
from om_proxy.memory.transcript.sent_history import SentHistory
from om_proxy.memory.transcript.stored_transcript import (
    NEED_OUTLINE,
    NeedOutline,
    StoredTranscript,
)
from om_proxy.memory.transcript.verdict import (
    NO_PREFIX,
    CertainPrefix,
    Verdict,
    append_all,
    judge_pairs,
)
from om_proxy.memory.transcript.wordings import Texts

ANSWERING_ROLES = frozenset({"assistant", "tool", "function"})
History = Literal["auto", "full", "window", "new"]  # X-OM-History


class Hints(Struct, frozen=True):
    """The statements of a request about its history; of a client's, all stand in headers."""

    history: History = "auto"
    sdk_retry: bool = False  # x-stainless-retry-count above 0
    # the newest reply is known not to have gone out to its last byte, a moment ago
    undelivered: bool = False
    # unix seconds at which each message was said, of a conversation that was held elsewhere
    said_at: tuple[float, ...] = ()
    answered_seq: int = 0  # of the reply that the request names as the one it follows; 0: none


DEFAULT_HINTS = Hints()


def reconcile(
    transcript: StoredTranscript,
    sent: SentHistory,
    hints: Hints = DEFAULT_HINTS,
    texts: Texts | None = None,
) -> Verdict | NeedOutline | NeedTexts:
    """Return the verdict on a request. With a complete `transcript` the answer is never
    NeedOutline, with `texts` never NeedTexts."""
    answering = hints.answered_seq and place_answer(transcript, sent, hints.answered_seq)
    if isinstance(answering, Verdict):
        return _name_repeated_view(answering, sent)
    return answering or _reconcile_history(transcript, sent, hints, texts)


def _reconcile_history(
    transcript: StoredTranscript, sent: SentHistory, hints: Hints, texts: Texts | None
) -> Verdict | NeedOutline | NeedTexts:
    if hints.history != "full":
        transcript = show_corrections(transcript)
        if transcript.corrections:
            sent = skip_outdated_view(transcript, sent)
    verdict = _find_verdict(transcript, sent, hints)
    if isinstance(verdict, NeedOutline):
        return verdict
    if hints.history != "new":
        if texts is None:
            seqs = list_compared_seqs(transcript, sent, verdict)
            if seqs:
                return NeedTexts(seqs)
        else:
            restored = restore_fingerprints(transcript, sent, verdict, texts)
            if restored is not sent:
                sent = restored
                verdict = _find_verdict(transcript, sent, hints)
            if isinstance(verdict, NeedOutline):
                return verdict
    if transcript.corrections:
        verdict = place_corrections(transcript, sent, verdict)
    if texts is not None and hints.history != "full":
        verdict = take_corrections(transcript, sent, verdict, texts)
    verdict = _name_repeated_view(verdict, sent)
    if hints.history == "auto":
        return verdict
    styles: dict[str, Style] = {"full": "full", "window": "window", "new": "thin"}
    return replace(verdict, style=styles[hints.history])


def _name_repeated_view(verdict: Verdict, sent: SentHistory) -> Verdict:
    """Name the recorded attempt with the same bytes, if the verdict is at its very place."""
    view = sent.seen
    if (
        view is None
        or view.count != sent.count
        or verdict.new
        or verdict.after_seq != view.seq
        or verdict.repeats
    ):
        return verdict
    return replace(
        verdict, repeats=view, case="retry" if verdict.case == "regenerate" else verdict.case
    )


def _find_verdict(
    transcript: StoredTranscript, sent: SentHistory, hints: Hints
) -> Verdict | NeedOutline:
    if not sent.count:
        return Verdict.at_end(transcript, "none")
    if not transcript.count:
        return judge_pairs(transcript, sent, NO_PREFIX, [], case="first")
    if hints.history == "full":
        return _replace_full_history(transcript, sent)
    repeated = _match_recorded_request(transcript, sent, hints)
    if repeated is not None:
        return repeated
    if hints.history == "new":
        return append_all(transcript, sent)
    if hints.history == "window":
        transcript = replace(transcript, style="window")
    return (
        match_single_message(transcript, sent)
        or match_tool_results(transcript, sent)
        or place_history(transcript, sent)
    )


# ── a recorded attempt ────────────────────────────────────────────────────────────────────────────


def _match_recorded_request(
    transcript: StoredTranscript, sent: SentHistory, hints: Hints
) -> Verdict | None:
    """Return the verdict on a request that repeats a recorded attempt. None: it repeats none, or it
    may be a new message with the same words."""
    view = sent.seen
    sent_count = sent.count
    if view is None or view.count != sent_count or not transcript.is_live(view.seq):
        return None
    end = transcript.end
    is_newest = end == (view.reply or view.seq)
    is_unanswered = end == view.seq and not view.reply
    is_certain = is_newest and (hints.sdk_retry or hints.undelivered or is_unanswered)
    if not is_certain and (
        sent_count == 1 or hints.history == "new" or _answers_newest_calls(transcript, sent)
    ):
        return None  # the same words again: the rules of lone messages decide
    has_user_spoken = any(m.role == "user" for m in transcript.marks_after(view.seq))
    if has_user_spoken and not transcript.is_prefix_view(view):
        return None  # a window of repeated texts looks the same
    cut_seq = view.seq if end != view.seq else None
    return Verdict(
        case="rewind" if has_user_spoken else "retry",
        cut_seq=cut_seq,
        end=end,
        after_seq=view.seq,
        cells=view.cells,
        style=transcript.style,
        repeats=view,
    )


def _answers_newest_calls(transcript: StoredTranscript, sent: SentHistory) -> bool:
    """Return whether the request brings results alone, and for the calls that still wait at the end
    of the transcript. A server that numbers the calls of each round anew gives them known ids."""
    calls = transcript.live[-1].calls
    return bool(calls) and all(sent.item(i).answers in calls for i in range(sent.count))


# ── X-OM-History: full ────────────────────────────────────────────────────────────────────────────


def _replace_full_history(transcript: StoredTranscript, sent: SentHistory) -> Verdict | NeedOutline:
    """Apply `X-OM-History: full`: messages that are not sent no longer exist. From the first
    difference on, the sent messages are the transcript, whenever the others were said."""
    transcript = replace(transcript, has_times=False)
    prefix = certain_prefix(replace(transcript, style="full"), sent)
    if isinstance(prefix, NeedOutline) or (transcript.missing and not prefix.sent):
        return NEED_OUTLINE
    if not _is_transcript_itself(transcript, prefix):
        shared = shared_prefix_length(transcript, sent.chains())
        prefix = CertainPrefix.from_chain(transcript, shared) if shared else NO_PREFIX
    verdict = place_by_calls(transcript, sent, prefix, _place_one_to_one)
    if isinstance(verdict, NeedOutline) or not verdict.cells:
        return verdict
    return prefer_other_branch(transcript, sent, prefix, verdict, _replace_full_history)


def _place_one_to_one(
    transcript: StoredTranscript, sent: SentHistory, prefix: CertainPrefix
) -> Verdict:
    """Place what follows `prefix`. Where nothing is known, the verdict has no cells."""
    pairs = _take_until_difference(transcript, prefix, _pair_one_to_one(transcript, sent, prefix))
    verdict = judge_pairs(transcript, sent, prefix, shift_pairs(pairs, prefix.sent, prefix.stored))
    if prefix.sent or pairs:
        return verdict
    return replace(
        verdict, case="edit", cut_seq=0, after_seq=0, cells=(), new=tuple(range(sent.count))
    )


def _is_transcript_itself(transcript: StoredTranscript, prefix: CertainPrefix) -> bool:
    """Return whether the client's view of the prefix is the transcript itself, message for
    message."""
    is_one_to_one = all(cell.kind in ("same", "altered") for cell in prefix.cells)
    return not prefix.sent or (is_one_to_one and prefix.cells[0].from_seq <= transcript.first)


def _take_until_difference(
    transcript: StoredTranscript, prefix: CertainPrefix, pairs: list[Pair]
) -> list[Pair]:
    """Return the pairs before the first text that differs from one that is noted."""
    return [
        *takewhile(
            lambda pair: (
                pair.same
                or pair.hard
                or transcript.live[prefix.stored + pair.stored].seq > transcript.fixed
            ),
            pairs,
        )
    ]


def _pair_one_to_one(
    transcript: StoredTranscript, sent: SentHistory, prefix: CertainPrefix
) -> list[Pair]:
    """Pair the messages after `prefix`, up to the first one that only one side has."""
    items = sent.items(prefix.sent)
    stored = transcript.live[prefix.stored :]
    counts = transcript.count_texts()
    pairs = pair_leading(items, stored, counts)
    paired = len(pairs)
    more = (
        pair_residue(
            items[paired:],
            stored[paired:],
            counts,
            joined=bool(prefix.sent or paired),
            origin=True,
        )
        or []
    )
    return pairs + [
        pair
        for index, pair in enumerate(shift_pairs(more, paired, paired), paired)
        if pair.sent == pair.stored == index
    ]


# ── a coding agent's side requests ────────────────────────────────────────────────────────────────
#
# A side request is none of the conversation: a title, a tag, a summary of something else
# (docs/contributing/behaviour.md#side-requests).
#
# Coding agents offer tools with every request of the conversation, and with none of their small
# ones: of 110 recorded requests of three agents 89 offered tools, and of the 21 without only a
# compaction repeats the history. So in a thread whose client resends its history and offered tools
# with its newest turn, a request without tools that repeats nothing of the thread is a side request.
# After a turn without tools (a compaction, tools switched off, another client) the rule rests until
# one offers them again.
#
# If the rule is wrong, a user loses a turn's memory: another device writes to an agent's thread,
# without tools and without its history. So the rule does not apply
#
# - if the client says what its messages are (X-OM-History);
# - if the thread's style is not proved to be `full`: a thin client's requests never repeat
#   anything;
# - if one message is known, however old or superseded;
# - if the request holds a reply or a tool's result: that is a conversation of its own, for example
#   one whose first message was edited.


def may_be_side_request(memory: Memory, sent: SentHistory, hints: Hints) -> bool:
    """Return whether the request can be a side request, before its tools are looked for: almost
    always no."""
    return (
        sent.seen is None
        and memory.style == "full"
        and memory.offers_tools
        and hints.history == "auto"
    )


def repeats_nothing(transcript: StoredTranscript, sent: SentHistory) -> bool | NeedOutline:
    """Return whether the request only asks, and none of its messages is one of the thread's, live
    or superseded. With a complete `transcript` the answer is never NeedOutline."""
    items = sent.items()
    if any(item.role in ANSWERING_ROLES for item in items):
        return False
    texts = {item.fp for item in items}
    if any(mark.fp in texts for mark in transcript.live):
        return False
    if any(mark.fp in texts for mark, _ in transcript.superseded):
        return False
    holds_all = transcript.complete or not (transcript.missing or transcript.has_superseded)
    return True if holds_all else NEED_OUTLINE
