"""A log within `retention.max_observations`: which lines go, what never goes, and what is due when
that is not enough."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, run_state_machine_as_test
from msgspec.structs import replace

from om_proxy.memory.lifecycle import condensing, decisions, edits, log_limit, transitions
from om_proxy.memory.lifecycle.decisions import Reflect, RequestState, Swap
from om_proxy.memory.lifecycle.edits import undo_newest_change
from om_proxy.memory.lifecycle.log_limit import (
    LogLimit,
    count_excess,
    keep_important_lines,
    shorten_log,
)
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.memory.model import Generation, Memory, Message, Observation, Reflection, replace_log
from om_proxy.memory.notes.sections import split_entry
from tests.memory.building import KEY
from tests.memory.lifecycle.test_edits_interleaved import EditedResource, EditedThread
from tests.memory.sharing import NOW, Resource, tokens, words

RED, YELLOW, GREEN, DONE = "* 🔴 red", "* 🟡 yellow", "* 🟢 green", "* ✅ done"
MINOR = f"{GREEN}\n  * below\n{YELLOW}"


def note(number: int, text: str, **more: object) -> Observation:
    made = Observation(
        id=number,
        after=number - 1,
        last=number,
        chain=bytes([number]) * 16,
        text=text,
        tokens=tokens(text),
        source_tokens=100,
        at=float(number),
        task=f"task {number}",
    )
    return replace(made, **more)


def build_log(*texts: str) -> Memory:
    entries = tuple(note(number, text) for number, text in enumerate(texts, 1))
    memory = Memory(key=KEY, next_id=len(texts) + 1, coverage=len(texts))
    return replace_log(memory, entries=entries)


def activate_into(memory: Memory, most: int, text: str = RED) -> Memory:
    """Return the log with one more entry, within the limit."""
    made = note(memory.next_id, text, after=memory.coverage, last=memory.coverage + 1)
    after = replace(memory, next_id=memory.next_id + 1, coverage=memory.coverage + 1)
    after = replace_log(after, entries=(*memory.log.entries, made))
    return shorten_log(memory, after, LogLimit(most, tokens), NOW)


def list_texts(memory: Memory) -> list[str]:
    return [entry.text for entry in memory.log.entries]


@pytest.mark.parametrize(
    ("texts", "most", "left"),
    [
        ([MINOR, MINOR], 3, [MINOR, MINOR]),
        ([MINOR, MINOR], 2, ["", MINOR]),
        ([MINOR, MINOR, MINOR], 1, ["", "", ""]),
        ([f"{RED}\n{GREEN}", MINOR, MINOR], 2, [RED, "", MINOR]),
        ([f"{RED}\n{GREEN}", f"{DONE}\n{YELLOW}", MINOR], 2, [RED, DONE, MINOR]),
        # a tenth is freed at once
        ([MINOR] * 10, 10, ["", "", *[MINOR] * 8]),
        # stand-ins do not count
        (["", MINOR, MINOR], 3, ["", MINOR, MINOR]),
    ],
)
def test_lines_beyond_the_limit_go(texts: list[str], most: int, left: list[str]) -> None:
    """The oldest first; the newest keep all. Ranges, chains, times and hints stay."""
    before = build_log(*texts)
    after = activate_into(before, most)
    assert list_texts(after) == [*left, RED]
    for old, new in zip(before.log.entries, after.log.entries, strict=False):
        assert new == (
            old
            if new.text == old.text
            else replace(old, id=new.id, text=new.text, tokens=new.tokens)
        )
        assert new.tokens == tokens(new.text)
    ids = [entry.id for entry in after.log.entries]
    assert len(set(ids)) == len(ids)
    assert max(ids) < after.next_id
    changed = left != texts
    assert (after.log.generation, after.log.began and after.log.began.why) == (
        (1, "limit") if changed else (0, None)
    )


def test_a_limited_log_is_left_alone() -> None:
    """The second time nothing goes; and nothing without a change of the prefix, or a limit."""
    before = build_log(MINOR, RED, MINOR)
    assert shorten_log(before, before, LogLimit(1, tokens), NOW) is before
    after = replace_log(before, entries=before.log.entries[:2])
    assert shorten_log(before, after, None, NOW) is after
    once = activate_into(before, 2)
    grown = replace(once, render_date=NOW)
    assert shorten_log(before, grown, LogLimit(2, tokens), NOW) == grown


@pytest.mark.parametrize(
    "more", [{"replaces": 9}, {"replaces": 0}, {"kind": "note"}], ids=["edited", "torn", "fork"]
)
def test_what_people_wrote_stays(more: dict[str, object]) -> None:
    before = build_log(MINOR, MINOR)
    kept = replace(before.log.entries[0], **more)
    before = replace_log(before, entries=(kept, *before.log.entries[1:]))
    assert list_texts(activate_into(before, 1)) == [MINOR, "", RED]


def make_reflection(memory: Memory, start: int, count: int, text: str) -> Memory:
    sources = tuple(entry.id for entry in memory.log.entries[start : start + count])
    made = Reflection(
        generation=memory.log.generation,
        sources=sources,
        text=text,
        tokens=1,
        source_tokens=9,
        at=NOW,
    )
    kept = transitions.keep_reflection(memory, made)
    assert kept.log.reflection == made
    return kept


def test_pending_reflection_keeps_its_sources() -> None:
    """They have been paid for. The swap then takes what is still too much, in its own
    generation."""
    before = make_reflection(build_log(MINOR, MINOR, MINOR, MINOR), 0, 2, f"{RED}\n{GREEN}")
    after = activate_into(before, 2)
    assert list_texts(after) == [MINOR, MINOR, "", MINOR, RED]
    assert after.log.reflection == before.log.reflection
    swapped = transitions.swap_reflection(after, NOW)
    limited = shorten_log(after, swapped, LogLimit(2, tokens), NOW)
    assert list_texts(limited) == [RED, "", MINOR, RED]
    assert limited.log.generation == swapped.log.generation
    assert limited.log.began == swapped.log.began
    undone = undo_newest_change(limited, [Generation(1, after.log.entries)], NOW)
    assert undone is not None
    assert list_texts(undone) == list_texts(after)


def test_undo_takes_the_newest_change_back() -> None:
    """Not the one that lost lines last, which has the larger id."""
    first = transitions.swap_reflection(
        make_reflection(build_log(RED, RED, MINOR), 0, 2, f"{RED}\n{GREEN}"), NOW
    )
    edited = edits.edit_entry(first, first.log.entries[1].id, "* 🔴 by hand", 3, NOW)
    assert edited is not None
    limited = activate_into(edited, 2)
    assert list_texts(limited) == [RED, "* 🔴 by hand", RED]
    past = [
        Generation(memory.log.generation, memory.log.entries)
        for memory in (edited, first, build_log(RED, RED, MINOR))
    ]
    undone = undo_newest_change(limited, past, NOW)
    assert undone is not None
    assert list_texts(undone) == [RED, MINOR, RED]
    again = undo_newest_change(undone, [Generation(9, limited.log.entries), *past], NOW)
    assert again is not None
    assert list_texts(again) == [RED, RED, MINOR, RED]


def test_words_that_have_lost_their_entry_can_be_forgotten() -> None:
    """A person forgets a note whose lines went before: older generations hold them still."""
    limited = activate_into(build_log(MINOR, MINOR), 1)
    stand_in = limited.log.entries[0]
    for forget in (True, False):
        after = edits.withdraw_entry(limited, stand_in.id, NOW, forget=forget)
        assert after is not None
        assert after.log.entries[0].replaces == (0 if forget else stand_in.id)


def test_many_stand_ins_become_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a long thread loads as fast as a short one. Its sources are what older generations hold."""
    monkeypatch.setattr(log_limit, "MAX_SEPARATE_STAND_INS", 2)
    before = build_log(MINOR, MINOR, RED, MINOR, MINOR)
    after = activate_into(before, 1)
    assert list_texts(after) == ["", RED, "", RED]
    first, _, second, _ = after.log.entries
    assert (first.after, first.last, first.sources) == (0, 2, (1, 2))
    assert (second.after, second.last, second.sources) == (3, 5, (4, 5))
    assert (second.chain, second.source_tokens, second.task) == (bytes([5]) * 16, 200, "task 5")
    assert undo_newest_change(after, [Generation(0, before.log.entries)], NOW) is None
    for _ in range(50):
        after = activate_into(after, 1, MINOR)
    assert len(after.log.entries) < 10


