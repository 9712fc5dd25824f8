"""One log for several threads: what each of them puts in, takes back, and takes along when it
goes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from om_proxy.memory.lifecycle import branch, edits, log_sharing, transitions
from om_proxy.memory.lifecycle.edits import undo_newest_change
from om_proxy.memory.lifecycle.hints import active_hints
from om_proxy.memory.model import EMPTY_MARK, Part, replace_log
from om_proxy.memory.notes import sections
from tests.memory.building import KEY, memory
from tests.memory.sharing import LABELS, NOW, Resource, entry, tokens, words

A, B, C = (LABELS[name] for name in "ABC")


def texts(r: Resource) -> list[set[str]]:
    return [words(o.text) for o in r.log]


def reach(r: Resource, name: str) -> int:
    return r.load_joined(name).coverage


def mixed(keep: int | None = None) -> Resource:
    """A reflection of A 1…4 and B 1…4, and an entry of each behind it."""
    r = Resource("AB", keep)
    for name in "ABAB":
        r.cover(name, 2)
    r.reflect()
    r.swap("A")
    r.cover("A", 2)
    r.cover("B", 2)
    return r


# ── taken up and put down ─────────────────────────────────────────────────────────────────────────


def test_what_is_laid_together_comes_apart_as_it_was() -> None:
    """Attaching and detaching the shared log changes neither it nor the thread."""
    r = mixed()
    for voice in r.voices.values():
        assert log_sharing.detach_log(
            log_sharing.attach_log(voice.memory, r.shared_log, voice.label)
        ) == (
            voice.memory,
            r.shared_log,
        )


def test_a_thread_sees_the_log_of_all() -> None:
    r = mixed()
    assert (
        r.load_joined("A").log.entries == r.load_joined("B").log.entries == r.shared_log.log.entries
    )
    assert r.load_joined("A").log.generation == r.shared_log.log.generation
    assert r.load_joined("A").shared_log_ref.label == A  # type: ignore[union-attr] # it shares the log
    assert r.voices["A"].memory.log.entries == ()


def test_entries_say_what_they_cover_and_get_ids_of_the_shared_log() -> None:
    """Two threads number their chunks alike; in the log each entry has an id of its own."""
    r = Resource("AB")
    r.cover("A", 2)
    r.cover("B", 4)
    assert [(o.id, o.parts[0].label, o.parts[0].after, o.parts[0].last) for o in r.log] == [
        (1, A, 0, 2),
        (2, B, 0, 4),
    ]
    assert r.log[1].parts[0].chain == r.voices["B"].chains[4]
    assert r.shared_log.next_id == 3


def test_hints_are_a_threads_own() -> None:
    """However much newer the others' are; the newest that says something counts, through a
    reflection too."""
    r = Resource("AB")
    for name, task in (("A", "plan the vans"), ("B", "order apples"), ("A", None), ("B", None)):
        r.say(name, 2)
        r.observe(name, 2, task)
        r.activate(name)
    for _ in range(2):
        assert active_hints(r.load_joined("A")).task == "plan the vans"
        assert active_hints(r.load_joined("B")).task == "order apples"
        r.reflect()
        r.swap("B")
    assert len(r.log) == 1


def test_a_reflection_stands_for_all_its_sources_did() -> None:
    """Thread by thread, from the first message to the last; a note behind them takes its thread's
    part back."""
    r = mixed()
    (reflection, *_) = r.log
    assert [(p.label, p.after, p.last) for p in reflection.parts] == [(A, 0, 4), (B, 0, 4)]
    note = replace(entry("A", 2, 2, kind="note"), parts=(Part(A, 2, 2, b"two"),))
    assert log_sharing.merge_parts([reflection, note])[0]._replace(at=0.0) == Part(A, 0, 2, b"two")
    assert log_sharing.find_thread_coverage([reflection, note], A) == 2


@pytest.mark.parametrize(("label", "covered"), [(A, 6), (B, 6), (C, 0)])
def test_the_reach_of_a_log(label: str, covered: int) -> None:
    assert log_sharing.find_thread_coverage(mixed().log, label) == covered


# ── following a branch ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("cut", "covered", "generation"),
    [
        pytest.param(6, 6, 1, id="behind the log: nothing changes"),
        pytest.param(5, 4, 2, id="inside the newest entry: that one goes"),
        pytest.param(4, 4, 2, id="right behind the reflection: it stands"),
        pytest.param(3, 2, 2, id="inside the reflection: undone, its first entry stands"),
        pytest.param(1, 0, 2, id="inside its first entry: nothing of A stands"),
        pytest.param(0, 0, 2, id="before everything"),
    ],
)
def test_a_fork_takes_back_its_own_and_nothing_else(
    cut: int, covered: int, generation: int
) -> None:
    r = mixed()
    others = r.others("A")
    r.fork("A", cut)
    r.check()
    assert (reach(r, "A"), r.shared_log.log.generation) == (covered, generation)
    assert r.others("A") == others


@pytest.mark.parametrize(("cut", "covered"), [(3, 3), (1, 1), (0, 0)])
def test_where_the_sources_are_gone_the_reflection_stays_and_a_note_says_so(
    cut: int, covered: int
) -> None:
    """The messages up to the fork stay covered, what comes after it is covered anew, and the others
    notice nothing."""
    r = mixed(keep=0)
    others = r.others("A")
    r.fork("A", cut)
    r.check()
    assert reach(r, "A") == covered
    assert [o.kind for o in r.log] == ["reflection", "observation", "note"]
    assert r.others("A") == others
    r.say("A", 4)
    r.observe("A", 2)
    r.activate("A")
    r.check()
    assert reach(r, "A") > covered


@pytest.mark.parametrize(
    ("cut", "parts"),
    [
        pytest.param(3, [(A, 0, 2), (A, 2, 3), (A, 3, 3)], id="inside: it ends at the fork"),
        pytest.param(2, [(A, 0, 2), (A, 0, 0), (A, 2, 2)], id="before it: it covers nothing of A"),
        pytest.param(1, [(A, 0, 0), (A, 0, 0)], id="inside the entry before: that one goes"),
        pytest.param(0, [(A, 0, 0), (A, 0, 0)], id="before everything"),
    ],
)
def test_a_reflection_that_has_to_stay_leaves_no_gap(
    cut: int, parts: list[tuple[str, int, int]]
) -> None:
    """Of a reflection in the middle the sources are gone: whatever goes before it, no message
    falls between what is covered and what is raw."""
    r = Resource("AB", keep=0)
    for name in "ABA":
        r.cover(name, 2)
    r.reflect(2, start=1)
    r.swap("A")
    others = r.others("A")
    r.fork("A", cut)
    r.check()
    assert [p[:3] for o in r.log for p in o.parts if p.label == A] == parts
    assert r.others("A") == others
    r.cover("A", 2)
    r.check()
    r.reflect()
    r.swap("B")
    r.check()
    r.leave("A")
    r.check()


def test_an_uncovered_reflection_hides_no_earlier_coverage() -> None:
    """It stands between what is covered and the note: condensed with either, or behind a forgotten
    thread, coverage is the same."""
    for start, number in ((0, 2), (1, 2), (0, 3)):
        r = Resource("ABC", keep=0)
        for name in "ACBA":
            r.cover(name, 2)
        r.reflect(2, start=2)
        r.swap("A")
        r.fork("A", 2)
        r.forget("C")
        r.check()
        assert reach(r, "A") == 2
        r.reflect(number, start=start)
        r.swap("A")
        r.check()
        assert reach(r, "A") == 2


def test_a_fork_through_an_edited_reflection_drops_the_edit() -> None:
    """Its sources come back as they were; where they are gone the edit stays, before a note."""
    for keep, kinds in ((None, ["observation"] * 3), (1, ["reflection", "note"])):
        r = Resource("AB", keep)
        for name in "ABBA":
            r.cover(name, 2)
        r.reflect()
        r.swap("A")
        edited = edits.edit_entry(r.shared_log, r.log[0].id, "* corrected", 1, NOW)
        assert edited is not None
        r.store_log(replace(edited, render_date=None))
        r.fork("A", 3)
        assert [o.kind for o in r.log] == kinds
        assert ("* corrected" in [o.text for o in r.log]) == (keep is not None)


def test_going_back_behind_the_note_of_an_uncovered_reflection() -> None:
    """The note goes, and another says where coverage ends now."""
    r = Resource("AB", keep=0)
    for name in "AABA":
        r.cover(name, 2)
    r.reflect(2, start=2)
    r.swap("A")
    for cut in (4, 3):
        r.fork("A", cut)
        r.check()
    assert [(o.kind, o.parts[0].last) for o in r.log] == [
        ("observation", 2),
        ("reflection", 0),
        ("note", 2),
    ]


def test_undoing_an_edit_does_not_bring_back_what_a_reflection_covered() -> None:
    r = Resource("AB", keep=0)
    for name in "ABA":
        r.cover(name, 2)
    r.reflect(2, start=1)
    r.swap("A")
    r.keep = 1
    edited = edits.edit_entry(r.shared_log, r.log[1].id, "* corrected", 1, NOW)
    assert edited is not None
    r.store_log(replace(edited, render_date=None))
    r.keep = None
    r.fork("A", 1)
    assert undo_newest_change(r.shared_log, r.past, NOW) is None


def test_a_note_that_another_thread_shares_goes_with_what_it_took_back() -> None:
    """A thread brings a reflection and the note that takes some of it back. The note is condensed
    with another thread's notes: who leaves takes along nothing of the abandoned branch."""
    r = Resource("AB", keep=0)
    r.leave("A")
    own = (
        replace(entry("A", 0, 2), id=1),
        replace(entry("A", 2, 6, kind="reflection"), id=2),
        replace(entry("A", 4, 4, kind="note"), id=3),
    )
    thread = replace(
        replace_log(r.voices["A"].memory, entries=own, generation=2, next_generation=3),
        coverage=4,
        next_id=4,
    )
    joined = log_sharing.join_shared_log(thread, r.shared_log, A, NOW)
    note = joined.log.entries[2]
    mixture = replace(
        note, kind="reflection", parts=(*note.parts, Part(B, 0, 2, b"two")), sources=(7, 8)
    )
    mixed_log = replace_log(joined, entries=(*joined.log.entries[:2], mixture))
    left, _ = log_sharing.leave_shared_log(mixed_log, (), NOW)
    assert [(o.after, o.last) for o in left] == [(0, 2)]


