"""Reconcile what a client sent with what is stored: what is known, what is new, what the client took back.

Most clients send everything they hold on every call; some send a window or only the newest message; agents compact, fold and
prune; people edit, regenerate and go back to an older branch. The cases are named in the specification's table (reconcile.md);
`reconcile` walks from the cheapest certainty to the dearest guess:

1. a recorded attempt with the same bytes, or one that this request begins with: nothing of the known prefix is parsed;
2. the chain of fingerprints: a prefix of ours from the first message on;
3. lone messages and lone tool results, which have rules of their own;
4. a window: a run that ends exactly where ours ends;
5. the weighted alignment of the residue (alignment.py).

One rule stands above all: *destructive needs proof*. A duplicate can be repaired, a false supersession cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from proxy.memory import alignment
from proxy.memory.alignment import Census, Pair
from proxy.memory.known import Known, branch, most_known, shared_end
from proxy.memory.model import Item, Mark, Style, View, chained
from proxy.memory.sent import Recognised, Sent, recognise
from proxy.memory.verdict import Base, Reconciled, strangers, verdict

__all__ = [
    "Hints",
    "History",
    "Known",
    "NeedOutline",
    "Recognised",
    "Reconciled",
    "Sent",
    "recognise",
    "reconcile",
]

History = Literal["auto", "full", "window", "new"]  # X-OM-History


@dataclass(frozen=True, slots=True)
class Hints:
    """What the request's headers say about its history."""

    history: History = "auto"
    sdk_retry: bool = False  # x-stainless-retry-count above 0


@dataclass(frozen=True, slots=True)
class NeedOutline:
    """The bounded marks do not suffice: ask again with `Known.of(memory, live=outline.live, dead=outline.dead)`."""


AUTO = Hints()
NEED_OUTLINE = NeedOutline()
NOTHING = Base(0, 0, ())


def reconcile(known: Known, sent: Sent, hints: Hints = AUTO) -> Reconciled | NeedOutline:
    """Pure. With a complete `known` the answer is never NeedOutline."""
    found = _reconcile(known, sent, hints)
    if isinstance(found, NeedOutline):
        return found
    found = _repeating(found, sent)
    if hints.history == "auto":
        return found
    styles: dict[str, Style] = {"full": "full", "window": "window", "new": "thin"}
    return replace(found, style=styles[hints.history])


def _repeating(found: Reconciled, sent: Sent) -> Reconciled:
    """With the recorded attempt named, where the rules of the ladder led to the very place of one with the same bytes."""
    view = sent.seen
    if view is None or view.count != sent.count or found.new or found.at != view.seq or found.repeats:
        return found
    return replace(found, repeats=view, case="retry" if found.case == "regenerate" else found.case)


def _reconcile(known: Known, sent: Sent, hints: Hints) -> Reconciled | NeedOutline:
    if not sent.count:
        return Reconciled.at_end(known, "none")
    if not known.count:
        return verdict(known, sent, NOTHING, [], case="first")
    if hints.history == "full":
        return _whole(known, sent)
    again = _again(known, sent, hints)
    if again is not None:
        return again
    if hints.history == "new":
        return _appended(known, sent)
    if hints.history == "window":
        known = replace(known, style="window")
    return _lone(known, sent) or _step(known, sent) or _placed(known, sent)


# ── 1. a recorded attempt ────────────────────────────────────────────────────────────────────────────────────────────


def _again(known: Known, sent: Sent, hints: Hints) -> Reconciled | None:
    """The very request of a recorded attempt; None: it is none, or may as well be a new message with the same words."""
    view = sent.seen
    if view is None or view.count != sent.count or not known.holds(view.seq):
        return None
    newest = known.end == (view.reply or view.seq)
    unanswered = known.end == view.seq and not view.reply
    certain = newest and (hints.sdk_retry or unanswered)
    if not certain and (sent.count == 1 or hints.history == "new"):
        return None  # the same words again: the rules of lone messages say
    users_since = any(m.role == "user" for m in known.after(view.seq))
    if users_since and not view_from_start(known, view):
        return None  # a window of repeated texts looks the same
    cut = view.seq if known.end != view.seq else None
    return Reconciled(
        case="rewind" if users_since else "retry",
        cut=cut,
        end=known.end,
        at=view.seq,
        cells=view.cells,
        style=known.style,
        repeats=view,
    )


