"""How well a sent message matches a stored one, and what proves that it is the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from proxy.memory.model import Item, Mark

REMINDERS = ("system", "developer")  # in mid-conversation: they wander

# reconcile.md, "How to do it cheaply", 6
BY_ID, ALTERED_BY_ID, UNIQUE, REPEATED, UNSEEN_ASSISTANT, USER_ON_USER = 12.0, 9.0, 10.0, 5.0, 0.9, -0.5


class Pair(NamedTuple):
    """Sent message `sent` stands where live message number `stored` does; `hard`: by fingerprint or tool id, not by position."""

    sent: int
    stored: int
    same: bool
    hard: bool


class Fit(NamedTuple):
    """How well two messages match."""

    score: float
    same: bool = False
    hard: bool = False
    proof: bool = False  # unique in the thread
    holds: bool = False  # hard, and no reminder: those wander


@dataclass(frozen=True, slots=True)
class Census:
    """How often the thread holds what: the ground of every proof."""

    texts: Counter[bytes]
    calls: Counter[tuple[str, ...]]
    answers: Counter[str]
    seen: frozenset[bytes]  # superseded ones too
    elsewhere: frozenset[bytes]  # on superseded branches alone

    @classmethod
    def of(cls, live: Sequence[Mark], dead: Iterable[Mark] = ()) -> Census:
        texts, superseded = Counter(m.fp for m in live), frozenset(m.fp for m in dead)
        return cls(
            texts,
            Counter(m.calls for m in live if m.calls),
            Counter(m.answers for m in live if m.answers is not None),
            superseded | texts.keys(),
            superseded - texts.keys(),
        )

    def fit(self, item: Item, mark: Mark) -> Fit | None:
        """None: these two cannot be the same message."""
        if item.role != mark.role:
            return None
        by_id = self._same_ids(item, mark)
        if item.fp == mark.fp:
            # a system message in mid-conversation is a reminder that wanders: it proves no place
            holds = mark.role not in REMINDERS
            proof = by_id or (holds and self.texts[mark.fp] == 1)
            return Fit(BY_ID if by_id else UNIQUE if proof else REPEATED, True, True, proof, holds)
        if by_id:
            return Fit(ALTERED_BY_ID, False, True, True, True)
        if item.fp in self.seen or item.calls or mark.calls or mark.role == "tool":
            return None
        return Fit(UNSEEN_ASSISTANT if mark.role == "assistant" else USER_ON_USER)

    def _same_ids(self, item: Item, mark: Mark) -> bool:
        """By ids that mean something: some servers count their calls from zero in every reply."""
        if mark.answers is not None:
            return item.answers == mark.answers and self.answers[mark.answers] == 1
        return bool(mark.calls) and item.calls == mark.calls and self.calls[mark.calls] == 1


def equal(item: Item, mark: Mark) -> bool:
    return item.fp == mark.fp and item.role == mark.role


def leading(sent: Sequence[Item], stored: Sequence[Mark], census: Census) -> list[Pair]:
    """The pairs from the start on that leave no choice: equal, equal by tool id, or a new text with an equal neighbour behind it."""
    pairs: list[Pair] = []
    asked = asked_from(sent)
    for i in range(min(len(sent), len(stored))):
        fit = census.fit(sent[i], stored[i])
        if fit is None or not (fit.hard or _holds(sent, stored, census, i, asked)):
            break
        pairs.append(Pair(i, i, fit.same, fit.hard))
    return pairs


def _holds(sent: Sequence[Item], stored: Sequence[Mark], census: Census, i: int, asked: int) -> bool:
    if i + 1 >= min(len(sent), len(stored)):
        return False
    behind = census.fit(sent[i + 1], stored[i + 1])
    asked_again = sent[i + 1].role == "user" and i + 1 >= asked
    return behind is not None and behind.proof and not asked_again


def run_to_end(sent: Sequence[Item], stored: Sequence[Mark]) -> tuple[int, int]:
    """The longest equal run that ends exactly where ours ends: `(sent index, length)`, the latest of equals; length 0: none."""
    best = (0, 0)
    for end, length in enumerate(_runs([item.fp for item in sent], [mark.fp for mark in stored])):
        if length and length >= best[1]:
            best = (end - length + 1, length)
    return best


def _runs(sent: Sequence[bytes], stored: Sequence[bytes]) -> list[int]:
    """How long a run that ends at each place of `sent` is also an end of `stored`. In steps in proportion, however often a text
    comes again: the Z algorithm (Gusfield, Algorithms on Strings, 1.4), from the end on."""
    texts: list[bytes | None] = [*reversed(stored), None, *reversed(sent)]
    runs, left, right = [0] * len(texts), 0, 0
    for at in range(1, len(texts)):
        run = min(right - at, runs[at - left]) if at < right else 0
        while at + run < len(texts) and texts[run] == texts[at + run]:
            run += 1
        runs[at] = run
        if at + run > right:
            left, right = at, at + run
    return runs[len(stored) + 1 :][::-1]


def asked_from(sent: Sequence[Item]) -> int:
    """Where what the request itself asks begins: behind its last assistant message."""
    replies = (i for i in reversed(range(len(sent))) if sent[i].role == "assistant")
    return next(replies, -1) + 1


def proves(item: Item, census: Census, asked: bool) -> bool:
    """Whether a sent message that equals a stored one proves its place: not what may well be asked again (`asked`: it stands behind
    the last assistant message), and no reminder."""
    return census.texts[item.fp] == 1 and item.role not in REMINDERS and not (item.role == "user" and asked)
