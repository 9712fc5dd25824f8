"""Each live message stands in exactly one place: the tail, a chunk, or an entry of the log."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from om_proxy.memory.message_places import MessagePlace, MessagePlaces
from om_proxy.memory.model import Memory, ObservationLog, Part, SharedLogRef
from tests.storage.memory_builder import KEY, MemoryBuilder


def test_places_of_a_thread() -> None:
    """Messages 1–2 and 3–4 are covered, 5 waits in a chunk, 6 and 7 are raw."""
    thread = MemoryBuilder().chat(7).cover(2).cover(2).chunk(1)
    first, second = (entry.id for entry in thread.log)
    places = MessagePlaces(thread.memory())
    assert [places.find(seq) for seq in range(1, 8)] == [
        *[MessagePlace("observed", entry=first)] * 2,
        *[MessagePlace("observed", entry=second)] * 2,
        MessagePlace("buffered", chunk=thread.chunks[0].id),
        *[MessagePlace("raw")] * 2,
    ]


def test_places_after_a_reflection() -> None:
    thread = MemoryBuilder().chat(6).cover(2).cover(2).swap_reflection().cover(1)
    reflection, note = (entry.id for entry in thread.log)
    places = MessagePlaces(thread.memory())
    assert [places.find(seq).entry for seq in range(1, 7)] == [*[reflection] * 4, note, None]


@pytest.mark.parametrize("with_notes", [False, True])
def test_places_in_a_log_that_threads_share(with_notes: bool) -> None:
    """Only the parts of this thread count; one that covers nothing more covers nothing."""
    entry = MemoryBuilder().chat(4).cover(4).log[0]
    parts = (Part("other", 0, 9, b""), Part("mine", 0, 2, b""), Part("mine", 0, 0, b""))
    notes = (replace(entry, id=8, parts=parts),) if with_notes else ()
    later = replace(entry, id=9, parts=(Part("mine", 2, 3, b""),))
    memory = Memory(
        key=KEY,
        coverage=3,
        log=ObservationLog(entries=(*notes, later, replace(entry, id=10))),
        shared_log_ref=SharedLogRef(label="mine"),
    )
    places = MessagePlaces(memory)
    found = [places.find(seq) for seq in (1, 2, 3, 4)]
    first = 8 if with_notes else None
    assert [place.entry for place in found] == [first, first, 9, None]
    assert [place.state for place in found] == [*["observed"] * 3, "raw"]