def test_a_note_that_was_reflected_forgives_only_what_it_stood_behind() -> None:
    """Undone to a reflection that cannot be undone further, its note and what came later: what came
    later is raw again."""
    r = mixed(keep=0)
    r.fork("A", 3)
    r.keep = None
    r.cover("A", 4)
    r.reflect()
    r.swap("B")
    r.fork("A", r.voices["A"].live[-3])
    r.check()
    assert [o.kind for o in r.log] == ["reflection", "observation", "note"]
    assert [m.seq for m in r.load_joined("A").tail] == r.voices["A"].live[-2:]


def test_going_back_twice_is_noted_twice() -> None:
    r = mixed(keep=0)
    r.fork("A", 3)
    r.say("A", 2)
    r.fork("A", 2)
    r.check()
    assert reach(r, "A") == 2
    assert [o.parts[0].last for o in r.log if o.kind == "note"] == [2]


def test_a_reflection_in_the_making_goes_with_a_fork_that_reaches_it() -> None:
    """The reflection stays where the fork reaches only later messages."""
    r = mixed()
    r.reflect(2)
    r.fork("B", 4)
    assert r.shared_log.log.reflection is not None
    assert transitions.is_made_from(r.load_joined("A").log, r.shared_log.log.reflection)
    r.fork("A", 4)
    assert r.shared_log.log.reflection is None


