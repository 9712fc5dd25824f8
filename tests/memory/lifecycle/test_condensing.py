"""Which stretch of a log is condensed next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory.lifecycle.condensing import (
    LogStretch,
    acceptance_limit,
    choose_stretch,
    frees_enough,
    take_whole_log,
)
from om_proxy.memory.model import EMPTY_CHAIN, Observation


def entry(tokens: int, depth: int = 0, *, note: bool = False) -> Observation:
    return Observation(
        id=0,
        after=0,
        last=0,
        chain=EMPTY_CHAIN,
        text="noted",
        tokens=tokens,
        source_tokens=0,
        at=0.0,
        kind="note" if note else "reflection" if depth else "observation",
        depth=depth,
    )


def entries(*found: tuple[int, int]) -> list[Observation]:
    return [entry(tokens, depth) for tokens, depth in found]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param(entries((100, 0), (100, 0), (300, 0)), LogStretch(0, 2, 200), id="the oldest, as many as are needed"),
        pytest.param(entries((700, 0),), LogStretch(0, 1, 700), id="one that is larger"),
        pytest.param(entries((500, 1), (100, 0), (150, 0)), LogStretch(1, 2, 250), id="what was never condensed first"),
        pytest.param(entries((200, 1), (300, 1), (199, 0)), LogStretch(0, 1, 200, 0.55), id="too little that is new"),
        pytest.param(entries((300, 2), (100, 1), (150, 1), (120, 1), (90, 0)), LogStretch(1, 2, 250, 0.55), id="then the least often"),
        pytest.param(entries((250, 1), (100, 2), (250, 1)), LogStretch(0, 1, 250, 0.55), id="of equals the oldest"),
        pytest.param(entries((199, 3), (150, 2), (180, 1), (90, 0)), LogStretch(2, 2, 270, 0.6), id="none alone: the newest together"),
        pytest.param(entries((200, 1), (800, 0), (200, 0)), LogStretch(1, 1, 800), id="beyond R: as much as that needs"),
        pytest.param(entries((200, 1), (600, 0), (700, 0)), LogStretch(1, 2, 1_300), id="well beyond R"),
        pytest.param(entries(*[(500, 0)] * 10), LogStretch(0, 2, 1_000), id="far beyond R: no more than R at once"),
        pytest.param(entries((900, 1), (900, 0)), LogStretch(0, 2, 1_800, 0.625), id="no neighbours free enough: with older ones"),
        pytest.param(entries((180, 1), (620, 1), (120, 0)), LogStretch(0, 2, 800, 0.7), id="far more than needed: gently"),
        pytest.param([entry(100, 1), entry(5, note=True), entry(100, 1)], LogStretch(0, 3, 205, 0.55), id="a note parts no neighbours"),
        pytest.param([entry(5, note=True), entry(195)], LogStretch(0, 2, 200), id="a note that begins the log"),
    ],
)  # fmt: skip
def test_the_stretch(log: Sequence[Observation], expected: LogStretch) -> None:
    stretch = choose_stretch(log, 1_000)
    assert stretch == replace(expected, accepted_share=pytest.approx(expected.accepted_share))


@pytest.mark.parametrize(
    ("stretch", "below"),
    [
        (LogStretch(0, 1, 200, 0.55), 111),
        (LogStretch(0, 1, 2_000, 0.7), 1_401),
        (LogStretch(0, 1, 1, 0.55), 2),
    ],
)
def test_what_is_accepted(stretch: LogStretch, below: int) -> None:
    """The share of its entries, however far the log has grown."""
    assert acceptance_limit(stretch) == below


@pytest.mark.parametrize(("depths", "share"), [((0, 0), 0.7), ((0, 1), 0.625), ((3,), 0.55)])
def test_fresh_notes_are_condensed_gently(depths: tuple[int, ...], share: float) -> None:
    """The first condensing leaves more than later ones, of a stretch and of the whole log: an entry
    counts for itself, whatever stands beside it."""
    log = entries(*[(200, depth) for depth in depths])
    assert take_whole_log(log) == LogStretch(0, len(log), 200 * len(log), share)
    assert choose_stretch(log, 1_000).accepted_share == (0.7 if 0 in depths else 0.55)


def test_what_is_needed_is_freed() -> None:
    """The excess of 150 and 0.18 R, of notes that were condensed before."""
    stretch = choose_stretch(entries((180, 1), (720, 1), (250, 0)), 1_000)
    assert (stretch.tokens, acceptance_limit(stretch)) == (900, 900 - 150 - 180 + 1)


@pytest.mark.parametrize(
    ("after", "is_enough"), [(400, True), (800, True), (801, False), (999, False)]
)
def test_a_reflection_that_frees_little(after: int, is_enough: bool) -> None:
    """The next one waits for growth."""
    assert frees_enough(1_000, after) == is_enough


LOGS = st.lists(st.tuples(st.integers(1, 600), st.integers(0, 5)), min_size=1, max_size=30)


@given(LOGS, st.integers(1, 5_000))
def test_a_stretch_is_part_of_the_log(found: list[tuple[int, int]], most: int) -> None:
    """For any log the chosen entries are neighbours, counted right, and never much more than R.
    Reflections of half bring the log below R."""
    log = entries(*found)
    stretch = choose_stretch(log, most)
    taken = log[stretch.start : stretch.start + stretch.count]
    assert len(taken) == stretch.count > 0
    assert sum(o.tokens for o in taken) == stretch.tokens
    assert stretch.tokens <= most + 2 + max(o.tokens for o in log)
    for _ in range(200):
        if sum(o.tokens for o in log) < max(most, 2 * len(log)):
            break
        stretch = choose_stretch(log, most)
        at = slice(stretch.start, stretch.start + stretch.count)
        log[at] = [entry(stretch.tokens // 2, 1 + max(o.depth for o in log[at]))]
    assert sum(o.tokens for o in log) < max(most, 2 * len(log))


@pytest.mark.parametrize("entry_tokens", [10, 33, 80, 150])
def test_depth_grows_slowly(entry_tokens: int) -> None:
    """However long the thread, for what two, sixteen and sixty-four logs of notes came to; each
    time the log comes below R."""
    log, new, deepest = list[Observation](), 0, list[int]()
    for doubled in range(1, 7):
        while new < 1_000 * 2**doubled:
            log.append(entry(entry_tokens))
            new += entry_tokens
            while sum(o.tokens for o in log) >= 1_000:
                stretch = choose_stretch(log, 1_000)
                taken = slice(stretch.start, stretch.start + stretch.count)
                depth = 1 + max(o.depth for o in log[taken])
                log[taken] = [entry(acceptance_limit(stretch) - 1, depth)]
        deepest.append(max(o.depth for o in log))
    assert (deepest[0], deepest[3] <= 8, deepest[5] <= 17) == (2, True, True)
