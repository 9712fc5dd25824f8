"""What is stored of a thread, as far as reconciling looks at it: marks, never texts."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

from om_proxy.memory.matching import Census
from om_proxy.memory.model import Mark, Memory, Style, View


class Known(Struct, frozen=True, kw_only=True):
    live: tuple[Mark, ...]  # the newest live messages; all of them when `missing` is 0
    missing: int  # older live messages that are not among them
    dead: tuple[tuple[Mark, int], ...]  # superseded ones with their parents
    complete: bool  # whether `live` and `dead` are all there are
    superseded: bool  # whether the thread has superseded messages at all
    coverage: int
    fixed: int  # up to this seq no text may change: it is in the log, in a chunk, or being observed
    style: Style
    views: tuple[View, ...]
    turns: int

    @classmethod
    def of(
        cls,
        memory: Memory,
        *,
        fixed: int = 0,
        live: tuple[Mark, ...] | None = None,
        dead: tuple[tuple[Mark, int], ...] = (),
    ) -> Known:
        """From the bounded memory, or with all marks of the thread (`live`, `dead`: the store's outline). `fixed`: the end of the
        range an observer is reading just now; chunks count by themselves."""
        return cls(
            live=memory.marks if live is None else live,
            missing=memory.covered_count - len(memory.recent) if live is None else 0,
            dead=dead,
            complete=live is not None,
            superseded=memory.next_seq - 1 > memory.count,
            coverage=memory.coverage,
            fixed=max(fixed, memory.chunked_to),
            style=memory.style,
            views=memory.views,
            turns=memory.turns,
        )

    @property
    def end(self) -> int:
        """seq of the newest live message; 0 when empty."""
        return self.live[-1].seq if self.live else 0

    @property
    def count(self) -> int:
        return self.missing + len(self.live)

    @property
    def first(self) -> int:
        """No live message has a lower seq; exact only where nothing is missing."""
        return self.live[0].seq if self.live and not self.missing else 1

    def index(self, seq: int) -> int:
        """Where in `live` the message stands, or would stand."""
        return bisect_left(self.live, seq, key=_seq)

    def holds(self, seq: int) -> bool:
        """Whether it is live, as far as the loaded marks tell."""
        index = self.index(seq)
        return index < len(self.live) and self.live[index].seq == seq

    def after(self, seq: int) -> tuple[Mark, ...]:
        return self.live[bisect_right(self.live, seq, key=_seq) :]

    def seq_before(self, index: int) -> int:
        """seq of the message before number `index` of `live`; 0 before the first."""
        return self.live[index - 1].seq if index else 0

    def between(self, first: int, last: int) -> tuple[Mark, ...]:
        """The live messages with `first <= seq <= last`."""
        return self.live[self.index(first) : self.index(last + 1)]

    def begins(self, view: View) -> bool:
        """Whether the client's view begins where the thread does: a prefix, not a window."""
        first = view.cells[0] if view.cells else None
        return first is not None and first.from_seq <= self.first and first.kind not in ("unsent", "extra")

    def census(self) -> Census:
        return Census.of(self.live, (mark for mark, _ in self.dead))


@dataclass(frozen=True, slots=True)
class NeedOutline:
    """The bounded marks do not suffice: ask again with `Known.of(memory, live=outline.live, dead=outline.dead)`."""


NEED_OUTLINE = NeedOutline()


def branch(known: Known, leaf: int) -> Known | None:
    """As if the branch that ends at the superseded message `leaf`, or at its newest descendant, were the live one.

    None where its root is not live: an import or retention has cut it off.
    """
    marks = {mark.seq: mark for mark, _ in known.dead}
    parents = {mark.seq: parent for mark, parent in known.dead}
    newest_child = {parent: seq for seq, parent in sorted(parents.items())}
    while (child := newest_child.get(leaf)) is not None:
        leaf = child
    path: list[Mark] = []
    while leaf in marks:
        path.append(marks[leaf])
        leaf = parents[leaf]
    if leaf and not known.holds(leaf):
        return None
    shared = known.live[: known.index(leaf) + 1] if leaf else ()
    return replace(known, live=(*shared, *reversed(path)), dead=(), superseded=False, fixed=min(known.fixed, leaf))


def most_known(known: Known, texts: Set[bytes]) -> int | None:
    """seq of the superseded message on whose way from the root most messages have one of these fingerprints; None: none has.

    The rarer a text is, the more it counts: an "ok" that was said seven times is a seventh of a sign.
    """
    times = Counter(mark.fp for mark, _ in known.dead)
    score: dict[int, float] = {}
    for mark, parent in known.dead:  # by seq, so parents come first
        score[mark.seq] = score.get(parent, 0.0) + (1 / times[mark.fp] if mark.fp in texts else 0.0)
    best = max(score, key=lambda seq: (score[seq], seq), default=None)
    return best if best is not None and score[best] else None


def shared_end(one: Sequence[Mark], other: Sequence[Mark]) -> int:
    """seq of the last message both branches begin with; 0: none."""
    seq = 0
    for a, b in zip(one, other, strict=False):
        if a.seq != b.seq:
            break
        seq = a.seq
    return seq


def _seq(mark: Mark) -> int:
    return mark.seq
