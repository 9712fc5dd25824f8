"""The rules of docs/spec/behaviour.md#observe and docs/spec/behaviour.md#reflect as tables, the
transitions as properties."""

import dataclasses
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from om_proxy.memory import branch, lifecycle
from om_proxy.memory.lifecycle import Activate, Asked, Observe, Reflect, Swap, chunks_to_activate
from om_proxy.memory.model import EMPTY_CHAIN, Memory, Observation, Reflection, Trouble
from om_proxy.memory.thresholds import Limits
from tests.memory.building import chat, chunk, memory, transcript, with_log

LIMITS = Limits()
UNBUFFERED = Limits(interval=None, keep=0, block_at=30_000, reflect_from=None, reflect_block_at=40_000)
ON_IDLE = Limits(buffer_after_idle=300)
ANY = Asked(coverable=10**9)


def chunked(tail_turns: int, size: int, *lasts: int) -> Memory:
    made = memory(chat(tail_turns, size))
    for last in lasts:
        made = lifecycle.observed(made, chunk(made, last))
    return made


# ── how much is activated ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("sizes", "pending", "limits", "count"),
    [
        pytest.param([6_000] * 5, 30_000, LIMITS, 4, id="five chunks of 6000, pending 30000: four"),
        pytest.param([10_000] * 3, 30_000, LIMITS, 2, id="three of 10000: a third overshoots by more than 0.95 F"),
        pytest.param([5_000] * 4, 20_000, Limits(observe_at=20_000, keep=4_000), 3, id="keep 4000 of 20000: three"),
        pytest.param([40_000], 40_000, LIMITS, 1, id="one huge chunk: the first, though it leaves nothing"),
        pytest.param([6_000] * 2, 30_000, LIMITS, 2, id="too few chunks: all of them"),
        pytest.param([3_000], 3_000, LIMITS, 1, id="nothing to reach: still the first"),
        pytest.param(
            [450, 450], 1_000, Limits(observe_at=1_000, keep=200), 1, id="F below 1000: only an exact fit leaves enough"
        ),
        pytest.param([400, 400], 1_000, Limits(observe_at=1_000, keep=200), 2, id="F below 1000: the exact fit"),
        pytest.param([12_000, 12_000, 6_000], 30_000, LIMITS, 2, id="reaches the target exactly"),
    ],
)
def test_chunks_to_activate(sizes: list[int], pending: int, limits: Limits, count: int) -> None:
    """The arithmetic vectors of the reference implementation and the corners around them."""
    assert chunks_to_activate(sizes, pending, limits) == count


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=12), st.integers(0, 5_000), st.integers(0, 20_000))
def test_an_activation_takes_at_least_one_and_never_more_than_there_are(sizes: list[int], rest: int, keep: int) -> None:
    """Whatever the sizes, an activation makes progress and stays within what is buffered."""
    assert 1 <= chunks_to_activate(sizes, sum(sizes) + rest, Limits(keep=keep)) <= len(sizes)


# ── before forwarding ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("size", "expected"),
    [(2_999, None), (3_000, Activate(4, "threshold"))],
    ids=["one token below T", "at T"],
)
def test_activation_begins_at_the_threshold(size: int, expected: Activate | None) -> None:
    """pending ≥ T, inclusive, with chunks there."""
    assert lifecycle.before_forwarding(chunked(5, size, 2, 4, 6, 8), LIMITS, ANY) == expected


def test_activation_repeats_while_the_tail_is_too_long() -> None:
    """After an activation the remaining tail is measured again: still ≥ T, and the next chunk follows."""
    sizes = (("user", 5_000), ("assistant", 5_000), ("user", 22_500), ("assistant", 22_500), ("user", 100))
    made = memory(transcript(*sizes))
    for last in (2, 4):
        made = lifecycle.observed(made, chunk(made, last))
    seen = []
    while isinstance(decision := lifecycle.before_forwarding(made, LIMITS, ANY, waited=True), Activate):
        seen.append(decision.count)
        made = lifecycle.activated(made, [c.id for c in made.chunks[: decision.count]], 1.0)
    assert (seen, made.coverage, made.chunks) == ([1, 1], 4, ())


def test_what_the_request_asks_stays_raw() -> None:
    """A chunk that reaches into what the request itself asks is not activated for it."""
    made = chunked(6, 6_000, 12)
    assert lifecycle.before_forwarding(made, LIMITS, Asked(coverable=10), waited=True) is None


@pytest.mark.parametrize(
    ("limits", "asked", "why"),
    [
        (Limits(activate_after_idle=300), Asked(10**9, idle=300), "idle"),
        (Limits(activate_after_idle=300), Asked(10**9, idle=299), None),
        (Limits(activate_on_provider_change=True), Asked(10**9, provider_changed=True), "provider"),
        (LIMITS, Asked(10**9, idle=10**6, provider_changed=True), None),
    ],
)
def test_activation_when_the_cache_is_cold_anyway(limits: Limits, asked: Asked, why: str | None) -> None:
    """Below the threshold, an idle gap or another provider activates what is buffered, where that is switched on."""
    decision = lifecycle.before_forwarding(chunked(4, 1_000, 4), limits, asked)
    assert (decision.why if isinstance(decision, Activate) else None) == why


