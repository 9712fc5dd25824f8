"""Reconcile what a client sent with what is stored: what is known, what is new, what the client took back.

Most clients send everything they hold on every call; some send a window or only the newest message; agents compact, fold and
prune; people edit, regenerate and go back to an older branch. The cases are named in the table of
docs/spec/reconcile.md#cases; `reconcile` walks from the cheapest certainty to the dearest guess:

1. a recorded attempt with the same bytes, or one that this request begins with: nothing of the known prefix is parsed;
2. the chain of fingerprints: a prefix of ours from the first message on;
3. lone messages and lone tool results, which have rules of their own;
4. a window: a run that ends exactly where ours ends;
5. the weighted alignment of the residue (alignment.py).

One rule stands above all: *destructive needs proof*. A duplicate can be repaired, a false supersession cannot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from om_proxy.memory.known import NEED_OUTLINE, Known, NeedOutline
from om_proxy.memory.lone import lone, step
from om_proxy.memory.matching import Pair, leading
from om_proxy.memory.model import Style
from om_proxy.memory.placing import certain_prefix, doubtful, moved, placed, residue, shared_prefix, switched
from om_proxy.memory.sent import Recognised, Sent, recognise
from om_proxy.memory.verdict import NO_PREFIX, Base, Reconciled, appended, verdict

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
    undelivered: bool = False  # the newest reply is known not to have gone out to its last byte, a moment ago


DEFAULT_HINTS = Hints()


def reconcile(known: Known, sent: Sent, hints: Hints = DEFAULT_HINTS) -> Reconciled | NeedOutline:
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
        return verdict(known, sent, NO_PREFIX, [], case="first")
    if hints.history == "full":
        return _whole(known, sent)
    again = _again(known, sent, hints)
    if again is not None:
        return again
    if hints.history == "new":
        return appended(known, sent)
    if hints.history == "window":
        known = replace(known, style="window")
    return lone(known, sent) or step(known, sent) or placed(known, sent)


# ── a recorded attempt ────────────────────────────────────────────────────────────────────────────────────────────


def _again(known: Known, sent: Sent, hints: Hints) -> Reconciled | None:
    """The very request of a recorded attempt; None: it is none, or may as well be a new message with the same words."""
    view = sent.seen
    if view is None or view.count != sent.count or not known.holds(view.seq):
        return None
    newest = known.end == (view.reply or view.seq)
    unanswered = known.end == view.seq and not view.reply
    certain = newest and (hints.sdk_retry or hints.undelivered or unanswered)
    if not certain and (sent.count == 1 or hints.history == "new"):
        return None  # the same words again: the rules of lone messages say
    users_since = any(m.role == "user" for m in known.after(view.seq))
    if users_since and not known.begins(view):
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


# ── X-OM-History: full ─────────────────────────────────────────────────────────────────────────────────────────────────


def _whole(known: Known, sent: Sent) -> Reconciled | NeedOutline:
    """X-OM-History: full. What is not sent no longer exists: from the first difference on, what was sent is the transcript."""
    base = certain_prefix(replace(known, style="full"), sent)
    if isinstance(base, NeedOutline) or (known.missing and not base.sent):
        return NEED_OUTLINE
    if not _plain(known, base):
        shared = shared_prefix(known, sent.chains())
        base = Base.prefix(known, shared) if shared else NO_PREFIX
    pairs = _one_to_one(known, sent, base)
    found = verdict(known, sent, base, moved(pairs, base.sent, base.stored))
    if not base.sent and not pairs:
        return replace(found, case="edit", cut=0, at=0, cells=(), new=tuple(range(sent.count)))
    if not known.superseded or not doubtful(known, sent, found):
        return found
    return (switched(known, sent, base, found) or found) if known.complete else NEED_OUTLINE


def _plain(known: Known, base: Base) -> bool:
    """Whether the client's view of the prefix is the transcript itself, message for message."""
    one_to_one = all(cell.kind in ("same", "altered") for cell in base.cells)
    return not base.sent or (one_to_one and base.cells[0].from_seq <= known.first)


def _one_to_one(known: Known, sent: Sent, base: Base) -> list[Pair]:
    """The pairs behind `base` up to the first message that only one side has."""
    items, stored, census = sent.items(base.sent), known.live[base.stored :], known.census()
    pairs = leading(items, stored, census)
    done = len(pairs)
    more = residue(items[done:], stored[done:], census, joined=bool(base.sent or done), origin=True) or []
    return pairs + [p for k, p in enumerate(moved(more, done, done)) if p.sent == p.stored == done + k]
