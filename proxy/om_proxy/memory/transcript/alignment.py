"""Align what a client sent with what is stored: find the best pairs by a weighted monotone
alignment.

A *run* is a stretch of pairs without a gap on either side. An *anchor* is a pair by fingerprint or
tool id. Beside weights there are rules of proof
(docs/contributing/reconcile.md#destructive-needs-proof):

- A run beyond a gap counts only if it holds an anchor that is unique in the thread, or that is
  where both begin.
- A text may change only between anchors that hold. An assistant's may also change at the very end
  of the transcript.

Each cell of the table keeps the best score of seven states, which are listed above `HEAD`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import add, sub

from om_proxy.memory.model import Item, Mark
from om_proxy.memory.transcript.matching import (
    MatchIndex,
    MatchScore,
    MatchScores,
    Pair,
    TextCounts,
    first_asked_index,
)

# 400 x 400: up to a fifth of a second where every message fits every other; above it nothing is
# aligned
MAX_ALIGNED_CELLS = 160_000

# docs/contributing/reconcile.md#alignment; in hundredths, as those of matching.py
ANCHORED_RUN_SCORE = 200
# a tool step inside a turn: however many there were, folding them is likelier than taking them back
SKIP_TOOL_STEP_SCORE = -1
# a user's message of a superseded branch: the client is likelier on that branch than sending filler
SKIP_SUPERSEDED_USER_SCORE = -1200
SKIP_SENT_USER_SCORE = -400
SKIP_SENT_SCORE = -60
SKIP_STORED_USER_SCORE = -60
SKIP_STORED_SCORE = -20
SUPERSEDE_USER_SCORE = -80

# stays below any possible score, whatever is won on the way
IMPOSSIBLE_SCORE = -(10**9)


def align(
    sent: Sequence[Item],
    stored: Sequence[Mark],
    counts: TextCounts,
    *,
    joined: bool,
    origin: bool,
    closed: bool = False,
    window: bool = False,
) -> list[Pair] | None:
    """Return the best pairs; empty: no pair is certain. None: the table would be too large.

    `joined`: both continue a stretch that is known to match. `origin`: both begin where their
    conversation begins. `closed`: both end at a stretch that is known to match; else the sent
    messages after the last pair are new, and the stored ones superseded. `window`: the client is
    known to send windows, so its first message may be an altered reply rather than a summary.
    """
    if len(sent) * len(stored) > MAX_ALIGNED_CELLS:
        return None
    if not sent or not stored:
        return []
    return AlignmentTable(sent, stored, counts, joined, origin, closed, window).pairs()


# States of the table at (i, j): the first i sent and j stored messages are dealt with, and the last
# step was …
#
# HEAD       nothing matched yet: stored messages are left out for free, sent ones at their price
# PROVEN     a pair, in a run that holds an anchor LEANING    a pair, in a run that held an anchor
# before a text that changed: it may end where the            transcript ends, and nowhere else OPEN
# a pair, in a run that still needs an anchor FOLD       after PROVEN, stored messages left out that
# are no user's: the same turn, so no new proof            is needed OPEN_FOLD  the same after OPEN
# GAP        after PROVEN, anything left out
HEAD, PROVEN, LEANING, OPEN, FOLD, OPEN_FOLD, GAP = ALIGNMENT_STATES = range(7)

RUN_STATES = (PROVEN, LEANING, OPEN)
STATES_BEFORE_GAP = (PROVEN, FOLD, GAP)

Line = list[int]  # scores of one state in one row, by j
Row = list[Line | None]  # by state; None: none of its cells can be in that state
Place = tuple[int, int, int]  # i, j, state
# by the state that a pair leads to: the states before it, each with what coming from there wins
Ways = Mapping[int, Sequence[tuple[int, int]]]

SPARSE_ROW_FACTOR = 8  # a line is sparse where fewer than one in this many of its places fit


@lru_cache(256)
def ways_into_pair(fit: MatchScore, begins: bool, opens: bool) -> Ways:
    """Return the states that a pair may lead to, each with the states before it and the score of
    coming from there. The first of equals is taken.

    `begins`: the pair is the first of both, where both conversations begin. `opens`: its text may
    have changed, and nothing before it.
    """
    score, run = fit.score, fit.score + (ANCHORED_RUN_SCORE if fit.hard else 0)
    beyond_gap = PROVEN if fit.is_proof or (begins and fit.hard) else OPEN
    ways = [
        (PROVEN if fit.hard else LEANING, PROVEN, run),
        (PROVEN if fit.is_anchor else LEANING, FOLD, score),
    ]
    # one changed text of a user between two anchors, no more: else it is another conversation
    if score > 0:
        ways += [
            (PROVEN if fit.is_proof else LEANING, LEANING, run),
            (PROVEN if fit.is_proof else OPEN, OPEN, run),
            (PROVEN if fit.is_proof else OPEN, OPEN_FOLD, score),
        ]
    ways.append((beyond_gap, GAP, score))
    if fit.hard or begins or (opens and score > 0):
        ways.append((beyond_gap, HEAD, score))
    return {to: [(state, gain) for there, state, gain in ways if there == to] for to in RUN_STATES}


class AlignmentTable:
    """The scores of all alignments, filled row by row, each state's line at once. That takes a step
    in Python per row and state, not per cell: 400 sent messages that fit 400 stored ones would
    otherwise block the event loop.

    A line holds scores less what it costs to skip the first i sent and the first j stored messages.
    So a gap costs nothing, and lines are carried on as they are. The way back finds again where
    each score came from.
    """

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
        self.sent = sent
        self.stored = stored
        self.counts = counts
        self.joined = joined
        self.origin = origin
        self.closed = closed
        self.window = window
        self.index = MatchIndex(stored, counts)
        self.asked = len(sent) if closed else first_asked_index(sent)
        self.skip_sent = [self._skip_score(item) for item in sent]
        self.skip_stored = [
            SKIP_STORED_USER_SCORE if mark.role == "user" else SKIP_STORED_SCORE for mark in stored
        ]
        self.skip_sent_sums = [0, *accumulate(self.skip_sent)]
        self.skip_stored_sums = [0, *accumulate(self.skip_stored)]
        self.fold_sums = [0, *accumulate(map(_fold_score, stored))]
        self.gain_lines: dict[tuple[int, Sequence[int]], Line] = {}
        # of the last row: the best score from which a gap may go on to each place
        self.gap_scores: Line | None = None
        self.rows = [self._first_row()]

    def pairs(self) -> list[Pair]:
        """Fill the table and return the pairs of the best alignment."""
        for i in range(len(self.sent)):
            self.rows.append(self._next_row(i))
        return self._trace(*(self._closed_end() if self.closed else self._open_end()))

    def _skip_score(self, item: Item) -> int:
        if item.role != "user":
            return SKIP_SENT_SCORE
        return (
            SKIP_SUPERSEDED_USER_SCORE
            if item.fp in self.counts.superseded_only
            else SKIP_SENT_USER_SCORE
        )

    def _matches(self, i: int) -> MatchScores:
        return self.index.places_of(self.sent[i], i >= self.asked)

    # filling

    def _first_row(self) -> Row:
        row: Row = [None] * len(ALIGNMENT_STATES)
        if self.joined:
            row[PROVEN] = [0] + [IMPOSSIBLE_SCORE] * len(self.stored)
        else:
            row[HEAD] = [-cost for cost in self.skip_stored_sums]
        self._carry_gaps(row)
        return row

    def _next_row(self, i: int) -> Row:
        before = self.rows[i]
        row: Row = [None] * len(ALIGNMENT_STATES)
        row[HEAD] = before[HEAD]
        for ways, places in self._ways_by_place(i):
            for state, came in ways.items():
                reached = [
                    (line, gain - self.skip_sent[i]) for at, gain in came if (line := before[at])
                ]
                row[state] = (
                    self._score_pairs(row[state], reached, places) if reached else row[state]
                )
        self._carry_gaps(row)
        return row

    def _ways_by_place(self, i: int) -> Iterator[tuple[Ways, Sequence[int]]]:
        """Yield the places that sent message `i` fits, with the ways into a pair there."""
        opens = self.window and i == 0
        for fit, places in self._matches(i).items():
            if self.origin and i == 0 and places[:1] == (0,):
                yield ways_into_pair(fit, True, opens), places[:1]
                yield ways_into_pair(fit, False, opens), places[1:]
            else:
                yield ways_into_pair(fit, False, opens), places

    def _score_pairs(
        self, line: Line | None, came: Sequence[tuple[Line, int]], places: Sequence[int]
    ) -> Line | None:
        """Return the line with the scores of pairs at these places. `came`: the lines they may come
        from, and what each wins."""
        if len(places) * SPARSE_ROW_FACTOR < len(self.stored):
            return self._score_sparse_pairs(line, came, places)
        scores = []
        for gain in {gain for _, gain in came}:
            best = _best_of([one for one, its in came if its == gain])
            scores.append(list(map(add, best, self._gain_line(gain, places))))
        return _best_of([[IMPOSSIBLE_SCORE, *_best_of(scores)], *([line] if line else [])])

    def _score_sparse_pairs(
        self, line: Line | None, came: Sequence[tuple[Line, int]], places: Sequence[int]
    ) -> Line | None:
        for j in places:
            score = max([one[j] + gain for one, gain in came]) - self.skip_stored[j]
            if score > IMPOSSIBLE_SCORE // 2:
                line = line or [IMPOSSIBLE_SCORE] * (len(self.stored) + 1)
                line[j + 1] = score
        return line

    def _gain_line(self, gain: int, places: Sequence[int]) -> Line:
        """Return the gain of a pair at each place; a pair does not skip its stored message."""
        line = self.gain_lines.get((gain, places))
        if line is None:
            line = self.gain_lines[gain, places] = [IMPOSSIBLE_SCORE] * len(self.stored)
            for j in places:
                line[j] = gain - self.skip_stored[j]
        return line

    def _carry_gaps(self, row: Row) -> None:
        """Carry the row's pairs, and what was reached above, over messages that are left out."""
        proven = row[PROVEN]
        opened = row[OPEN]
        above = self.gap_scores
        row[OPEN_FOLD] = self._carry_fold(opened) if opened else None
        row[GAP] = above  # which never falls along its row: coming from the left is no better
        if proven:
            row[FOLD] = fold = self._carry_fold(proven)
            self.gap_scores = list(
                accumulate(_best_of([proven, fold, *([above] if above else [])]), max)
            )
            left = [IMPOSSIBLE_SCORE, *self.gap_scores[:-1]]
            row[GAP] = _best_of([above, left]) if above else left

    def _carry_fold(self, line: Line) -> Line:
        """Return the best scores of going on from a pair of the line over messages that are no
        user's."""
        return [
            IMPOSSIBLE_SCORE,
            *map(add, accumulate(map(sub, line, self.fold_sums), max), self.fold_sums[1:]),
        ]

    # where to end

    def _closed_end(self) -> Place:
        last = [line[-1] if line else IMPOSSIBLE_SCORE for line in self.rows[-1]]
        scores = [
            score + (ANCHORED_RUN_SCORE if state in RUN_STATES else 0)
            for state, score in enumerate(last)
        ]
        return len(self.sent), len(self.stored), max(ALIGNMENT_STATES, key=scores.__getitem__)

    def _open_end(self) -> Place:
        ends = self._end_scores()
        best, place = (ends[0], (0, 0, PROVEN)) if self.joined else (0, (0, 0, HEAD))
        for score, i, j, state in self._candidate_ends(ends):
            if score > best and (state == PROVEN or self._may_end_at(i, j, state)):
                best, place = score, (i, j, state)
        return place

    def _end_scores(self) -> Line:
        """Return the score of ending at each place: what comes after it is superseded, and some
        before it may be skipped."""
        users = accumulate([mark.role == "user" for mark in reversed(self.stored)], initial=0)
        return list(
            map(add, self.skip_stored_sums, [SUPERSEDE_USER_SCORE * n for n in users][::-1])
        )

    def _candidate_ends(self, ends: Line) -> Iterator[tuple[int, int, int, int]]:
        """Yield score and place of each row's best pair that may be the last one, then of pairs
        that may end only where the transcript does."""
        for i in range(1, len(self.rows)):
            row, skipped = self.rows[i], self.skip_sent_sums[i]
            if proven := row[PROVEN]:
                scores = list(map(add, proven, ends))
                best = max(scores)
                yield best + skipped, i, scores.index(best), PROVEN
            for state in (LEANING, OPEN) if self.window else (LEANING,):
                if line := row[state]:
                    yield line[-1] + ends[-1] + skipped, i, len(self.stored), state

    def _may_end_at(self, i: int, j: int, state: int) -> bool:
        """Return whether a run without an anchor at its end may end there. At the end of the
        transcript nothing is superseded, so less proof will do: an altered reply right after an
        anchor."""
        fit = self._match(i, j)
        if fit is None or fit.hard:
            return fit is not None
        i, j, came = self._predecessor(i, j, state)
        if came == FOLD:
            i, j, _ = self._predecessor(i, j, came)
        before = self._match(i, j)
        follows_anchor = self.joined if i == 0 and j == 0 else before is not None and before.hard
        return fit.score > 0 and follows_anchor

    # the way back

    def _trace(self, i: int, j: int, state: int) -> list[Pair]:
        pairs: list[Pair] = []
        while (i or j) and state != HEAD:
            if state in RUN_STATES and (fit := self._match(i, j)):
                pairs.append(Pair(i - 1, j - 1, fit.same, fit.hard))
            i, j, state = self._predecessor(i, j, state)
        return pairs[::-1]

    def _predecessor(self, i: int, j: int, state: int) -> Place:
        """Return the place that the best score came from; from a fold, the pair it began at."""
        if state == GAP:
            return self._gap_predecessor(i, j)
        if state in RUN_STATES:
            return self._pair_predecessor(i, j, state)
        pair = PROVEN if state == FOLD else OPEN
        pairs, folds, j = self._line(i, pair), self._line(i, state), j - 1
        while folds[j] > pairs[j]:
            j -= 1
        return i, j, pair

    def _gap_predecessor(self, i: int, j: int) -> Place:
        score = self._line(i, GAP)[j]
        places = [(a, b) for a, b in ((i - 1, j), (i, j - 1)) if a >= 0 and b >= 0]
        ways = ((a, b, state) for a, b in places for state in STATES_BEFORE_GAP)
        return next(
            (a, b, state)
            for a, b, state in ways
            if (line := self.rows[a][state]) and line[b] == score
        )

    def _pair_predecessor(self, i: int, j: int, state: int) -> Place:
        fit = self._match(i, j)
        assert fit is not None  # it is a pair
        ways = ways_into_pair(fit, self.origin and i == j == 1, self.window and i == 1)[state]
        score = self._line(i, state)[j] + self.skip_sent[i - 1] + self.skip_stored[j - 1]
        lines = ((at, gain, self.rows[i - 1][at]) for at, gain in ways)
        return (
            i - 1,
            j - 1,
            next(at for at, gain, line in lines if line and line[j - 1] + gain == score),
        )

    def _match(self, i: int, j: int) -> MatchScore | None:
        """Return the score of sent message i - 1 with stored message j - 1."""
        fits = self._matches(i - 1) if i and j else {}
        return next((fit for fit, places in fits.items() if j - 1 in places), None)

    def _line(self, i: int, state: int) -> Line:
        line = self.rows[i][state]
        assert line is not None  # the way leads through it
        return line


def _best_of(lines: Sequence[Line]) -> Line:
    """Return the best score at each place."""
    best = lines[0]
    for line in lines[1:]:
        # takes half the time of `max`
        best = [a if a > b else b for a, b in zip(best, line, strict=True)]
    return best


def _fold_score(mark: Mark) -> int:
    """Return the cost of folding a stored message, beside that of skipping it."""
    if mark.role == "user":
        return IMPOSSIBLE_SCORE
    return SKIP_TOOL_STEP_SCORE - SKIP_STORED_SCORE if mark.calls or mark.answers else 0
