"""How well a sent message matches a stored one, and what proves that it is the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from om_proxy.memory.model import Item, Mark

Key = TypeVar("Key", bound=Hashable)

REMINDER_ROLES = ("system", "developer")  # in mid-conversation: they wander

# docs/spec/reconcile.md#alignment; in hundredths: sums of them are exact, in whatever order they
# are made
BY_ID, ALTERED_BY_ID, UNIQUE, REPEATED, UNSEEN_ASSISTANT, USER_ON_USER = 1200, 900, 1000, 500, 90, -50


class Pair(NamedTuple):
    """Sent message `sent` stands where live message number `stored` does; `hard`: by fingerprint or tool id, not by position."""

    sent: int
    stored: int
    same: bool
    hard: bool


class Fit(NamedTuple):
    """How well two messages match."""

    score: int  # hundredths
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
            holds = mark.role not in REMINDER_ROLES
            proof = by_id or (holds and self.texts[mark.fp] == 1)
            return Fit(BY_ID if by_id else UNIQUE if proof else REPEATED, True, True, proof, holds)
        if by_id:
            return Fit(ALTERED_BY_ID, False, True, True, True)
        return None if mark.calls else self.changed(item)

    def changed(self, item: Item) -> Fit | None:
        """How well it fits a message without calls of its role, if that was another text; None: it cannot have been."""
        if item.fp in self.seen or item.calls or item.role == "tool":
            return None
        return Fit(UNSEEN_ASSISTANT if item.role == "assistant" else USER_ON_USER)

    def _same_ids(self, item: Item, mark: Mark) -> bool:
        """By ids that mean something: some servers count their calls from zero in every reply."""
        if mark.answers is not None:
            return item.answers == mark.answers and self.answers[mark.answers] == 1
        return bool(mark.calls) and item.calls == mark.calls and self.calls[mark.calls] == 1


Fits = Mapping[Fit, tuple[int, ...]]  # the places a message fits, by how well it does


class Places:
    """Where among stored messages a sent one fits. Looked up by text and by id, not tried place by place: how long the ids are,
    and how many places it does not fit, costs nothing."""

    def __init__(self, stored: Sequence[Mark], census: Census) -> None:
        self._stored, self._census = stored, census
        self._texts = _indexed((mark.fp, j) for j, mark in enumerate(stored))
        self._calls = _indexed((mark.calls, j) for j, mark in enumerate(stored) if mark.calls)
        self._answers = _indexed((mark.answers, j) for j, mark in enumerate(stored) if mark.answers is not None)
        self._changed = _indexed((mark.role, j) for j, mark in enumerate(stored) if not mark.calls)
        self._known: dict[tuple[object, ...], Fits] = {}

    def of(self, item: Item, asked: bool) -> Fits:
        """As `Census.fit` says of each place. `asked`: it stands behind the last assistant message."""
        asked = asked and item.role == "user"
        like = (item.role, item.fp, item.calls, item.answers, asked)
        fits = self._known.get(like)
        if fits is None:
            fits = self._known[like] = self._looked_up(item, asked)
        return fits

    def _looked_up(self, item: Item, asked: bool) -> Fits:
        hard = {}
        for j in sorted(self._candidates(item)):
            fit = self._census.fit(item, self._stored[j])
            if fit and fit.hard:
                # what is asked now may well have been asked before: "ok" proves no place
                hard[j] = fit._replace(proof=fit.proof and not asked)
        fits = _indexed((fit, j) for j, fit in hard.items())
        changed, places = self._census.changed(item), self._changed.get(item.role, ())
        if changed and places:
            fits[changed] = tuple(j for j in places if j not in hard) if hard else places
        return fits

    def _candidates(self, item: Item) -> set[int]:
        """An id that stands at several places proves none of them."""
        found = set(self._texts.get(item.fp, ()))
        if item.calls and self._census.calls[item.calls] == 1:
            found.update(self._calls.get(item.calls, ()))
        if item.answers is not None and self._census.answers[item.answers] == 1:
            found.update(self._answers.get(item.answers, ()))
        return found


def _indexed(places: Iterable[tuple[Key, int]]) -> dict[Key, tuple[int, ...]]:
    found: dict[Key, list[int]] = {}
    for key, j in places:
        found.setdefault(key, []).append(j)
    return {key: tuple(js) for key, js in found.items()}


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
    return census.texts[item.fp] == 1 and item.role not in REMINDER_ROLES and not (item.role == "user" and asked)