def test_a_pause_is_used_once() -> None:
    """The first request after it activates as much as the threshold would; what is not taken stays buffered."""
    limits = Limits(activate_after_idle=300)
    made = replace(chunked(12, 1_000, 6, 12, 18, 24), turn_at=1_000.0, model="m")
    idle, _ = lifecycle.found(made, "m", 1_300.0)
    assert lifecycle.before_forwarding(made, limits, Asked(10**9, idle=idle)) == Activate(3, "idle")
    after = lifecycle.activated(made, [c.id for c in made.chunks[:3]], 1_300.0)
    idle, _ = lifecycle.found(after, "m", 1_300.0)
    assert lifecycle.before_forwarding(after, limits, Asked(10**9, idle=idle)) is None
    assert lifecycle.quiet(after, limits, idle=idle, provider_changed=False)
    assert len(after.chunks) == 1


@pytest.mark.parametrize(
    ("change", "model", "found"),
    [
        pytest.param({"turn_at": None, "model": None}, "m", (0.0, False), id="a new thread"),
        pytest.param({}, "m", (300.0, False), id="the same model, 300 s later"),
        pytest.param({}, "n", (300.0, True), id="another model"),
        pytest.param({}, None, (300.0, False), id="a model nobody names"),
        pytest.param({"render_date": 900.0}, "n", (300.0, True), id="the prompt changed before that turn"),
        pytest.param({"render_date": 1_200.0}, "n", (100.0, False), id="the prompt has changed since"),
    ],
)
def test_how_a_request_finds_its_cache(change: dict[str, object], model: str | None, found: tuple[float, bool]) -> None:
    """Idle is the time since the prompt was sent or changed last; a change of models is one until the prompt was changed for it."""
    made = replace(memory(chat(1, 10)), **{"turn_at": 1_000.0, "model": "m", **change})
    assert lifecycle.found(made, model, 1_300.0) == found


def test_an_idle_thread_without_chunks_waits_for_nothing() -> None:
    """Cold cache or not: below the threshold no request pays for an observation."""
    limits = Limits(activate_after_idle=1, activate_on_provider_change=True)
    made = memory(chat(4, 3_000))
    assert lifecycle.quiet(made, limits, idle=10**6, provider_changed=True)
    assert lifecycle.before_forwarding(made, limits, Asked(10**9, idle=10**6, provider_changed=True)) is None


def test_triggers_measure_up_to_the_safe_cut() -> None:
    """Calls whose results may still come do not count: neither towards T nor towards the wait."""
    open_call = ("assistant", 30_000, ("a",), None)
    made = memory(transcript(("user", 3_000), ("assistant", 3_000), ("user", 3_000), open_call))
    assert made.pending == 39_000
    assert lifecycle.ripe(made.tail) == 9_000
    chunks = lifecycle.observed(made, chunk(made, 2))
    assert lifecycle.before_forwarding(made, LIMITS, ANY) is None
    assert lifecycle.before_forwarding(chunks, LIMITS, ANY) is None


def test_a_message_larger_than_the_threshold() -> None:
    """It may be buffered while unanswered, never activated; once answered, it is."""
    made = memory(transcript(("user", 100), ("assistant", 100), ("user", 40_000)))
    assert lifecycle.after_reply(made, LIMITS) == Observe(0, 3, 40_200)
    made = lifecycle.observed(made, chunk(made, 3))
    assert lifecycle.before_forwarding(made, LIMITS, Asked(coverable=2)) is None
    assert lifecycle.before_forwarding(made, LIMITS, Asked(coverable=3)) == Activate(1, "threshold")


def test_a_wait_reads_no_more_than_the_threshold() -> None:
    """Of a long tail the oldest T tokens are observed while a request waits, the rest afterwards; all of it where nothing comes after."""
    for limits in (LIMITS, dataclasses.replace(LIMITS, shared=True)):
        decision = lifecycle.before_forwarding(memory(chat(60, 2_000)), limits, ANY)
        assert decision == Observe(0, 14, 28_000, wait=True)
    assert lifecycle.before_forwarding(memory(chat(29, 2_000)), UNBUFFERED, ANY) == Observe(0, 58, 116_000, wait=True)


@pytest.mark.parametrize(
    ("parts", "last"),
    [
        pytest.param(
            [("user", 9_000), ("assistant", 9_000)] * 2 + [("user", 9_000)], 2, id="before the user's message"
        ),
        pytest.param(
            [("user", 1_000), ("assistant", 1_000)] + [("assistant", 9_000)] * 4, 5, id="too little there: any block"
        ),
    ],
)
def test_a_wait_cuts_at_a_user_s_message(parts: list[tuple[str, int]], last: int) -> None:
    """If that yields at least half an interval; F stays raw."""
    decision = lifecycle.before_forwarding(memory(transcript(*parts)), LIMITS, ANY)
    assert isinstance(decision, Observe)
    assert decision.last == last


