"""Notes that a person pins by hand: how many there may be, and where they go."""

from __future__ import annotations

from msgspec.structs import replace

from om_proxy.memory.lifecycle import branch, log_sharing, pins, transitions
from om_proxy.memory.lifecycle.pins import MAX_PINNED_TOKENS, MAX_PINS
from om_proxy.memory.model import Memory, replace_log
from tests.memory.building import chat, chunk, memory, reflection
from tests.memory.sharing import LABELS, NOW, RESOURCE_KEY, Resource

BARE = memory(chat(6, 100))


def pinned(of: Memory, *texts: str, tokens: int = 10) -> Memory:
    for text in texts:
        of = pins.add_pin(of, text, tokens, NOW, "own")
    return of


def texts(of: Memory) -> list[str]:
    return [pin.text for pin in of.log.pins]


def test_pins_stand_in_order_under_ids_of_their_own() -> None:
    """An id is never used again, and each change moves the render date and the version."""
    three = pinned(BARE, "a", "b", "c")
    ids = [pin.id for pin in three.log.pins]
    changed = pins.change_pin(three, ids[1], "B", 4, NOW + 1, "admin")
    assert changed is not None
    assert texts(changed) == ["a", "B", "c"]
    assert changed.log.pins[1] == (ids[1], "B", 4, NOW + 1, "admin")
    assert changed.log.pins_version > three.log.pins_version
    assert (three.render_date, changed.render_date) == (NOW, NOW + 1)
    less = pins.remove_pin(changed, ids[2], NOW + 2)
    assert less is not None
    again = pinned(less, "d")
    assert texts(again) == ["a", "B", "d"]
    assert again.log.pins[-1].id not in ids
    assert again.log.generation == BARE.log.generation


def test_what_is_not_pinned_is_not_changed() -> None:
    one = pinned(BARE, "a")
    assert pins.change_pin(one, 99, "b", 1, NOW, "own") is None
    assert pins.remove_pin(one, 99, NOW) is None
    assert pins.change_pin(one, one.log.pins[0].id, "a", 1, NOW + 1, "admin") is one


def test_room() -> None:
    """So many pins, and so many tokens; a pin that is edited makes room for itself."""
    full = pinned(BARE, *map(str, range(MAX_PINS)))
    assert not pins.has_room(full.log, 1)
    assert pins.has_room(full.log, 10, instead_of=full.log.pins[0].id)
    heavy = pinned(BARE, "a", "b", tokens=MAX_PINNED_TOKENS // 2)
    assert not pins.has_room(heavy.log, 1)
    assert pins.has_room(heavy.log, MAX_PINNED_TOKENS // 2, instead_of=heavy.log.pins[0].id)
    assert not pins.has_room(heavy.log, MAX_PINNED_TOKENS, instead_of=heavy.log.pins[0].id)


def test_pins_stay_through_everything_else() -> None:
    """They are not reflected, and no branch takes them back."""
    made = transitions.add_chunk(pinned(BARE, "a"), chunk(BARE, 4))
    made = transitions.activate_chunks(made, [made.chunks[0].id], NOW)
    kept = transitions.keep_reflection(made, reflection(made, 1))
    swapped = transitions.swap_reflection(kept, NOW)
    assert swapped.log.entries[0].text == "* 🔴 all"
    assert texts(swapped) == ["a"]
    rolled = branch.roll_back(swapped, 0, (), [], BARE.tail, (0, 0), NOW)
    assert (rolled.log.entries, texts(rolled)) == ((), ["a"])


def test_a_thread_takes_its_pins_to_the_log_it_joins() -> None:
    """As many as have room. The others stay its own, and it finds them when it leaves."""
    hub = pinned(Memory(key=RESOURCE_KEY), *map(str, range(MAX_PINS - 1)))
    own = pinned(BARE, "first", "second")
    joined = log_sharing.join_shared_log(own, hub, LABELS["A"], NOW)
    assert texts(joined)[-2:] == [str(MAX_PINS - 2), "first"]
    assert len({pin.id for pin in joined.log.pins}) == MAX_PINS
    thread, shared_log = log_sharing.detach_log(joined)
    assert texts(thread) == ["second"]
    assert texts(shared_log) == texts(joined)
    assert pinned(shared_log, "x").log.pins[-1].id not in {pin.id for pin in joined.log.pins}
    untouched = log_sharing.join_shared_log(BARE, hub, LABELS["A"], NOW)
    assert log_sharing.detach_log(untouched)[1].log == hub.log


def test_a_pin_of_a_shared_log_changes_the_prompt_of_each_thread() -> None:
    """A warm thread does not go on with what it showed before the pin."""
    r = Resource("AB")
    r.cover("A", 4)
    shown = replace(r.load_joined("B"), shown_log_state=r.shared_log.log.state)
    assert log_sharing.can_keep_shown_log(shown)
    r.store_log(pinned(r.shared_log, "a"))
    after = replace(r.load_joined("B"), shown_log_state=shown.shown_log_state)
    assert texts(after) == ["a"]
    assert not log_sharing.can_keep_shown_log(after)
    seen = replace(after, shown_pins_version=after.log.pins_version)
    assert log_sharing.can_keep_shown_log(seen)
    assert replace_log(seen, pins=()).log.pins == ()
