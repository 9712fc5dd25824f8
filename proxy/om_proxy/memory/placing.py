"""Find the place of a longer request: by its certain prefix, as a window, by alignment, or on a superseded branch."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from om_proxy.memory.alignment import align
from om_proxy.memory.known import NEED_OUTLINE, Known, NeedOutline, branch, most_known, shared_end
from om_proxy.memory.matching import Census, Pair, asked_from, equal, leading, proves, run_to_end
from om_proxy.memory.model import Item, Mark, View, chained
from om_proxy.memory.sent import Sent
from om_proxy.memory.verdict import NO_PREFIX, Base, Reconciled, appended, strangers, unsent, verdict


def placed(known: Known, sent: Sent) -> Reconciled | NeedOutline:
    base = certain_prefix(known, sent)
    if isinstance(base, NeedOutline):
        return base
    found = _from_base(known, sent, base) if base.sent else _from_nowhere(known, sent)
    if isinstance(found, NeedOutline):
        return found
    if not known.superseded or not doubtful(known, sent, found):
        return found
    return (switched(known, sent, base, found) or found) if known.complete else NEED_OUTLINE


def doubtful(known: Known, sent: Sent, found: Reconciled) -> bool:
    """Whether another branch may fit better than the live one, or a text taken for altered stand there."""
    if found.case == "delta":
        return known.style != "thin"
    new = frozenset(found.new)
    odd = [sent.item(i).role for i in strangers(found) if i not in new]
    if found.cut is not None:
        return bool(odd or found.new)
    if any(role in ("user", "assistant") for role in odd):
        return True  # a reply taken for altered may be the other reply of a turn that was regenerated
    folded = [c for c in found.cells if c.kind == "folded" and c.sent_from >= found.certain]
    left_out = [m.role for c in folded for m in known.between(c.from_seq, c.to_seq)]
    return "user" in left_out or [sent.item(i).role for i in found.new].count("user") > 1


def certain_prefix(known: Known, sent: Sent) -> Base | NeedOutline:
    """The prefix that is known for certain: of a recorded attempt, or of the chain."""
    view = sent.seen
    if view is not None and (view.count > 1 or known.begins(view)):
        if known.holds(view.seq):
            return _further(known, sent, Base.view(known, view), view)
        if not known.complete and (known.missing or known.superseded):
            return NEED_OUTLINE
    chains = sent.chains()
    shared = shared_prefix(known, chains)
    base = Base.prefix(known, shared) if shared and (known.style != "window" or shared == known.count) else NO_PREFIX
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
        if unsent(view.cells, view.seq):  # others' words stand at `seq`, not its last message
            continue
        if _shows_others(known, sent, view):
            continue
        if view.chain == chained(before, last):
            return Base.before(known, view, last)
        if view.chain == chained(before, known.live[known.index(view.seq)].fp):
            return Base.before(known, view)
    return base


def _shows_others(known: Known, sent: Sent, view: View) -> bool:
    """Whether the request goes on, where the attempt's last message stood, with what others had said right before that."""
    at = view.count - 1
    if at >= sent.count:
        return False
    unsent = [cell for cell in view.cells if cell.kind == "unsent" and cell.sent_from == at]
    return any(m.fp == sent.item(at).fp for cell in unsent for m in known.between(cell.from_seq, cell.to_seq))


def shared_prefix(known: Known, chains: Mapping[int, bytes]) -> int:
    """How many messages from the first one on are ours, as far as the loaded marks tell."""
    counts = range(known.count, known.missing, -1)
    return next((n for n in counts if chains.get(n) == known.live[n - known.missing - 1].chain), 0)


def _from_base(known: Known, sent: Sent, base: Base) -> Reconciled | NeedOutline:
    """Both continue a prefix that is known for certain."""
    if base.stored == len(known.live):
        return verdict(known, sent, base, [])  # extend: nothing to compare
    items, stored = sent.items(base.sent), known.live[base.stored :]
    if len(items) >= len(stored) and all(map(equal, items, stored)):  # the reply came back: no proof is asked for
        pairs = [Pair(i, i, same=True, hard=True) for i in range(len(stored))]
        return verdict(known, sent, base, moved(pairs, base.sent, base.stored))
    census = known.census()
    pairs = leading(items, stored, census)
    rest = len(pairs)
    more = residue(items[rest:], stored[rest:], census, joined=True)
    if more is None:
        return appended(known, sent)
    return verdict(
        known, sent, base, moved(pairs, base.sent, base.stored) + moved(more, base.sent + rest, base.stored + rest)
    )


def residue(
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
    start, length = run_to_end(items, stored)
    behind = len(stored) - length
    run = [Pair(start + k, behind + k, same=True, hard=True) for k in range(length)]
    if run and not start and not joined:
        return run  # a pure window: what it does not reach is simply not sent
    asked = asked_from(items)
    if not any(proves(items[pair.sent], census, pair.sent >= asked) for pair in run):
        return align(items, stored, census, joined=joined, origin=origin, window=window)
    head = align(items[:start], stored[:behind], census, joined=joined, origin=origin, closed=True, window=window)
    return None if head is None else head + run


def moved(pairs: list[Pair], sent: int, stored: int) -> list[Pair]:
    return [pair._replace(sent=pair.sent + sent, stored=pair.stored + stored) for pair in pairs]


def _from_nowhere(known: Known, sent: Sent) -> Reconciled | NeedOutline:
    """No certain prefix: a window, a compacted or altered history, or nothing we know."""
    items, census = sent.items(), known.census()
    window = known.style == "window"
    if known.missing:
        return _near_end(known, sent, items, census, window)
    pairs = residue(items, known.live, census, joined=False, origin=True, window=window)
    return verdict(known, sent, NO_PREFIX, pairs) if pairs else appended(known, sent)


def _near_end(known: Known, sent: Sent, items: list[Item], census: Census, window: bool) -> Reconciled | NeedOutline:
    """With older messages not loaded: what can be said without superseding anything."""
    near = known.live[-(2 * len(items) + 16) :]
    pairs = residue(items, near, census, joined=False, window=window)
    if pairs and pairs[-1].stored == len(near) - 1 and (window or not pairs[0].sent):
        return verdict(known, sent, NO_PREFIX, moved(pairs, 0, len(known.live) - len(near)))
    strange = not any(item.fp in census.seen for item in items)
    return appended(known, sent) if strange and known.style in ("thin", "window") else NEED_OUTLINE


def switched(known: Known, sent: Sent, base: Base, found: Reconciled) -> Reconciled | None:
    """The request against the superseded branch that knows most of what would be new; None: none knows more of it."""
    leaf = most_known(known, {sent.item(i).fp for i in strangers(found)})
    other = branch(known, leaf) if leaf else None
    if other is None:
        return None
    there = placed(other, sent)
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
