"""The threads of a resource are observed together, and their notes enter the shared log, when it is
worth it."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from om_proxy.memory.lifecycle import batches, decisions, transitions
from om_proxy.memory.lifecycle.batches import ActivateIdle, ObserveBatch, ThreadBacklog
from om_proxy.memory.lifecycle.observable import answered_chunks
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.memory.model import Failures, Key
from tests.memory.building import chat, chunk, memory, transcript

LIMITS = Limits(
    observe_from_tokens=1_000, interval_tokens=200, keep_tokens=200, share_after_idle_s=None
)
SYNCHRONOUS = Limits(observe_from_tokens=1_000, interval_tokens=None, keep_tokens=0)
NOW = 5_000.0
LATELY = NOW - 50.0  # all prompt caches are warm


def key(name: str) -> Key:
    return Key("tenant", "resource", name)


def waits(
    name: str,
    fresh: int = 0,
    *,
    pending: int | None = None,
    chunked: int = 0,
    at: float = 0.0,
    until: float = 0.0,
) -> ThreadBacklog:
    failures = Failures(count=1, retry_at=until) if until else Failures()
    size = fresh + chunked if pending is None else pending
    return ThreadBacklog(
        key=key(name),
        turn_at=LATELY + at,
        pending_tokens=size,
        unobserved_tokens=fresh,
        chunked_tokens=chunked,
        failures=failures,
    )


def parked(name: str, fresh: int) -> ThreadBacklog:
    return replace(waits(name, fresh), failures=Failures(8, 0.0, True))


def due(
    *waiting: ThreadBacklog, limits: Limits = LIMITS, log: int = 0, most: int = 10_000
) -> list[str] | ActivateIdle | None:
    """Names of the batches' threads as `ab|c`, an ActivateIdle, or nothing."""
    found = batches.decide_for_resource(waiting, limits, log, most, NOW)
    return (
        ["".join(k.thread for k in batch) for batch in found.batches]
        if isinstance(found, ObserveBatch)
        else found
    )


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        pytest.param((), None, id="nobody"),
        pytest.param((waits("a", 199),), None, id="less than an interval"),
        pytest.param((waits("a", 200),), ["a"], id="an interval of one"),
        pytest.param((waits("a", 150), waits("b", 50)), ["ab"], id="an interval of all together"),
        pytest.param(
            (waits("a", 100, chunked=700), waits("b", 0)),
            ["a"],
            id="near T half an interval is enough",
        ),
        pytest.param((waits("a", 99, chunked=700),), None, id="but no less"),
        pytest.param(
            (waits("a", 300, until=NOW + 1), waits("b", 199)),
            None,
            id="one in back-off does not count",
        ),
        pytest.param(
            (waits("a", 300, until=NOW), waits("b", 199)),
            ["a", "b"],
            id="its back-off is over: alone",
        ),
        pytest.param((parked("a", 900), waits("b", 250)), ["b"], id="a parked one is left out"),
        pytest.param(
            (waits("b", 150, at=2.0), waits("a", 150, at=1.0)),
            ["ab"],
            id="the longest left alone first",
        ),
        pytest.param(
            (waits("a", 0, pending=500), waits("b", 200)),
            ["b"],
            id="what cannot be cut yet is not asked for",
        ),
    ],
)
def test_who_is_observed(waiting: tuple[ThreadBacklog, ...], expected: list[str] | None) -> None:
    """The sum decides, over those who may be asked about now."""
    assert due(*waiting) == expected


def test_without_buffering_it_is_due_at_t() -> None:
    assert due(waits("a", 999), limits=SYNCHRONOUS) is None
    assert due(waits("a", 500), waits("b", 500), limits=SYNCHRONOUS) == ["ab"]


@pytest.mark.parametrize(
    ("sizes", "most", "expected"),
    [
        ([10, 10, 10], 30, ["abc"]),
        ([10, 10, 11], 30, ["ab", "c"]),
        ([31, 10], 30, ["a", "b"]),
        ([10, 31, 10], 30, ["a", "b", "c"]),
        ([30, 30], 30, ["a", "b"]),
        ([1], 0, ["a"]),
        ([], 30, []),
    ],
)
def test_batches_hold_whole_threads(sizes: list[int], most: int, expected: list[str]) -> None:
    """A batch holds as many whole threads as fit, in their order. A thread that alone is too much
    is a batch of its own."""
    found = batches.split_batches(
        [waits(name, size) for name, size in zip("abc", sizes, strict=False)], most
    )
    assert ["".join(k.thread for k in batch) for batch in found] == expected