def test_a_reflection_made_before_the_fork_is_not_taken_after_it() -> None:
    r = mixed()
    made = r.reflection(r.log)
    r.fork("A", 3)
    assert transitions.keep_reflection(r.shared_log, made) == r.shared_log


def test_revised_at_the_very_beginning() -> None:
    """A reflection over several threads stays, although nothing of this one stands: the note covers
    nothing of it."""
    r = mixed(keep=0)
    m = r.load_joined("A")
    log, note_seq = branch.find_rollback_target(m, 0, (), r.voices["A"].chains)
    assert note_seq == 0
    note = branch.add_rollback_note(m, log, EMPTY_MARK, datetime.fromtimestamp(NOW, UTC), tokens)[
        -1
    ]
    assert [(p.label, p.after, p.last) for p in note.parts] == [(A, 0, 0)]


# ── coming and going ──────────────────────────────────────────────────────────────────────────────


def test_a_log_of_ones_own_goes_along() -> None:
    """Its entries stand at the end of the shared log, under the thread's name, a reflection's text
    too."""
    r = Resource("AB")
    r.cover("B", 2)
    own = (
        replace(entry("A", 0, 4, "* 🔴 A1 </thread> A2", kind="reflection"), id=3),
        replace(entry("A", 4, 6), id=4),
    )
    thread = replace(
        replace_log(memory(()), entries=own, generation=2, next_generation=3), key=KEY, coverage=6
    )
    joined = log_sharing.join_shared_log(thread, r.shared_log, A, NOW)
    assert [o.id for o in joined.log.entries] == [1, 2, 3]
    assert [(p.label, p.after, p.last) for o in joined.log.entries[1:] for p in o.parts] == [
        (A, 0, 4),
        (A, 4, 6),
    ]
    assert [s.label for s in sections.split_entry(joined.log.entries[1])] == [A]
    back, shared_log = log_sharing.leave_shared_log(joined, (), NOW)
    assert [(o.text, o.after, o.last, o.chain, o.kind) for o in back] == [
        (o.text, o.after, o.last, o.chain, o.kind) for o in own
    ]
    assert shared_log.log.entries == r.shared_log.log.entries


