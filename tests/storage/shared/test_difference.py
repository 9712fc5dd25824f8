"""The difference between two states holds everything that changed, and nothing more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from om_proxy.common.errors import StorageError
from om_proxy.memory.model import Key, Memory, replace_log
from om_proxy.storage.shared.difference import (
    Difference,
    compute_difference,
    count_kept_generations,
)
from tests.bench.opcodes import OpcodeCounter
from tests.storage.memory_builder import KEY, MemoryBuilder, item, small_things

NOTHING = Difference(messages=(), interrupted=(), may_supersede=False)


def summary(d: Difference) -> dict[str, Any]:
    """List what differs from NOTHING; messages as (seq, parent), observations as (id, state)."""
    said: dict[str, Any] = asdict(d)
    said["messages"] = tuple((placed.message.seq, placed.parent) for placed in d.messages)
    said["interrupted"] = tuple((placed.message.seq, placed.parent) for placed in d.interrupted)
    said["observations"] = tuple((o.id, standing) for o, standing in d.observations)
    return {name: value for name, value in said.items() if value != getattr(NOTHING, name)}


def standing() -> MemoryBuilder:
    """Create messages 1–10: 1–2 and 3–4 in the log (entries 1, 2), 5–6 and 7–8 in chunks (3, 4)."""
    return MemoryBuilder().chat(10).cover(2).cover(2).chunk(2).chunk(2)


STEPS: dict[str, tuple[Callable[[MemoryBuilder], Any], dict[str, Any]]] = {
    "new turn": (lambda t: t.chat(2), {"messages": ((11, 10), (12, 11))}),
    "new chunk": (lambda t: t.chunk(1), {"observations": ((5, "chunk"),)}),
    "chunk dropped": (lambda t: t.drop_chunks(1), {"dropped_chunks": (4,)}),
    "activated": (lambda t: t.activate(1), {"observations": ((3, "log"),), "entries": ((2, 3),)}),
    "end taken back": (lambda t: t.supersede([9, 10]), {"may_supersede": True}),
    "middle taken back": (
        lambda t: t.supersede([9]),
        {"may_supersede": True, "messages": ((10, 8),)},
    ),
    "swapped": (lambda t: t.swap(10, item("theirs")), {"messages": ((10, 9),)}),
    "swapped, and what follows": (
        lambda t: t.swap(9, item("theirs")),
        {"messages": ((9, 8), (10, 9))},
    ),
    "reflection begun": (lambda t: t.keep_reflection(), {"has_new_reflection": True}),
    "swapped in": (
        lambda t: t.swap_reflection(),
        {"observations": ((5, "log"),), "entries": ((0, 5),)},
    ),
    "fork inside the log": (
        lambda t: t.supersede([4, 5, 6, 7, 8, 9, 10]),
        {
            "may_supersede": True,
            "messages": ((3, 2),),
            "entries": ((0, 1),),
            "dropped_chunks": (3, 4),
        },
    ),
}


@pytest.mark.parametrize(("step", "expected"), STEPS.values(), ids=STEPS.keys())
def test_step(step: Callable[[MemoryBuilder], Any], expected: dict[str, Any]) -> None:
    """Each step yields exactly its own rows."""
    thread = standing()
    before = thread.memory()
    step(thread)
    assert summary(compute_difference(before, thread.memory())) == expected


def test_same_state_differs_in_nothing() -> None:
    """Fields of the thread's own row are not part of the difference, because that row is always
    written."""
    memory = standing().memory()
    assert compute_difference(memory, replace(memory, **small_things())) == NOTHING


def test_first_commit_writes_the_whole_tail() -> None:
    """Everything is new in a first commit; the first message has parent 0."""
    thread = MemoryBuilder().chat(3)
    assert summary(compute_difference(Memory(key=KEY), thread.memory())) == {
        "messages": ((1, 0), (2, 1), (3, 2))
    }


def test_an_interrupted_reply_has_the_live_message_before_it_as_parent() -> None:
    """The parent of an interrupted reply may be covered, and later messages may be live."""
    thread = MemoryBuilder().chat(2)
    before = thread.memory()
    interrupted = thread.interrupt_reply(item("broken"))
    after = thread.chat(1).memory()
    assert summary(compute_difference(before, after, [interrupted])) == {
        "messages": ((4, 2),),
        "interrupted": ((3, 2),),
    }
    covered = thread.cover(2).cover(1).memory()
    late = thread.interrupt_reply(item("broken too"))
    assert summary(compute_difference(covered, covered, [late])) == {"interrupted": ((5, 4),)}


def test_shortened_log_rewrites_the_places_that_moved() -> None:
    """In the same generation, the positions that now hold another entry are written, and those
    beyond the end are removed."""
    memory = standing().memory()
    assert summary(
        compute_difference(memory, replace_log(memory, entries=memory.log.entries[1:]))
    ) == {
        "entries": ((0, 2),),
        "is_shortened": True,
    }


def test_covering_what_is_not_stored_is_refused() -> None:
    """Coverage over messages that are new in the same step would lose them."""
    thread = MemoryBuilder().chat(2)
    before = thread.memory()
    with pytest.raises(StorageError, match="commit the messages first"):
        compute_difference(before, thread.chat(2).cover(4).memory())


@pytest.mark.parametrize(
    ("thread", "generation", "generations", "kept"),
    [("t", 1, 3, None), ("t", 2, None, None), ("t", 2, 3, 4), ("", 2, 3, 31), ("t", 2, 0, 1)],
    ids=["no new one", "all are kept", "a thread", "a shared log", "none but the current one"],
)
def test_generations_that_a_commit_keeps(
    thread: str, generation: int, generations: int | None, kept: int | None
) -> None:
    """Older generations are removed when a new one begins. A shared log keeps ten times as many."""
    before = replace_log(Memory(key=Key("tenant", "resource", thread)), generation=1)
    after = replace_log(before, generation=generation)
    assert count_kept_generations(before, after, generations) == kept


def test_a_change_near_the_end_is_found_without_reading_a_long_tail() -> None:
    """Clients that spell a reply anew change one message in each turn."""

    def count_opcodes(length: int) -> int:
        before = MemoryBuilder().chat(length).memory()
        last = replace(before.tail[-1], item=item("theirs"))
        after = replace(before, tail=(*before.tail[:-1], last))
        counter = OpcodeCounter()
        counter.install()
        counter.start()
        difference = compute_difference(before, after)
        count = counter.stop()
        counter.uninstall()
        assert [placed.message.seq for placed in difference.messages] == [length]
        return count

    assert count_opcodes(1_000) <= count_opcodes(10) + 100
