"""The best way to lay what a client sent beside what is stored: a weighted monotone alignment.

A *run* is a stretch of pairs without a gap on either side. Beside weights there are rules of proof
(docs/spec/reconcile.md#destructive-needs-proof): a run beyond a gap counts only if it holds an
anchor that is unique in the thread or stands where both begin; a text may change only between
anchors that hold, or, an assistant's, at the very end of ours.

Each cell of a table keeps the best score of seven states; `Table` below says which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import add, sub

from om_proxy.memory.matching import Census, Fit, Fits, Pair, Places, asked_from
from om_proxy.memory.model import Item, Mark

MAX_ALIGNED_CELLS = 160_000  # 400 x 400: up to a fifth of a second, where all fits all; above it nothing is aligned

# docs/spec/reconcile.md#alignment; in hundredths, as those of matching.py
ANCHORED_RUN_SCORE = 200
SKIP_STEP = -1  # a tool step inside a turn: however many there were, folding them away beats taking them back
SKIP_ELSEWHERE = (
    -1200
)  # a user's message of a superseded branch: more likely the client is there than that it is filler
SKIP_SENT_USER, SKIP_SENT, SKIP_STORED_USER, SKIP_STORED, SUPERSEDE_USER = -400, -60, -60, -20, -80

# it stays below any possible score, whatever is won on the way
IMPOSSIBLE_SCORE = -(10**9)


def align(
    sent: Sequence[Item],
    stored: Sequence[Mark],
    census: Census,
    *,
    joined: bool,
    origin: bool,
    closed: bool = False,
    window: bool = False,
) -> list[Pair] | None:
    """The best pairs; empty: nothing of it is known for certain. None: too large to say.

    `joined`: both continue a stretch that is known to match. `origin`: both begin where their conversation begins. `closed`: both
    end at a stretch that is known to match; else what follows the last pair is new on one side, superseded on the other.
    `window`: the client is known to send windows, so its first message may be an altered reply rather than a summary.
    """
    if len(sent) * len(stored) > MAX_ALIGNED_CELLS:
        return None
    if not sent or not stored:
        return []
    return Table(sent, stored, census, joined, origin, closed, window).pairs()


# A state of the table at (i, j): the first i sent and j stored messages are dealt with, and the last step was …
HEAD, PROVEN, LEANING, OPEN, FOLD, OPEN_FOLD, GAP = STATES = range(7)
# HEAD    nothing matched yet: stored messages left out for free, sent ones at their price
# PROVEN  a pair, in a run that holds an anchor
# LEANING a pair, in a run that held an anchor before a text that changed: it may end where ours ends, and nowhere else
# OPEN    a pair, in a run that still needs an anchor
# FOLD    after PROVEN, stored messages that are no user's left out: the same turn, so it needs no new proof
# OPEN_FOLD  the same after OPEN
# GAP     after PROVEN, anything left out

RUN_STATES = (PROVEN, LEANING, OPEN)
STATES_BEFORE_GAP = (PROVEN, FOLD, GAP)

Line = list[int]  # scores of one state in one row, by j
Row = list[Line | None]  # by state; None: none of its cells can be in that state
Place = tuple[int, int, int]  # i, j, state
Ways = Mapping[int, Sequence[tuple[int, int]]]  # into each state: from which, and what it wins

SPARSE_ROW_FACTOR = 8  # a line is sparse where fewer than one in so many of its places fit


@lru_cache(256)
def arrivals(fit: Fit, begins: bool, opens: bool) -> Ways:
    """What a pair may lead to, each with the states before it and what coming from there scores; of equals the first is taken.

    `begins`: it is the first of both, where both conversations begin. `opens`: its text may have changed and nothing before it.
    """
    score, run = fit.score, fit.score + (ANCHORED_RUN_SCORE if fit.hard else 0)
    beyond_gap = PROVEN if fit.proof or (begins and fit.hard) else OPEN
    ways = [
        (PROVEN if fit.hard else LEANING, PROVEN, run),
        (PROVEN if fit.holds else LEANING, FOLD, score),
    ]
    if score > 0:  # one changed text of a user between two anchors, no more: else it is another conversation
        ways += [
            (PROVEN if fit.proof else LEANING, LEANING, run),
            (PROVEN if fit.proof else OPEN, OPEN, run),
            (PROVEN if fit.proof else OPEN, OPEN_FOLD, score),
        ]
    ways.append((beyond_gap, GAP, score))
    if fit.hard or begins or (opens and score > 0):
        ways.append((beyond_gap, HEAD, score))
    return {to: [(state, gain) for there, state, gain in ways if there == to] for to in RUN_STATES}


class Table:
    """Row by row, each state's line at once: a step in Python per row and state, not per cell, for who sends 400 messages that
    all fit all of ours holds everybody up.

    A line holds scores less what it costs to skip the first i sent and the first j stored messages: so a gap costs nothing, and
    lines are carried on as they are. Where a score came from is found again on the way back.
    """

    def __init__(
        self,
        sent: Sequence[Item],
        stored: Sequence[Mark],
        census: Census,
        joined: bool,
        origin: bool,
        closed: bool,
        window: bool,
    ) -> None:
        self.sent, self.stored, self.census = sent, stored, census
        self.joined, self.origin, self.closed, self.window = joined, origin, closed, window
        self.places, self.asked = Places(stored, census), len(sent) if closed else asked_from(sent)
        self.skip_sent = [self._skip(item) for item in sent]
        self.skip_stored = [SKIP_STORED_USER if mark.role == "user" else SKIP_STORED for mark in stored]
        self.skipped_sent = [0, *accumulate(self.skip_sent)]
        self.skipped_stored = [0, *accumulate(self.skip_stored)]
        self.folded = [0, *accumulate(map(_unskipped, stored))]
        self.gained: dict[tuple[int, Sequence[int]], Line] = {}
        self.reach: Line | None = None  # of the last row: from how good a score a gap may go on to each place
        self.rows = [self._first()]

    def pairs(self) -> list[Pair]:
        for i in range(len(self.sent)):
            self.rows.append(self._next(i))
        return self._trace(*(self._end_closed() if self.closed else self._end_open()))

    def _skip(self, item: Item) -> int:
        if item.role != "user":
            return SKIP_SENT
        return SKIP_ELSEWHERE if item.fp in self.census.elsewhere else SKIP_SENT_USER

    def _fits(self, i: int) -> Fits:
        return self.places.of(self.sent[i], i >= self.asked)

    # filling

    def _first(self) -> Row:
        row: Row = [None] * len(STATES)
        if self.joined:
            row[PROVEN] = [0] + [IMPOSSIBLE_SCORE] * len(self.stored)
        else:
            row[HEAD] = [-cost for cost in self.skipped_stored]
        self._leave_out(row)
        return row

    def _next(self, i: int) -> Row:
        before = self.rows[i]
        row: Row = [None] * len(STATES)
        row[HEAD] = before[HEAD]
        for ways, places in self._pairs(i):
            for state, came in ways.items():
                reached = [(line, gain - self.skip_sent[i]) for at, gain in came if (line := before[at])]
                row[state] = self._paired(row[state], reached, places) if reached else row[state]
        self._leave_out(row)
        return row

    def _pairs(self, i: int) -> Iterator[tuple[Ways, Sequence[int]]]:
        """The places that sent message `i` fits, with what a pair there may lead to."""
        opens = self.window and i == 0
        for fit, places in self._fits(i).items():
            if self.origin and i == 0 and places[:1] == (0,):
                yield arrivals(fit, True, opens), places[:1]
                yield arrivals(fit, False, opens), places[1:]
            else:
                yield arrivals(fit, False, opens), places

    def _paired(self, line: Line | None, came: Sequence[tuple[Line, int]], places: Sequence[int]) -> Line | None:
        """The line with what is won by pairs at these places; `came`: the lines they may come from, and what each wins."""
        if len(places) * SPARSE_ROW_FACTOR < len(self.stored):
            return self._paired_singly(line, came, places)
        scores = []
        for gain in {gain for _, gain in came}:
            scores.append(list(map(add, _best([one for one, its in came if its == gain]), self._gains(gain, places))))
        return _best([[IMPOSSIBLE_SCORE, *_best(scores)], *([line] if line else [])])

    def _paired_singly(self, line: Line | None, came: Sequence[tuple[Line, int]], places: Sequence[int]) -> Line | None:
        for j in places:
            score = max([one[j] + gain for one, gain in came]) - self.skip_stored[j]
            if score > IMPOSSIBLE_SCORE // 2:
                line = line or [IMPOSSIBLE_SCORE] * (len(self.stored) + 1)
                line[j + 1] = score
        return line

    def _gains(self, gain: int, places: Sequence[int]) -> Line:
        """What a pair wins at each place; the stored message is then not skipped."""
        line = self.gained.get((gain, places))
        if line is None:
            line = self.gained[gain, places] = [IMPOSSIBLE_SCORE] * len(self.stored)
            for j in places:
                line[j] = gain - self.skip_stored[j]
        return line

    def _leave_out(self, row: Row) -> None:
        """Go on from the row's pairs, and from what was reached above, leaving messages out."""
        proven, opened, above = row[PROVEN], row[OPEN], self.reach
        row[OPEN_FOLD] = self._fold(opened) if opened else None
        row[GAP] = above  # which never falls along its row: coming from the left is no better
        if proven:
            row[FOLD] = fold = self._fold(proven)
            self.reach = list(accumulate(_best([proven, fold, *([above] if above else [])]), max))
            left = [IMPOSSIBLE_SCORE, *self.reach[:-1]]
            row[GAP] = _best([above, left]) if above else left

    def _fold(self, line: Line) -> Line:
        """What is best carried on from any pair of the line over messages that are no user's."""
        return [IMPOSSIBLE_SCORE, *map(add, accumulate(map(sub, line, self.folded), max), self.folded[1:])]

    # where to end

    def _end_closed(self) -> Place:
        last = [line[-1] if line else IMPOSSIBLE_SCORE for line in self.rows[-1]]
        scores = [score + (ANCHORED_RUN_SCORE if state in RUN_STATES else 0) for state, score in enumerate(last)]
        return len(self.sent), len(self.stored), max(STATES, key=scores.__getitem__)

    def _end_open(self) -> Place:
        ends = self._ends_at()
        best, place = (ends[0], (0, 0, PROVEN)) if self.joined else (0, (0, 0, HEAD))
        for score, i, j, state in self._ends(ends):
            if score > best and (state == PROVEN or self._may_end(i, j, state)):
                best, place = score, (i, j, state)
        return place

    def _ends_at(self) -> Line:
        """What ending at each place costs: what stands behind it is superseded, and before it some may have been skipped."""
        users = accumulate([mark.role == "user" for mark in reversed(self.stored)], initial=0)
        return list(map(add, self.skipped_stored, [SUPERSEDE_USER * n for n in users][::-1]))

    def _ends(self, ends: Line) -> Iterator[tuple[int, int, int, int]]:
        """Score and place of the best pair of each row that may be the last one, and then of what may end only where ours does."""
        for i in range(1, len(self.rows)):
            row, skipped = self.rows[i], self.skipped_sent[i]
            if proven := row[PROVEN]:
                scores = list(map(add, proven, ends))
                best = max(scores)
                yield best + skipped, i, scores.index(best), PROVEN
            for state in (LEANING, OPEN) if self.window else (LEANING,):
                if line := row[state]:
                    yield line[-1] + ends[-1] + skipped, i, len(self.stored), state

    def _may_end(self, i: int, j: int, state: int) -> bool:
        """Nothing is superseded where ours ends, so less proof will do: an altered reply right behind what holds."""
        fit = self._fit(i, j)
        if fit is None or fit.hard:
            return fit is not None
        i, j, came = self._before(i, j, state)
        if came == FOLD:
            i, j, _ = self._before(i, j, came)
        before = self._fit(i, j)
        holds = self.joined if i == 0 and j == 0 else before is not None and before.hard
        return fit.score > 0 and holds

    # the way back

    def _trace(self, i: int, j: int, state: int) -> list[Pair]:
        pairs: list[Pair] = []
        while (i or j) and state != HEAD:
            if state in RUN_STATES and (fit := self._fit(i, j)):
                pairs.append(Pair(i - 1, j - 1, fit.same, fit.hard))
            i, j, state = self._before(i, j, state)
        return pairs[::-1]

    def _before(self, i: int, j: int, state: int) -> Place:
        """Where the best score came from; from a fold, back to the pair it began at."""
        if state == GAP:
            return self._before_gap(i, j)
        if state in RUN_STATES:
            return self._before_pair(i, j, state)
        pair = PROVEN if state == FOLD else OPEN
        pairs, folds, j = self._line(i, pair), self._line(i, state), j - 1
        while folds[j] > pairs[j]:
            j -= 1
        return i, j, pair

    def _before_gap(self, i: int, j: int) -> Place:
        score = self._line(i, GAP)[j]
        places = [(a, b) for a, b in ((i - 1, j), (i, j - 1)) if a >= 0 and b >= 0]
        ways = ((a, b, state) for a, b in places for state in STATES_BEFORE_GAP)
        return next((a, b, state) for a, b, state in ways if (line := self.rows[a][state]) and line[b] == score)

    def _before_pair(self, i: int, j: int, state: int) -> Place:
        fit = self._fit(i, j)
        assert fit is not None  # noqa: S101 - it is a pair
        ways = arrivals(fit, self.origin and i == j == 1, self.window and i == 1)[state]
        score = self._line(i, state)[j] + self.skip_sent[i - 1] + self.skip_stored[j - 1]
        lines = ((at, gain, self.rows[i - 1][at]) for at, gain in ways)
        return i - 1, j - 1, next(at for at, gain, line in lines if line and line[j - 1] + gain == score)

    def _fit(self, i: int, j: int) -> Fit | None:
        """Of the last of the first i sent and the last of the first j stored messages."""
        fits = self._fits(i - 1) if i and j else {}
        return next((fit for fit, places in fits.items() if j - 1 in places), None)

    def _line(self, i: int, state: int) -> Line:
        line = self.rows[i][state]
        assert line is not None  # noqa: S101 - the way leads through it
        return line


def _best(lines: Sequence[Line]) -> Line:
    best = lines[0]
    for line in lines[1:]:
        best = [a if a > b else b for a, b in zip(best, line, strict=True)]  # half of what `max` takes
    return best


def _unskipped(mark: Mark) -> int:
    """What folding it costs, beside skipping it."""
    if mark.role == "user":
        return IMPOSSIBLE_SCORE
    return SKIP_STEP - SKIP_STORED if mark.calls or mark.answers else 0