def test_a_request_waits_from_block_at() -> None:
    """Nothing buffered and 36 000 pending: the oldest messages are observed, F stays raw, cut before a user message."""
    decision = lifecycle.before_forwarding(memory(chat(6, 3_000)), LIMITS, ANY)
    assert decision == Observe(0, 10, 30_000, wait=True)


@pytest.mark.parametrize(
    ("size", "block_at", "waits"),
    [
        pytest.param(2_999, 36_000, False, id="below"),
        pytest.param(3_000, 36_000, True, id="1.2 T"),
        pytest.param(3_000, 50_000, False, id="set higher"),
        pytest.param(2_500, 30_000, True, id="at T"),
    ],
)
def test_the_wait_begins_at_block_at(size: int, block_at: int, waits: bool) -> None:
    """pending ≥ block_after, inclusive."""
    decision = lifecycle.before_forwarding(memory(chat(6, size)), Limits(block_at=block_at), ANY)
    assert isinstance(decision, Observe) is waits


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"trouble": Trouble(failures=1, until=9e9)}, id="in back-off"),
        pytest.param({"trouble": Trouble(failures=8, parked=True)}, id="parked"),
    ],
)
def test_a_troubled_thread_is_not_waited_for(change: dict[str, Trouble]) -> None:
    """A thread in back-off or parked goes raw: its requests must not pay for the observer's trouble."""
    assert lifecycle.before_forwarding(replace(memory(chat(8, 3_000)), **change), LIMITS, ANY) is None


def test_a_request_waits_once() -> None:
    """At most one bounded wait a request."""
    assert lifecycle.before_forwarding(memory(chat(20, 3_000)), LIMITS, ANY, waited=True) is None


def test_without_buffering_observation_is_synchronous_at_the_threshold() -> None:
    """buffer_tokens false: everything but the newest turn is observed at T."""
    tail = transcript(*[(r, 3_000) for _ in range(5) for r in ("user", "assistant")], ("user", 3_000))
    assert lifecycle.after_reply(memory(tail), UNBUFFERED) is None
    asked = Asked(coverable=10)
    assert lifecycle.before_forwarding(memory(tail), UNBUFFERED, asked) == Observe(0, 10, 30_000, wait=True)
    assert lifecycle.before_forwarding(memory(tail[:9]), UNBUFFERED, asked) is None


def test_without_buffering_reflection_is_synchronous_too() -> None:
    """None is prepared in the background, at any size; at R a request waits for one."""
    short, long = (with_log(memory(chat(1, 100)), 20_000, size) for size in (19_999, 20_000))
    assert lifecycle.after_reply(long, UNBUFFERED) is None
    assert lifecycle.before_forwarding(short, UNBUFFERED, ANY) is None
    assert lifecycle.before_forwarding(long, UNBUFFERED, ANY) == Reflect(1, 11_001, wait=True)


@pytest.mark.parametrize(
    ("trouble", "now", "waits"),
    [
        pytest.param(Trouble(1, 1_000.0), 999.0, False, id="in back-off"),
        pytest.param(Trouble(1, 1_000.0), 1_000.0, True, id="back-off over"),
        pytest.param(Trouble(8, 1_000.0, True), 2_000.0, False, id="parked"),
    ],
)
def test_without_buffering_a_request_makes_the_next_try(trouble: Trouble, now: float, waits: bool) -> None:
    """Nothing in the background does it: without another try the thread would stay raw for ever."""
    made = replace(memory(chat(6, 3_000)), trouble=trouble)
    decision = lifecycle.before_forwarding(made, UNBUFFERED, Asked(10**9, now=now))
    assert isinstance(decision, Observe) is waits


def test_with_buffering_the_next_try_is_the_background_s() -> None:
    """A request does not pay for finding out whether the observer is back."""
    made = replace(memory(chat(8, 3_000)), trouble=Trouble(1, 1_000.0))
    assert lifecycle.before_forwarding(made, LIMITS, Asked(10**9, now=2_000.0)) is None
    assert lifecycle.due_at(made, LIMITS, 2_000.0) == 2_000.0


def test_without_buffering_too_little_before_a_user_s_message_is_no_cut() -> None:
    """A request that waits has a good part of its tail observed, not two words before a long run of tools."""
    steps = [part for n in range(6) for part in (("assistant", 3_000, (f"c{n}",), None), ("tool", 3_000, (), f"c{n}"))]
    tail = transcript(("user", 10), ("assistant", 10), ("user", 10), *steps)
    assert lifecycle.before_forwarding(memory(tail), UNBUFFERED, ANY) == Observe(0, 15, 36_030, wait=True)


# ── after the reply ──────────────────────────────────────────────────────────────────────────────────────────────────


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
    assert lifecycle.after_reply(memory(chat(turns, size)), LIMITS) == expected


def test_the_boundary_is_where_the_newest_chunk_ends() -> None:
    """What is chunked does not count again: only an interval beyond it is due."""
    made = chunked(5, 1_000, 6)
    assert lifecycle.after_reply(made, LIMITS) is None