def view_from_start(known: Known, view: View) -> bool:
    """Whether the client's view begins where the thread does: a prefix, not a window."""
    first = view.cells[0] if view.cells else None
    return first is not None and first.sent_from == 0 and first.from_seq <= known.first and first.kind != "unsent"


# ── 3. lone messages and lone tool results ───────────────────────────────────────────────────────────────────────────


def _lone(known: Known, sent: Sent) -> Reconciled | NeedOutline | None:
    if sent.count != 1 or sent.item(0).role != "user":
        return None
    fp = sent.item(0).fp
    last = next((i for i in range(len(known.live) - 1, -1, -1) if known.live[i].role == "user"), None)
    repeats_last = last is not None and known.live[last].fp == fp
    if repeats_last and last is not None and known.live[last].seq == known.end:
        return _placed_at(known, sent, last)  # it is unanswered
    if known.style in ("unknown", "full"):
        if known.missing:
            return NEED_OUTLINE
        if known.live[0].fp == fp:
            return _placed_at(known, sent, 0)
    if repeats_last and last is not None and known.turns < 2:
        return _placed_at(known, sent, last)
    return _appended(known, sent, style="thin")


def _placed_at(known: Known, sent: Sent, index: int) -> Reconciled:
    unanswered = index == len(known.live) - 1
    return verdict(known, sent, NOTHING, [Pair(0, index, True, True)], case="retry" if unanswered else None)


def _step(known: Known, sent: Sent) -> Reconciled | None:
    """Only tool results: of calls that still wait, new; answered already, the same step again."""
    if any(sent.item(i).answers is None for i in reversed(range(sent.count))):
        return None
    items = sent.items()
    places = [_answered(known, item.answers or "") for item in items]
    if None in places or places != sorted(set(places), key=lambda p: p or 0):
        return _appended(known, sent) if all(place is None for place in places) else None
    found = [place for place in places if place is not None]
    if any(m.role == "user" for m in known.live[found[-1] + 1 :]):
        return None
    pairs = [Pair(i, j, items[i].fp == known.live[j].fp, hard=True) for i, j in enumerate(found)]
    return verdict(known, sent, NOTHING, pairs, case="step_retry")


def _answered(known: Known, call: str) -> int | None:
    """Where this call has its result; None where it is still waited for, or not known. Ids may come again: the newest counts."""
    for index in range(len(known.live) - 1, -1, -1):
        mark = known.live[index]
        if mark.answers == call:
            return index
        if call in mark.calls:
            return None
    return None


def _appended(known: Known, sent: Sent, style: Style | None = None) -> Reconciled:
    return replace(verdict(known, sent, NOTHING, [], case="delta"), style=style or known.style)


def _whole(known: Known, sent: Sent) -> Reconciled | NeedOutline:
    """X-OM-History: full. What is not sent no longer exists: from the first difference on, what was sent is the transcript."""
    base = _base(replace(known, style="full"), sent)
    if isinstance(base, NeedOutline) or (known.missing and not base.sent):
        return NEED_OUTLINE
    if not _plain(known, base):
        shared = _shared(known, sent.chains())
        base = Base.prefix(known, shared) if shared else NOTHING
    pairs = _one_to_one(known, sent, base)
    found = verdict(known, sent, base, _moved(pairs, base.sent, base.stored))
    if not base.sent and not pairs:
        return replace(found, case="edit", cut=0, at=0, cells=(), new=tuple(range(sent.count)))
    if found.cut is None or not found.new or not known.superseded:
        return found
    return (_switched(known, sent, base, found) or found) if known.complete else NEED_OUTLINE


