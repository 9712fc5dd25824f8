"""People's edits, withdrawals, drops, pins and undos between turns, forks, observations and
reflections, in any order: what is covered, what is said, and what was edited last stands."""

from __future__ import annotations

import re
from itertools import count

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from om_proxy.memory.lifecycle import branch, edits, pins, transitions, withdrawal
from om_proxy.memory.lifecycle.edits import undo_newest_change
from om_proxy.memory.model import (
    EMPTY_CHAIN,
    Generation,
    Memory,
    Message,
    Observation,
    Reflection,
    extend_chain,
    index_entries,
    sum_framed_tokens,
)
from tests.memory.building import KEY, item
from tests.memory.sharing import NOW, Resource, words

_MARKER = re.compile(r"\bm\d+\b")
indexes = st.integers(0, 20)


def markers(entries: tuple[Observation, ...]) -> list[str]:
    """What people wrote, wherever it stands."""
    return [marker for entry in entries for marker in _MARKER.findall(entry.text)]


class EditedThread(RuleBasedStateMachine):
    """One thread with a log of its own. Every message is a word of its own, notes name the words of
    what they cover, and people write markers."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory(key=KEY)
        self.rows: list[Message] = []  # live
        self.past: list[Generation] = []  # newest first
        self.numbers = count(1)
        self.excused: set[int] = set()  # seqs of which a person took the words
        self.hidden: set[int] = set()  # seqs that are covered by withdrawn entries
        self.standing: dict[str, set[int]] = {}  # seqs that the entry with this marker covers
        # by the id of a changed entry: the entry before, and what was excused and hidden then
        self.before: dict[int, tuple[Observation, set[int], set[int]]] = {}
        self.pinned: list[str] = []

    @initialize()
    def begin(self) -> None:
        for _ in range(3):
            self.say(4)
            self.observe(4)
            self.activate(1)
        self.say(6)
        self.observe(2)

    def limit_log(self, after: Memory) -> Memory:
        """Return `after`, with new entries or a reflection, as a limited log keeps it."""
        return after

    def find_birth_id(self, entry: Observation) -> int:
        """Return the id that the entry had before the limit took lines of it."""
        return entry.id

    def commit(self, after: Memory) -> None:
        if after.log.generation != self.memory.log.generation and self.memory.log.entries:
            self.past.insert(0, Generation(self.memory.log.generation, self.memory.log.entries))
        self.memory = after

    def seqs_of(self, entry: Observation) -> set[int]:
        return {m.seq for m in self.rows if entry.after < m.seq <= entry.last}

    # ── what clients and models do ──

    @rule(number=st.integers(1, 4))
    def say(self, number: int) -> None:
        for _ in range(number):
            memory, name = self.memory, f"A{next(self.numbers)}"
            one = item(("user", "assistant")[len(self.rows) % 2], name)
            chain = self.rows[-1].chain if self.rows else EMPTY_CHAIN
            said = Message(memory.next_seq, one, extend_chain(chain, one.fp), 6, NOW)
            self.rows.append(said)
            self.memory = replace(memory, tail=(*memory.tail, said), next_seq=said.seq + 1)

    @rule(number=st.integers(1, 4))
    def observe(self, number: int) -> None:
        messages = [m for m in self.memory.tail if m.seq > self.memory.chunked_to][:number]
        if messages:
            self.commit(transitions.add_chunk(self.memory, self.write_chunk(messages)))

    def write_chunk(self, messages: list[Message]) -> Observation:
        return Resource.chunk(self.memory, messages)

    @rule(number=st.integers(1, 3))
    def activate(self, number: int) -> None:
        ids = [chunk.id for chunk in self.memory.chunks[:number]]
        self.commit(self.limit_log(transitions.activate_chunks(self.memory, ids, NOW)))

    @precondition(lambda self: self.memory.log.entries)
    @rule(start=indexes, number=st.integers(1, 4), swaps=st.booleans(), late=st.booleans())
    def reflect(self, start: int, number: int, swaps: bool, late: bool) -> None:
        """A reflection of some entries, which says all they say; or one that ends after a person
        has changed another entry."""
        entries = self.memory.log.entries
        start %= len(entries)
        sources = entries[start : start + number]
        made = Reflection(
            generation=self.memory.log.generation,
            sources=tuple(entry.id for entry in sources),
            text="\n".join(entry.text for entry in sources if entry.text) or "* nothing",
            tokens=1,
            source_tokens=9,
            at=NOW,
        )
        others = [entry for entry in entries if entry not in sources]
        if late and others:
            self._edit(others[0])
        self.commit(transitions.keep_reflection(self.memory, made))
        assert self.memory.log.reflection == made
        if swaps:
            self.swap()

    @precondition(lambda self: self.memory.log.reflection)
    @rule()
    def swap(self) -> None:
        self.commit(self.limit_log(transitions.swap_reflection(self.memory, NOW)))

    @rule(back=st.integers(1, 9))
    def fork(self, back: int) -> None:
        live = [m.seq for m in self.rows]
        cut = live[-back - 1] if back < len(live) else 0
        if cut < self.memory.coverage:
            self._roll_back(cut)
        kept_chunks = tuple(chunk for chunk in self.memory.chunks if chunk.last <= cut)
        tail = tuple(m for m in self.memory.tail if m.seq <= cut)
        self.commit(replace(self.memory, tail=tail, chunks=kept_chunks))
        self.rows = [m for m in self.rows if m.seq <= cut]
        self.standing = {marker: seqs for marker, seqs in self.standing.items() if max(seqs) <= cut}

    def _roll_back(self, cut: int) -> None:
        chains = {m.seq: m.chain for m in self.rows}
        entries, note_seq = branch.find_rollback_target(self.memory, cut, self.past, chains)
        assert note_seq is None  # every generation is kept
        reach = branch.find_coverage(self.memory, entries)
        covered = [m for m in self.rows if m.seq <= reach]
        tail = [m for m in self.rows if m.seq > reach]
        counts = (len(covered), sum_framed_tokens(covered))
        marks = [m.mark for m in covered]
        self.commit(branch.roll_back(self.memory, cut, entries, marks, tail, counts, NOW))

    # ── what people do ──

    @precondition(lambda self: self.memory.log.entries)
    @rule(index=indexes)
    def edit(self, index: int) -> None:
        self._edit(self.memory.log.entries[index % len(self.memory.log.entries)])

    def _edit(self, entry: Observation) -> None:
        marker = f"m{next(self.numbers)}"
        after = edits.edit_entry(self.memory, entry.id, f"* 🔴 {marker}", 1, NOW)
        assert after is not None
        self._change(entry, after)
        self.standing[marker] = self.seqs_of(entry)
        # new words end a withdrawal: where a fork tears them, the notes before may come back
        self.hidden -= self.seqs_of(entry)

    @precondition(lambda self: self.memory.log.entries)
    @rule(index=indexes, forget=st.booleans())
    def withdraw(self, index: int, forget: bool) -> None:
        entry = self.memory.log.entries[index % len(self.memory.log.entries)]
        after = edits.withdraw_entry(self.memory, entry.id, NOW, forget=forget)
        assert after is not None
        self._change(entry, after)
        self.hidden |= self.seqs_of(entry)
        if forget:
            self._erase(entry)

    def _erase(self, entry: Observation) -> None:
        """Erase older texts as the store does."""
        older = index_entries(self.past).values()
        blanks = index_entries(
            [Generation(0, withdrawal.list_traces(entry, self.memory.log.entries, older))]
        )
        self.past = [
            Generation(number, tuple(blanks.get(kept.id, kept) for kept in log))
            for number, log in self.past
        ]
        seqs = self.seqs_of(entry)
        gone = {word for m in self.rows if m.seq in seqs for word in words(m.item.raw.decode())}
        assert not gone & words(" ".join(o.text for _, log in self.past for o in log))

    def _change(self, entry: Observation, after: Memory) -> None:
        """Commit the change of an entry, and note what it took."""
        seqs = self.seqs_of(entry)
        if after is not self.memory:
            self.before[after.next_id - 1] = (entry, self.excused & seqs, self.hidden & seqs)
        self.standing = {m: at for m, at in self.standing.items() if not at & seqs}
        self.excused |= seqs
        self.commit(after)

    @rule()
    def undo(self) -> None:
        """The newest change gives way to what stood before, to the byte."""
        entries = self.memory.log.entries
        changed = [
            entry
            for entry in entries
            if entry.replaces or (entry.kind == "reflection" and entry.replaces is None)
        ]
        changed = [entry for entry in changed if self.find_birth_id(entry)]
        after = undo_newest_change(self.memory, self.past, NOW)
        if after is None:
            assert not changed
            return
        newest = max(changed, key=self.find_birth_id)
        assert newest not in after.log.entries
        self.commit(after)
        if not newest.replaces:
            return
        seqs = self.seqs_of(newest)
        old, excused, hidden = self.before.get(newest.id, (None, seqs, set()))
        if old is not None:
            # unless its words were erased since, with those of an entry around it
            assert old in after.log.entries or withdrawal.blank(old) in after.log.entries
            seqs_shown = seqs if old in after.log.entries else set[int]()
            self.standing = {m: at for m, at in self.standing.items() if not at & seqs}
            self.standing |= dict.fromkeys(markers((old,)) if seqs_shown else (), seqs)
            excused |= seqs - seqs_shown
        self.excused = (self.excused - seqs) | excused
        self.hidden = (self.hidden - seqs) | hidden

    @precondition(lambda self: self.memory.chunks)
    @rule(index=indexes, drops=st.booleans())
    def change_chunk(self, index: int, drops: bool) -> None:
        chunk = self.memory.chunks[index % len(self.memory.chunks)]
        if drops:
            after = edits.drop_chunk(self.memory, chunk.id)
        else:
            marker = f"m{next(self.numbers)}"
            after = edits.edit_chunk(self.memory, chunk.id, f"* 🔴 {marker}", 1)
            self.excused |= self.seqs_of(chunk)
        assert after is not None
        self.commit(after)

    @rule(index=indexes)
    def pin(self, index: int) -> None:
        if self.pinned and index % 2:
            pin = self.memory.log.pins[index % len(self.pinned)]
            self.pinned.remove(pin.text)
            after = pins.remove_pin(self.memory, pin.id, NOW)
            assert after is not None
        else:
            self.pinned.append(f"pin {next(self.numbers)}")
            after = pins.add_pin(self.memory, self.pinned[-1], 1, NOW, "own")
        self.commit(after)

    # ── what must hold ──

    @invariant()
    def coverage_has_no_gap(self) -> None:
        memory, end, chain = self.memory, 0, EMPTY_CHAIN
        for entry in (*memory.log.entries, *memory.chunks):
            assert entry.after == end
            end, chain = entry.last, entry.chain
        assert {m.seq: m.chain for m in self.rows}.get(end, EMPTY_CHAIN) == chain
        coverage = branch.find_coverage(memory, memory.log.entries)
        assert memory.coverage == coverage
        assert list(memory.tail) == [m for m in self.rows if m.seq > coverage]
        covered = [m for m in self.rows if m.seq <= coverage]
        assert (memory.covered_count, memory.covered_tokens) == (
            len(covered),
            sum_framed_tokens(covered),
        )
        ids = [entry.id for entry in (*memory.log.entries, *memory.chunks)]
        assert len(set(ids)) == len(ids)
        assert all(id_ < memory.next_id for id_ in ids)

    @invariant()
    def nothing_is_lost(self) -> None:
        """Every covered message is noted, unless a person took its words; nothing else is."""
        covered = {
            m.seq: words(m.item.raw.decode()) for m in self.rows if m.seq <= self.memory.coverage
        }
        self.excused &= {m.seq for m in self.rows if m.seq <= self.memory.chunked_to}
        self.hidden &= covered.keys()
        noted = words(" ".join(entry.text for entry in self.memory.log.entries))
        for seq, own in covered.items():
            assert seq in self.excused or own <= noted
            assert seq not in self.hidden or not own & noted
        assert noted <= set().union(*covered.values())

    @invariant()
    def what_was_edited_last_stands(self) -> None:
        written = markers(self.memory.log.entries)
        assert len(set(written)) == len(written)
        assert self.standing.keys() <= set(written)

    @invariant()
    def pins_are_the_persons_own(self) -> None:
        assert [pin.text for pin in self.memory.log.pins] == self.pinned


class EditedResource(RuleBasedStateMachine):
    """Three threads that share a log, in which people change entries."""

    names = st.sampled_from("ABC")

    def __init__(self) -> None:
        super().__init__()
        self.r = Resource("ABC")
        self.numbers = count(1)
        self.hidden: set[str] = set()  # words of messages that withdrawn entries cover

    @initialize(keep=st.sampled_from([None, 3, 1, 0]))
    def begin(self, keep: int | None) -> None:
        self.r.keep = keep
        for name in "ABCABC":
            self.r.cover(name, 2)
        for name in "ABC":
            self.r.say(name, 4)
            self.r.observe(name, 2)

    @rule(name=names, number=st.integers(1, 3))
    def cover(self, name: str, number: int) -> None:
        if self.r.shares(name):
            self.r.cover(name, number)

    @precondition(lambda self: self.r.log)
    @rule(name=names, start=indexes, number=st.integers(1, 6))
    def reflect(self, name: str, start: int, number: int) -> None:
        start %= len(self.r.log)
        has_words = any(entry.text for entry in self.r.log[start : start + number])
        if self.r.shares(name) and has_words:
            self.r.reflect(number, start)
            self.r.swap(name)

    @rule(name=names, back=st.integers(1, 8))
    def fork(self, name: str, back: int) -> None:
        live = self.r.voices[name].live
        if live and self.r.shares(name):
            self.r.fork(name, live[-back - 1] if back < len(live) else 0)

    @rule(name=names)
    def leave_or_join(self, name: str) -> None:
        self.r.leave(name) if self.r.shares(name) else self.r.join(name)

    @rule(name=names)
    def forget(self, name: str) -> None:
        self.r.forget(name)

    @precondition(lambda self: self.r.log)
    @rule(index=indexes, withdraws=st.booleans())
    def change(self, index: int, withdraws: bool) -> None:
        entry = self.r.log[index % len(self.r.log)]
        taken = self._covered_words((entry,))
        if self.r.goes_back(entry):  # the text that says so goes
            for voice in self.r.voices.values():
                voice.blurred |= any(part.label == voice.label for part in entry.parts)
        if withdraws:
            after = edits.withdraw_entry(self.r.shared_log, entry.id, NOW)
            self.hidden |= taken
        else:
            text = f"* m{next(self.numbers)}"
            after = edits.edit_entry(self.r.shared_log, entry.id, text, 1, NOW)
            self.hidden -= taken
        assert after is not None
        self.r.edited_words |= taken
        self.store(after)
        if not withdraws:
            assert text in [kept.text for kept in self.r.log]

    def store(self, after: Memory) -> None:
        # the render date of a shared log says nothing: each thread has its own
        self.r.store_log(replace(after, render_date=None))

    @rule()
    def undo(self) -> None:
        before = self.r.log
        after = undo_newest_change(self.r.shared_log, self.r.past, NOW)
        if after is not None:
            self.store(after)
            gone = tuple(entry for entry in before if entry not in self.r.log)
            self.hidden -= self._covered_words(gone)

    def _covered_words(self, entries: tuple[Observation, ...]) -> set[str]:
        return {
            word
            for voice in self.r.voices.values()
            for entry in entries
            for part in entry.parts
            if part.label == voice.label
            for m in voice.said(part.after, part.last)
            for word in words(m.item.raw.decode())
        }

    @invariant()
    def holds(self) -> None:
        self.r.check()

    @invariant()
    def hidden_words_stay_hidden(self) -> None:
        """In the shared log, and in the log of a thread that has left."""
        noted: set[str] = set()
        covered: set[str] = set()
        for name, voice in self.r.voices.items():
            memory = self.r.load_joined(name) if self.r.shares(name) else voice.memory
            noted |= words(" ".join(entry.text for entry in memory.log.entries))
            covered |= words(" ".join(m.item.raw.decode() for m in voice.said(0, memory.coverage)))
        self.hidden &= covered
        assert not self.hidden & noted


SETTINGS = settings(
    max_examples=50,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)
TestEditedThread = EditedThread.TestCase
TestEditedThread.settings = SETTINGS
TestEditedResource = EditedResource.TestCase
TestEditedResource.settings = SETTINGS


def test_a_note_of_what_was_taken_back_outlives_the_point_it_names() -> None:
    """A reflection that could not follow its branch says more than holds, also after a fork to a
    point before its rollback note."""
    state = EditedResource()
    state.begin(keep=1)
    state.reflect(name="A", number=2, start=2)
    state.change(index=0, withdraws=False)
    for back in (2, 4, 1):
        state.fork(name="A", back=back)
        state.holds()
    notes = [entry for entry in state.r.log if entry.kind == "note"]
    assert [part.last for note in notes for part in note.parts] == [0]


def test_a_forgotten_note_takes_no_other_note_along() -> None:
    """A reflection that was undone told of it too and is erased. A fork brings back the sources of
    that reflection, which never told of it."""
    state = EditedThread()
    state.begin()
    state.activate(number=1)
    state.reflect(start=0, number=3, swaps=True, late=False)
    state.reflect(start=0, number=2, swaps=True, late=False)
    state.undo()
    state.withdraw(index=1, forget=True)
    state.fork(back=7)
    state.nothing_is_lost()
    assert [bool(entry.text) for entry in state.memory.log.entries] == [True, True]