def test_half_an_interval_is_enough_near_the_threshold() -> None:
    """From T − 1.1 intervals on, 3000 new tokens are buffered."""
    made = chunked(12, 1_000, 20)
    near = Limits(observe_at=30_000)
    assert lifecycle.ripe(made.tail) == 24_000
    assert lifecycle.after_reply(made, near) == Observe(20, 24, 4_000)
    assert lifecycle.after_reply(made, dataclasses.replace(near, observe_at=40_000, block_at=48_000)) is None


@pytest.mark.parametrize(
    ("size", "now", "expected"),
    [
        pytest.param(750, 1_299.0, None, id="not idle long enough"),
        pytest.param(750, 1_300.0, Observe(0, 4, 3_000), id="half an interval, idle"),
        pytest.param(749, 1_300.0, None, id="less than half an interval"),
        pytest.param(2_999, 1_299.0, Observe(0, 4, 11_996), id="an interval needs no pause"),
    ],
)
def test_half_an_interval_is_enough_once_idle(size: int, now: float, expected: Observe | None) -> None:
    """`buffer_on_idle`: what is below an interval is buffered when the prompt cache has gone cold; never less than half of one."""
    made = replace(memory(chat(2, size)), turn_at=1_000.0)
    assert lifecycle.after_reply(made, ON_IDLE, now) == expected
    assert lifecycle.after_reply(made, LIMITS, now) == (expected if size == 2_999 else None)


@pytest.mark.parametrize(
    ("change", "due"),
    [
        pytest.param({}, 1_300.0, id="when it will have been idle long enough"),
        pytest.param({"turn_at": 500.0}, 1_000.0, id="it has been: now"),
        pytest.param({"turn_at": None}, None, id="no turn yet"),
        pytest.param({"trouble": Trouble(1, 2_000.0)}, 2_000.0, id="not before its back-off"),
        pytest.param({"trouble": Trouble(8, 0.0, True)}, None, id="parked"),
    ],
)
def test_idle_work_is_due_at_its_time(change: dict[str, object], due: float | None) -> None:
    """The store finds it without another request."""
    made = replace(memory(chat(2, 750)), **{"turn_at": 1_000.0, **change})
    assert lifecycle.due_at(made, ON_IDLE, 1_000.0) == due


def test_due_and_done_agree_to_the_last_bit() -> None:
    """At the very moment that the store was told, the work is due: sums and differences of seconds do not mix."""
    made = replace(memory(chat(2, 750)), turn_at=1_700_000_000.1)
    limits = Limits(buffer_after_idle=0.3)
    due = lifecycle.due_at(made, limits, made.turn_at or 0.0)
    assert due is not None
    assert lifecycle.after_reply(made, limits, due)


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=12), st.sampled_from([LIMITS, ON_IDLE]), st.booleans())
def test_never_less_than_half_an_interval(sizes: list[int], limits: Limits, shared: bool) -> None:
    """Whatever stands beside it, what is sent to the observer in the background is worth it."""
    parts = [(role, size) for size in sizes for role in ("user", "assistant")]
    made = replace(memory(transcript(*[(role, size + 4) for role, size in parts])), turn_at=0.0)
    decision = lifecycle.after_reply(made, dataclasses.replace(limits, shared=shared), 1_000.0)
    if isinstance(decision, Observe):
        assert decision.tokens >= 3_000


def test_a_backlog_is_observed_in_batches_of_at_most_the_threshold() -> None:
    """A long history first seen is taken oldest first, at most T tokens a call."""
    decision = lifecycle.after_reply(memory(chat(50, 2_000)), LIMITS)
    assert isinstance(decision, Observe)
    assert decision.after == 0
    assert 24_000 <= decision.tokens <= 30_000
    assert lifecycle.after_reply(memory(chat(50, 2_000)), dataclasses.replace(LIMITS, shared=True)) == decision


def test_an_open_tool_call_is_never_cut() -> None:
    """A call whose results may still come is not observed without them."""
    tail = transcript(("user", 3_000), ("assistant", 4_000, ("a", "b"), None), ("tool", 4_000, (), "a"))
    assert lifecycle.after_reply(memory(tail), LIMITS) is None
    closed = transcript(("user", 3_000), ("assistant", 4_000, ("a",), None), ("tool", 4_000, (), "a"))
    assert lifecycle.after_reply(memory(closed), LIMITS) == Observe(0, 3, 11_000)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([19_999], None), ([4_000] * 5, Reflect(2, 4_401)), ([30_000], Reflect(1, 16_501))],
)
def test_a_reflection_is_prepared_from_half_of_the_threshold(sizes: list[int], expected: Reflect | None) -> None:
    """From R × 0.5 on the oldest entries are condensed in the background, accepted at little more than half of their size."""
    assert lifecycle.after_reply(with_log(memory(chat(1, 100)), *sizes), LIMITS) == expected


