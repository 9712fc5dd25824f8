"""Place a request that shows part of the conversation: by its certain prefix, as a window, by
alignment, or on a superseded branch.

Some clients send the results of one step as they complete, and later in the order of the calls. An
alignment keeps order, so it would find a few of them and take the others for unknown messages. So
they are placed by their calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, takewhile

from msgspec.structs import replace

from om_proxy.memory.model import Cell, Item, Mark, View, extend_chain
from om_proxy.memory.transcript.alignment import align
from om_proxy.memory.transcript.matching import (
    Pair,
    TextCounts,
    find_run_to_end,
    first_asked_index,
    is_equal,
    is_proof,
    pair_leading,
)
from om_proxy.memory.transcript.sent_history import SentHistory
from om_proxy.memory.transcript.stored_transcript import (
    NEED_OUTLINE,
    NeedOutline,
    StoredTranscript,
    count_late_end,
    find_likeliest_branch,
    last_shared_seq,
    switch_branch,
)
from om_proxy.memory.transcript.verdict import (
    NO_PREFIX,
    ONE_TO_ONE_KINDS,
    CertainPrefix,
    Verdict,
    append_all,
    is_unsent,
    judge_pairs,
    list_unmatched,
)

MAX_ORDER_ATTEMPTS = 2  # to tell new results from those of an older step with the same ids
Place = Callable[[StoredTranscript, SentHistory, CertainPrefix], Verdict | NeedOutline]
PlaceAll = Callable[[StoredTranscript, SentHistory], Verdict | NeedOutline]
# A run of results as it is stored: ids of the calls, fingerprints, and that of the message before.
_StoredRun = tuple[list[str | None], list[bytes], bytes | None]


def place_history(transcript: StoredTranscript, sent: SentHistory) -> Verdict | NeedOutline:
    """Return the verdict on a request that shows part of the conversation."""
    prefix = certain_prefix(transcript, sent)
    if isinstance(prefix, NeedOutline):
        return prefix
    if not prefix.sent:
        prefix = _place_first_results(transcript, sent) or prefix
    verdict = place_by_calls(transcript, sent, prefix, _place_residue)
    if isinstance(verdict, NeedOutline):
        return verdict
    return prefer_other_branch(transcript, sent, prefix, verdict, place_history)


def _place_first_results(transcript: StoredTranscript, sent: SentHistory) -> CertainPrefix | None:
    """Return the prefix of a window that begins inside a step whose results are stored in another
    order: its first results, by their calls. None: it begins elsewhere."""
    if sent.item(0).answers is None:
        return None
    results = list(
        takewhile(lambda item: item.answers is not None, map(sent.item, range(sent.count)))
    )
    run = find_longer_run(results, transcript.live)
    if run is None:
        return None
    before = transcript.seq_before(run.start)
    first, last = transcript.live[run.start].seq, transcript.live[run.stop - 1].seq
    cells = (Cell("unsent", 0, 0, 1, before), Cell("folded", 0, len(results), first, last))
    return CertainPrefix(len(results), run.stop, cells)


def place_by_calls(
    transcript: StoredTranscript, sent: SentHistory, prefix: CertainPrefix, place: Place
) -> Verdict | NeedOutline:
    """Return the verdict of `place` on what follows the prefix, with tool results in the order in
    which they are stored."""
    stored = transcript.live[prefix.stored :]
    # neighbouring results: without them nothing is read here
    if any(a.answers is not None and b.answers is not None for a, b in pairwise(stored)):
        orders = find_stored_order(sent.items(prefix.sent), stored)
        for _ in range(MAX_ORDER_ATTEMPTS if orders else 0):
            moved = {prefix.sent + i: prefix.sent + at for one in orders for i, at in one.items()}
            verdict = place(transcript, sent.with_moved_items(moved), prefix)
            if isinstance(verdict, NeedOutline):
                return verdict
            found = [
                one for one in orders if places_results(verdict, [prefix.sent + i for i in one])
            ]
            if found == orders:
                return verdict
            orders = found
    return place(transcript, sent, prefix)


def _place_residue(
    transcript: StoredTranscript, sent: SentHistory, prefix: CertainPrefix
) -> Verdict | NeedOutline:
    if prefix.sent:
        return _place_after_prefix(transcript, sent, prefix)
    return _place_without_prefix(transcript, sent)


def prefer_other_branch(
    transcript: StoredTranscript,
    sent: SentHistory,
    prefix: CertainPrefix,
    verdict: Verdict,
    place: PlaceAll,
) -> Verdict | NeedOutline:
    """Return the verdict of `place` on a superseded branch if the request fits it better than the
    live one; else `verdict`."""
    if not transcript.has_superseded or not _is_ambiguous(transcript, sent, verdict):
        return verdict
    if not transcript.complete:
        return NEED_OUTLINE
    return _match_other_branch(transcript, sent, prefix, verdict, place) or verdict


def _is_ambiguous(transcript: StoredTranscript, sent: SentHistory, verdict: Verdict) -> bool:
    """Return whether another branch may fit better than the live one, or may hold a text that was
    taken for altered."""
    if verdict.case == "delta":
        return transcript.style != "thin"
    new = frozenset(verdict.new)
    odd_roles = [sent.item(i).role for i in list_unmatched(verdict) if i not in new]
    if verdict.forks:
        return bool(odd_roles or verdict.new)
    # a reply taken for altered may be the other reply of a turn that was regenerated
    if any(role in ("user", "assistant") for role in odd_roles):
        return True
    folded = [
        cell
        for cell in verdict.cells
        if cell.kind == "folded" and cell.sent_from >= verdict.certain
    ]
    folded_roles = [
        m.role for cell in folded for m in transcript.marks_between(cell.from_seq, cell.to_seq)
    ]
    return "user" in folded_roles or [sent.item(i).role for i in verdict.new].count("user") > 1


def certain_prefix(transcript: StoredTranscript, sent: SentHistory) -> CertainPrefix | NeedOutline:
    """Return the prefix that is known for certain: from a recorded attempt, or from the chain."""
    view = sent.seen
    if view is not None and (view.count > 1 or transcript.is_prefix_view(view)):
        if transcript.is_live(view.seq):
            return _extend_prefix(transcript, sent, CertainPrefix.from_view(transcript, view), view)
        if not transcript.complete and (transcript.missing or transcript.has_superseded):
            return NEED_OUTLINE
    chains = sent.chains()
    shared = shared_prefix_length(transcript, chains)
    prefix = (
        CertainPrefix.from_chain(transcript, shared)
        if shared and (transcript.style != "window" or shared == transcript.count)
        else NO_PREFIX
    )
    view = next(
        (
            recorded
            for recorded in reversed(transcript.views)
            if chains.get(recorded.count) == recorded.chain and transcript.is_live(recorded.seq)
        ),
        None,
    )
    if view is not None and view.count > max(shared, 1):
        prefix = CertainPrefix.from_view(transcript, view)
    return _extend_prefix(transcript, sent, prefix, None)


def _extend_prefix(
    transcript: StoredTranscript, sent: SentHistory, prefix: CertainPrefix, seen: View | None
) -> CertainPrefix:
    """Extend the prefix along a recorded attempt that differs in its last message only: an altering
    client edited that message, or a reminder always comes last."""
    if prefix.sent and prefix.stored == len(transcript.live):
        return prefix
    longer = range(max(prefix.sent, 1) + 1, sent.count + 1)
    attempts = [view for view in reversed(transcript.views) if view.count - 1 in longer]
    if not attempts:
        return prefix
    chains = sent.chains(seen)
    last_fp = sent.item(sent.count - 1).fp
    for view in attempts:
        before = chains.get(view.count - 1)
        if before is None or not transcript.is_live(view.seq):
            continue
        if is_unsent(view.cells, view.seq):  # another client's message is at `seq`
            continue
        if _shows_other_clients(transcript, sent, view):
            continue
        if view.chain == extend_chain(before, last_fp):
            return CertainPrefix.from_view_but_last(transcript, view, last_fp)
        if view.chain == extend_chain(before, transcript.live[transcript.index_of(view.seq)].fp):
            return CertainPrefix.from_view_but_last(transcript, view)
    return prefix


def _shows_other_clients(transcript: StoredTranscript, sent: SentHistory, view: View) -> bool:
    """Return whether the request shows, at the place of the attempt's last message, what other
    clients had said right before that message."""
    index = view.count - 1
    if index >= sent.count:
        return False
    unsent = [cell for cell in view.cells if cell.kind == "unsent" and cell.sent_from == index]
    return any(
        m.fp == sent.item(index).fp
        for cell in unsent
        for m in transcript.marks_between(cell.from_seq, cell.to_seq)
    )


def shared_prefix_length(transcript: StoredTranscript, chains: Mapping[int, bytes]) -> int:
    """Return the number of messages, from the first one on, that both sides share, as far as the
    loaded marks tell."""
    counts = range(transcript.count, transcript.missing, -1)
    return next(
        (n for n in counts if chains.get(n) == transcript.live[n - transcript.missing - 1].chain), 0
    )


def _place_after_prefix(
    transcript: StoredTranscript, sent: SentHistory, prefix: CertainPrefix
) -> Verdict | NeedOutline:
    """Place a request that continues a certain prefix."""
    if prefix.stored == len(transcript.live):
        return judge_pairs(transcript, sent, prefix, [])  # extend: nothing to compare
    items = sent.items(prefix.sent)
    stored = transcript.live[prefix.stored :]
    # the reply came back: no proof is asked for
    if len(items) >= len(stored) and all(map(is_equal, items, stored)):
        return judge_pairs(transcript, sent, prefix.continue_to_end(transcript), [])
    counts = transcript.count_texts()
    pairs = pair_leading(items, stored, counts)
    paired = len(pairs)
    more = pair_residue(items[paired:], stored[paired:], counts, joined=True)
    if more is None:
        return append_all(transcript, sent)
    return judge_pairs(
        transcript,
        sent,
        prefix,
        shift_pairs(pairs, prefix.sent, prefix.stored)
        + shift_pairs(more, prefix.sent + paired, prefix.stored + paired),
    )


def pair_residue(
    items: list[Item],
    stored: tuple[Mark, ...],
    counts: TextCounts,
    *,
    joined: bool,
    origin: bool = False,
    window: bool = False,
) -> list[Pair] | None:
    """Pair the messages after the certain prefix: first an equal run that ends where the transcript
    ends, then the others. None: there are too many to align.
    """
    if not items or not stored:
        return []
    start, length = find_run_to_end(items, stored)
    run_start = len(stored) - length
    run = [Pair(start + k, run_start + k, same=True, hard=True) for k in range(length)]
    if run and not start and not joined:
        return run  # a pure window: the client did not send what it does not reach
    asked = first_asked_index(items)
    if not any(is_proof(items[pair.sent], counts, pair.sent >= asked) for pair in run):
        return align(items, stored, counts, joined=joined, origin=origin, window=window)
    head = align(
        items[:start],
        stored[:run_start],
        counts,
        joined=joined,
        origin=origin,
        closed=True,
        window=window,
    )
    return None if head is None else head + run


def shift_pairs(pairs: list[Pair], sent: int, stored: int) -> list[Pair]:
    """Return the pairs with indices that are higher by `sent` and `stored`."""
    return [pair._replace(sent=pair.sent + sent, stored=pair.stored + stored) for pair in pairs]


def _place_without_prefix(transcript: StoredTranscript, sent: SentHistory) -> Verdict | NeedOutline:
    """Place a request without a certain prefix: a window, a compacted or altered history, or an
    unknown one."""
    items = sent.items()
    counts = transcript.count_texts()
    window = transcript.style == "window"
    if transcript.missing:
        return _place_near_end(transcript, sent, items, counts, window)
    pairs = _pair_window(items, transcript.live, counts, origin=True, window=window)
    return (
        judge_pairs(transcript, sent, NO_PREFIX, pairs) if pairs else append_all(transcript, sent)
    )


def _pair_window(
    items: list[Item], stored: tuple[Mark, ...], counts: TextCounts, *, origin: bool, window: bool
) -> list[Pair] | None:
    """Pair a request without a certain prefix. It may end where the transcript ends, or before what
    was stored late at its end: the longer match counts."""
    pairs = pair_residue(items, stored, counts, joined=False, origin=origin, window=window)
    late_count = count_late_end(stored)
    if not late_count:
        return pairs
    stored = stored[:-late_count]
    others = pair_residue(items, stored, counts, joined=False, origin=origin, window=window)
    return max(pairs, others, key=lambda found: len(found or ()))


def _place_near_end(
    transcript: StoredTranscript,
    sent: SentHistory,
    items: list[Item],
    counts: TextCounts,
    window: bool,
) -> Verdict | NeedOutline:
    """Place a request while older messages are not loaded, if that supersedes nothing."""
    near = transcript.live[-(2 * len(items) + 16) :]
    before_near = len(transcript.live) - len(near)
    pairs = _pair_window(items, near, counts, origin=False, window=window)
    if pairs and pairs[-1].stored >= len(near) - 1 - count_late_end(near):
        # a window may begin before the oldest loaded mark
        begins_inside = window and pairs[0].stored + before_near > 0
        if begins_inside or not pairs[0].sent:
            return judge_pairs(transcript, sent, NO_PREFIX, shift_pairs(pairs, 0, before_near))
    is_all_new = not any(item.fp in counts.seen for item in items)
    return (
        append_all(transcript, sent)
        if is_all_new and transcript.style in ("thin", "window")
        else NEED_OUTLINE
    )


def _match_other_branch(
    transcript: StoredTranscript,
    sent: SentHistory,
    prefix: CertainPrefix,
    verdict: Verdict,
    place: PlaceAll,
) -> Verdict | None:
    """Match the request with the superseded branch that holds most of what would be new. None: no
    branch holds more of it than the live one."""
    leaf = find_likeliest_branch(transcript, {sent.item(i).fp for i in list_unmatched(verdict)})
    other = switch_branch(transcript, leaf) if leaf else None
    if other is None:
        return None
    there = place(other, sent)
    assert not isinstance(there, NeedOutline)  # `other` is complete
    fork = last_shared_seq(transcript.live, other.live)
    kept = other.end if there.cut_seq is None else there.cut_seq
    # if both branches hold the certain prefix, only what follows it tells them apart
    start = prefix.sent if fork >= transcript.seq_before(prefix.stored) else 0
    if kept <= fork or sum(i >= start for i in list_unmatched(there)) >= len(
        list_unmatched(verdict)
    ):
        return None
    return move_to_branch(transcript, other, there)


def move_to_branch(
    transcript: StoredTranscript, other: StoredTranscript, there: Verdict
) -> Verdict:
    """Return a verdict on another branch as one on the live one, which is superseded from where
    they part."""
    fork = last_shared_seq(transcript.live, other.live)
    kept = other.end if there.cut_seq is None else there.cut_seq
    return replace(
        there,
        case="switch",
        cut_seq=fork if transcript.end != fork else None,
        end=transcript.end,
        after_seq=kept,
        revive=tuple(m.seq for m in other.live if fork < m.seq <= kept),
    )


def find_stored_order(items: Sequence[Item], stored: Sequence[Mark]) -> list[dict[int, int]]:
    """Return, for each run of neighbouring results that is stored in another order, the index of
    the result that is stored in the place of each. Some servers number their calls anew in each
    step. So of several stored runs with the same ids those after the same message count, and of
    these the one with most of the texts."""
    runs = [run for run in _list_runs([item.answers for item in items]) if len(run) > 1]
    if not runs:
        return []
    stored_runs: dict[frozenset[str | None], list[_StoredRun]] = {}
    for run in _list_runs([mark.answers for mark in stored]):
        calls = [stored[j].answers for j in run]
        before = stored[run.start - 1].fp if run.start else None
        stored_runs.setdefault(frozenset(calls), []).append(
            (calls, [stored[j].fp for j in run], before)
        )
    stored_fps = {None, *(mark.fp for mark in stored)}
    orders: list[dict[int, int]] = []
    for run in runs:
        place_by_call = {items[i].answers: i for i in run}
        candidates = stored_runs.get(frozenset(place_by_call), [])
        before = items[run.start - 1].fp if run.start else None
        if run.start and before in stored_fps:
            candidates = [one for one in candidates if one[2] == before]
        if len(place_by_call) < len(run) or not candidates:
            continue
        fps = {items[i].fp for i in run}
        calls, *_ = max(candidates, key=lambda one: sum(fp in fps for fp in one[1]))
        if len(calls) == len(run):
            order = (place_by_call[call] for call in calls)
            orders.append({i: there for i, there in zip(run, order, strict=True) if i != there})
    return [order for order in orders if order]


def find_longer_run(results: Sequence[Item], stored: Sequence[Mark]) -> range | None:
    """Return the one stored run that holds these results and more, in another order. None: none
    does, or several, or these are its end as it is stored."""
    fps = {item.fp for item in results}
    runs = [
        run
        for run in _list_runs([mark.answers for mark in stored])
        if len(run) > len(results) and fps <= {stored[j].fp for j in run}
    ]
    if len(runs) != 1:
        return None
    end = [stored[j].fp for j in runs[0][-len(results) :]]
    return None if end == [item.fp for item in results] else runs[0]


def places_results(verdict: Verdict, moved: Iterable[int]) -> bool:
    """Return whether each of the moved results stands beside a stored one. Only then may the
    verdict stand for the order in which they were sent."""
    paired = [cell for cell in verdict.cells if cell.kind in ONE_TO_ONE_KINDS]
    return all(any(cell.sent_from <= i < cell.sent_to for cell in paired) for i in moved)


def _list_runs(answers: Sequence[str | None]) -> Iterator[range]:
    """Yield the places of neighbouring results."""
    start = 0
    for i, call in enumerate((*answers, None)):
        if call is None:
            if start < i:
                yield range(start, i)
            start = i + 1
