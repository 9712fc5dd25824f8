"""Move a thread to another tenant: change everything that is keyed by the tenant
(settings/identity/keyed_hashes.py).

Without `auth.keys` a tenant is an HMAC of its credential, so a rotated API key is another tenant.
Fingerprints are keyed by the tenant, chains are made of fingerprints, and labels of names. Each
gets the value it would have had under the new tenant from the start. So the next request is
recognised by the same rules, and work that names a chain still says what it was made from.

A chain that no stored message has any more, of a history that was altered since, keeps its value.
It matches nothing, as before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from om_proxy.memory.model import EMPTY_CHAIN, Observation, Part, View, extend_chain

_LABEL_PATTERN = re.compile(r"(?<![0-9a-f])[0-9a-f]{16}(?![0-9a-f])")

Chains = Mapping[bytes, bytes]  # by the chain under the old tenant


class Row(NamedTuple):
    """A stored message, as far as its identity goes; `moved` is its fingerprint under the new
    tenant."""

    seq: int
    parent: int
    live: bool
    fp: bytes
    chain: bytes
    moved: bytes


def chains_by_seq(rows: Iterable[Row]) -> dict[int, bytes]:
    """Return the chain of each message under the new fingerprints. Live ones follow each other. A
    superseded one follows its parent, if its chain says that it did; else its history is gone, and
    its chain can match nothing."""
    ordered = sorted(rows)
    old = {0: EMPTY_CHAIN} | {row.seq: row.chain for row in ordered}
    new, end = {0: EMPTY_CHAIN}, EMPTY_CHAIN
    for row in ordered:
        if row.live:
            new[row.seq] = end = extend_chain(end, row.moved)
        elif row.parent in new and extend_chain(old[row.parent], row.fp) == row.chain:
            new[row.seq] = extend_chain(new[row.parent], row.moved)
        else:
            new[row.seq] = extend_chain(row.chain, row.moved)
    del new[0]
    return new


def chains_by_value(rows: Sequence[Row], by_seq: Mapping[int, bytes]) -> dict[bytes, bytes]:
    """Return the new chain by the old one. Of two messages with equal histories the live one's
    counts: their histories are equal again."""
    of_dead = {row.chain: by_seq[row.seq] for row in rows if not row.live}
    return (
        of_dead
        | {row.chain: by_seq[row.seq] for row in rows if row.live}
        | {EMPTY_CHAIN: EMPTY_CHAIN}
    )


def rekey_view(view: View, rows: Sequence[Row], chains: Chains) -> View:
    """Rekey a recorded attempt. The fingerprint of a message that a client showed differently from
    the stored one cannot be computed any more: only the digest of its bytes recognises such a
    view."""
    chain = chains.get(view.chain) if view.count else None
    return replace(view, chain=chain or _rekey_shown_chain(view, rows) or view.chain)


def _rekey_shown_chain(view: View, rows: Sequence[Row]) -> bytes | None:
    """Return the chain of an attempt that showed stored messages as they are, from any place on: a
    window, or the newest message alone."""
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
        old, new = extend_chain(old, row.fp), extend_chain(new, row.moved)
    return new if old == view.chain else None


def rekey_entry(
    entry: Observation, chains: Chains, labels: Mapping[str, str], shared: Mapping[str, Chains]
) -> Observation:
    """Rekey the notes of a thread, or an entry of a shared log. `shared`: the chains of each thread
    of the resource, by its old label."""
    known = [shared.get(part.label, {}) for part in entry.parts] or [chains]
    return replace(
        entry,
        chain=next((own[entry.chain] for own in known if entry.chain in own), entry.chain),
        text=replace_labels(entry.text, labels),
        task=_replace_labels_in_hint(entry.task, labels),
        suggestion=_replace_labels_in_hint(entry.suggestion, labels),
        parts=tuple(
            sorted(
                (_rekey_part(p, labels, shared.get(p.label, {})) for p in entry.parts),
                key=lambda part: part.label,  # as `log_sharing.merge_parts` orders them
            )
        ),
    )


def _rekey_part(part: Part, labels: Mapping[str, str], chains: Chains) -> Part:
    return part._replace(
        label=labels.get(part.label, part.label),
        chain=chains.get(part.chain, part.chain),
        task=_replace_labels_in_hint(part.task, labels),
        suggestion=_replace_labels_in_hint(part.suggestion, labels),
    )


def replace_labels(text: str, labels: Mapping[str, str]) -> str:
    """Replace the old labels of the resource's threads by the new ones."""
    return _LABEL_PATTERN.sub(lambda found: labels.get(found[0], found[0]), text)


def _replace_labels_in_hint(text: str | None, labels: Mapping[str, str]) -> str | None:
    return None if text is None else replace_labels(text, labels)