LIMITS = Limits(max_log_entries=3)


def test_what_may_not_go_is_condensed() -> None:
    """Too many 🔴 entries: the log is due for reflection, whatever its tokens; the oldest entries,
    as many as it takes. The reflection is swapped in at once."""
    memory = activate_into(build_log(RED, MINOR, RED, DONE), 3)
    assert count_excess(memory.log, 3) == 1
    assert decisions.decide_after_reply(memory, LIMITS) == Reflect(
        3, condensing.acceptance_limit(condensing.LogStretch(0, 3, 6))
    )
    pending = make_reflection(memory, 0, 3, RED)
    assert decisions.decide_after_reply(pending, LIMITS) is None
    assert not decisions.is_nothing_due(pending, LIMITS, idle_s=0.0, has_provider_changed=False)
    assert decisions.decide_before_forwarding(pending, LIMITS, RequestState(9)) == Swap()
    swapped = transitions.swap_reflection(pending, NOW)
    assert decisions.decide_after_reply(swapped, LIMITS) is None
    assert decisions.is_nothing_due(swapped, LIMITS, idle_s=0.0, has_provider_changed=False)


def test_without_buffering_a_request_waits() -> None:
    memory = activate_into(build_log(RED, RED, RED), 3)
    limits = Limits(max_log_entries=3, interval_tokens=None, reflect_ahead_from_tokens=None)
    decision = decisions.decide_before_forwarding(memory, limits, RequestState(9))
    assert isinstance(decision, Reflect)
    assert decision.wait
    tried = replace_log(memory, unproductive_tokens=memory.log.tokens)
    assert decisions.decide_before_forwarding(tried, limits, RequestState(9)) is None