def test_one_reflection_is_prepared_at_a_time() -> None:
    """While one is kept beside the log, no other is made."""
    made = with_log(memory(chat(1, 100)), 25_000)
    made = lifecycle.reflected(made, reflection(made, 8_000))
    assert lifecycle.after_reply(made, LIMITS) is None


def test_at_the_threshold_without_one_it_is_made_in_the_background() -> None:
    """From R to 1.2 R no request waits: one is started after the reply."""
    made = with_log(memory(chat(1, 100)), 24_000, 23_999)
    assert lifecycle.before_forwarding(made, LIMITS, ANY) is None
    assert lifecycle.after_reply(made, LIMITS) == Reflect(1, 13_201)


def test_an_unproductive_reflection_is_not_waited_for_again() -> None:
    """Nor does a request wait for it while the log has not grown."""
    made = with_log(memory(chat(1, 100)), 50_000)
    assert lifecycle.before_forwarding(made, LIMITS, ANY) == Reflect(1, 27_501, wait=True)
    assert lifecycle.before_forwarding(lifecycle.unproductive(made, 50_000), LIMITS, ANY) is None


def test_an_unproductive_reflection_waits_for_growth() -> None:
    """It is not repeated while the log has not grown."""
    made = lifecycle.unproductive(with_log(memory(chat(1, 100)), 25_000), 25_000)
    assert lifecycle.after_reply(made, LIMITS) is None
    grown = replace(made, log=made.log + with_log(memory(()), 10).log)
    assert isinstance(lifecycle.after_reply(grown, LIMITS), Reflect)


# ── reflections ──────────────────────────────────────────────────────────────────────────────────────────────────────


def reflection(of: Memory, tokens: int, entries: int | None = None) -> Reflection:
    return Reflection(
        generation=of.generation,
        sources=tuple(o.id for o in of.log[:entries]),
        text="* 🔴 all",
        tokens=tokens,
        source_tokens=1,
        at=3.0,
    )


def test_a_reflection_is_swapped_in_at_the_threshold() -> None:
    """At R the finished reflection takes the place of its sources; what came later stays byte for byte."""
    made = with_log(memory(chat(1, 100)), 20_000)
    made = lifecycle.reflected(made, reflection(made, 8_000))
    assert lifecycle.before_forwarding(made, LIMITS, ANY) is None
    later = replace(with_log(memory(()), 1, 20_000).log[1], text="later")
    made = replace(made, log=(*made.log, later), next_id=3)
    assert lifecycle.before_forwarding(made, LIMITS, ANY) == Swap()
    after = lifecycle.swapped(made, 9.0)
    assert [(o.kind, o.text, o.tokens) for o in after.log] == [
        ("reflection", "* 🔴 all", 8_000),
        ("observation", "later", 20_000),
    ]
    assert (after.generation, after.next_generation, after.render_date, after.reflection) == (1, 2, 9.0, None)


def test_what_stands_before_a_stretch_keeps_its_bytes() -> None:
    """A reflection takes the place of its stretch, and knows how often its words have been condensed."""
    made = with_log(memory(chat(1, 100)), 10_000, 10_000, 10_000, 11_000)
    made = replace(made, log=(replace(made.log[0], kind="reflection", depth=2), *made.log[1:]))
    stretch = replace(reflection(made, 9_000), sources=tuple(o.id for o in made.log[1:3]), task="what was open there")
    after = lifecycle.swapped(lifecycle.reflected(made, stretch), 9.0)
    assert [(o.kind, o.tokens, o.depth) for o in after.log] == [
        ("reflection", 10_000, 2),
        ("reflection", 9_000, 1),
        ("observation", 11_000, 0),
    ]
    assert (after.log[0], after.log[2]) == (made.log[0], made.log[3])
    assert (after.log[1].after, after.log[1].last, after.log[1].chain) == (
        made.log[1].after,
        made.log[2].last,
        made.log[2].chain,
    )
    assert after.log[1].task is None  # later entries know better, and this one must not end or begin a task for them


@pytest.mark.parametrize(("left", "waits"), [(16_000, False), (16_001, True)])
def test_after_a_reflection_that_freed_little_the_log_has_to_grow(left: int, waits: bool) -> None:
    """Else a reflector that hardly shrinks would be asked at every request, and each swap breaks the prompt cache."""
    made = with_log(memory(chat(1, 100)), 20_000, 30_000)
    after = lifecycle.swapped(lifecycle.reflected(made, reflection(made, left, 1)), 9.0)
    assert (after.unproductive_at == after.log_tokens) is waits
    assert (lifecycle.reflection_due(after, LIMITS) is None) is waits


def test_a_stretch_that_was_torn_apart_is_not_replaced() -> None:
    """Its entries stand no longer side by side: the memory was taken back, or another thread's part went."""
    made = with_log(memory(chat(1, 100)), 10_000, 10_000, 10_000)
    stretch = replace(reflection(made, 5_000), sources=(made.log[0].id, made.log[2].id))
    assert lifecycle.reflected(made, stretch) == made
    assert not lifecycle.fits(made, replace(stretch, sources=()))


