"""The rules of docs/contributing/behaviour.md#observe and docs/contributing/behaviour.md#reflect as
tables."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from om_proxy.memory.lifecycle import decisions, transitions
from om_proxy.memory.lifecycle.decisions import (
    Activate,
    Observe,
    Reflect,
    RequestState,
    chunks_to_activate,
)
from om_proxy.memory.lifecycle.observable import observable_tokens
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.memory.model import Failures, replace_log
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


# ── how much is activated ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("sizes", "pending", "limits", "count"),
    [
        pytest.param([6_000] * 5, 30_000, LIMITS, 4, id="five chunks of 6000, pending 30000: four"),
        pytest.param(
            [10_000] * 3,
            30_000,
            LIMITS,
            2,
            id="three of 10000: a third overshoots by more than 0.95 F",
        ),
        pytest.param(
            [5_000] * 4,
            20_000,
            Limits(observe_from_tokens=20_000, keep_tokens=4_000),
            3,
            id="keep 4000 of 20000: three",
        ),
        pytest.param(
            [40_000], 40_000, LIMITS, 1, id="one huge chunk: the first, though it leaves nothing"
        ),
        pytest.param([6_000] * 2, 30_000, LIMITS, 2, id="too few chunks: all of them"),
        pytest.param([3_000], 3_000, LIMITS, 1, id="nothing to reach: still the first"),
        pytest.param(
            [450, 450],
            1_000,
            Limits(observe_from_tokens=1_000, keep_tokens=200),
            1,
            id="F below 1000: only an exact fit leaves enough",
        ),
        pytest.param(
            [400, 400],
            1_000,
            Limits(observe_from_tokens=1_000, keep_tokens=200),
            2,
            id="F below 1000: the exact fit",
        ),
        pytest.param([12_000, 12_000, 6_000], 30_000, LIMITS, 2, id="reaches the target exactly"),
    ],
)
def test_chunks_to_activate(sizes: list[int], pending: int, limits: Limits, count: int) -> None:
    """The arithmetic vectors of the reference implementation and the corners around them."""
    assert chunks_to_activate(sizes, pending, limits) == count


@given(
    st.lists(st.integers(1, 40_000), min_size=1, max_size=12),
    st.integers(0, 5_000),
    st.integers(0, 20_000),
)
def test_an_activation_takes_at_least_one_and_never_more_than_there_are(
    sizes: list[int], rest: int, keep: int
) -> None:
    """For any sizes, an activation makes progress and stays within what is buffered."""
    assert 1 <= chunks_to_activate(sizes, sum(sizes) + rest, Limits(keep_tokens=keep)) <= len(sizes)


# ── before forwarding ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("size", "expected"),
    [(2_999, None), (3_000, Activate(4, "threshold"))],
    ids=["one token below T", "at T"],
)
def test_activation_begins_at_the_threshold(size: int, expected: Activate | None) -> None:
    """pending ≥ T, inclusive, with chunks there."""
    assert decisions.decide_before_forwarding(chunked(5, size, 2, 4, 6, 8), LIMITS, ANY) == expected


def test_activation_repeats_while_the_tail_is_too_long() -> None:
    """The tail is measured again after an activation. If it is still ≥ T, the next chunk
    follows."""
    sizes = (
        ("user", 5_000),
        ("assistant", 5_000),
        ("user", 22_500),
        ("assistant", 22_500),
        ("user", 100),
    )
    made = memory(transcript(*sizes))
    for last in (2, 4):
        made = transitions.add_chunk(made, chunk(made, last))
    seen = []
    while isinstance(
        decision := decisions.decide_before_forwarding(made, LIMITS, ANY, waited=True), Activate
    ):
        seen.append(decision.count)
        made = transitions.activate_chunks(made, [c.id for c in made.chunks[: decision.count]], 1.0)
    assert (seen, made.coverage, made.chunks) == ([1, 1], 4, ())


def test_what_the_request_asks_stays_raw() -> None:
    """A chunk that reaches into what the request itself asks is not activated for it."""
    made = chunked(6, 6_000, 12)
    assert (
        decisions.decide_before_forwarding(
            made, LIMITS, RequestState(last_observable_seq=10), waited=True
        )
        is None
    )


@pytest.mark.parametrize(
    ("limits", "asked", "why"),
    [
        (Limits(activate_after_idle_s=300), RequestState(10**9, idle_s=300), "idle"),
        (Limits(activate_after_idle_s=300), RequestState(10**9, idle_s=299), None),
        (
            Limits(activate_on_provider_change=True),
            RequestState(10**9, has_provider_changed=True),
            "provider",
        ),
        (LIMITS, RequestState(10**9, idle_s=10**6, has_provider_changed=True), None),
    ],
)
def test_activation_when_the_cache_is_cold_anyway(
    limits: Limits, asked: RequestState, why: str | None
) -> None:
    """Below the threshold, an idle gap or another provider activates what is buffered, where that
    is switched on."""
    decision = decisions.decide_before_forwarding(chunked(4, 1_000, 4), limits, asked)
    assert (decision.why if isinstance(decision, Activate) else None) == why


def test_a_pause_is_used_once() -> None:
    """The first request after it activates as much as the threshold would; what is not taken stays
    buffered."""
    limits = Limits(activate_after_idle_s=300)
    made = replace(chunked(12, 1_000, 6, 12, 18, 24), turn_at=1_000.0, model="m")
    idle, _ = decisions.prompt_cache_state(made, "m", 1_300.0)
    assert decisions.decide_before_forwarding(
        made, limits, RequestState(10**9, idle_s=idle)
    ) == Activate(3, "idle")
    after = transitions.activate_chunks(made, [c.id for c in made.chunks[:3]], 1_300.0)
    idle, _ = decisions.prompt_cache_state(after, "m", 1_300.0)
    assert (
        decisions.decide_before_forwarding(after, limits, RequestState(10**9, idle_s=idle)) is None
    )
    assert decisions.is_nothing_due(after, limits, idle_s=idle, has_provider_changed=False)
    assert len(after.chunks) == 1


@pytest.mark.parametrize(
    ("change", "model", "found"),
    [
        pytest.param({"turn_at": None, "model": None}, "m", (0.0, False), id="a new thread"),
        pytest.param({}, "m", (300.0, False), id="the same model, 300 s later"),
        pytest.param({}, "n", (300.0, True), id="another model"),
        pytest.param({}, None, (300.0, False), id="a model nobody names"),
        pytest.param(
            {"render_date": 900.0}, "n", (300.0, True), id="the prompt changed before that turn"
        ),
        pytest.param(
            {"render_date": 1_200.0}, "n", (100.0, False), id="the prompt has changed since"
        ),
    ],
)
def test_how_a_request_finds_its_cache(
    change: dict[str, object], model: str | None, found: tuple[float, bool]
) -> None:
    """Idle is the time since the prompt was sent or changed last; a change of models is one until
    the prompt was changed for it."""
    made = replace(memory(chat(1, 10)), **{"turn_at": 1_000.0, "model": "m", **change})
    assert decisions.prompt_cache_state(made, model, 1_300.0) == found


def test_an_idle_thread_without_chunks_waits_for_nothing() -> None:
    """Cold cache or not: below the threshold no request pays for an observation."""
    limits = Limits(activate_after_idle_s=1, activate_on_provider_change=True)
    made = memory(chat(4, 3_000))
    assert decisions.is_nothing_due(made, limits, idle_s=10**6, has_provider_changed=True)
    assert (
        decisions.decide_before_forwarding(
            made, limits, RequestState(10**9, idle_s=10**6, has_provider_changed=True)
        )
        is None
    )


def test_triggers_measure_up_to_the_safe_cut() -> None:
    """Calls whose results may still come do not count: neither towards T nor towards the wait."""
    open_call = ("assistant", 30_000, ("a",), None)
    made = memory(transcript(("user", 3_000), ("assistant", 3_000), ("user", 3_000), open_call))
    assert made.pending_tokens == 39_000
    assert observable_tokens(made.tail) == 9_000
    chunks = transitions.add_chunk(made, chunk(made, 2))
    assert decisions.decide_before_forwarding(made, LIMITS, ANY) is None
    assert decisions.decide_before_forwarding(chunks, LIMITS, ANY) is None


def test_a_message_larger_than_the_threshold() -> None:
    """It may be buffered while unanswered, never activated; once answered, it is."""
    made = memory(transcript(("user", 100), ("assistant", 100), ("user", 40_000)))
    assert decisions.decide_after_reply(made, LIMITS) == Observe(0, 3, 40_200)
    made = transitions.add_chunk(made, chunk(made, 3))
    assert (
        decisions.decide_before_forwarding(made, LIMITS, RequestState(last_observable_seq=2))
        is None
    )
    assert decisions.decide_before_forwarding(
        made, LIMITS, RequestState(last_observable_seq=3)
    ) == Activate(1, "threshold")


def test_a_wait_reads_no_more_than_the_threshold() -> None:
    """A request waits for the oldest T tokens of a long tail; the rest is observed afterwards.
    Without buffering it waits for all."""
    for limits in (LIMITS, dataclasses.replace(LIMITS, has_shared_budget=True)):
        decision = decisions.decide_before_forwarding(memory(chat(60, 2_000)), limits, ANY)
        assert decision == Observe(0, 14, 28_000, wait=True)
    assert decisions.decide_before_forwarding(memory(chat(29, 2_000)), UNBUFFERED, ANY) == Observe(
        0, 58, 116_000, wait=True
    )


@pytest.mark.parametrize(
    ("parts", "last"),
    [
        pytest.param(
            [("user", 9_000), ("assistant", 9_000)] * 2 + [("user", 9_000)],
            2,
            id="before the user's message",
        ),
        pytest.param(
            [("user", 1_000), ("assistant", 1_000)] + [("assistant", 9_000)] * 4,
            5,
            id="too little there: any block",
        ),
    ],
)
def test_a_wait_cuts_at_a_user_s_message(parts: list[tuple[str, int]], last: int) -> None:
    """The cut stands before a user's message if that yields at least half an interval; F stays
    raw."""
    decision = decisions.decide_before_forwarding(memory(transcript(*parts)), LIMITS, ANY)
    assert isinstance(decision, Observe)
    assert decision.last == last


def test_a_request_waits_from_its_threshold() -> None:
    """Nothing buffered and 36 000 pending: the oldest messages are observed, F stays raw, cut
    before a user message."""
    decision = decisions.decide_before_forwarding(memory(chat(6, 3_000)), LIMITS, ANY)
    assert decision == Observe(0, 10, 30_000, wait=True)


@pytest.mark.parametrize(
    ("size", "block_from_tokens", "waits"),
    [
        pytest.param(2_999, 36_000, False, id="below"),
        pytest.param(3_000, 36_000, True, id="1.2 T"),
        pytest.param(3_000, 50_000, False, id="set higher"),
        pytest.param(2_500, 30_000, True, id="at T"),
    ],
)
def test_the_wait_begins_at_its_threshold(size: int, block_from_tokens: int, waits: bool) -> None:
    """pending ≥ block_after, inclusive."""
    decision = decisions.decide_before_forwarding(
        memory(chat(6, size)), Limits(block_from_tokens=block_from_tokens), ANY
    )
    assert isinstance(decision, Observe) is waits


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"failures": Failures(count=1, retry_at=9e9)}, id="in back-off"),
        pytest.param({"failures": Failures(count=8, suspended=True)}, id="parked"),
    ],
)
def test_a_troubled_thread_is_not_waited_for(change: dict[str, Failures]) -> None:
    """A thread in back-off or parked goes raw: its requests must not pay for the observer's
    trouble."""
    assert (
        decisions.decide_before_forwarding(replace(memory(chat(8, 3_000)), **change), LIMITS, ANY)
        is None
    )


def test_a_request_waits_once() -> None:
    """A request waits at most once."""
    assert (
        decisions.decide_before_forwarding(memory(chat(20, 3_000)), LIMITS, ANY, waited=True)
        is None
    )


def test_without_buffering_observation_is_synchronous_at_the_threshold() -> None:
    """buffer_tokens false: everything but the newest turn is observed at T."""
    tail = transcript(
        *[(r, 3_000) for _ in range(5) for r in ("user", "assistant")], ("user", 3_000)
    )
    assert decisions.decide_after_reply(memory(tail), UNBUFFERED) is None
    asked = RequestState(last_observable_seq=10)
    assert decisions.decide_before_forwarding(memory(tail), UNBUFFERED, asked) == Observe(
        0, 10, 30_000, wait=True
    )
    assert decisions.decide_before_forwarding(memory(tail[:9]), UNBUFFERED, asked) is None


def test_without_buffering_reflection_is_synchronous_too() -> None:
    """No reflection is prepared in the background, at any size. At R a request waits for one."""
    short, long = (with_log(memory(chat(1, 100)), 20_000, size) for size in (19_999, 20_000))
    assert decisions.decide_after_reply(long, UNBUFFERED) is None
    assert decisions.decide_before_forwarding(short, UNBUFFERED, ANY) is None
    assert decisions.decide_before_forwarding(long, UNBUFFERED, ANY) == Reflect(
        1, 14_001, wait=True
    )


@pytest.mark.parametrize(
    ("failures", "now", "waits"),
    [
        pytest.param(Failures(1, 1_000.0), 999.0, False, id="in back-off"),
        pytest.param(Failures(1, 1_000.0), 1_000.0, True, id="back-off over"),
        pytest.param(Failures(8, 1_000.0, True), 2_000.0, False, id="parked"),
    ],
)
def test_without_buffering_a_request_makes_the_next_try(
    failures: Failures, now: float, waits: bool
) -> None:
    """Nothing in the background does it: without another try the thread would stay raw for ever."""
    made = replace(memory(chat(6, 3_000)), failures=failures)
    decision = decisions.decide_before_forwarding(made, UNBUFFERED, RequestState(10**9, now=now))
    assert isinstance(decision, Observe) is waits


def test_with_buffering_the_next_try_is_the_background_s() -> None:
    """A request does not pay for finding out whether the observer is back."""
    made = replace(memory(chat(8, 3_000)), failures=Failures(1, 1_000.0))
    assert (
        decisions.decide_before_forwarding(made, LIMITS, RequestState(10**9, now=2_000.0)) is None
    )
    assert decisions.due_at(made, LIMITS, 2_000.0) == 2_000.0


def test_without_buffering_too_little_before_a_user_s_message_is_no_cut() -> None:
    """A request that waits has a good part of its tail observed, not two words before a long run of
    tools."""
    steps = [
        part
        for n in range(6)
        for part in (("assistant", 3_000, (f"c{n}",), None), ("tool", 3_000, (), f"c{n}"))
    ]
    tail = transcript(("user", 10), ("assistant", 10), ("user", 10), *steps)
    assert decisions.decide_before_forwarding(memory(tail), UNBUFFERED, ANY) == Observe(
        0, 15, 36_030, wait=True
    )


# ── after the reply ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("size", "turns", "expected"),
    [
        pytest.param(1_000, 2, None, id="4000 new: less than an interval"),
        pytest.param(1_000, 3, Observe(0, 6, 6_000), id="an interval: the finished exchanges"),
        pytest.param(3_000, 1, Observe(0, 2, 6_000), id="one exchange of an interval"),
    ],
)
def test_an_interval_is_buffered(size: int, turns: int, expected: Observe | None) -> None:
    """Each interval of new messages is worth a chunk."""
    assert decisions.decide_after_reply(memory(chat(turns, size)), LIMITS) == expected


def test_the_boundary_is_where_the_newest_chunk_ends() -> None:
    """Chunked messages do not count again: only an interval beyond them is due."""
    made = chunked(5, 1_000, 6)
    assert decisions.decide_after_reply(made, LIMITS) is None


def test_half_an_interval_is_enough_near_the_threshold() -> None:
    """3000 new tokens are buffered from T − 1.1 intervals on."""
    made = chunked(12, 1_000, 20)
    near = Limits(observe_from_tokens=30_000)
    assert observable_tokens(made.tail) == 24_000
    assert decisions.decide_after_reply(made, near) == Observe(20, 24, 4_000)
    assert (
        decisions.decide_after_reply(
            made, dataclasses.replace(near, observe_from_tokens=40_000, block_from_tokens=48_000)
        )
        is None
    )


@pytest.mark.parametrize(
    ("size", "now", "expected"),
    [
        pytest.param(750, 1_299.0, None, id="not idle long enough"),
        pytest.param(750, 1_300.0, Observe(0, 4, 3_000), id="half an interval, idle"),
        pytest.param(749, 1_300.0, None, id="less than half an interval"),
        pytest.param(2_999, 1_299.0, Observe(0, 4, 11_996), id="an interval needs no pause"),
    ],
)
def test_half_an_interval_is_enough_once_idle(
    size: int, now: float, expected: Observe | None
) -> None:
    """`buffer_on_idle`: what is below an interval is buffered when the prompt cache has gone cold;
    never less than half of one."""
    made = replace(memory(chat(2, size)), turn_at=1_000.0)
    assert decisions.decide_after_reply(made, ON_IDLE, now) == expected
    assert decisions.decide_after_reply(made, LIMITS, now) == (expected if size == 2_999 else None)


@pytest.mark.parametrize(
    ("change", "due"),
    [
        pytest.param({}, 1_300.0, id="when it will have been idle long enough"),
        pytest.param({"turn_at": 500.0}, 1_000.0, id="it has been: now"),
        pytest.param({"turn_at": None}, None, id="no turn yet"),
        pytest.param({"failures": Failures(1, 2_000.0)}, 2_000.0, id="not before its back-off"),
        pytest.param({"failures": Failures(8, 0.0, True)}, None, id="parked"),
    ],
)
def test_idle_work_is_due_at_its_time(change: dict[str, object], due: float | None) -> None:
    """The store finds it without another request."""
    made = replace(memory(chat(2, 750)), **{"turn_at": 1_000.0, **change})
    assert decisions.due_at(made, ON_IDLE, 1_000.0) == due


def test_due_and_done_agree_to_the_last_bit() -> None:
    """The work is due at the very moment that the store was told: sums and differences of seconds
    do not mix."""
    made = replace(memory(chat(2, 750)), turn_at=1_700_000_000.1)
    limits = Limits(buffer_after_idle_s=0.3)
    due = decisions.due_at(made, limits, made.turn_at or 0.0)
    assert due is not None
    assert decisions.decide_after_reply(made, limits, due)


@given(
    st.lists(st.integers(1, 40_000), min_size=1, max_size=12),
    st.sampled_from([LIMITS, ON_IDLE]),
    st.booleans(),
)
def test_never_less_than_half_an_interval(sizes: list[int], limits: Limits, shared: bool) -> None:
    """The background sends the observer at least half an interval."""
    parts = [(role, size) for size in sizes for role in ("user", "assistant")]
    made = replace(memory(transcript(*[(role, size + 4) for role, size in parts])), turn_at=0.0)
    decision = decisions.decide_after_reply(
        made, dataclasses.replace(limits, has_shared_budget=shared), 1_000.0
    )
    if isinstance(decision, Observe):
        assert decision.tokens >= 3_000


def test_a_backlog_is_observed_in_batches_of_at_most_the_threshold() -> None:
    """A long history first seen is taken oldest first, at most T tokens a call."""
    decision = decisions.decide_after_reply(memory(chat(50, 2_000)), LIMITS)
    assert isinstance(decision, Observe)
    assert decision.after == 0
    assert 24_000 <= decision.tokens <= 30_000
    assert (
        decisions.decide_after_reply(
            memory(chat(50, 2_000)), dataclasses.replace(LIMITS, has_shared_budget=True)
        )
        == decision
    )


def test_an_open_tool_call_is_never_cut() -> None:
    """A call whose results may still come is not observed without them."""
    tail = transcript(
        ("user", 3_000), ("assistant", 4_000, ("a", "b"), None), ("tool", 4_000, (), "a")
    )
    assert decisions.decide_after_reply(memory(tail), LIMITS) is None
    closed = transcript(
        ("user", 3_000), ("assistant", 4_000, ("a",), None), ("tool", 4_000, (), "a")
    )
    assert decisions.decide_after_reply(memory(closed), LIMITS) == Observe(0, 3, 11_000)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([19_999], None), ([4_000] * 5, Reflect(2, 5_601)), ([30_000], Reflect(1, 21_001))],
)
def test_a_reflection_is_prepared_from_half_of_the_threshold(
    sizes: list[int], expected: Reflect | None
) -> None:
    """The oldest entries are condensed in the background from R × 0.5 on, accepted at seven
    tenths of their size."""
    assert decisions.decide_after_reply(with_log(memory(chat(1, 100)), *sizes), LIMITS) == expected


def test_one_reflection_is_prepared_at_a_time() -> None:
    """No other reflection is made while one is kept beside the log."""
    made = with_log(memory(chat(1, 100)), 25_000)
    made = transitions.keep_reflection(made, reflection(made, 8_000))
    assert decisions.decide_after_reply(made, LIMITS) is None


def test_at_the_threshold_without_one_it_is_made_in_the_background() -> None:
    """No request waits from R to 1.2 R: a reflection is started after the reply."""
    made = with_log(memory(chat(1, 100)), 27_000, 20_999)
    assert decisions.decide_before_forwarding(made, LIMITS, ANY) is None
    assert decisions.decide_after_reply(made, LIMITS) == Reflect(1, 18_901)


def test_an_unproductive_reflection_is_not_waited_for_again() -> None:
    """No request waits for an unproductive reflection again while the log has not grown."""
    made = with_log(memory(chat(1, 100)), 50_000)
    assert decisions.decide_before_forwarding(made, LIMITS, ANY) == Reflect(1, 35_001, wait=True)
    assert (
        decisions.decide_before_forwarding(transitions.mark_unproductive(made, 50_000), LIMITS, ANY)
        is None
    )


def test_an_unproductive_reflection_waits_for_growth() -> None:
    """It is not repeated while the log has not grown."""
    made = transitions.mark_unproductive(with_log(memory(chat(1, 100)), 25_000), 25_000)
    assert decisions.decide_after_reply(made, LIMITS) is None
    grown = replace_log(made, entries=made.log.entries + with_log(memory(()), 10).log.entries)
    assert isinstance(decisions.decide_after_reply(grown, LIMITS), Reflect)


@pytest.mark.parametrize(("left", "waits"), [(16_000, False), (16_001, True)])
def test_after_a_reflection_that_freed_little_the_log_has_to_grow(left: int, waits: bool) -> None:
    """A reflector that hardly shrinks the log is not asked at every request: each swap breaks the
    prompt cache."""
    made = with_log(memory(chat(1, 100)), 20_000, 30_000)
    after = transitions.swap_reflection(
        transitions.keep_reflection(made, reflection(made, left, 1)), 9.0
    )
    assert (after.log.unproductive_tokens == after.log.tokens) is waits
    assert (decisions.reflection_due(after, LIMITS) is None) is waits


def test_a_request_waits_for_a_reflection_from_its_block() -> None:
    """A request waits at 1.2 R if no reflection is ready. The log comes below R with what is
    accepted."""
    made = with_log(memory(chat(1, 100)), *[4_000] * 12)
    assert decisions.decide_before_forwarding(made, LIMITS, ANY) == Reflect(7, 19_601, wait=True)


# ── due, and back to an older state ───────────────────────────────────────────────────────────────


def test_due_work_is_remembered_with_its_back_off() -> None:
    """Work that is due is found again after a restart, not before its back-off, and not when
    parked."""
    made = memory(chat(4, 1_000))
    assert decisions.due_at(made, LIMITS, 50.0) == 50.0
    assert decisions.due_at(replace(made, failures=Failures(2, 170.0)), LIMITS, 50.0) == 170.0
    assert decisions.due_at(replace(made, failures=Failures(8, 0.0, True)), LIMITS, 50.0) is None
    assert decisions.due_at(memory(chat(1, 10)), LIMITS, 50.0) is None


def test_a_later_reflection_waits_until_the_log_is_nearly_full() -> None:
    """Made earlier, it would take older notes for want of new ones."""
    first = replace(with_log(memory(()), 20_000).log.entries[0], kind="reflection", depth=1)
    made = with_log(memory(chat(1, 100)), 20_000, *[3_999] * 4)
    later = replace_log(made, entries=(first, *made.log.entries[1:]))
    assert later.log.tokens == 35_996
    assert decisions.reflection_due(later, Limits()) is None
    nearly = replace_log(
        later, entries=(*later.log.entries[:-1], replace(later.log.entries[-1], tokens=4_003))
    )
    assert decisions.reflection_due(nearly, Limits()) == Reflect(3, 8_399, start=1)


def test_the_first_notes_leave_raw_what_an_activation_keeps() -> None:
    """Where the threshold is reached without notes, their one chunk ends where the next request
    activates it: at the first closed end that leaves no more than `keep_tokens` raw."""
    limits = Limits()
    whole = memory(chat(20, 796))  # 40 messages of 800 tokens: 32 000
    batch = decisions.decide_after_reply(whole, limits)
    assert isinstance(batch, Observe)
    left = whole.pending_tokens - batch.tokens
    assert limits.keep_tokens - 2 * 800 <= left <= limits.keep_tokens


def test_a_large_last_message_stays_whole() -> None:
    """Where the first such end leaves next to nothing, the one before it is taken."""
    limits = Limits()
    made = memory((*chat(15, 796), *chat(1, 7_000)))
    batch = decisions.decide_after_reply(made, limits)
    assert isinstance(batch, Observe)
    assert made.pending_tokens - batch.tokens >= 1_000
