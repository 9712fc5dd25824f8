"""What of a thread changes when it moves to another tenant: everything that is keyed by whose it is (identity.py).

Without `auth.keys` a tenant is an HMAC of its credential, so a rotated API key is another tenant. Fingerprints are keyed by the tenant,
chains are made of fingerprints, and labels of names. Under the new tenant each gets the value it would have had there from the start.
So the next request is recognised by the same rules as ever, and work that names a chain still says what it was made from.

A chain that no stored message has any more (of a history that was altered since) keeps its value, which matches nothing: as before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from om_proxy.memory.model import EMPTY_CHAIN, Observation, Part, View, chained

_LABEL = re.compile(r"(?<![0-9a-f])[0-9a-f]{16}(?![0-9a-f])")

Chains = Mapping[bytes, bytes]  # by the chain under the old tenant


class Row(NamedTuple):
    """A stored message, as far as its identity goes; `moved` is its fingerprint under the new tenant."""

    seq: int
    parent: int
    live: bool
    fp: bytes
    chain: bytes
    moved: bytes


def chains_by_seq(rows: Iterable[Row]) -> dict[int, bytes]:
    """The chain of each message under the new fingerprints. Live ones follow each other; one that is not follows its parent, if its
    chain says that it did: else its history is gone, and so is what its chain could match."""
    ordered = sorted(rows)
    old = {0: EMPTY_CHAIN} | {row.seq: row.chain for row in ordered}
    new, end = {0: EMPTY_CHAIN}, EMPTY_CHAIN
    for row in ordered:
        if row.live:
            new[row.seq] = end = chained(end, row.moved)
        elif row.parent in new and chained(old[row.parent], row.fp) == row.chain:
            new[row.seq] = chained(new[row.parent], row.moved)
        else:
            new[row.seq] = chained(row.chain, row.moved)
    del new[0]
    return new


def chains_by_value(rows: Sequence[Row], by_seq: Mapping[int, bytes]) -> dict[bytes, bytes]:
    """Each chain there was, as it is now. Of two messages with equal histories the live one's holds: they are equal again."""
    of_dead = {row.chain: by_seq[row.seq] for row in rows if not row.live}
    return of_dead | {row.chain: by_seq[row.seq] for row in rows if row.live} | {EMPTY_CHAIN: EMPTY_CHAIN}


def moved_view(view: View, rows: Sequence[Row], chains: Chains) -> View:
    """A recorded attempt. What a client showed otherwise than it is stored had a fingerprint that nobody can tell any more: such a
    view is known by the digest of its bytes only."""
    chain = chains.get(view.chain) if view.count else None
    return replace(view, chain=chain or _shown_chain(view, rows) or view.chain)


def _shown_chain(view: View, rows: Sequence[Row]) -> bytes | None:
    """Of an attempt that showed stored messages as they are, from wherever: a window, or the newest one alone."""
    shown: list[Row] = []
    for cell in view.cells:
        stretch = [row for row in rows if row.live and cell.from_seq <= row.seq <= cell.to_seq]
        if cell.sent_from == cell.sent_to:
            continue
        if cell.kind != "same" or len(stretch) != cell.sent_to - cell.sent_from:
            return None
        shown += stretch
    old = new = EMPTY_CHAIN
    for row in shown:
        old, new = chained(old, row.fp), chained(new, row.moved)
    return new if old == view.chain else None


def moved_entry(
    entry: Observation, chains: Chains, labels: Mapping[str, str], shared: Mapping[str, Chains]
) -> Observation:
    """Notes of a thread, or an entry of a shared log. `shared`: the chains of each thread of the resource, by its old label."""
    known = [shared.get(part.label, {}) for part in entry.parts] or [chains]
    return replace(
        entry,
        chain=next((own[entry.chain] for own in known if entry.chain in own), entry.chain),
        text=relabelled(entry.text, labels),
        task=_relabelled(entry.task, labels),
        suggestion=_relabelled(entry.suggestion, labels),
        parts=tuple(sorted((_moved_part(p, labels, shared.get(p.label, {})) for p in entry.parts), key=_label)),
    )


def _label(part: Part) -> str:
    """By which `shared.merged` orders them."""
    return part.label


def _moved_part(part: Part, labels: Mapping[str, str], chains: Chains) -> Part:
    return part._replace(
        label=labels.get(part.label, part.label),
        chain=chains.get(part.chain, part.chain),
        task=_relabelled(part.task, labels),
        suggestion=_relabelled(part.suggestion, labels),
    )


def relabelled(text: str, labels: Mapping[str, str]) -> str:
    """With the threads of the resource called as they are called now."""
    return _LABEL.sub(lambda found: labels.get(found[0], found[0]), text)


def _relabelled(text: str | None, labels: Mapping[str, str]) -> str | None:
    return None if text is None else relabelled(text, labels)