@given(st.lists(st.integers(1, 60), max_size=12), st.integers(0, 50))
def test_every_thread_is_in_one_batch(sizes: list[int], most: int) -> None:
    waiting = [waits(f"t{n}", size) for n, size in enumerate(sizes)]
    found = batches.split_batches(waiting, most)
    assert [k for batch in found for k in batch] == [w.key for w in waiting]
    size = {w.key: w.unobserved_tokens for w in waiting}
    assert all(len(batch) == 1 or sum(size[k] for k in batch) <= most for batch in found)


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        pytest.param((waits("a", chunked=500), waits("b", chunked=499, at=1)), None, id="less than T"),
        pytest.param((waits("a", chunked=500), waits("b", chunked=500, at=1)), "a", id="the oldest, never the newest"),
        pytest.param((waits("a", chunked=100), waits("b", chunked=900, at=1)), "a", id="though that leaves more than F"),
        pytest.param((waits("b", chunked=500, at=2), waits("a", chunked=500, at=1), waits("c", at=3, pending=100)), "ab", id="by age"),
        pytest.param((waits("a", chunked=900), waits("b", chunked=500, at=1), waits("c", at=3)), "ab", id="until F is left"),
        pytest.param((waits("a", chunked=1_300), waits("b", chunked=100, at=1), waits("c", at=3)), "a", id="and no further"),
        pytest.param((waits("a", pending=1_200), waits("b", chunked=50, at=1)), None, id="nothing is noted of the older one"),
    ],
)  # fmt: skip
def test_what_enters_the_log_together(
    waiting: tuple[ThreadBacklog, ...], expected: str | None
) -> None:
    """From T on, the notes of the threads idle longest enter the log, until no more than F is
    raw."""
    found = due(*waiting)
    assert found == (ActivateIdle(tuple(map(key, expected)), why="threshold") if expected else None)


def test_a_shared_budget_moves_all_thresholds() -> None:
    """The tails may use what the log leaves free."""
    shared = dataclasses.replace(LIMITS, has_shared_budget=True, reflect_from_tokens=1_000)
    assert due(waits("a", 300), limits=shared) is None
    assert due(waits("a", 300), limits=shared, log=900) == ["a"]


@pytest.mark.parametrize(
    ("waiting", "at"),
    [
        pytest.param((), None, id="nobody"),
        pytest.param((waits("a", 199, until=NOW + 9),), None, id="too little even then"),
        pytest.param((waits("a", 200, until=NOW + 9),), NOW + 9, id="the one in back-off"),
        pytest.param(
            (waits("a", 150, until=NOW + 9), waits("b", 100)),
            NOW + 9,
            id="together with one that is fine",
        ),
        pytest.param(
            (waits("a", 150, until=NOW + 9), waits("b", 100, until=NOW - 9)),
            NOW + 9,
            id="or is fine again",
        ),
        pytest.param(
            (waits("a", 150, until=NOW + 9), waits("b", 100, until=NOW + 5)),
            NOW + 5,
            id="the first of two",
        ),
        pytest.param(
            (parked("a", 400), waits("b", 100)), None, id="a parked one is not waited for"
        ),
    ],
)
def test_when_to_look_again(waiting: tuple[ThreadBacklog, ...], at: float | None) -> None:
    """The next look is never in the past: the work would be taken up again and again, with nothing
    due."""
    assert batches.decide_for_resource(waiting, LIMITS, 0, 10_000, NOW) is None
    assert batches.next_look_at(waiting, LIMITS, 0, NOW) == at


def test_looking_again_knows_the_shared_budget() -> None:
    shared = dataclasses.replace(LIMITS, has_shared_budget=True, reflect_from_tokens=1_000)
    waiting = [waits("a", 300), waits("b", 10, until=NOW + 9)]
    assert batches.decide_for_resource(waiting, shared, 0, 10_000, NOW) is None
    assert batches.next_look_at(waiting, shared, 0, NOW) is None


# ── what a thread contributes ─────────────────────────────────────────────────────────────────────