def test_chunks_survive_a_reflection() -> None:
    """Buffered chunks are not the reflection's to drop (a loss of the reference implementation)."""
    made = replace(chunked(3, 1_000, 2, 4), log=with_log(memory(()), 20_000, 21_000).log)
    after = lifecycle.swapped(lifecycle.reflected(made, reflection(made, 9_000)), 9.0)
    assert after.chunks == made.chunks
    assert after.tail == made.tail


def test_what_became_active_while_the_reflector_ran_survives() -> None:
    """It stands after the reflection, with its own hints; what the reflection left out is taken from its sources."""
    made = chunked(3, 1_000, 2, 4)
    made = replace(made, chunks=tuple(replace(c, task=f"task {c.id}", suggestion=f"say {c.id}") for c in made.chunks))
    made = lifecycle.activated(made, [made.chunks[0].id], 1.0)
    pending = lifecycle.reflected(made, reflection(made, 50))
    after = lifecycle.swapped(lifecycle.activated(pending, [pending.chunks[0].id], 2.0), 3.0)
    assert [(o.kind, o.task, o.suggestion) for o in after.log] == [
        ("reflection", "task 1", "say 1"),
        ("observation", "task 2", "say 2"),
    ]
    assert (lifecycle.newest_task(after.log), after.coverage) == ("task 2", 4)


def test_a_reflection_of_another_log_is_dropped() -> None:
    """Made from entries or a generation that no longer stand, it changes nothing."""
    made = with_log(memory(chat(1, 100)), 20_000, 21_000)
    stale = replace(reflection(made, 5_000), generation=made.generation + 1)
    assert lifecycle.reflected(made, stale) == made
    kept = lifecycle.reflected(made, reflection(made, 5_000))
    assert lifecycle.swapped(replace(kept, log=made.log[1:]), 1.0).log == made.log[1:]


def test_a_request_waits_for_a_reflection_from_its_block() -> None:
    """At 1.2 R, with none ready, it is waited for; the log comes below R with what is accepted."""
    made = with_log(memory(chat(1, 100)), *[4_000] * 12)
    assert lifecycle.before_forwarding(made, LIMITS, ANY) == Reflect(5, 11_001, wait=True)


# ── observations by value ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_chunk_must_continue_what_is_observed() -> None:
    """A second answer for the same range, or one with a gap before it, changes nothing."""
    made = memory(chat(4, 1_000))
    first = chunk(made, 4)
    once = lifecycle.observed(made, first)
    assert lifecycle.observed(once, first) == once
    assert lifecycle.observed(made, replace(chunk(once, 8), after=4)) == made


def test_a_chunk_of_messages_that_changed_is_dropped() -> None:
    """The chain says what was read; another text at the same place makes the answer worthless."""
    made, other = (
        memory(chat(4, 1_000)),
        memory(transcript(("user", 1_000), ("assistant", 900), ("user", 1), ("assistant", 8))),
    )
    stale = replace(chunk(made, 4), chain=b"x" * 16)
    assert lifecycle.observed(made, stale) == made
    assert lifecycle.observed(other, chunk(made, 8)) == other


def test_a_title_stands_until_there_is_another() -> None:
    """An answer without one keeps the title there is."""
    made = memory(chat(4, 1_000))
    made = lifecycle.observed(made, replace(chunk(made, 4), title="Crates"))
    made = lifecycle.observed(made, chunk(made, 6))
    assert made.title == "Crates"
    assert lifecycle.observed(made, replace(chunk(made, 8), title="Vans")).title == "Vans"


def test_success_ends_trouble() -> None:
    """One good answer clears the failures."""
    made = lifecycle.failed(memory(chat(4, 1_000)), 100.0, 0.0)
    assert made.trouble.failures == 1
    assert lifecycle.observed(made, chunk(made, 4)).trouble == Trouble()


@pytest.mark.parametrize(("cause", "kept"), [("reflect om_unusable", "reflect om_unusable"), ("observe om_model", "")])
def test_a_reflection_s_cause_outlives_an_observation(cause: str, kept: str) -> None:
    """That messages are noted says nothing of the log that cannot be condensed; a reflection that is made clears it."""
    troubled = replace(memory(chat(4, 100)), trouble=Trouble(2, 5.0, False, cause))
    made = lifecycle.observed(troubled, chunk(troubled, 4))
    assert made.trouble == Trouble(cause=kept)


@pytest.mark.parametrize(
    ("failures", "pause", "parked"),
    [(1, 60, False), (2, 120, False), (7, 3_840, False), (8, 7_680, True), (12, 21_600, True)],
)
def test_back_off_doubles_to_six_hours_and_parks_after_eight(failures: int, pause: int, parked: bool) -> None:
    """1 min doubling to 6 h; after 8 in a row the thread is parked."""
    made = memory(chat(1, 10))
    for _ in range(failures):
        made = lifecycle.failed(made, 1_000.0, 0.0)
    assert made.trouble == Trouble(failures, 1_000.0 + pause, parked)


