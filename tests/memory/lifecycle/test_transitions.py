"""A memory after each transition, by example and as properties."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from om_proxy.memory.lifecycle import decisions, transitions
from om_proxy.memory.lifecycle.decisions import (
    RequestState,
    Swap,
)
from om_proxy.memory.lifecycle.hints import newest_task
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.memory.model import Failures, Memory, replace_log
from tests.memory.building import chat, chunk, chunked, memory, reflection, transcript, with_log

LIMITS = Limits()
UNBUFFERED = Limits(
    interval_tokens=None,
    keep_tokens=0,
    block_from_tokens=30_000,
    reflect_ahead_from_tokens=None,
    reflect_block_from_tokens=40_000,
)
ON_IDLE = Limits(buffer_after_idle_s=300)
ANY = RequestState(last_observable_seq=10**9)


def test_a_reflection_is_swapped_in_at_the_threshold() -> None:
    """The finished reflection takes the place of its sources at R. Later entries stay byte for
    byte."""
    made = with_log(memory(chat(1, 100)), 20_000)
    made = transitions.keep_reflection(made, reflection(made, 8_000))
    assert decisions.decide_before_forwarding(made, LIMITS, ANY) is None
    later = replace(with_log(memory(()), 1, 20_000).log.entries[1], text="later")
    made = replace(replace_log(made, entries=(*made.log.entries, later)), next_id=3)
    assert decisions.decide_before_forwarding(made, LIMITS, ANY) == Swap()
    after = transitions.swap_reflection(made, 9.0)
    assert [(o.kind, o.text, o.tokens) for o in after.log.entries] == [
        ("reflection", "* 🔴 all", 8_000),
        ("observation", "later", 20_000),
    ]
    assert (
        after.log.generation,
        after.log.next_generation,
        after.render_date,
        after.log.reflection,
    ) == (
        1,
        2,
        9.0,
        None,
    )


def test_what_stands_before_a_stretch_keeps_its_bytes() -> None:
    """A reflection takes the place of its stretch, and knows how often its words have been
    condensed."""
    made = with_log(memory(chat(1, 100)), 10_000, 10_000, 10_000, 11_000)
    made = replace_log(
        made,
        entries=(replace(made.log.entries[0], kind="reflection", depth=2), *made.log.entries[1:]),
    )
    stretch = replace(
        reflection(made, 9_000),
        sources=tuple(o.id for o in made.log.entries[1:3]),
        task="what was open there",
    )
    after = transitions.swap_reflection(transitions.keep_reflection(made, stretch), 9.0)
    assert [(o.kind, o.tokens, o.depth) for o in after.log.entries] == [
        ("reflection", 10_000, 2),
        ("reflection", 9_000, 1),
        ("observation", 11_000, 0),
    ]
    assert (after.log.entries[0], after.log.entries[2]) == (
        made.log.entries[0],
        made.log.entries[3],
    )
    assert (after.log.entries[1].after, after.log.entries[1].last, after.log.entries[1].chain) == (
        made.log.entries[1].after,
        made.log.entries[2].last,
        made.log.entries[2].chain,
    )
    assert (
        after.log.entries[1].task is None
    )  # later entries know better, and this one must not end or begin a task for them


def test_a_stretch_that_was_torn_apart_is_not_replaced() -> None:
    """Its entries stand no longer side by side: the memory was taken back, or another thread's part
    went."""
    made = with_log(memory(chat(1, 100)), 10_000, 10_000, 10_000)
    stretch = replace(
        reflection(made, 5_000), sources=(made.log.entries[0].id, made.log.entries[2].id)
    )
    assert transitions.keep_reflection(made, stretch) == made
    assert not transitions.is_made_from(made.log, replace(stretch, sources=()))


def test_chunks_survive_a_reflection() -> None:
    """Buffered chunks are not the reflection's to drop (a loss of the reference implementation)."""
    made = replace_log(
        chunked(3, 1_000, 2, 4), entries=with_log(memory(()), 20_000, 21_000).log.entries
    )
    after = transitions.swap_reflection(
        transitions.keep_reflection(made, reflection(made, 9_000)), 9.0
    )
    assert after.chunks == made.chunks
    assert after.tail == made.tail


def test_what_became_active_while_the_reflector_ran_survives() -> None:
    """It stands after the reflection, with its own hints; what the reflection left out is taken
    from its sources."""
    made = memory(transcript(*[("assistant", 1_000)] * 6))
    for last in (2, 4):
        made = transitions.add_chunk(made, chunk(made, last))
    made = replace(
        made,
        chunks=tuple(
            replace(c, task=f"task {c.id}", suggestion=f"say {c.id}") for c in made.chunks
        ),
    )
    made = transitions.activate_chunks(made, [made.chunks[0].id], 1.0)
    pending = transitions.keep_reflection(made, reflection(made, 50))
    after = transitions.swap_reflection(
        transitions.activate_chunks(pending, [pending.chunks[0].id], 2.0), 3.0
    )
    assert [(o.kind, o.task, o.suggestion) for o in after.log.entries] == [
        ("reflection", "task 1", "say 1"),
        ("observation", "task 2", "say 2"),
    ]
    assert (newest_task(after.log.entries), after.coverage) == ("task 2", 4)


