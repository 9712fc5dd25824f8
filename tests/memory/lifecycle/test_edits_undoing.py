"""A reflection taken back: what it was made from stands again, as far as it is kept."""

from __future__ import annotations

from msgspec.structs import replace

from om_proxy.memory.lifecycle import decisions, edits, transitions
from om_proxy.memory.lifecycle.edits import describe_undone_change, undo_newest_change
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.memory.model import Generation, Memory, Reflection, replace_log
from tests.memory.building import chat, chunk, memory

Older = list[Generation]


def observed(of: Memory, last: int) -> Memory:
    made = transitions.add_chunk(of, chunk(of, last))
    return transitions.activate_chunks(made, [made.chunks[0].id], 3_000.0)


def reflected(of: Memory, count: int) -> Memory:
    sources = tuple(o.id for o in of.log.entries[:count])
    made = Reflection(
        generation=of.log.generation,
        sources=sources,
        text="* 🔴 all",
        tokens=10,
        source_tokens=20,
        at=1.0,
    )
    return transitions.swap_reflection(transitions.keep_reflection(of, made), 4_000.0)


WHOLE = memory(chat(12, 100))
THREE = observed(observed(observed(WHOLE, 4), 8), 12)
SHORT = reflected(THREE, 2)  # a reflection of the first two, and the third
KEPT: Older = [(THREE.log.generation, THREE.log.entries)]


def test_what_it_was_made_from_stands_again() -> None:
    """Later entries stay behind it; coverage and chunks have nothing to do with it; the prefix
    changes, so its date moves."""
    later = observed(SHORT, 16)
    back = undo_newest_change(later, KEPT, 9_000.0)
    assert back is not None
    assert back.log.entries == (*THREE.log.entries, later.log.entries[-1])
    assert (back.coverage, back.tail, back.chunks) == (later.coverage, later.tail, later.chunks)
    assert back.log.generation > later.log.generation
    assert back.render_date == 9_000.0


def test_what_was_taken_back_is_named() -> None:
    """A reflection, and then the edit of one of its sources; ids are those of the log."""
    first, second, *_ = (entry.id for entry in THREE.log.entries)
    back = undo_newest_change(SHORT, KEPT, 9_000.0)
    assert back is not None
    undone = describe_undone_change(SHORT, back)
    assert undone == ("reflection", SHORT.log.entries[0].id, (first, second))
    for kind, change in (
        ("edit", edits.edit_entry(back, first, "other words", 3, 9_500.0)),
        ("withdrawal", edits.withdraw_entry(back, first, 9_500.0)),
    ):
        assert change is not None
        again = undo_newest_change(change, KEPT, 9_900.0)
        assert again is not None
        undone = describe_undone_change(change, again)
        assert undone == (kind, change.log.entries[0].id, (first,))


def test_it_is_not_made_again_at_once() -> None:
    """A reflection that somebody undid is made again only when the log has grown."""
    limits = Limits(reflect_ahead_from_tokens=1, reflect_from_tokens=2, reflect_block_from_tokens=3)
    back = undo_newest_change(SHORT, KEPT, 9_000.0)
    assert back is not None
    assert decisions.reflection_due(back, limits) is None
    assert decisions.reflection_due(observed(back, 16), limits) is not None


def test_a_pending_one_goes_too() -> None:
    pending = Reflection(
        generation=SHORT.log.generation,
        sources=(SHORT.log.entries[0].id,),
        text="x",
        tokens=1,
        source_tokens=9,
        at=1.0,
    )
    back = undo_newest_change(transitions.keep_reflection(SHORT, pending), KEPT, 9_000.0)
    assert back is not None
    assert back.log.reflection is None


def test_one_made_before_ids_were_kept_is_found_by_its_range() -> None:
    old = replace_log(
        SHORT, entries=(replace(SHORT.log.entries[0], sources=()), *SHORT.log.entries[1:])
    )
    assert undo_newest_change(old, KEPT, 9_000.0) == undo_newest_change(SHORT, KEPT, 9_000.0)
    assert undo_newest_change(old, [(7, old.log.entries), *KEPT], 9_000.0) == undo_newest_change(
        SHORT, KEPT, 9_000.0
    )


def test_an_edit_that_was_taken_back_is_nothing_it_was_made_from() -> None:
    """The edit of a reflection whose sources are not known by id covers the same range."""
    reflection = replace(SHORT.log.entries[0], sources=())
    old = replace_log(SHORT, entries=(reflection, *SHORT.log.entries[1:]))
    edited = edits.edit_entry(old, reflection.id, "other words", 3, 8_000.0)
    assert edited is not None
    kept: Older = [(old.log.generation, old.log.entries)]
    back = undo_newest_change(edited, [*kept, *KEPT], 9_000.0)
    assert back is not None
    assert back.log.entries == old.log.entries
    kept = [(edited.log.generation, edited.log.entries), *kept]
    assert undo_newest_change(back, kept, 9_500.0) is None
    again = undo_newest_change(back, [*kept, *KEPT], 9_500.0)
    assert again is not None
    assert again.log.entries == THREE.log.entries


def test_what_was_not_kept_cannot_come_back() -> None:
    assert undo_newest_change(THREE, KEPT, 9_000.0) is None
    assert undo_newest_change(SHORT, (), 9_000.0) is None
    assert undo_newest_change(SHORT, [(0, THREE.log.entries[:1])], 9_000.0) is None


def test_the_newest_of_several() -> None:
    """A reflection of a reflection gives way to that one first."""
    again = reflected(SHORT, 2)
    back = undo_newest_change(again, [(SHORT.log.generation, SHORT.log.entries), *KEPT], 9_000.0)
    assert back is not None
    assert back.log.entries == SHORT.log.entries