def test_what_stands_only_in_a_mixture_is_raw_again() -> None:
    """A thread that leaves takes along what can be told apart; buffered notes behind what was
    uncovered go."""
    r = mixed(keep=0)
    r.say("A", 4)
    r.observe("A", 2)
    r.leave("A")
    r.check()
    left = r.voices["A"].memory
    assert (left.log.entries, left.coverage, left.chunks, len(left.tail)) == ((), 0, (), 10)
    assert [[(p.label, p.last) for p in o.parts] for o in r.log] == [[(A, 0), (B, 4)], [(B, 6)]]


def test_a_thread_that_comes_back_covers_nothing_twice() -> None:
    """The parts that a reflection over several threads kept of it cover nothing any more."""
    r = mixed(keep=0)
    r.leave("A")
    r.join("A")
    r.check()
    assert reach(r, "A") == log_sharing.find_thread_coverage(r.log, A) == 0
    r.observe("A", 2)
    r.activate("A")
    r.check()


def test_a_thread_leaves_with_what_a_reflection_was_made_from() -> None:
    r = mixed()
    r.leave("A")
    r.check()
    assert [words(o.text) for o in r.voices["A"].memory.log.entries] == [
        {"A1", "A2"},
        {"A5", "A6"},
        {"A9", "A10"},
    ]
    assert r.voices["A"].memory.coverage == 6
    assert all(p.label == B for o in r.log for p in o.parts)


def test_a_reflection_that_came_along_is_not_taken_back_by_range() -> None:
    """Its sources stayed where it came from; what other threads' entries cover under the same
    numbers is not what it was made from."""
    r = Resource("AB")
    r.cover("B", 4)
    own = replace(entry("A", 0, 4, kind="reflection"), id=3)
    thread = replace(
        replace_log(r.voices["A"].memory, entries=(own,), generation=2, next_generation=3),
        scope="thread",
        coverage=4,
    )
    joined = log_sharing.join_shared_log(thread, r.shared_log, A, NOW)
    _, shared_log = log_sharing.detach_log(joined)
    assert undo_newest_change(shared_log, [(0, r.log)], NOW) is None


# ── any course of things ──────────────────────────────────────────────────────────────────────────

names = st.sampled_from("ABC")
numbers = st.integers(1, 4)
starts = st.integers(0, 9)


