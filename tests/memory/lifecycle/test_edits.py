"""People change notes: entries get other words or lose them, chunks change in place, and no change
is lost when the log goes back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from om_proxy.memory.lifecycle import branch, decisions, edits, log_sharing, transitions
from om_proxy.memory.lifecycle.edits import undo_newest_change
from om_proxy.memory.lifecycle.hints import active_hints
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.memory.model import Generation, Memory, Reflection, replace_log
from tests.memory.building import chat, chunk, memory
from tests.memory.sharing import LABELS, Resource

NOW = 9_000.0


def observed(of: Memory, last: int, **more: Any) -> Memory:
    made = transitions.add_chunk(of, replace(chunk(of, last, text=f"* up to {last}"), **more))
    return transitions.activate_chunks(made, [made.chunks[0].id], 3_000.0)


def reflection_of(of: Memory, start: int, count: int) -> Reflection:
    sources = tuple(entry.id for entry in of.log.entries[start : start + count])
    return Reflection(
        generation=of.log.generation,
        sources=sources,
        text="* all",
        tokens=10,
        source_tokens=20,
        at=1.0,
    )


def reflected(of: Memory, count: int) -> Memory:
    kept = transitions.keep_reflection(of, reflection_of(of, 0, count))
    return transitions.swap_reflection(kept, 4_000.0)


def edited(of: Memory, index: int, text: str = "* corrected") -> Memory:
    changed = edits.edit_entry(of, of.log.entries[index].id, text, 3, NOW)
    assert changed is not None
    return changed


def withdrawn(of: Memory, index: int, *, forget: bool = False) -> Memory:
    changed = edits.withdraw_entry(of, of.log.entries[index].id, NOW, forget=forget)
    assert changed is not None
    return changed


def generations(*memories: Memory) -> list[Generation]:
    """The older generations of these memories, the newest last."""
    return [Generation(of.log.generation, of.log.entries) for of in reversed(memories)]


WHOLE = memory(chat(12, 100))
LIVE = {m.seq: m.chain for m in WHOLE.tail}
THREE = observed(observed(observed(WHOLE, 4), 8), 12)


def test_an_edit_begins_a_generation() -> None:
    """Range, chain and coverage stay. The id is new, so nothing made of the old text fits."""
    after = edited(THREE, 1)
    old, new = THREE.log.entries[1], after.log.entries[1]
    assert (new.text, new.tokens, new.replaces) == ("* corrected", 3, old.id)
    assert replace(new, id=old.id, text=old.text, tokens=old.tokens, replaces=None) == old
    assert new.id >= THREE.next_id
    assert after.next_id == new.id + 1
    assert after.log.entries[0] is THREE.log.entries[0]
    assert after.log.began == ("edit", NOW)
    assert (after.log.generation, after.render_date) == (THREE.log.next_generation, NOW)
    assert (after.coverage, after.tail, after.chunks) == (THREE.coverage, THREE.tail, THREE.chunks)


def test_the_same_text_changes_nothing() -> None:
    entry = THREE.log.entries[1]
    assert edits.edit_entry(THREE, entry.id, entry.text, 3, NOW) is THREE
    gone = withdrawn(THREE, 1)
    assert edits.withdraw_entry(gone, gone.log.entries[1].id, NOW) is gone


def test_what_is_not_in_the_log_is_not_changed() -> None:
    assert edits.edit_entry(THREE, 99, "* x", 3, NOW) is None
    assert edits.withdraw_entry(THREE, 99, NOW) is None
    assert edits.edit_chunk(THREE, 99, "* x", 3) is None
    assert edits.drop_chunk(THREE, 99) is None


def test_a_withdrawn_entry_keeps_its_range() -> None:
    """The text and the hints go. A task that it named is over, and the older one does not come
    back; where it named none, the older one goes on."""
    tasked = observed(observed(observed(WHOLE, 4, task="older"), 8), 12)
    tasked = replace_log(
        tasked, entries=(*tasked.log.entries[:2], replace(tasked.log.entries[2], task="newer"))
    )
    assert active_hints(tasked).task == "newer"
    after = withdrawn(tasked, 2)
    stand_in = after.log.entries[2]
    assert (stand_in.text, stand_in.tokens, stand_in.is_withdrawn) == ("", 0, True)
    assert (stand_in.after, stand_in.last, stand_in.chain) == (8, 12, LIVE[12])
    assert active_hints(after).task is None
    assert active_hints(withdrawn(tasked, 1)).task == "newer"
    assert after.log.tokens == tasked.log.tokens - tasked.log.entries[2].tokens


@pytest.mark.parametrize("change", [edited, withdrawn])
def test_a_reflection_of_the_old_text_no_longer_fits(change: Any) -> None:
    """Neither the pending one nor one that is under way."""
    under_way = reflection_of(THREE, 0, 2)
    after = change(transitions.keep_reflection(THREE, under_way), 1)
    assert after.log.reflection is None
    assert transitions.keep_reflection(after, under_way) == after


@pytest.mark.parametrize("change", [edited, withdrawn])
def test_a_reflection_of_other_entries_still_fits(change: Any) -> None:
    """Neither the edit nor the reflection is lost, whichever comes first."""
    of_others = reflection_of(THREE, 0, 2)
    pending = change(transitions.keep_reflection(THREE, of_others), 2)
    late = transitions.keep_reflection(change(THREE, 2), of_others)
    assert pending.log.reflection == late.log.reflection == of_others
    swapped = transitions.swap_reflection(late, NOW)
    assert swapped.log.entries[0].sources == of_others.sources
    assert swapped.log.entries[1:] == late.log.entries[2:]


def test_a_reflection_from_before_another_reflection_does_not_fit() -> None:
    """Only edits leave what was made before them."""
    of_third = reflection_of(edited(THREE, 0), 2, 1)
    after = edited(reflected(THREE, 2), 0)
    assert transitions.keep_reflection(after, replace(of_third, generation=0)) == after


def test_an_edit_is_no_growth() -> None:
    """A reflection that achieved nothing is not made again because of it."""
    limits = Limits(reflect_ahead_from_tokens=1, reflect_from_tokens=2, reflect_block_from_tokens=3)
    tired = transitions.mark_unproductive(THREE, THREE.log.tokens)
    assert decisions.reflection_due(tired, limits) is None
    assert decisions.reflection_due(edited(tired, 1), limits) is None
    assert decisions.reflection_due(observed(edited(tired, 1), 16), limits) is not None


# ── undo ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("change", [edited, withdrawn])
def test_undo_gives_the_bytes_back(change: Any) -> None:
    back = undo_newest_change(change(THREE, 1), generations(THREE), NOW)
    assert back is not None
    assert back.log.entries == THREE.log.entries
    assert back.log.began == ("undo", NOW)


def test_undo_takes_back_whichever_is_newer() -> None:
    """First the edit of the reflection, then the reflection, then the edit before it."""
    first = edited(THREE, 1)
    second = reflected(first, 2)
    third = edited(second, 0, "* a better summary")
    older = generations(THREE, first, second)
    for expected in (second, first, THREE):
        back = undo_newest_change(third, older, NOW)
        assert back is not None
        assert back.log.entries == expected.log.entries
        older.insert(0, Generation(third.log.generation, third.log.entries))
        third = back
    assert undo_newest_change(third, older, NOW) is None


def test_what_was_forgotten_does_not_come_back() -> None:
    """Undo passes over it, to the change before."""
    before = edited(THREE, 0)
    after = withdrawn(before, 1, forget=True)
    assert after.log.began == ("forgotten", NOW)
    back = undo_newest_change(after, generations(THREE, before), NOW)
    assert back is not None
    assert back.log.entries[0] == THREE.log.entries[0]
    assert back.log.entries[1].is_withdrawn


def test_a_forgotten_reflection_does_not_give_its_sources_back() -> None:
    summary = reflected(THREE, 2)
    after = withdrawn(summary, 0, forget=True)
    assert undo_newest_change(after, generations(THREE, summary), NOW) is None


# ── where an entry went ───────────────────────────────────────────────────────────────────────────


def test_the_holder_of_an_entry() -> None:
    """The version that replaced it, the reflection that condensed it, or, after an undo, the entry
    with its messages."""
    first_id, second_id = (entry.id for entry in THREE.log.entries[:2])
    change = edited(THREE, 1)
    summary = reflected(change, 2)
    older = generations(THREE, change)
    assert (
        edits.find_holder(change.log.entries, generations(THREE), second_id)
        == (change.log.entries[1])
    )
    for id_ in (first_id, second_id, change.log.entries[1].id):
        assert edits.find_holder(summary.log.entries, older, id_) == summary.log.entries[0]
    assert edits.find_holder(summary.log.entries, older, 99) is None
    back = undo_newest_change(summary, older, NOW)
    assert back is not None
    of_summary = edits.find_holder(
        back.log.entries, [*generations(summary), *older], summary.log.entries[0].id
    )
    assert of_summary == back.log.entries[0]


def test_the_holder_of_a_chunk() -> None:
    """In a log that threads share, an entry has another id than its chunk had."""
    made = transitions.add_chunk(THREE, chunk(THREE, 16))
    active = transitions.activate_chunks(made, [made.chunks[0].id], NOW)
    held = edits.find_chunk_holder(active.log.entries, [], "", made.chunks[0].id)
    assert held == active.log.entries[-1]
    r = Resource("AB")
    r.cover("B", 2)
    r.say("A", 4)
    r.observe("A", 4)
    [waiting] = r.load_joined("A").chunks
    assert edits.find_chunk_holder(r.log, r.past, LABELS["A"], waiting.id) is None
    r.activate("A")
    assert r.log[-1].id != waiting.id
    assert edits.find_chunk_holder(r.log, r.past, LABELS["A"], waiting.id) == r.log[-1]
    r.reflect()
    r.swap("A")
    assert edits.find_chunk_holder(r.log, r.past, LABELS["A"], waiting.id) == r.log[0]


# ── a branch ──────────────────────────────────────────────────────────────────────────────────────


def gone_back(of: Memory, cut: int, older: list[Generation]) -> Memory:
    entries, _ = branch.find_rollback_target(of, cut, older, LIVE)
    covered = [m for m in WHOLE.tail if m.seq <= (entries[-1].last if entries else 0)]
    tail = [m for m in WHOLE.tail if m not in covered]
    marks = [m.mark for m in covered]
    counts = (len(covered), sum(m.framed_tokens for m in covered))
    return branch.roll_back(of, cut, entries, marks, tail, counts, NOW)


def test_a_fork_keeps_what_was_edited_last() -> None:
    """The generation it goes back to is older than the edit."""
    late = edited(reflected(THREE, 2), 1)  # of the third entry
    again = edited(late, 1, "* corrected twice")
    after = gone_back(again, 12, generations(THREE, reflected(THREE, 2), late))
    assert after.log.entries == again.log.entries
    summary = transitions.swap_reflection(
        transitions.keep_reflection(again, reflection_of(again, 0, 2)), NOW
    )
    beyond = observed(summary, 16)
    older = generations(THREE, reflected(THREE, 2), late, again)
    torn = gone_back(edited(beyond, 1, "* four more"), 12, older)
    assert torn.log.entries[0].text == "* all"
    through = gone_back(beyond, 8, older)
    assert [entry.text for entry in through.log.entries] == ["* all"]


def test_a_fork_through_a_reflection_keeps_an_edit_beside_it() -> None:
    """The entries return from before the reflection; the one that was edited since is the edited
    one."""
    summary = transitions.swap_reflection(
        transitions.keep_reflection(THREE, reflection_of(THREE, 1, 2)), NOW
    )
    after = gone_back(edited(summary, 0), 8, generations(THREE, summary))
    assert [entry.text for entry in after.log.entries] == ["* corrected", "* up to 8"]


def test_a_fork_through_a_withdrawn_reflection_brings_no_words_back() -> None:
    """What it was made from is withdrawn too, as far as it stays; and comes back if people say
    so."""
    summary = reflected(THREE, 3)
    gone = withdrawn(summary, 0)
    older = generations(THREE, summary)
    after = gone_back(gone, 8, older)
    assert [entry.text for entry in after.log.entries] == ["", ""]
    assert [entry.last for entry in after.log.entries] == [4, 8]
    assert after.next_id > max(entry.id for entry in after.log.entries)
    older = [*generations(gone), *older]
    back = undo_newest_change(after, older, NOW)
    assert back is not None
    assert [entry.text for entry in back.log.entries] == ["", "* up to 8"]
    later = observed(back, 12)
    again = gone_back(later, 8, [*generations(after), *older])
    assert [entry.text for entry in again.log.entries] == ["", "* up to 8"]


def test_an_entry_withdrawn_on_another_branch_withdraws_nothing_here() -> None:
    """It covered other messages, whatever their numbers: the words of an older entry come back."""
    of_other_branch = replace(THREE.log.entries[2], id=9, after=0, text="", replaces=8, chain=b"x")
    assert of_other_branch.is_withdrawn
    older = [Generation(1, (of_other_branch,)), Generation(0, THREE.log.entries[:2])]
    whole = replace(THREE.log.entries[2], id=10, after=0, text="* all")
    after = gone_back(replace_log(THREE, generation=2, entries=(whole,)), 10, older)
    assert [entry.text for entry in after.log.entries] == ["* up to 4", "* up to 8"]


def test_a_rollback_note_has_an_id_of_its_own() -> None:
    """Also where going back made entries without words under new ids."""
    r = Resource("A")
    r.cover("A", 4)
    memory = r.load_joined("A")
    stand_in = replace(memory.log.entries[0], id=log_sharing.next_entry_id(memory))
    mark = memory.recent[1]
    entries = branch.add_rollback_note(
        memory, (stand_in,), mark, datetime.fromtimestamp(NOW, UTC), len
    )
    assert [entry.id for entry in entries] == [stand_in.id, stand_in.id + 1]


# ── chunks ────────────────────────────────────────────────────────────────────────────────────────


def test_a_chunk_changes_in_place() -> None:
    """The work that will make it active finds the new words."""
    made = transitions.add_chunk(THREE, chunk(THREE, 16))
    id_ = made.chunks[0].id
    after = edits.edit_chunk(made, id_, "* corrected", 3)
    assert after is not None
    assert (after.chunks[0].id, after.chunks[0].text, after.chunks[0].replaces) == (
        id_,
        "* corrected",
        0,
    )
    active = transitions.activate_chunks(after, [id_], NOW)
    assert active.log.entries[-1].text == "* corrected"
    assert undo_newest_change(active, [], NOW) is None


def test_a_dropped_chunk_leaves_no_gap() -> None:
    """Those behind it go too. An observation under way that continued it does not fit."""
    made = THREE
    for last in (14, 16, 18):
        made = transitions.add_chunk(made, chunk(made, last))
    under_way = chunk(made, 20)
    after = edits.drop_chunk(made, made.chunks[1].id)
    assert after is not None
    assert after.chunks == made.chunks[:1]
    assert after.chunked_to == 14
    assert transitions.add_chunk(after, under_way) == after


def test_an_edited_chunk_of_a_shared_log_is_no_entry_that_can_be_taken_back() -> None:
    """Ids of chunks and ids of a shared log are not the same."""
    r = Resource("A")
    r.say("A", 4)
    r.observe("A", 4)
    memory = r.load_joined("A")
    after = edits.edit_chunk(memory, memory.chunks[0].id, "* A1 corrected", 3)
    assert after is not None
    r.commit("A", after)
    r.activate("A")
    assert (r.log[0].text, r.log[0].replaces) == ("* A1 corrected", 0)
    assert undo_newest_change(r.shared_log, r.past, NOW) is None


def test_the_log_without_words_is_a_log() -> None:
    """It may be edited again, be reflected over and be taken back."""
    gone = withdrawn(THREE, 0)
    summary = reflected(gone, 2)
    assert summary.log.entries[0].sources == tuple(e.id for e in gone.log.entries[:2])
    back = undo_newest_change(summary, generations(THREE, gone), NOW)
    assert back is not None
    assert back.log.entries == gone.log.entries
    assert edited(gone, 0).log.entries[0].text == "* corrected"
    assert replace_log(gone, entries=gone.log.entries).log == gone.log
