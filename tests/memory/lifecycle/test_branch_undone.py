"""A reflection taken back: what it was made from stands again, as far as it is kept."""

from __future__ import annotations

from msgspec.structs import replace

from om_proxy.memory.lifecycle import branch, decisions, transitions
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
    back = branch.undo_reflection(later, KEPT, 9_000.0)
    assert back is not None
    assert back.log.entries == (*THREE.log.entries, later.log.entries[-1])
    assert (back.coverage, back.tail, back.chunks) == (later.coverage, later.tail, later.chunks)
    assert back.log.generation > later.log.generation
    assert back.render_date == 9_000.0


def test_it_is_not_made_again_at_once() -> None:
    """A reflection that somebody undid is made again only when the log has grown."""
    limits = Limits(reflect_ahead_from_tokens=1, reflect_from_tokens=2, reflect_block_from_tokens=3)
    back = branch.undo_reflection(SHORT, KEPT, 9_000.0)
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
    back = branch.undo_reflection(transitions.keep_reflection(SHORT, pending), KEPT, 9_000.0)
    assert back is not None
    assert back.log.reflection is None


def test_one_made_before_ids_were_kept_is_found_by_its_range() -> None:
    old = replace_log(
        SHORT, entries=(replace(SHORT.log.entries[0], sources=()), *SHORT.log.entries[1:])
    )
    assert branch.undo_reflection(old, KEPT, 9_000.0) == branch.undo_reflection(
        SHORT, KEPT, 9_000.0
    )
    assert branch.undo_reflection(
        old, [(7, old.log.entries), *KEPT], 9_000.0
    ) == branch.undo_reflection(SHORT, KEPT, 9_000.0)


def test_what_was_not_kept_cannot_come_back() -> None:
    assert branch.undo_reflection(THREE, KEPT, 9_000.0) is None
    assert branch.undo_reflection(SHORT, (), 9_000.0) is None
    assert branch.undo_reflection(SHORT, [(0, THREE.log.entries[:1])], 9_000.0) is None


def test_the_newest_of_several() -> None:
    """A reflection of a reflection gives way to that one first."""
    again = reflected(SHORT, 2)
    back = branch.undo_reflection(
        again, [(SHORT.log.generation, SHORT.log.entries), *KEPT], 9_000.0
    )
    assert back is not None
    assert back.log.entries == SHORT.log.entries