def test_a_reflection_of_another_log_is_dropped() -> None:
    """Made from entries or a generation that no longer stand, it changes nothing."""
    made = with_log(memory(chat(1, 100)), 20_000, 21_000)
    stale = replace(reflection(made, 5_000), generation=made.log.generation + 1)
    assert transitions.keep_reflection(made, stale) == made
    kept = transitions.keep_reflection(made, reflection(made, 5_000))
    assert (
        transitions.swap_reflection(
            replace_log(kept, entries=made.log.entries[1:]), 1.0
        ).log.entries
        == made.log.entries[1:]
    )


def test_a_chunk_must_continue_what_is_observed() -> None:
    """A second answer for the same range, or one with a gap before it, changes nothing."""
    made = memory(chat(4, 1_000))
    first = chunk(made, 4)
    once = transitions.add_chunk(made, first)
    assert transitions.add_chunk(once, first) == once
    assert transitions.add_chunk(made, replace(chunk(once, 8), after=4)) == made


def test_a_chunk_of_messages_that_changed_is_dropped() -> None:
    """The chain says what was read; another text at the same place makes the answer worthless."""
    made, other = (
        memory(chat(4, 1_000)),
        memory(transcript(("user", 1_000), ("assistant", 900), ("user", 1), ("assistant", 8))),
    )
    stale = replace(chunk(made, 4), chain=b"x" * 16)
    assert transitions.add_chunk(made, stale) == made
    assert transitions.add_chunk(other, chunk(made, 8)) == other


def test_a_title_stands_until_there_is_another() -> None:
    """An answer without one keeps the title there is."""
    made = memory(chat(4, 1_000))
    made = transitions.add_chunk(made, replace(chunk(made, 4), title="Crates"))
    made = transitions.add_chunk(made, chunk(made, 6))
    assert made.title == "Crates"
    assert transitions.add_chunk(made, replace(chunk(made, 8), title="Vans")).title == "Vans"


def test_success_ends_trouble() -> None:
    """One good answer clears the failures."""
    made = transitions.record_failure(memory(chat(4, 1_000)), 100.0, 0.0)
    assert made.failures.count == 1
    assert transitions.add_chunk(made, chunk(made, 4)).failures == Failures()


@pytest.mark.parametrize(
    ("cause", "kept"), [("reflect om_unusable", "reflect om_unusable"), ("observe om_model", "")]
)
def test_a_reflection_s_cause_outlives_an_observation(cause: str, kept: str) -> None:
    """That messages are noted says nothing of the log that cannot be condensed; a reflection that
    is made clears it."""
    troubled = replace(memory(chat(4, 100)), failures=Failures(2, 5.0, False, cause))
    made = transitions.add_chunk(troubled, chunk(troubled, 4))
    assert made.failures == Failures(cause=kept)


@pytest.mark.parametrize(
    ("failures", "pause", "parked"),
    [(1, 60, False), (2, 120, False), (7, 3_840, False), (8, 7_680, True), (12, 21_600, True)],
)
def test_back_off_doubles_to_six_hours_and_parks_after_eight(
    failures: int, pause: int, parked: bool
) -> None:
    """1 min doubling to 6 h; after 8 in a row the thread is parked."""
    made = memory(chat(1, 10))
    for _ in range(failures):
        made = transitions.record_failure(made, 1_000.0, 0.0)
    assert made.failures == Failures(failures, 1_000.0 + pause, parked)


def test_activation_takes_chunks_by_id() -> None:
    """An activation takes only the chunks that were decided on, as far as they still are the
    oldest. Activating twice is activating once."""
    made = chunked(4, 1_000, 2, 4)
    ids = [c.id for c in made.chunks]
    once = transitions.activate_chunks(made, ids[:1], 7.0)
    assert (once.coverage, len(once.log.entries), len(once.chunks), once.render_date) == (
        2,
        1,
        1,
        7.0,
    )
    assert transitions.activate_chunks(once, ids[:1], 8.0) == once


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.data())
def test_each_message_is_in_the_tail_or_in_exactly_one_entry(
    steps: list[int], data: st.DataObject
) -> None:
    """No order of buffering and activating loses or doubles a message
    (docs/contributing/behaviour.md#never-lost)."""
    made = memory(chat(12, 500))
    everything = [m.seq for m in made.tail]
    for step in steps:
        last = min(made.chunked_to + step, everything[-1])
        if last > made.chunked_to:
            made = transitions.add_chunk(made, chunk(made, last))
        count = data.draw(st.integers(0, len(made.chunks)))
        made = transitions.activate_chunks(made, [c.id for c in made.chunks[:count]], 1.0)
        covered = [s for o in made.log.entries for s in range(o.after + 1, o.last + 1)]
        assert covered + [m.seq for m in made.tail] == everything
        assert made.covered_count == len(covered)
        assert made.covered_tokens + made.pending_tokens == 500 * len(everything)
        assert [m.seq for m in made.marks] == everything
        assert starts_meet(made)


def starts_meet(made: Memory) -> bool:
    """Log and chunks continue one another without a gap."""
    ranges: Sequence[tuple[int, int]] = [(o.after, o.last) for o in made.log.entries + made.chunks]
    return all(a[1] == b[0] for a, b in pairwise(ranges)) and (not ranges or ranges[0][0] == 0)
