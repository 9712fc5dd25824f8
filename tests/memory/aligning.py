"""Aligning as the rule is told, cell by cell: the slow twin of
proxy/om_proxy/memory/transcript/alignment.py, which is held to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from om_proxy.memory.model import Item, Mark
from om_proxy.memory.transcript.alignment import (
    ANCHORED_RUN_SCORE,
    SKIP_SENT_SCORE,
    SKIP_SENT_USER_SCORE,
    SKIP_STORED_SCORE,
    SKIP_STORED_USER_SCORE,
    SKIP_SUPERSEDED_USER_SCORE,
    SKIP_TOOL_STEP_SCORE,
    SUPERSEDE_USER_SCORE,
)
from om_proxy.memory.transcript.matching import MatchScore, Pair, TextCounts, first_asked_index

NEVER = float("-inf")


# the states of alignment.py, which explains them
HEAD, PROVEN, LEANING, OPEN, FOLD, OPEN_FOLD, GAP = ALIGNMENT_STATES = range(7)

RUNS = (PROVEN, LEANING, OPEN)

Step = tuple[float, int, int, int]  # score, and where it came from: i, j, state


class Table:
    def __init__(
        self,
        sent: Sequence[Item],
        stored: Sequence[Mark],
        counts: TextCounts,
        joined: bool,
        origin: bool,
        closed: bool,
        window: bool,
    ) -> None:
        self.sent, self.stored, self.counts = sent, stored, counts
        self.joined, self.origin, self.closed, self.window = joined, origin, closed, window
        self.skip_sent = [self._skip(item) for item in sent]
        self.asked = len(sent) if closed else first_asked_index(sent)
        self.skip_stored = [
            SKIP_STORED_USER_SCORE if t.role == "user" else SKIP_STORED_SCORE for t in stored
        ]
        self.fits: dict[tuple[int, int], MatchScore] = {}
        self.steps: list[list[list[Step]]] = [
            [[] for _ in range(len(stored) + 1)] for _ in range(len(sent) + 1)
        ]

    def pairs(self) -> list[Pair]:
        for i in range(len(self.sent) + 1):
            for j in range(len(self.stored) + 1):
                self._fill(i, j)
        return self._trace(*(self._end_closed() if self.closed else self._end_open()))

    def _skip(self, item: Item) -> float:
        if item.role != "user":
            return SKIP_SENT_SCORE
        return (
            SKIP_SUPERSEDED_USER_SCORE
            if item.fp in self.counts.superseded_only
            else SKIP_SENT_USER_SCORE
        )

    # filling

    def _fill(self, i: int, j: int) -> None:
        none: Step = (NEVER, -1, -1, -1)
        row = self.steps[i][j] = [none] * len(ALIGNMENT_STATES)
        if i == 0 and j == 0:
            row[PROVEN if self.joined else HEAD] = (0.0, -1, -1, -1)
            return
        if i:
            above = self.steps[i - 1][j]
            _better(row, HEAD, above[HEAD][0] + self.skip_sent[i - 1], i - 1, j, HEAD)
            self._gap(row, above, i - 1, j, self.skip_sent[i - 1])
        if j:
            left = self.steps[i][j - 1]
            _better(row, HEAD, left[HEAD][0], i, j - 1, HEAD)
            self._gap(row, left, i, j - 1, self.skip_stored[j - 1])
            if self.stored[j - 1].role != "user":
                cost = (
                    SKIP_TOOL_STEP_SCORE
                    if self.stored[j - 1].calls or self.stored[j - 1].answers
                    else SKIP_STORED_SCORE
                )
                for state in (PROVEN, FOLD):
                    _better(row, FOLD, left[state][0] + cost, i, j - 1, state)
                for state in (OPEN, OPEN_FOLD):
                    _better(row, OPEN_FOLD, left[state][0] + cost, i, j - 1, state)
        if i and j and (fit := self._fit(i - 1, j - 1)):
            self.fits[i, j] = fit
            self._match(row, self.steps[i - 1][j - 1], i - 1, j - 1, fit)

    def _fit(self, i: int, j: int) -> MatchScore | None:
        fit = self.counts.score_match(self.sent[i], self.stored[j])
        if fit and i >= self.asked and self.sent[i].role == "user":
            return fit._replace(
                is_proof=False
            )  # what is asked now may well have been asked before: "ok" proves no place
        return fit

    def _gap(self, row: list[Step], before: list[Step], i: int, j: int, cost: float) -> None:
        for state in (PROVEN, FOLD, GAP):
            _better(row, GAP, before[state][0] + cost, i, j, state)

    def _match(self, row: list[Step], before: list[Step], i: int, j: int, fit: MatchScore) -> None:
        run = fit.score + (ANCHORED_RUN_SCORE if fit.hard else 0.0)
        begins = i == 0 and j == 0 and self.origin
        sure = fit.is_proof or (begins and fit.hard)
        beyond_gap = PROVEN if sure else OPEN
        _better(row, PROVEN if fit.hard else LEANING, before[PROVEN][0] + run, i, j, PROVEN)
        _better(row, PROVEN if fit.is_anchor else LEANING, before[FOLD][0] + fit.score, i, j, FOLD)
        if (
            fit.score > 0
        ):  # one changed text of a user between two anchors, no more: else it is another conversation
            _better(
                row, PROVEN if fit.is_proof else LEANING, before[LEANING][0] + run, i, j, LEANING
            )
            _better(row, PROVEN if fit.is_proof else OPEN, before[OPEN][0] + run, i, j, OPEN)
            _better(
                row,
                PROVEN if fit.is_proof else OPEN,
                before[OPEN_FOLD][0] + fit.score,
                i,
                j,
                OPEN_FOLD,
            )
        _better(row, beyond_gap, before[GAP][0] + fit.score, i, j, GAP)
        if fit.hard or begins or (self.window and i == 0 and fit.score > 0):
            _better(row, beyond_gap, before[HEAD][0] + fit.score, i, j, HEAD)

    # where to end

    def _end_closed(self) -> tuple[int, int, int]:
        n, m = len(self.sent), len(self.stored)
        scores = [
            step[0] + (ANCHORED_RUN_SCORE if state in RUNS else 0)
            for state, step in enumerate(self.steps[n][m])
        ]
        return n, m, max(ALIGNMENT_STATES, key=scores.__getitem__)

    def _end_open(self) -> tuple[int, int, int]:
        users = [0] * (len(self.stored) + 1)  # behind each place: what ending there would supersede
        for j in range(len(self.stored) - 1, -1, -1):
            users[j] = users[j + 1] + (self.stored[j].role == "user")
        best = (
            SUPERSEDE_USER_SCORE * users[0] if self.joined else 0.0,
            0,
            0,
            PROVEN if self.joined else HEAD,
        )
        for (i, j), fit in self.fits.items():
            for state in self._ends(i, j, fit):
                score = self.steps[i][j][state][0] + SUPERSEDE_USER_SCORE * users[j]
                if score > best[0]:
                    best = (score, i, j, state)
        return best[1:]

    def _ends(self, i: int, j: int, fit: MatchScore) -> Iterator[int]:
        """The states in which a pair may be the last one."""
        if fit.hard:
            yield PROVEN
        if j < len(self.stored):
            return
        # nothing is superseded here, so less proof will do: an altered reply right behind what
        # holds
        for state in (LEANING, OPEN) if self.window else (LEANING,):
            if fit.hard or (fit.score > 0 and self._holds_before(i, j, state)):
                yield state

    def _holds_before(self, i: int, j: int, state: int) -> bool:
        _, i, j, state = self.steps[i][j][state]
        while state == FOLD:
            _, i, j, state = self.steps[i][j][FOLD]
        return (i == 0 and j == 0 and self.joined) or ((i, j) in self.fits and self.fits[i, j].hard)

    def _trace(self, i: int, j: int, state: int) -> list[Pair]:
        pairs: list[Pair] = []
        while i or j:
            _, before_i, before_j, before = self.steps[i][j][state]
            if before < 0:
                break
            if state in RUNS:
                fit = self.fits[i, j]
                pairs.append(Pair(i - 1, j - 1, fit.same, fit.hard))
            i, j, state = before_i, before_j, before
        return pairs[::-1]


def _better(row: list[Step], state: int, score: float, i: int, j: int, came: int) -> None:
    if score > row[state][0]:
        row[state] = (score, i, j, came)
