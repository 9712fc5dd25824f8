"""A fork behind a reflection whose past was not kept: the log stays, and says from where on it no
longer holds."""

from __future__ import annotations

from datetime import UTC, datetime

from om_proxy.memory.lifecycle import branch, transitions
from om_proxy.memory.model import Memory, Observation, Reflection, replace_log
from tests.memory.building import chat, chunk, memory

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def observed(of: Memory, last: int) -> Memory:
    made = transitions.add_chunk(of, chunk(of, last))
    return transitions.activate_chunks(made, [made.chunks[0].id], 3_000.0)


def reflected(of: Memory) -> Memory:
    sources = tuple(o.id for o in of.log.entries)
    made = Reflection(
        generation=of.log.generation,
        sources=sources,
        text="* 🔴 all",
        tokens=10,
        source_tokens=20,
        at=1.0,
    )
    return transitions.swap_reflection(transitions.keep_reflection(of, made), 4_000.0)


WHOLE = memory(chat(10, 100))
PAST = reflected(observed(observed(WHOLE, 6), 12))  # log: a reflection of 1…12
LONGER = observed(PAST, 16)  # and an entry 13…16
LIVE = {m.seq: m.chain for m in WHOLE.tail}
MARKS = {m.seq: m.mark for m in WHOLE.tail}


def revised(of: Memory, at: int) -> tuple[Observation, ...]:
    return branch.add_rollback_note(of, (), MARKS[at], NOON, len)


def test_only_what_was_not_kept_is_forgotten() -> None:
    """A generation to return to, a log that never reflected, or nothing that stays: no note is
    needed."""
    plain = observed(WHOLE, 6)
    assert branch.find_rollback_target(PAST, 8, (), LIVE) == ((), 8)
    assert branch.find_rollback_target(PAST, 8, [(1, PAST.log.entries)], LIVE) == ((), 8)
    assert branch.find_rollback_target(PAST, 8, [(0, plain.log.entries)], LIVE) == (
        plain.log.entries,
        None,
    )
    assert branch.find_rollback_target(PAST, 3, [(0, plain.log.entries)], LIVE) == ((), None)
    assert branch.find_rollback_target(plain, 3, (), LIVE) == ((), None)
    assert branch.find_rollback_target(PAST, 0, (), LIVE) == ((), None)


def test_a_fork_through_a_stretch_in_the_middle() -> None:
    """It goes back to the entries the stretch was made from; where they were not kept, what stands
    before it is not all there was."""
    four = observed(observed(observed(observed(WHOLE, 4), 8), 12), 16)
    sources = tuple(o.id for o in four.log.entries[1:3])
    made = Reflection(
        generation=four.log.generation,
        sources=sources,
        text="* 🔴 all",
        tokens=10,
        source_tokens=20,
        at=1.0,
    )
    short = transitions.swap_reflection(
        transitions.keep_reflection(four, made), 4_000.0
    )  # 1…4, a reflection of 5…12, 13…16
    assert branch.find_rollback_target(short, 9, [(0, four.log.entries)], LIVE) == (
        four.log.entries[:2],
        None,
    )
    assert branch.find_rollback_target(short, 9, (), LIVE) == (short.log.entries[:1], 9)
    assert branch.find_rollback_target(short, 4, (), LIVE) == (short.log.entries[:1], None)
    assert branch.find_rollback_target(short, 14, (), LIVE) == (short.log.entries[:2], None)
    assert [
        o.last for o in branch.add_rollback_note(short, short.log.entries[:1], MARKS[9], NOON, len)
    ] == [
        4,
        12,
        9,
    ]


def test_the_log_stays_and_says_so() -> None:
    """Entries that cover a message that stays are kept, the others go, and a dated note comes
    last."""
    kept, note = revised(LONGER, 8)
    assert kept is LONGER.log.entries[0]
    assert (note.kind, note.after, note.last, note.chain, note.source_tokens) == (
        "note",
        8,
        8,
        LIVE[8],
        0,
    )
    assert note.text.startswith("Date: Mar 1, 2026\n* 🔴 (12:00) ")
    assert note.tokens == len(note.text)
    assert revised(LONGER, 14)[:-1] == LONGER.log.entries


def test_the_memory_after_it() -> None:
    """Coverage ends at the fork, so that nothing that stays is raw twice and nothing new is
    covered."""
    log = revised(LONGER, 8)
    at = [m for m in WHOLE.tail if m.seq <= 8]
    rolled = branch.roll_back(
        LONGER, 8, log, [m.mark for m in at], WHOLE.tail[8:], (8, 800), 5_000.0
    )
    assert (rolled.coverage, rolled.count, rolled.log.entries) == (8, 20, log)
    assert rolled.log.generation > LONGER.log.generation
    assert rolled.next_id > max(o.id for o in log)
    again = observed(rolled, 12)
    assert again.log.entries == (*log, again.log.entries[-1])
    assert again.log.entries[-1].after == 8


def test_a_later_fork_keeps_what_the_note_stands_behind() -> None:
    """The log keeps its entries up to the newest note that still stands; entries after it follow
    the branch as ever."""
    log = revised(PAST, 8)
    rolled = branch.roll_back(PAST, 8, log, [], WHOLE.tail[8:], (8, 800), 5_000.0)
    later = observed(rolled, 12)
    assert branch.find_rollback_target(later, 10, (), LIVE) == (log, None)
    assert branch.find_rollback_target(later, 12, (), LIVE) == (later.log.entries, None)
    assert branch.find_rollback_target(later, 6, (), LIVE) == ((), 6)


def test_reflecting_a_log_with_a_note() -> None:
    """A reflection takes the note in like any entry, and reaches as far as the log did."""
    log = revised(PAST, 8)
    rolled = branch.roll_back(PAST, 8, log, [], WHOLE.tail[8:], (8, 800), 5_000.0)
    (entry,) = reflected(rolled).log.entries
    assert (entry.after, entry.last, entry.chain) == (0, 8, LIVE[8])
    assert replace_log(reflected(rolled), entries=()).coverage == 8