def _plain(known: Known, base: Base) -> bool:
    """Whether the client's view of the prefix is the transcript itself, message for message."""
    one_to_one = all(cell.kind in ("same", "altered") for cell in base.cells)
    return not base.sent or (one_to_one and base.cells[0].from_seq <= known.first)


def _one_to_one(known: Known, sent: Sent, base: Base) -> list[Pair]:
    """The pairs behind `base` up to the first message that only one side has."""
    items, stored, census = sent.items(base.sent), known.live[base.stored :], known.census()
    pairs = alignment.leading(items, stored, census)
    done = len(pairs)
    more = _residue(items[done:], stored[done:], census, joined=bool(base.sent or done), origin=True) or []
    return pairs + [p for k, p in enumerate(_moved(more, done, done)) if p.sent == p.stored == done + k]


# ── 2, 4, 5. longer requests ─────────────────────────────────────────────────────────────────────────────────────────


def _placed(known: Known, sent: Sent) -> Reconciled | NeedOutline:
    base = _base(known, sent)
    if isinstance(base, NeedOutline):
        return base
    found = _from_base(known, sent, base) if base.sent else _from_nowhere(known, sent)
    if isinstance(found, NeedOutline):
        return found
    if not known.superseded or not _doubtful(known, sent, found):
        return found
    return (_switched(known, sent, base, found) or found) if known.complete else NEED_OUTLINE


def _doubtful(known: Known, sent: Sent, found: Reconciled) -> bool:
    """Whether another branch may fit better than the live one, or a text taken for altered stand there."""
    if found.case == "delta":
        return known.style != "thin"
    odd = strangers(found)
    if found.cut is not None:
        return bool(odd)
    folded = [c for c in found.cells if c.kind == "folded" and c.sent_from >= found.certain]
    left_out = (m for c in folded for m in known.between(c.from_seq, c.to_seq))
    # an altered reply may as well be the other reply of a turn that was regenerated
    return any(m.role == "user" for m in left_out) or any(
        sent.item(i).role != "tool" for i in odd if i not in found.new
    )


def _base(known: Known, sent: Sent) -> Base | NeedOutline:
    """The prefix that is known for certain: of a recorded attempt, or of the chain."""
    view = sent.seen
    if view is not None and (view.count > 1 or view_from_start(known, view)):
        if known.holds(view.seq):
            return _further(known, sent, Base.view(known, view), view)
        if not known.complete and (known.missing or known.superseded):
            return NEED_OUTLINE
    chains = sent.chains()
    shared = _shared(known, chains)
    base = Base.prefix(known, shared) if shared and (known.style != "window" or shared == known.count) else NOTHING
    view = next((v for v in reversed(known.views) if chains.get(v.count) == v.chain and known.holds(v.seq)), None)
    if view is not None and view.count > max(shared, 1):
        base = Base.view(known, view)
    return _further(known, sent, base, None)


def _further(known: Known, sent: Sent, base: Base, seen: View | None) -> Base:
    """Further along a recorded attempt that differs in its last message only: the edit of that message under an altering client,
    or a reminder that always stands last."""
    if base.sent and base.stored == len(known.live):
        return base
    chains, last = sent.chains(seen), sent.item(sent.count - 1).fp
    for view in reversed(known.views):
        before = chains.get(view.count - 1)
        if before is None or view.count - 1 <= max(base.sent, 1) or not known.holds(view.seq):
            continue
        if view.chain == chained(before, last):
            return Base.before(known, view, last)
        if view.chain == chained(before, known.live[known.index(view.seq)].fp):
            return Base.before(known, view)
    return base


def _shared(known: Known, chains: Mapping[int, bytes]) -> int:
    """How many messages from the first one on are ours, as far as the loaded marks tell."""
    counts = range(known.count, known.missing, -1)
    return next((n for n in counts if chains.get(n) == known.live[n - known.missing - 1].chain), 0)