def test_lines_that_the_next_activation_takes_cost_no_reflection() -> None:
    """The setting is new, or a person has taken a change back."""
    memory = build_log(*[MINOR] * 5)
    assert count_excess(memory.log, 3) == 0
    assert decisions.decide_after_reply(memory, LIMITS) is None


class LimitedThread(EditedThread):
    """The same with a limited log. What is red is never lost; what is green may go."""

    most = 2

    def __init__(self) -> None:
        super().__init__()
        self.births: dict[int, int] = {}
        self.number = 0

    def find_birth_id(self, entry: Observation) -> int:
        return self.births.get(entry.id, entry.id)

    def write_chunk(self, messages: list[Message]) -> Observation:
        """Every third chunk has minor lines alone: its words may go."""
        self.number += 1
        made = Resource.chunk(self.memory, messages)
        if self.number % 3:
            return replace(made, text=f"{made.text}\n{MINOR}")
        self.excused |= {message.seq for message in messages}
        return replace(made, text=made.text.replace("🔴", "🟢"))

    def limit_log(self, after: Memory) -> Memory:
        limit = LogLimit(self.most, tokens)
        limited = shorten_log(self.memory, after, limit, NOW)
        assert shorten_log(self.memory, limited, limit, NOW) == limited
        origins = {log_limit.describe_origin(entry): entry for entry in after.log.entries}
        for entry in limited.log.entries:
            if entry not in after.log.entries:
                original = origins.get(log_limit.describe_origin(entry))
                # 0: it stands for several
                self.births[entry.id] = self.find_birth_id(original) if original else 0
        assert log_limit.count_excess(limited.log, self.most) == max(
            0, limited.log.count_with_words() - self.most
        )
        return limited


