"""The tables of docs/contributing/behaviour.md#observe to #reflect: for each kind of state, what
happens before a request is forwarded and after its reply.

What each rule means stands beside it in lifecycle/test_decisions.py; here every row of the
specification has a line, with its neighbours just below and above the edge. Numbers are thousands
of tokens where a decimal point stands, so 29.999 is one token below T.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from om_proxy.memory.lifecycle import decisions, transitions
from om_proxy.memory.lifecycle.decisions import Activate, Observe, Reflect, RequestState, Swap
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.memory.model import Failures, Memory, Reflection
from om_proxy.settings.config import parse
from tests.memory.building import chat, chunk, memory, transcript, with_log

# T 30 000, an interval of 6 000, F 6 000, waits from 36 000; R 40 000, prepared from 20 000, waits
# from 48 000
DEFAULTS = Limits()
SYNCHRONOUS = Limits(
    interval_tokens=None,
    keep_tokens=0,
    block_from_tokens=30_000,
    reflect_ahead_from_tokens=None,
    reflect_block_from_tokens=40_000,
)
SHARED = Limits(has_shared_budget=True)
WIDE = Limits(observe_from_tokens=100_000, keep_tokens=40_000, block_from_tokens=120_000)
IDLE = Limits(activate_after_idle_s=300)
PROVIDER = Limits(activate_on_provider_change=True)
ON_IDLE = Limits(buffer_after_idle_s=300)
BACKING_OFF, PARKED = Failures(2, 9e9), Failures(8, 0.0, True)
ASKED = RequestState(last_observable_seq=10**9, now=1_000.0)


def tail(*sizes: float, chunks: int = 0) -> Memory:
    """Exchanges of these sizes (thousands of tokens, half of it the user's), the first `chunks` of
    them a chunk each."""
    parts = [(role, half) for size in sizes for role, half in _halves(round(size * 1_000))]
    made = replace(memory(transcript(*parts)), turn_at=1_000.0, model="m")
    for n in range(chunks):
        made = transitions.add_chunk(made, chunk(made, 2 * (n + 1)))
    return made


def _halves(size: int) -> list[tuple[str, int]]:
    return [("user", size // 2), ("assistant", size - size // 2)]


# ── 5, buffer: after the response ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("made", "limits", "seconds", "expected"),
    [
        pytest.param(tail(5.999), DEFAULTS, 0, None, id="one token less than an interval"),
        pytest.param(tail(6), DEFAULTS, 0, (0, 2), id="an interval"),
        pytest.param(
            tail(6, 5.999, chunks=1),
            DEFAULTS,
            0,
            None,
            id="counted from the end of the newest chunk",
        ),
        pytest.param(tail(6, 6, chunks=1), DEFAULTS, 0, (2, 4), id="an interval since then"),
        pytest.param(
            tail(20.399, 3, chunks=1),
            DEFAULTS,
            0,
            None,
            id="half, one token before T - 1.1 intervals",
        ),
        pytest.param(tail(20.4, 3, chunks=1), DEFAULTS, 0, (2, 4), id="half, at T - 1.1 intervals"),
        pytest.param(tail(25, 2.999, chunks=1), DEFAULTS, 0, None, id="near T, less than half"),
        pytest.param(
            tail(40, 2.999, chunks=1), DEFAULTS, 0, None, id="beyond T, less than half: never sent"
        ),
        pytest.param(tail(3), ON_IDLE, 299, None, id="half, the cache still warm"),
        pytest.param(tail(3), ON_IDLE, 300, (0, 2), id="half, once idle"),
        pytest.param(tail(2.999), ON_IDLE, 300, None, id="less than half, once idle"),
        pytest.param(tail(3), DEFAULTS, 10**6, None, id="half, idle, but not asked for"),
        pytest.param(
            tail(12, 12, 12), DEFAULTS, 0, (0, 5), id="a backlog: at most T, all but what stays raw"
        ),
        pytest.param(
            tail(40), DEFAULTS, 0, (0, 1), id="a message that is more than T with the next"
        ),
        pytest.param(
            tail(20, 20), SYNCHRONOUS, 0, None, id="without buffering: nothing, whatever is there"
        ),
        pytest.param(
            tail(13.999), SHARED, 0, None, id="shared, no log: an interval is a share of T + R"
        ),
        pytest.param(tail(14), SHARED, 0, (0, 2), id="shared, no log: an interval of T + R"),
    ],
)
def test_buffer(
    made: Memory, limits: Limits, seconds: float, expected: tuple[int, int] | None
) -> None:
    """Each time pending has grown by one interval since the newest chunk; near T, or once idle,
    half of one."""
    decision = decisions.decide_after_reply(made, limits, 1_000.0 + seconds)
    assert (decision and (getattr(decision, "after", 0), getattr(decision, "last", 0))) == expected
    assert decision is None or isinstance(decision, Observe)


# ── 5, activate: before forwarding ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("made", "limits", "asked", "expected"),
    [
        pytest.param(tail(*[6] * 4, 5.999, chunks=4), DEFAULTS, ASKED, None, id="one token below T"),
        pytest.param(tail(*[6] * 5, chunks=4), DEFAULTS, ASKED, (4, "threshold"), id="T: what reaches T - F"),
        pytest.param(tail(*[5] * 6, chunks=6), DEFAULTS, ASKED, (5, "threshold"), id="overshoots by less than 0.95 F"),
        pytest.param(tail(*[10] * 3, chunks=3), DEFAULTS, ASKED, (2, "threshold"), id="overshoots by 0.95 F or more: the prefix below"),
        pytest.param(tail(50, 47.9, 2.1, chunks=2), WIDE, ASKED, (2, "threshold"), id="overshoots by less than 0.95 of a large F"),
        pytest.param(tail(50, 49, 1, chunks=2), WIDE, ASKED, (1, "threshold"), id="overshoots by more, though 1 000 are left"),
        pytest.param(tail(12, 17, 1, chunks=2), DEFAULTS, ASKED, (2, "threshold"), id="leaves 1 000"),
        pytest.param(tail(12, 17.002, 0.998, chunks=2), DEFAULTS, ASKED, (1, "threshold"), id="leaves less"),
        pytest.param(tail(12, 12, 6, chunks=1), DEFAULTS, ASKED, (1, "threshold"), id="too little made ahead: all of it"),
        pytest.param(tail(30, 0.1, chunks=1), DEFAULTS, ASKED, (1, "threshold"), id="leaves nothing near F: the first chunk all the same"),
        pytest.param(tail(*[6] * 5), DEFAULTS, ASKED, None, id="nothing made ahead: nothing to activate"),
        pytest.param(tail(*[6] * 5, chunks=5), DEFAULTS, RequestState(6), (3, "threshold"), id="not what the request itself asks"),
        pytest.param(tail(30, chunks=1), DEFAULTS, RequestState(1), None, id="nor if that is all there is"),
        pytest.param(tail(6, 6, chunks=1), IDLE, RequestState(10**9, idle_s=299), None, id="idle: one second early"),
        pytest.param(tail(6, 6, chunks=1), IDLE, RequestState(10**9, idle_s=300), (1, "idle"), id="idle: at the duration"),
        pytest.param(tail(6, 6, chunks=1), DEFAULTS, RequestState(10**9, idle_s=10**6), None, id="idle: not asked for"),
        pytest.param(tail(6, 6, chunks=1), PROVIDER, RequestState(10**9, has_provider_changed=True), (1, "provider"), id="other provider"),
        pytest.param(tail(6, 6, chunks=1), DEFAULTS, RequestState(10**9, has_provider_changed=True), None, id="provider: not asked for"),
        pytest.param(tail(*[6] * 5, chunks=4), SHARED, ASKED, None, id="shared: T has grown to T + R"),
        pytest.param(tail(*[14] * 5, chunks=4), SHARED, ASKED, (4, "threshold"), id="shared: at T + R"),
    ],
)  # fmt: skip
def test_activate(
    made: Memory, limits: Limits, asked: RequestState, expected: tuple[int, str] | None
) -> None:
    """From T on, without a model call: the smallest prefix that leaves F, unless it takes too
    much."""
    decision = decisions.decide_before_forwarding(made, limits, asked, waited=True)
    assert decision == (expected and Activate(*expected))


# ── 5, block: before forwarding ───────────────────────────────────────────────────────────────────

FULL = tail(*[6] * 6)  # 36 000, nothing made ahead


@pytest.mark.parametrize(
    ("made", "limits", "waited", "expected"),
    [
        pytest.param(tail(*[6] * 5, 5.999), DEFAULTS, False, None, id="one token below"),
        pytest.param(FULL, DEFAULTS, False, (0, 10), id="at 1.2 T: up to the cut that leaves F"),
        pytest.param(FULL, Limits(block_from_tokens=36_001), False, None, id="set higher"),
        pytest.param(tail(*[6] * 5), Limits(block_from_tokens=30_000), False, (0, 8), id="set to T"),
        pytest.param(FULL, DEFAULTS, True, None, id="this request has waited"),
        pytest.param(replace(FULL, failures=BACKING_OFF), DEFAULTS, False, None, id="in back-off"),
        pytest.param(replace(FULL, failures=PARKED), DEFAULTS, False, None, id="parked"),
        pytest.param(tail(*[6] * 20), DEFAULTS, False, (0, 10), id="a backlog: no more than T of it"),
        pytest.param(tail(*[6] * 4, 5.999), SYNCHRONOUS, False, None, id="without buffering: one token below T"),
        pytest.param(tail(*[6] * 5), SYNCHRONOUS, False, (0, 10), id="without buffering: at T, all of it"),
        pytest.param(tail(*[6] * 10), SYNCHRONOUS, False, (0, 20), id="without buffering: more than T, for nothing comes after"),
        pytest.param(replace(tail(*[6] * 5), failures=Failures(1, 1_000.0)), SYNCHRONOUS, False, (0, 10), id="its back-off is over"),
        pytest.param(replace(tail(*[6] * 5), failures=PARKED), SYNCHRONOUS, False, None, id="without buffering: parked"),
        pytest.param(tail(*[6] * 13), SHARED, False, None, id="shared: waits from 1.2 (T + R)"),
        pytest.param(tail(*[6] * 14), SHARED, False, (0, 10), id="shared: no more than T is read"),
    ],
)  # fmt: skip
def test_block(
    made: Memory, limits: Limits, waited: bool, expected: tuple[int, int] | None
) -> None:
    """A request waits when pending ≥ block_after and no chunk helps: oldest first, once, and never
    for a failing observer."""
    decision = decisions.decide_before_forwarding(made, limits, ASKED, waited=waited)
    assert (isinstance(decision, Observe) and (decision.after, decision.last)) == (
        expected or False
    )
    assert decision is None or (isinstance(decision, Observe) and decision.wait)


@pytest.mark.parametrize(
    ("observation", "interval", "keep", "block_from_tokens"),
    [
        ("{}", 6_000, 6_000, 36_000),
        ("{message_tokens: 10000}", 2_000, 2_000, 12_000),
        ("{buffer_tokens: 0.5}", 15_000, 6_000, 36_000),
        ("{buffer_tokens: 5000}", 5_000, 6_000, 36_000),
        ("{buffer_activation: 1}", 6_000, 0, 36_000),
        ("{buffer_activation: 1000}", 6_000, 1_000, 36_000),
        ("{block_after: 1}", 6_000, 6_000, 30_000),
        ("{block_after: 99.9}", 6_000, 6_000, 2_997_000),
        ("{block_after: 50000}", 6_000, 6_000, 50_000),
        ("{buffer_tokens: false}", None, 0, 30_000),
        ("{buffer_tokens: false, block_after: 1.5}", None, 0, 45_000),
    ],
)
def test_ratios_and_tokens(
    observation: str, interval: int | None, keep: int, block_from_tokens: int
) -> None:
    """Ratios resolve on the effective T; without buffering F is 0."""
    limits = parse(f"memory: {{observation: {observation}}}").effective("m").limits
    assert (limits.interval_tokens, limits.keep_tokens, limits.block_from_tokens) == (
        interval,
        keep,
        block_from_tokens,
    )


@pytest.mark.parametrize(
    ("block_from_tokens", "log", "expected"), [(36_000, 10_000, 60_000), (100_000, 10_000, 100_000)]
)
def test_tokens_below_a_threshold_that_has_grown(
    block_from_tokens: int, log: int, expected: int
) -> None:
    """An absolute `block_after` below the effective T counts as T: here T has 60 000 of a shared
    budget."""
    limits = Limits(
        has_shared_budget=True,
        block_from_tokens=block_from_tokens,
        fixed_thresholds=frozenset({"block_from_tokens"}),
    )
    assert limits.for_memory(log_tokens=log, pending_tokens=0).block_from_tokens == expected


# ── 6, failure ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("failures", "minutes", "parked"),
    [
        *((n, 2 ** (n - 1), False) for n in range(1, 8)),
        (8, 128, True),
        (9, 256, True),
        (10, 360, True),
    ],
)
def test_back_off(failures: int, minutes: int, parked: bool) -> None:
    """1 min doubling to 6 h, parked after 8 in a row: not due before, due then, and a success
    clears it."""
    made = tail(6)
    for _ in range(failures):
        made = transitions.record_failure(made, 1_000.0, jitter=0.0)
    assert made.failures == Failures(failures, 1_000.0 + 60 * minutes, parked)
    assert decisions.due_at(made, DEFAULTS, 1_000.0) == (None if parked else 1_000.0 + 60 * minutes)
    assert (made.coverage, made.chunks, made.tail) == (0, (), tail(6).tail)
    assert transitions.add_chunk(made, chunk(made, 2)).failures == Failures()


# ── 7, reflect ────────────────────────────────────────────────────────────────────────────────────


def log(*sizes: int, prepared: int | None = None, unproductive: bool = False) -> Memory:
    """A log of entries of these sizes; `prepared`: the tokens of a reflection of all but the
    newest, kept beside it."""
    made = with_log(memory(chat(1, 100)), *sizes)
    if prepared is not None:
        sources = tuple(o.id for o in made.log.entries[: max(len(sizes) - 1, 1)])
        kept = Reflection(
            generation=0, sources=sources, text="* 🔴 all", tokens=prepared, source_tokens=1, at=1.0
        )
        made = transitions.keep_reflection(made, kept)
    return transitions.mark_unproductive(made, made.log.tokens) if unproductive else made


PREPARE, WAIT = "prepare", "wait"


@pytest.mark.parametrize(
    ("made", "limits", "before", "after"),
    [
        pytest.param(log(19_999), DEFAULTS, None, None, id="one token below half of R"),
        pytest.param(log(10_000, 10_000), DEFAULTS, None, PREPARE, id="half of R"),
        pytest.param(log(20_000, 5_000, prepared=8_000), DEFAULTS, None, None, id="one is kept already"),
        pytest.param(log(20_000, unproductive=True), DEFAULTS, None, None, id="unproductive, and the log has not grown"),
        pytest.param(log(20_000, 19_999, prepared=8_000), DEFAULTS, None, None, id="prepared, one token below R"),
        pytest.param(log(20_000, 20_000, prepared=8_000), DEFAULTS, Swap(), None, id="prepared, at R"),
        pytest.param(log(20_000, 20_000), DEFAULTS, None, PREPARE, id="at R, none ready: in the background"),
        pytest.param(log(27_000, 20_999), DEFAULTS, None, PREPARE, id="one token below 1.2 R"),
        pytest.param(log(27_000, 21_000), DEFAULTS, WAIT, PREPARE, id="1.2 R: waited for"),
        pytest.param(log(27_000, 21_000, prepared=8_000), DEFAULTS, Swap(), None, id="1.2 R, prepared: no wait"),
        pytest.param(log(48_000, unproductive=True), DEFAULTS, None, None, id="1.2 R, unproductive: not waited for again"),
        pytest.param(replace(log(48_000), failures=BACKING_OFF), DEFAULTS, None, PREPARE, id="1.2 R, in back-off: not waited for"),
        pytest.param(log(39_999), SYNCHRONOUS, None, None, id="without buffering: one token below R"),
        pytest.param(log(40_000), SYNCHRONOUS, WAIT, None, id="without buffering: at R, and never in the background"),
        pytest.param(log(20_000, 20_000, prepared=8_000), SHARED, None, None, id="shared: R has grown by what the tail leaves"),
        pytest.param(log(40_000, 29_800, prepared=8_000), SHARED, Swap(), None, id="shared: at T + R less the tail"),
    ],
)  # fmt: skip
def test_reflect(
    made: Memory, limits: Limits, before: Swap | str | None, after: str | None
) -> None:
    """Prepared from half of R, accepted at seven tenths of its entries; swapped in at R;
    waited for at 1.2 R."""
    # in all of these the first entry frees enough
    size = round(made.log.entries[0].tokens * 0.7) + 1
    found = decisions.decide_before_forwarding(made, limits, ASKED)
    assert found == (Reflect(1, size, wait=True) if before == WAIT else before)
    background = decisions.decide_after_reply(made, limits, 1_000.0)
    assert background == (Reflect(1, size) if after == PREPARE else None)