def test_everything_is_observed_up_to_a_batch() -> None:
    """All closed blocks are observed, below an interval too; nothing that waits for its tool's
    result is."""
    told = memory(chat(2, 50))
    assert decisions.observe_everything(told, 1_000) == decisions.Observe(0, 4, 200)
    assert decisions.observe_everything(told, 150) == decisions.Observe(0, 2, 100)
    assert decisions.observe_everything(told, 10) == decisions.Observe(0, 1, 50)
    assert decisions.observe_everything(transitions.add_chunk(told, chunk(told, 4)), 1_000) is None
    assert (
        decisions.observe_everything(memory(transcript(("assistant", 50, ("c",), None))), 1_000)
        is None
    )


@pytest.mark.parametrize(
    ("roles", "chunks", "count"),
    [
        pytest.param(("user", "assistant", "user", "assistant"), (2, 4), 2, id="all is answered"),
        pytest.param(("user", "assistant", "user"), (2, 3), 1, id="a question without its answer"),
        pytest.param(("user", "assistant", "user"), (3,), 0, id="in one chunk with what was"),
        pytest.param(("user", "user"), (1, 2), 0, id="never answered at all"),
    ],
)
def test_what_stands_unanswered_does_not_settle(
    roles: tuple[str, ...], chunks: tuple[int, ...], count: int
) -> None:
    """An unanswered question stays in the prompt, for the client may ask it again
    (docs/contributing/behaviour.md#safe-cut: buffered, never activated)."""
    told = memory(transcript(*[(role, 50) for role in roles]))
    for last in chunks:
        told = transitions.add_chunk(told, chunk(told, last))
    assert answered_chunks(told) == told.chunks[:count]


def test_when_all_are_left_alone() -> None:
    """`buffer_on_idle`: half an interval is worth a call once the one that spoke last has been
    silent long enough, and not before."""
    idle = dataclasses.replace(LIMITS, share_after_idle_s=600.0)
    waiting = (waits("a", 60, at=-850.0), waits("b", 50, at=-549.0))
    assert due(*waiting, limits=idle) is None
    assert batches.next_look_at(waiting, idle, 0, NOW) == NOW + 1.0
    assert due(*(replace(w, turn_at=w.turn_at - 1.0) for w in waiting), limits=idle) == ["ab"]
    assert batches.next_look_at((waits("a", 99, at=50.0),), idle, 0, NOW) is None
    assert batches.next_look_at(waiting, LIMITS, 0, NOW) is None


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        pytest.param((waits("a", chunked=9, at=-3_549),), None, id="its prompt cache may be warm"),
        pytest.param((waits("a", chunked=9, at=-3_550),), "a", id="it is certainly cold"),
        pytest.param(
            (waits("a", chunked=9, at=-3_550), waits("b", chunked=9)),
            "a",
            id="the warm one keeps its prefix",
        ),
        pytest.param(
            (waits("b", at=-9_000, pending=90), waits("a", chunked=9, at=-9_000)),
            "a",
            id="those with notes",
        ),
        pytest.param(
            (waits("a", chunked=9, at=-9_000), waits("b", chunked=9, at=-8_000)),
            "ab",
            id="all of them",
        ),
    ],
)
def test_notes_of_who_is_cold_enter_the_log(
    waiting: tuple[ThreadBacklog, ...], expected: str | None
) -> None:
    """Notes of cold threads enter the log, however much is raw: no thread loses a prompt cache by
    it, and other threads read them (docs/contributing/behaviour.md#scopes)."""
    assert due(*waiting) == (ActivateIdle(tuple(map(key, expected))) if expected else None)


def test_looking_again_when_notes_may_enter_the_log() -> None:
    """The next look comes as soon as the first thread with notes is cold."""
    waiting = (
        waits("a", chunked=9, at=-3_000),
        waits("b", chunked=9),
        waits("c", at=-3_500, pending=90),
    )
    assert (
        batches.next_look_at(waiting, LIMITS, 0, NOW)
        == waiting[0].turn_at + LIMITS.cache_lifetime_s
    )


def test_the_rest_is_observed_when_all_are_idle() -> None:
    """Less than half an interval, too, but not what is told word for word anyway."""
    idle = Limits(share_after_idle_s=600.0)
    assert due(waits("a", 250, at=-600), limits=idle) == ["a"]
    assert due(waits("a", 249, at=-600), limits=idle) is None
    assert due(waits("a", 250), limits=idle) is None
