"""What people changed of the notes, as the world knows it: which words may be missing now, which
may be told to nobody, and what was written last.

Every text of a person holds a marker of its own (`m17`, a pin `p17`). Most name the same messages as
the text before; some do not, and those words are *excused*. The words of a withdrawn entry are
*hidden*: nothing that begins later may tell them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from om_proxy.memory.lifecycle.withdrawal import blank
from om_proxy.memory.model import Key, Memory, Observation, ObservationLog, Pin
from tests.simulation.promises import must
from tests.simulation.words import ids_in, markers_in

Place = tuple[str, int]  # the letter of a thread, and a seq
Covered = Mapping[Place, str]  # messages that an entry covers, and their ids
FindCovered = Callable[[Observation], Covered]


class Before(NamedTuple):
    """An entry before a person changed it."""

    entry: Observation
    excused: set[str]
    hidden: set[str]


class Standing(NamedTuple):
    """A text of a person that must be there. `direct`: it was written into the log itself."""

    covered: frozenset[Place]
    since: float
    direct: bool


@dataclass(eq=False)
class Changes:
    """`clock`: the world's time. `letters`: of threads whose log could not follow their branch; of
    these nothing is demanded."""

    clock: Callable[[], float]
    switches: bool = False  # whether threads leave their logs and join others
    revised: set[str] = field(default_factory=set)
    excused_until: dict[str, float] = field(default_factory=dict)  # infinite: still
    # by id: the messages whose words are missing; a resent message may be stored twice
    excused_places: dict[str, set[Place]] = field(default_factory=dict)
    taken_away: set[str] = field(default_factory=set)  # ids that were excused at some time
    hidden_since: dict[str, float] = field(default_factory=dict)
    standing: dict[Key, dict[str, Standing]] = field(default_factory=dict)  # by log, by marker
    chunks: dict[Key, dict[str, frozenset[Place]]] = field(default_factory=dict)  # by thread
    before: dict[tuple[Key, int], Before] = field(default_factory=dict)
    # ids that a forgotten entry covered, by its stand-in
    forgotten: dict[tuple[Key, int], set[str]] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)  # markers that were stored at some time
    dropping: dict[Key, int] = field(default_factory=dict)  # people who drop chunks of a thread now
    pinning: dict[Key, int] = field(default_factory=dict)  # people who change pins of a log now
    pinned_since: dict[Key, dict[Pin, float]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    # ── what others ask ──

    def excused(self, since: float = math.inf) -> set[str]:
        """Ids whose words may be missing, now or at some time after `since`."""
        return {one for one, until in self.excused_until.items() if until >= since}

    def returnable(self) -> set[str]:
        """Ids whose words were taken away by a person, and which are missing again when a client
        goes back to the branch on which that was done."""
        return self.taken_away

    def hidden(self, before: float = math.inf) -> set[str]:
        """Ids whose words a person had taken away before that time, and which stay away."""
        return {one for one, since in self.hidden_since.items() if since < before}

    def expected_markers(self, log: Key, letter: str, seqs: set[int], started: float) -> set[str]:
        """Markers that a prompt must show which began at `started` and holds these messages of its
        thread."""
        return {
            marker
            for marker, kept in self.standing.get(log, {}).items()
            if kept.since < started
            and (kept.direct or {one for one, _ in kept.covered} == {letter})
            and {seq for one, seq in kept.covered if one == letter} <= seqs
            and not {one for one, _ in kept.covered} & self.revised
        }

    def expected_pins(self, log: Key, started: float) -> set[str]:
        """Texts of pins that a prompt must show which began at `started`."""
        if self.switches or self.pinning.get(log):
            return set()
        return {p.text for p, since in self.pinned_since.get(log, {}).items() if since < started}

    # ── a commit ──

    def note_log(
        self, key: Key, before: ObservationLog, after: ObservationLog, find: FindCovered
    ) -> None:
        """A log was stored. Take note of what a person did to it, and compare it with what the
        person may do."""
        self._note_pins(key, before, after)
        if after.generation == before.generation or after.began is None:
            return
        match after.began.why:
            case "edit" | "forgotten":
                self._note_edit(key, before, after, find)
            case "undo":
                self._note_undo(key, before, after, find)
            case "fork":
                self._note_fork(key, before, after, find)

    def _note_pins(self, key: Key, before: ObservationLog, after: ObservationLog) -> None:
        if before.pins == after.pins:
            return
        ids, ids_before = {p.id for p in after.pins}, {p.id for p in before.pins}
        others = {p for p in before.pins if p.id in ids} - set(after.pins)
        must(
            self.switches
            or (self.pinning.get(key, 0) > 0 and len(ids ^ ids_before) + len(others) == 1),
            "pins are the person's own, and each change is of one",
            before.pins,
            after.pins,
        )
        known = self.pinned_since.get(key, {})
        self.pinned_since[key] = {pin: known.get(pin, self.clock()) for pin in after.pins}
        self.written |= {pin.text for pin in after.pins}
        self._count("pins")

    def _note_edit(
        self, key: Key, before: ObservationLog, after: ObservationLog, find: FindCovered
    ) -> None:
        pairs = [
            (old, new) for old, new in zip(before.entries, after.entries, strict=True) if old != new
        ]
        must(len(pairs) == 1, "an edit changes one entry", pairs)
        [(old, new)] = pairs
        must(
            (old.after, old.last, old.chain) == (new.after, new.last, new.chain)
            and [p[:4] for p in old.parts] == [p[:4] for p in new.parts]
            and new.id > max(entry.id for entry in before.entries),
            "an edited entry keeps its range",
            old,
            new,
        )
        covered = find(new)
        ids = set(covered.values())
        self.before[key, new.id] = Before(old, self.excused() & ids, self.hidden() & ids)
        self._set_words(key, covered, (new,), find)
        if new.is_withdrawn:
            self.hidden_since |= {one: self.hidden_since.get(one, self.clock()) for one in ids}
        else:
            self._show(ids)
        if after.began and after.began.why == "forgotten":
            self.forgotten[key, new.id] = ids
        self._count("withdrawn" if new.is_withdrawn else "edited")

    def _note_undo(
        self, key: Key, before: ObservationLog, after: ObservationLog, find: FindCovered
    ) -> None:
        gone = [entry for entry in before.entries if entry not in after.entries]
        came = [entry for entry in after.entries if entry not in before.entries]
        must(len(gone) == 1 and bool(came), "an undo takes one change back", gone, came)
        newest = max(
            (
                e
                for e in before.entries
                if e.replaces or (e.kind == "reflection" and e.replaces is None)
            ),
            key=lambda e: e.id,
        )
        must(gone[0] == newest, "an undo takes the newest change back", gone, newest)
        covered = find(gone[0])
        ids = set(covered.values())
        if not gone[0].replaces:
            lost = markers_in(gone[0].text) - markers_in(*(entry.text for entry in came))
            must(not lost, "what was edited last stands", lost, "undone with a reflection")
            self._set_words(key, covered, came, find)
            self._count("reflection undone")
            return
        kept = self.before.get((key, gone[0].id))
        if kept:
            must(
                came in ([kept.entry], [blank(kept.entry)]),
                "an undo gives the bytes back",
                came,
                kept.entry,
            )
        self._set_words(key, covered, came, find)
        self._show(ids - (kept.hidden if kept else set()))
        if kept:
            self.hidden_since |= {
                one: self.clock() for one in kept.hidden if one not in self.hidden_since
            }
        self._count("change undone")

    def _note_fork(
        self, key: Key, before: ObservationLog, after: ObservationLog, find: FindCovered
    ) -> None:
        """A client that goes back to a branch gets its entries as people left them."""
        for entry in after.entries:
            if entry not in before.entries and (key, entry.id) in self.before:
                self._excuse(find(entry), ids_in(entry.text))

    def _set_words(
        self, key: Key, covered: Covered, entries: Iterable[Observation], find: FindCovered
    ) -> None:
        """These entries say now what is said of the messages `covered`. A message that was stored
        twice may be told by one entry and missing from another. A note that a branch was taken back
        covers none: it goes with any later branch, and nothing is demanded of it."""
        must(
            bool(covered) or all(entry.kind == "note" for entry in entries),
            "an entry covers messages",
            entries,
        )
        texts = [entry.text for entry in entries]
        places = frozenset(covered)
        for entry in entries:
            self._excuse(find(entry), ids_in(entry.text))
        standing = self.standing.setdefault(key, {})
        for marker in [m for m, kept in standing.items() if kept.covered & places]:
            del standing[marker]
        for marker in markers_in(*texts) if places else ():
            standing[marker] = Standing(places, self.clock(), direct=True)
        self.written |= markers_in(*texts)

    def _excuse(self, covered: Covered, said: set[str]) -> None:
        """Of these messages, the words of those that are not `said` may be missing."""
        for place, one in covered.items():
            places = self.excused_places.setdefault(one, set())
            if one not in said:
                places.add(place)
                self.taken_away.add(one)
                self.excused_until[one] = math.inf
                continue
            places.discard(place)
            if not places and one in self.excused_until:
                self.excused_until[one] = min(self.excused_until[one], self.clock())

    def _show(self, ids: set[str]) -> None:
        for one in ids:
            self.hidden_since.pop(one, None)

    def note_chunks(self, before: Memory, after: Memory, find: FindCovered) -> None:
        """Chunks that a person has written anew."""
        texts = {chunk.id: chunk.text for chunk in before.chunks}
        for chunk in after.chunks:
            if texts.get(chunk.id, chunk.text) == chunk.text:
                continue
            covered = find(chunk)
            self._excuse(covered, ids_in(chunk.text))
            kept = self.chunks.setdefault(after.key, {})
            for marker in [m for m, places in kept.items() if places & covered.keys()]:
                del kept[marker]
            kept |= dict.fromkeys(markers_in(chunk.text), frozenset(covered))
            self.written |= markers_in(chunk.text)
            self._count("chunk edited")

    def settle(self, letter: str, covered: set[str], chunked: set[str]) -> None:
        """A thread was stored whose log covers the messages `covered`, and whose notes, with its
        chunks, say something of `chunked`."""
        for one in [one for one in self.hidden_since if one[0] == letter and one not in covered]:
            del self.hidden_since[one]
        for one, until in self.excused_until.items():
            if one[0] == letter and one not in chunked and until == math.inf:
                self.excused_until[one] = self.clock()

    def check_chunks(
        self,
        before: Memory,
        after: Memory,
        log: Key,
        entries: Iterable[Observation],
        live: set[Place],
    ) -> None:
        """What a person wrote into a chunk stands in it, or in the log."""
        kept = self.chunks.get(after.key, {})
        in_log = markers_in(*(entry.text for entry in entries))
        in_chunks = markers_in(*(chunk.text for chunk in after.chunks))
        for marker, places in list(kept.items()):
            if marker in in_chunks:
                continue
            del kept[marker]
            if marker in in_log:
                self.standing.setdefault(log, {})[marker] = Standing(places, self.clock(), False)
                self._count("edited chunk active")
                continue
            must(
                not places <= live
                or after.coverage < before.coverage
                or self.dropping.get(after.key, 0) > 0
                or before.scope != after.scope
                or bool({letter for letter, _ in places} & self.revised),
                "what was written into a chunk stands",
                marker,
                before,
                after,
            )

    def check_log(
        self,
        key: Key,
        entries: Iterable[Observation],
        live: set[Place],
        uncertain: set[str],
        *,
        moves: bool,
    ) -> None:
        """What was edited last stands, once, and what was withdrawn is not told. `uncertain`: ids of
        which nobody knows how often they are stored. `moves`: a thread came or went."""
        texts = [entry.text for entry in entries]
        found = [marker for text in texts for marker in markers_in(text)]
        standing = self.standing.setdefault(key, {})
        for marker, kept in list(standing.items()):
            letters = {letter for letter, _ in kept.covered}
            if not kept.covered <= live or letters & self.revised:
                del standing[marker]
            elif marker not in found:
                must(moves, "what was edited last stands", marker, kept, texts)
                del standing[marker]
        must(
            len(set(found)) == len(found) or bool(self.revised), "no text of a person twice", found
        )
        told = {
            one
            for one in ids_in(" ".join(texts)) & self.hidden_since.keys() - uncertain
            if one[0] not in self.revised
        }
        must(not told, "what was withdrawn is not told", told, texts)

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
