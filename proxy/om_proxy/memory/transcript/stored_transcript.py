"""Hold the part of a stored thread that reconciling needs: marks, never texts."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

from om_proxy.memory.message_list import read_seq
from om_proxy.memory.model import Mark, Memory, Style, View
from om_proxy.memory.transcript.matching import TextCounts


class StoredTranscript(Struct, frozen=True, kw_only=True):
    """The marks of a stored thread."""

    live: tuple[Mark, ...]  # the newest live messages; all of them when `missing` is 0
    missing: int  # older live messages that are not among them
    superseded: tuple[tuple[Mark, int], ...]  # each with the seq of its parent
    complete: bool  # whether `live` and `superseded` are all there are
    has_superseded: bool  # whether the thread has superseded messages at all
    coverage: int
    fixed: int  # up to this seq no text may change: it is in the log, in a chunk, or being observed
    style: Style
    views: tuple[View, ...]
    turns: int
    has_times: bool = True  # whether it counts when a message was said
    # seqs of corrections, by that of the text that they replace: the newest stands in its place in
    # `live` (corrections.py)
    corrections: Mapping[int, tuple[int, ...]] = {}

    @classmethod
    def of(
        cls,
        memory: Memory,
        *,
        fixed: int = 0,
        live: tuple[Mark, ...] | None = None,
        superseded: tuple[tuple[Mark, int], ...] = (),
    ) -> StoredTranscript:
        """Take the marks of the bounded memory, or all marks of the thread (`live`, `superseded`:
        the store's outline). `fixed`: the end of the range that an observer reads just now; chunks
        are counted here."""
        return cls(
            live=memory.marks if live is None else live,
            missing=memory.covered_count - len(memory.recent) if live is None else 0,
            superseded=superseded,
            complete=live is not None,
            has_superseded=memory.next_seq - 1 > memory.count,
            coverage=memory.coverage,
            fixed=max(fixed, memory.chunked_to),
            style=memory.style,
            views=memory.views,
            turns=memory.turns,
        )

    @property
    def end(self) -> int:
        """The seq of the newest live message; 0 when empty."""
        return self.live[-1].seq if self.live else 0

    @property
    def count(self) -> int:
        return self.missing + len(self.live)

    @property
    def first(self) -> int:
        """The least seq of a live message; 1 if older messages are not loaded."""
        return self.live[0].seq if self.live and not self.missing else 1

    def index_of(self, seq: int) -> int:
        """Return the index in `live` at which the message is, or would be."""
        return bisect_left(self.live, (seq,))  # a mark begins with its seq; a key would take longer

    def is_live(self, seq: int) -> bool:
        """Return whether it is live, as far as the loaded marks tell."""
        index = self.index_of(seq)
        return index < len(self.live) and self.live[index].seq == seq

    def marks_after(self, seq: int) -> tuple[Mark, ...]:
        return self.live[bisect_right(self.live, seq, key=read_seq) :]

    def seq_before(self, index: int) -> int:
        """Return the seq of the message before number `index` of `live`; 0 before the first."""
        return self.live[index - 1].seq if index else 0

    def marks_between(self, first: int, last: int) -> tuple[Mark, ...]:
        """Return the live messages with `first <= seq <= last`."""
        return self.live[self.index_of(first) : self.index_of(last + 1)]

    def list_said_before(self, seq: int, marks: Sequence[Mark]) -> tuple[Mark, ...]:
        """Return those of `marks`, neighbours after the message at `seq`, that were said before it
        and stored late. A client that goes on from that message has not taken them back."""
        if not self.has_times or not self.is_live(seq):
            return ()
        said_at = self.live[self.index_of(seq)].at
        return tuple(mark for mark in marks if mark.at < said_at)

    def is_prefix_view(self, view: View) -> bool:
        """Return whether the client's view begins where the thread does: a prefix, not a window."""
        first = view.cells[0] if view.cells else None
        return (
            first is not None
            and first.from_seq <= self.first
            and first.kind not in ("unsent", "extra")
        )

    def count_texts(self) -> TextCounts:
        return TextCounts.of(self.live, (mark for mark, _ in self.superseded))


@dataclass(frozen=True, slots=True)
class NeedOutline:
    """The answer that the bounded marks do not suffice: ask again with
    `StoredTranscript.of(memory, live=outline.live, superseded=outline.superseded)`."""


NEED_OUTLINE = NeedOutline()


def switch_branch(transcript: StoredTranscript, leaf: int) -> StoredTranscript | None:
    """Return the transcript in which the branch that ends at the superseded message `leaf`, or at
    its newest descendant, is the live one.

    None if the branch's root is not live: an import or retention has cut it off.
    """
    marks = {mark.seq: mark for mark, _ in transcript.superseded}
    parents = {mark.seq: parent for mark, parent in transcript.superseded}
    newest_child = {parent: seq for seq, parent in sorted(parents.items())}
    while (child := newest_child.get(leaf)) is not None:
        leaf = child
    path: list[Mark] = []
    while leaf in marks:
        path.append(marks[leaf])
        leaf = parents[leaf]
    if leaf and not transcript.is_live(leaf):
        return None
    shared = transcript.live[: transcript.index_of(leaf) + 1] if leaf else ()
    return replace(
        transcript,
        live=(*shared, *reversed(path)),
        superseded=(),
        has_superseded=False,
        fixed=min(transcript.fixed, leaf),
    )


def find_likeliest_branch(transcript: StoredTranscript, texts: Set[bytes]) -> int | None:
    """Return the seq of the superseded message whose branch holds most of these fingerprints; None:
    no branch holds any.

    Rare texts count more: an "ok" that was said seven times counts a seventh.
    """
    times = Counter(mark.fp for mark, _ in transcript.superseded)
    scores: dict[int, float] = {}
    for mark, parent in transcript.superseded:  # by seq, so parents come first
        scores[mark.seq] = scores.get(parent, 0.0) + (
            1 / times[mark.fp] if mark.fp in texts else 0.0
        )
    best = max(scores, key=lambda seq: (scores[seq], seq), default=None)
    return best if best is not None and scores[best] else None


def count_late_end(marks: Sequence[Mark]) -> int:
    """Return how many of the last marks were said before the newest of all, and stored late."""
    newest_at = max((mark.at for mark in marks), default=0.0)
    return next((n for n, mark in enumerate(reversed(marks)) if mark.at == newest_at), 0)


def last_shared_seq(one: Sequence[Mark], other: Sequence[Mark]) -> int:
    """Return the seq of the last message that both branches begin with; 0: none."""
    seq = 0
    for a, b in zip(one, other, strict=False):
        if a.seq != b.seq:
            break
        seq = a.seq
    return seq