class LimitedVoices(Resource):
    def write_chunk(
        self, memory: Memory, messages: list[Message], task: str | None = None
    ) -> Observation:
        made = self.chunk(memory, messages, task)
        if memory.next_id % 3:
            return replace(made, text=f"{made.text}\n{MINOR}")
        self.edited_words |= words(made.text)
        return replace(made, text=made.text.replace("🔴", "🟢"))

    def limit_log(self, before: Memory, after: Memory) -> Memory:
        limit = LogLimit(LimitedThread.most, tokens)
        limited = shorten_log(before, after, limit, NOW)
        assert shorten_log(before, limited, limit, NOW) == limited
        return limited


class LimitedResource(EditedResource):
    """The same of threads that share a limited log."""

    def __init__(self) -> None:
        super().__init__()
        self.r = LimitedVoices("ABC")

    @invariant()
    def sections_stay_whole(self) -> None:
        for entry in self.r.log:
            labels = {part.label for part in entry.parts}
            assert {section.label for section in split_entry(entry)} <= {*labels, None}


@pytest.fixture
def few_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_limit, "MAX_SEPARATE_STAND_INS", 2)


@pytest.mark.usefixtures("few_stand_ins")
@pytest.mark.parametrize("machine", [LimitedThread, LimitedResource])
def test_coverage_has_no_hole_and_nothing_important_is_lost(machine: type[EditedThread]) -> None:
    """Between turns, forks, reflections, and what people edit, withdraw and undo."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        ),
    )


DAY = "Date: May 22, 2023"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("* 🔴 a\n* ✅ b", "* 🔴 a\n* ✅ b"),
        ("* 🔴 a\n* 🟡 b\n* 🟢 c\n* ✅ d", "* 🔴 a\n* ✅ d"),
        ("* 🟢 a\n  * b\n    * c\n* 🔴 d", "* 🔴 d"),
        ("* 🔴 a\n  * b\n  * 🟢 c\n    * d\n  * e", "* 🔴 a\n  * b\n  * e"),
        # what an important line belongs to stays
        ("* 🟡 a\n  * b\n  * ✅ c\n  * d", "* 🟡 a\n  * ✅ c"),
        (f"{DAY}\n* 🟢 a\n\nDate: May 23, 2023\n* 🔴 b\n", "Date: May 23, 2023\n* 🔴 b"),
        (f"{DAY}\n## Work\n* 🔴 a\n## Home\n* 🟢 b", f"{DAY}\n## Work\n* 🔴 a"),
        (f"**{DAY}**\n- 🔴 a\n- 🟢 b", f"**{DAY}**\n- 🔴 a"),
        (f"{DAY}\n* 🟢 a", ""),
        # lines that go on
        ("* 🔴 a\nand on\n* 🟢 b\nand on", "* 🔴 a\nand on"),
        ("* 🟢 b\nand on\n\nprose", ""),
        # without a mark nothing says that it matters; an emoji inside it is given its due
        ("* a\n* b", ""),
        ("* (09:14) 🔴 a\n* 🟢 b ✅", "* (09:14) 🔴 a"),
        ("1. 🔴 a\n2. 🟢 b", "1. 🔴 a"),
        ("🔴 a\n🟢 b", "🔴 a"),
        ("\t* 🔴 a\n\t* 🟢 b", "\t* 🔴 a"),
        ("", ""),
        ("\n\n", "\n\n"),
    ],
)
def test_kept_lines(text: str, kept: str) -> None:
    assert keep_important_lines(text) == kept


LINES = st.builds(
    lambda indent, bullet, mark, number: f"{'  ' * indent}{bullet}{mark}{number}",
    st.integers(0, 3),
    st.sampled_from(["* ", "- ", ""]),
    st.sampled_from(["🔴 ", "🟡 ", "🟢 ", "✅ ", "", "Date: "]),
    st.integers(),
)


@given(lines=st.lists(LINES | st.just(""), max_size=12))
def test_important_lines_always_stay(lines: list[str]) -> None:
    """Whatever stands around them, in their order; and a second time takes nothing more."""
    kept = keep_important_lines("\n".join(lines))
    important = [line for line in lines if "🔴" in line or "✅" in line]
    assert [line for line in kept.split("\n") if "🔴" in line or "✅" in line] == important
    assert keep_important_lines(kept) == kept
    if not important and any(lines):
        assert not kept