def test_activation_takes_chunks_by_id() -> None:
    """Only the chunks that were decided on, only as far as they still are the oldest: activating twice is activating once."""
    made = chunked(4, 1_000, 2, 4)
    ids = [c.id for c in made.chunks]
    once = lifecycle.activated(made, ids[:1], 7.0)
    assert (once.coverage, len(once.log), len(once.chunks), once.render_date) == (2, 1, 1, 7.0)
    assert lifecycle.activated(once, ids[:1], 8.0) == once


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.data())
def test_each_message_is_in_the_tail_or_in_exactly_one_entry(steps: list[int], data: st.DataObject) -> None:
    """Whatever is buffered and activated, in whatever order: never lost, never twice
    (docs/spec/behaviour.md#never-lost)."""
    made = memory(chat(12, 500))
    everything = [m.seq for m in made.tail]
    for step in steps:
        last = min(made.chunked_to + step, everything[-1])
        if last > made.chunked_to:
            made = lifecycle.observed(made, chunk(made, last))
        count = data.draw(st.integers(0, len(made.chunks)))
        made = lifecycle.activated(made, [c.id for c in made.chunks[:count]], 1.0)
        covered = [s for o in made.log for s in range(o.after + 1, o.last + 1)]
        assert covered + [m.seq for m in made.tail] == everything
        assert made.covered_count == len(covered)
        assert made.covered_tokens + made.pending == 500 * len(everything)
        assert [m.seq for m in made.marks] == everything
        assert starts_meet(made)


def starts_meet(made: Memory) -> bool:
    """Log and chunks continue one another without a gap."""
    ranges: Sequence[tuple[int, int]] = [(o.after, o.last) for o in made.log + made.chunks]
    return all(a[1] == b[0] for a, b in pairwise(ranges)) and (not ranges or ranges[0][0] == 0)


# ── due, and back to an older state ──────────────────────────────────────────────────────────────────────────────────


def test_due_work_is_remembered_with_its_back_off() -> None:
    """Work that is due is found again after a restart, not before its back-off, and not when parked."""
    made = memory(chat(4, 1_000))
    assert lifecycle.due_at(made, LIMITS, 50.0) == 50.0
    assert lifecycle.due_at(replace(made, trouble=Trouble(2, 170.0)), LIMITS, 50.0) == 170.0
    assert lifecycle.due_at(replace(made, trouble=Trouble(8, 0.0, True)), LIMITS, 50.0) is None
    assert lifecycle.due_at(memory(chat(1, 10)), LIMITS, 50.0) is None


def test_a_fork_behind_coverage_finds_the_newest_state_before_it() -> None:
    """Entries after the fork are dropped; a reflection that swallowed them gives way to the generation before it."""
    made = chunked(8, 1_000, 4, 8, 12)
    active = lifecycle.activated(made, [c.id for c in made.chunks], 1.0)
    older, live = active.log, {m.seq: m.chain for m in made.tail}
    reflected = lifecycle.swapped(lifecycle.reflected(active, reflection(active, 10)), 2.0)
    assert branch.fallback(active, 9, (), live)[0] == older[:2]
    assert branch.fallback(reflected, 9, [(0, older)], live)[0] == older[:2]
    assert branch.fallback(reflected, 12, [(0, older)], live)[0] == reflected.log
    assert branch.fallback(reflected, 9, (), live)[0] == ()


def test_a_log_of_an_abandoned_branch_is_no_state_to_fall_back_to() -> None:
    """An older generation may cover seqs below the fork that belonged to another branch: the chain tells."""
    made = chunked(8, 1_000, 4, 8)
    active = lifecycle.activated(made, [c.id for c in made.chunks], 1.0)
    abandoned = tuple(replace(o, chain=b"another branch".ljust(16)) for o in active.log)
    live = {m.seq: m.chain for m in made.tail}
    assert branch.fallback(active, 9, [(0, abandoned)], live)[0] == active.log
    assert branch.fallback(replace(active, log=()), 9, [(0, abandoned)], live)[0] == ()


def test_a_pending_reflection_survives_a_fork_behind_its_range() -> None:
    """It is dropped exactly when its range reaches the fork."""
    made = chunked(8, 1_000, 4, 8, 12)
    active = lifecycle.activated(made, [c.id for c in made.chunks], 1.0)
    pending = lifecycle.reflected(active, reflection(active, 10, entries=1))
    live = {m.seq: m.chain for m in made.tail}
    for cut, kept in ((6, True), (3, False)):
        log, _ = branch.fallback(pending, cut, (), live)
        count = branch.reach(log)
        rolled = branch.rolled_back(
            pending, cut, log, made.marks[:count], made.tail[count:], (count, 1_000 * count), 5.0
        )
        assert (rolled.reflection is not None) is kept