def _from_base(known: Known, sent: Sent, base: Base) -> Reconciled | NeedOutline:
    """Both continue a prefix that is known for certain."""
    if base.stored == len(known.live):
        return verdict(known, sent, base, [])  # extend: nothing to compare
    census = known.census()
    items, stored = sent.items(base.sent), known.live[base.stored :]
    pairs = alignment.leading(items, stored, census)
    rest = len(pairs)
    more = _residue(items[rest:], stored[rest:], census, joined=True)
    if more is None:
        return _appended(known, sent)
    return verdict(
        known, sent, base, _moved(pairs, base.sent, base.stored) + _moved(more, base.sent + rest, base.stored + rest)
    )


def _residue(
    items: list[Item],
    stored: tuple[Mark, ...],
    census: Census,
    *,
    joined: bool,
    origin: bool = False,
    window: bool = False,
) -> list[Pair] | None:
    """Pairs of what is left when the certain prefix is gone: an equal run that ends where ours ends first, then the rest.

    None: too large to say.
    """
    if not items or not stored:
        return []
    start, length = alignment.run_to_end(items, stored)
    behind = len(stored) - length
    run = [Pair(start + k, behind + k, same=True, hard=True) for k in range(length)]
    if run and not start and not joined:
        return run  # a pure window: what it does not reach is simply not sent
    if not any(census.texts[items[pair.sent].fp] == 1 for pair in run):
        return alignment.align(items, stored, census, joined=joined, origin=origin, window=window)
    head = alignment.align(
        items[:start], stored[:behind], census, joined=joined, origin=origin, closed=True, window=window
    )
    return None if head is None else head + run


def _moved(pairs: list[Pair], sent: int, stored: int) -> list[Pair]:
    return [pair._replace(sent=pair.sent + sent, stored=pair.stored + stored) for pair in pairs]


def _from_nowhere(known: Known, sent: Sent) -> Reconciled | NeedOutline:
    """No certain prefix: a window, a compacted or altered history, or nothing we know."""
    items, census = sent.items(), known.census()
    window = known.style == "window"
    if known.missing:
        return _near_end(known, sent, items, census, window)
    pairs = _residue(items, known.live, census, joined=False, origin=True, window=window)
    return verdict(known, sent, NOTHING, pairs) if pairs else _appended(known, sent)


def _near_end(known: Known, sent: Sent, items: list[Item], census: Census, window: bool) -> Reconciled | NeedOutline:
    """With older messages not loaded: what can be said without superseding anything."""
    near = known.live[-(2 * len(items) + 16) :]
    pairs = _residue(items, near, census, joined=False, window=window)
    if pairs and pairs[-1].stored == len(near) - 1 and (window or not pairs[0].sent):
        return verdict(known, sent, NOTHING, _moved(pairs, 0, len(known.live) - len(near)))
    strange = not any(item.fp in census.seen for item in items)
    return _appended(known, sent) if strange and known.style in ("thin", "window") else NEED_OUTLINE


def _switched(known: Known, sent: Sent, base: Base, found: Reconciled) -> Reconciled | None:
    """The request against the superseded branch that knows most of what would be new; None: none knows more of it."""
    leaf = most_known(known, {sent.item(i).fp for i in strangers(found)})
    other = branch(known, leaf) if leaf else None
    if other is None:
        return None
    there = _placed(other, sent)
    assert not isinstance(there, NeedOutline)  # noqa: S101 - `other` is complete
    fork = shared_end(known.live, other.live)
    kept = other.end if there.cut is None else there.cut
    # where both hold the certain prefix, only what follows it tells them apart
    start = base.sent if fork >= known.seq_before(base.stored) else 0
    if kept <= fork or sum(i >= start for i in strangers(there)) >= len(strangers(found)):
        return None
    return replace(
        there,
        case="switch",
        cut=fork if known.end != fork else None,
        end=known.end,
        at=kept,
        revive=tuple(m.seq for m in other.live if fork < m.seq <= kept),
    )
