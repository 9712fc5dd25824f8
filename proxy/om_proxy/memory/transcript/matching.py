"""Score how well a sent message matches a stored one, and say what proves that it is the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from om_proxy.memory.model import Item, Mark

GroupKey = TypeVar("GroupKey", bound=Hashable)

SPEAKING_ROLES = ("user", "assistant")
REMINDER_ROLES = ("system", "developer")  # in mid-conversation clients move them about

# docs/contributing/reconcile.md#alignment; in hundredths: sums of them are exact, in whatever order
# they are made
SAME_BY_ID_SCORE = 1200
ALTERED_BY_ID_SCORE = 900
UNIQUE_TEXT_SCORE = 1000
REPEATED_TEXT_SCORE = 500
NEW_ASSISTANT_TEXT_SCORE = 90
NEW_USER_TEXT_SCORE = -50


class Pair(NamedTuple):
    """Sent message `sent` is where live message number `stored` is; `hard`: by fingerprint or
    tool id, not by position."""

    sent: int
    stored: int
    same: bool
    hard: bool


def is_speech(message: Item | Mark) -> bool:
    """Return whether a user or an assistant says something, and calls no tool."""
    return message.role in SPEAKING_ROLES and not message.calls


class MatchScore(NamedTuple):
    """The score and the proof of a match of two messages."""

    score: int  # hundredths
    same: bool = False
    hard: bool = False
    is_proof: bool = False  # unique in the thread
    is_anchor: bool = False  # hard, and no reminder: those move


@dataclass(frozen=True, slots=True)
class TextCounts:
    """The counts of each text and id in the thread: every proof rests on them."""

    texts: Counter[bytes]
    calls: Counter[tuple[str, ...]]
    answers: Counter[str]
    seen: frozenset[bytes]  # texts of live and of superseded messages
    superseded_only: frozenset[bytes]  # held by superseded branches, by no live message

    @classmethod
    def of(cls, live: Sequence[Mark], superseded: Iterable[Mark] = ()) -> TextCounts:
        texts = Counter(m.fp for m in live)
        superseded_texts = frozenset(m.fp for m in superseded)
        return cls(
            texts,
            Counter(m.calls for m in live if m.calls),
            Counter(m.answers for m in live if m.answers is not None),
            superseded_texts | texts.keys(),
            superseded_texts - texts.keys(),
        )

    def score_match(self, item: Item, mark: Mark) -> MatchScore | None:
        """Return the score of a pair; None: these two cannot be the same message."""
        if item.role != mark.role:
            return None
        by_id = self._has_same_id(item, mark)
        if item.fp == mark.fp:
            # clients move a system message in mid-conversation: it proves no place
            is_anchor = mark.role not in REMINDER_ROLES
            is_unique = by_id or (is_anchor and self.texts[mark.fp] == 1)
            score = UNIQUE_TEXT_SCORE if is_unique else REPEATED_TEXT_SCORE
            return MatchScore(
                SAME_BY_ID_SCORE if by_id else score, True, True, is_unique, is_anchor
            )
        if by_id:
            return MatchScore(ALTERED_BY_ID_SCORE, False, True, True, True)
        return None if mark.calls else self.score_altered(item)

    def score_altered(self, item: Item) -> MatchScore | None:
        """Return the score with a message of another text, of the same role and without calls;
        None: its text cannot have changed."""
        if item.fp in self.seen or item.calls or item.role == "tool":
            return None
        return MatchScore(
            NEW_ASSISTANT_TEXT_SCORE if item.role == "assistant" else NEW_USER_TEXT_SCORE
        )

    def _has_same_id(self, item: Item, mark: Mark) -> bool:
        """Return whether an id tells that they are the same. Only an id that is unique in the
        thread does: some servers count their calls from zero in every reply."""
        if mark.answers is not None:
            return item.answers == mark.answers and self.answers[mark.answers] == 1
        return bool(mark.calls) and item.calls == mark.calls and self.calls[mark.calls] == 1


MatchScores = Mapping[MatchScore, tuple[int, ...]]  # the places a message fits, by how well it does


class MatchIndex:
    """The places among stored messages that a sent one fits. They are looked up by text and by id,
    not tried one by one: long ids and places that do not fit cost nothing."""

    def __init__(self, stored: Sequence[Mark], counts: TextCounts) -> None:
        self._stored = stored
        self._counts = counts
        self._texts = _group_places((mark.fp, j) for j, mark in enumerate(stored))
        self._calls = _group_places((mark.calls, j) for j, mark in enumerate(stored) if mark.calls)
        self._answers = _group_places(
            (mark.answers, j) for j, mark in enumerate(stored) if mark.answers is not None
        )
        self._changed = _group_places(
            (mark.role, j) for j, mark in enumerate(stored) if not mark.calls
        )
        self._scores_by_message: dict[tuple[object, ...], MatchScores] = {}

    def places_of(self, item: Item, asked: bool) -> MatchScores:
        """Return the places with their scores, as `TextCounts.score_match` gives them. `asked`: the
        message comes after the last assistant message."""
        asked = asked and item.role == "user"
        key = (item.role, item.fp, item.calls, item.answers, asked)
        fits = self._scores_by_message.get(key)
        if fits is None:
            fits = self._scores_by_message[key] = self._find_places(item, asked)
        return fits

    def _find_places(self, item: Item, asked: bool) -> MatchScores:
        hard = {}
        for j in sorted(self._candidates(item)):
            fit = self._counts.score_match(item, self._stored[j])
            if fit and fit.hard:
                # what is asked now may have been asked before: "ok" proves no place
                hard[j] = fit._replace(is_proof=fit.is_proof and not asked)
        fits = _group_places((fit, j) for j, fit in hard.items())
        altered = self._counts.score_altered(item)
        places = self._changed.get(item.role, ())
        if altered and places:
            fits[altered] = tuple(j for j in places if j not in hard) if hard else places
        return fits

    def _candidates(self, item: Item) -> set[int]:
        """Return the places with its text or its id. An id that is at several places proves
        none."""
        places = set(self._texts.get(item.fp, ()))
        if item.calls and self._counts.calls[item.calls] == 1:
            places.update(self._calls.get(item.calls, ()))
        if item.answers is not None and self._counts.answers[item.answers] == 1:
            places.update(self._answers.get(item.answers, ()))
        return places


def _group_places(places: Iterable[tuple[GroupKey, int]]) -> dict[GroupKey, tuple[int, ...]]:
    """Return the places by key."""
    places_by_key: dict[GroupKey, list[int]] = {}
    for key, j in places:
        places_by_key.setdefault(key, []).append(j)
    return {key: tuple(indices) for key, indices in places_by_key.items()}


def is_equal(item: Item, mark: Mark) -> bool:
    """Return whether both have the same text and role."""
    return item.fp == mark.fp and item.role == mark.role


def pair_leading(sent: Sequence[Item], stored: Sequence[Mark], counts: TextCounts) -> list[Pair]:
    """Pair messages from the start on while no other pair is possible: equal, equal by tool id, or
    a new text with an equal neighbour after it."""
    pairs: list[Pair] = []
    asked = first_asked_index(sent)
    for i in range(min(len(sent), len(stored))):
        fit = counts.score_match(sent[i], stored[i])
        if fit is None or not (fit.hard or _is_confirmed_by_next(sent, stored, counts, i, asked)):
            break
        pairs.append(Pair(i, i, fit.same, fit.hard))
    return pairs


def _is_confirmed_by_next(
    sent: Sequence[Item], stored: Sequence[Mark], counts: TextCounts, i: int, asked: int
) -> bool:
    if i + 1 >= min(len(sent), len(stored)):
        return False
    next_match = counts.score_match(sent[i + 1], stored[i + 1])
    asked_again = sent[i + 1].role == "user" and i + 1 >= asked
    return next_match is not None and next_match.is_proof and not asked_again


def find_run_to_end(sent: Sequence[Item], stored: Sequence[Mark]) -> tuple[int, int]:
    """Find the longest equal run that ends exactly where the transcript ends: `(sent index,
    length)`, the latest of equals; length 0: none."""
    best = (0, 0)
    for end, length in enumerate(
        _run_lengths([item.fp for item in sent], [mark.fp for mark in stored])
    ):
        if length and length >= best[1]:
            best = (end - length + 1, length)
    return best


def _run_lengths(sent: Sequence[bytes], stored: Sequence[bytes]) -> list[int]:
    """Return the length, by place of `sent`, of the longest run that ends there and also ends
    `stored`. The Z algorithm, from the end on (Gusfield, Algorithms on Strings, 1.4): its time
    grows with the number of messages, however often a text repeats."""
    texts: list[bytes | None] = [*reversed(stored), None, *reversed(sent)]
    runs = [0] * len(texts)
    left = right = 0
    for start in range(1, len(texts)):
        run = min(right - start, runs[start - left]) if start < right else 0
        while start + run < len(texts) and texts[run] == texts[start + run]:
            run += 1
        runs[start] = run
        if start + run > right:
            left, right = start, start + run
    return runs[len(stored) + 1 :][::-1]


def first_asked_index(sent: Sequence[Item]) -> int:
    """Return the index at which the request's own question begins: after its last assistant
    message."""
    replies = (i for i in reversed(range(len(sent))) if sent[i].role == "assistant")
    return next(replies, -1) + 1


def is_proof(item: Item, counts: TextCounts, asked: bool) -> bool:
    """Return whether a sent message that equals a stored one proves its place. A reminder does not,
    nor does a question that may be asked again (`asked`: it comes after the last assistant
    message)."""
    return (
        counts.texts[item.fp] == 1
        and item.role not in REMINDER_ROLES
        and not (item.role == "user" and asked)
    )