def test_rolling_back_uncovers_what_the_fork_took_back() -> None:
    """What the dropped entries covered is raw again, under a new generation; nothing is left of the abandoned branch."""
    whole = chunked(8, 1_000, 4, 8)
    active = lifecycle.activated(whole, [c.id for c in whole.chunks], 1.0)
    log, _ = branch.fallback(active, 6, (), {m.seq: m.chain for m in whole.tail})
    back = branch.rolled_back(active, 6, log, whole.marks[:4], whole.tail[4:], (4, 4_000), 5.0)
    assert (back.coverage, back.covered_count, back.covered_tokens, back.generation) == (4, 4, 4_000, 1)
    assert [m.seq for m in back.tail] == list(range(5, 17))
    assert back.chain_at_coverage == whole.tail[3].chain


# ── hints ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def hinted(*hints: tuple[str | None, str | None], roles: tuple[str, ...] = ("assistant",)) -> Memory:
    """A log of entries with these tasks and suggestions, made at 10, 20 … s, and a tail of these speakers behind it."""
    of = memory(transcript(*[(role, 50) for role in roles]))
    log = tuple(
        Observation(id=n, after=0, last=0, chain=EMPTY_CHAIN, text="* a", tokens=1, source_tokens=1, at=10.0 * n, task=task, suggestion=say)
        for n, (task, say) in enumerate(hints, 1)
    )  # fmt: skip
    return replace(of, log=log)


@pytest.mark.parametrize(
    ("hints", "task", "as_of"),
    [
        pytest.param((), None, 0.0, id="nothing noted"),
        pytest.param((("t1", None), ("t2", None)), "t2", 20.0, id="the newest"),
        pytest.param((("t1", None), (None, None)), "t1", 10.0, id="left out keeps the old one, as of its time"),
        pytest.param((("t1", None), ("", None)), None, 20.0, id="an empty one ends it"),
        pytest.param((("t1", None), ("", None), (None, None)), None, 20.0, id="for good"),
        pytest.param((("t1", None), ("", None), ("t3", None)), "t3", 30.0, id="until there is another"),
    ],
)
def test_the_current_task(hints: tuple[tuple[str | None, str | None], ...], task: str | None, as_of: float) -> None:
    found = lifecycle.active_hints(hinted(*hints))
    assert (found.task, found.as_of) == (task, as_of)


@pytest.mark.parametrize(
    ("hints", "roles", "shown"),
    [
        pytest.param(((None, "s1"),), ("assistant", "tool"), "s1", id="while the assistant works on"),
        pytest.param(((None, "s1"),), ("assistant", "user"), None, id="not once the user has spoken"),
        pytest.param(((None, "s1"), (None, None)), ("assistant",), None, id="not behind newer notes"),
    ],
)
def test_a_suggestion_is_shown_until_the_user_speaks(
    hints: tuple[tuple[str | None, str | None], ...], roles: tuple[str, ...], shown: str | None
) -> None:
    """For 94 requests running an actor was told to do what the user had done himself
    (docs/spec/behaviour.md#hints)."""
    assert lifecycle.active_hints(hinted(*hints, roles=roles)).suggestion == shown


@given(st.lists(st.sampled_from(["user", "assistant"]), min_size=1, max_size=8), st.integers(0, 8))
def test_a_suggestion_is_never_older_than_the_user_s_newest_message(roles: list[str], last: int) -> None:
    """Neither where it is asked for nor where it is shown."""
    of = hinted((None, "say"), roles=tuple(roles))
    of = replace(of, log=(replace(of.log[0], last=last),))
    newest = max((m.seq for m in of.tail if m.item.role == "user"), default=0)
    assert (lifecycle.active_hints(of).suggestion is None) is (last < newest)
    assert not lifecycle.reaches_newest(of, last) or last >= newest


def test_a_reflection_keeps_task_and_time_of_what_it_was_made_from() -> None:
    """A rewriting is no news of what is being worked on."""
    made = with_log(memory(chat(1, 100)), 20_000, 21_000)
    made = replace(made, log=(replace(made.log[0], task="t", at=7.0), replace(made.log[1], at=9.0, suggestion="s")))
    after = lifecycle.swapped(lifecycle.reflected(made, reflection(made, 5_000)), 99.0)
    assert [(o.task, o.at, o.suggestion) for o in after.log] == [("t", 7.0, "s")]


def test_a_fork_takes_hints_back_with_their_entry() -> None:
    """What an abandoned branch was about is no task any more (docs/spec/behaviour.md#hints)."""
    made = hinted(("t1", None), ("t2", "s2"))
    assert lifecycle.active_hints(replace(made, log=made.log[:1])) == lifecycle.ActiveHints("t1", 10.0, None)


def test_a_later_reflection_waits_until_the_log_is_nearly_full() -> None:
    """Made earlier, it would take older notes for want of new ones."""
    first = replace(with_log(memory(()), 20_000).log[0], kind="reflection", depth=1)
    made = with_log(memory(chat(1, 100)), 20_000, *[3_999] * 4)
    later = replace(made, log=(first, *made.log[1:]))
    assert later.log_tokens == 35_996
    assert lifecycle.reflection_due(later, Limits()) is None
    nearly = replace(later, log=(*later.log[:-1], replace(later.log[-1], tokens=4_003)))
    assert lifecycle.reflection_due(nearly, Limits()) == Reflect(3, 6_599, start=1)