class Sharing(RuleBasedStateMachine):
    """Three threads that say, observe, activate, reflect, fork, leave, join and are forgotten, in
    any order."""

    def __init__(self) -> None:
        super().__init__()
        self.r = Resource("ABC")

    @initialize(keep=st.sampled_from([None, 1, 0]), reflected=st.booleans())
    def begin(self, keep: int | None, reflected: bool) -> None:
        """Something is known of all, in a reflection over all or entry by entry, and something is
        buffered behind it."""
        self.r.keep = keep
        for name in "ABCABC":
            self.r.cover(name, 2)
        if reflected:
            self.r.reflect()
            self.r.swap("A")
        for name in "ABC":
            self.r.cover(name, 3)
            self.r.say(name, 4)
            self.r.observe(name, 2)

    @rule(keep=st.sampled_from([None, 3, 1, 0]))
    def retain(self, keep: int | None) -> None:
        self.r.keep = keep

    @rule(name=names, number=numbers)
    def say(self, name: str, number: int) -> None:
        self.r.say(name, number)

    @rule(name=names, number=numbers)
    def cover(self, name: str, number: int) -> None:
        if self.r.shares(name):
            self.r.cover(name, number)

    @rule(name=names, number=numbers)
    def observe(self, name: str, number: int) -> None:
        if self.r.shares(name):
            self.r.observe(name, number)

    @rule(name=names, number=numbers)
    def activate(self, name: str, number: int) -> None:
        if self.r.shares(name):
            self.r.activate(name, number)

    @precondition(lambda self: self.r.log)
    @rule(number=st.integers(1, 9), start=starts)
    def reflect(self, number: int, start: int) -> None:
        self.r.reflect(number, start % len(self.r.log))

    @precondition(lambda self: self.r.shared_log.log.reflection)
    @rule(name=names)
    def swap(self, name: str) -> None:
        if self.r.shares(name):
            self.r.swap(name)

    @precondition(lambda self: self.r.log)
    @rule(name=names, number=st.integers(1, 9), start=starts)
    def reflect_at_once(self, name: str, number: int, start: int) -> None:
        if self.r.shares(name):
            self.r.reflect(number, start % len(self.r.log))
            self.r.swap(name)

    @rule(name=names, back=st.integers(1, 12), then=st.integers(0, 3))
    def fork(self, name: str, back: int, then: int) -> None:
        """Nothing of the other threads is lost by it."""
        live = self.r.voices[name].live
        if not live or not self.r.shares(name):
            return
        others, log = self.r.others(name), self.r.log
        self.r.fork(name, live[-back - 1] if back < len(live) else 0)
        self.r.say(name, then)
        if not any(o.kind == "reflection" for o in log):
            assert self.r.others(name) == others
        assert {n: covered for n, (covered, _) in self.r.others(name).items()} == {
            n: covered for n, (covered, _) in others.items()
        }

    @rule(name=names)
    def leave_or_join(self, name: str) -> None:
        if self.r.shares(name):
            self.r.leave(name)
        else:
            self.r.join(name)

    @rule(name=names)
    def forget(self, name: str) -> None:
        label = self.r.voices[name].label
        self.r.forget(name)
        kept = [*self.r.log, *(o for _, log in self.r.past for o in log)]
        assert not any(p.label == label for o in kept for p in o.parts)
        assert not {word for o in kept for word in words(o.text) if word[0] == name}

    @invariant()
    def holds(self) -> None:
        self.r.check()


TestSharing = Sharing.TestCase
TestSharing.settings = settings(
    max_examples=100,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)


@pytest.mark.parametrize(
    ("shown", "added", "keeps"),
    [
        pytest.param((0, 2), (), True, id="it shows all of it"),
        pytest.param((0, 2), ("B",), True, id="another thread's notes came"),
        pytest.param((0, 2), ("B", "C", "B"), True, id="many"),
        pytest.param((0, 2), ("A",), False, id="its own notes came"),
        pytest.param((0, 2), ("B", "A", "C"), False, id="among others"),
        pytest.param((1, 2), ("B",), False, id="the log began anew"),
        pytest.param((0, 9), ("B",), False, id="notes it shows are gone"),
        pytest.param(log_sharing.NEVER_SHOWN, (), False, id="it has shown nothing of it yet"),
    ],
)
def test_a_warm_thread_keeps_what_it_shows(
    shown: tuple[int, int], added: tuple[str, ...], keeps: bool
) -> None:
    """A warm thread keeps its view until its prefix changes anyway: by its own notes, or by a log
    that differs from the beginning on."""
    log = tuple(entry("B", n, n + 1, parts=(Part(LABELS["B"], n, n + 1, b"c"),)) for n in range(2))
    log += tuple(entry(name, 5, 6, parts=(Part(LABELS[name], 5, 6, b"c"),)) for name in added)
    laid = log_sharing.attach_log(
        replace(memory(()), shown_log_state=shown),
        replace_log(memory(()), entries=log),
        LABELS["A"],
    )
    assert log_sharing.can_keep_shown_log(laid) == keeps
    assert log_sharing.limit_log_to_shown(laid).log.entries == (log[:2] if keeps else log)
