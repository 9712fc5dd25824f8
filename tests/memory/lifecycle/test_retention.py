"""Which older generations go, and which an undo or a fork needs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from om_proxy.memory.lifecycle.retention import (
    OlderGeneration,
    StoredLog,
    choose_retired,
    has_clock_jumped,
    is_expired,
    is_near_expiry,
    list_made_from,
)
from om_proxy.memory.model import ObservationLog
from tests.memory.sharing import entry


def build_log(
    thread: str,
    *ids: tuple[int, ...],
    made_from: tuple[int, ...] = (),
    kept: int = 20,
    at: float = 0,
) -> StoredLog:
    """Generations with these entries, a second after each other."""
    older = tuple(OlderGeneration(n, one, at + n) for n, one in enumerate(ids))
    return StoredLog(thread, older, frozenset(made_from), kept)


@pytest.mark.parametrize(
    ("logs", "generations", "most", "gone"),
    [
        ([build_log("t", (1,), (2,), (3,))], 20, 3, []),
        ([build_log("t", (1,), (2,), (3,))], 20, 1, [("t", (0, 1), "max_reflections")]),
        # beyond `generations` of its log, whatever the resource has
        ([build_log("t", (1,), (2,), (3,), kept=2)], 2, None, [("t", (0,), "generations")]),
        (
            [build_log("t", (1,), (2,), (3,), kept=2)],
            2,
            1,
            [("t", (0,), "generations"), ("t", (1,), "max_reflections")],
        ),
        # what stands in the log was made from it: the newest that holds it is needed
        ([build_log("t", (1, 2), (1, 2), (3,), made_from=(1,))], 20, 1, [("t", (0, 2), "max_reflections")]),
        ([build_log("t", (1,), (2,), (3,), made_from=(1, 2, 3))], 20, 1, []),
        # of the newest `generations` only
        ([build_log("", (1,), (2,), (3,), made_from=(1, 3))], 1, 1, [("", (0, 1), "max_reflections")]),
        # the oldest of all logs go first
        (
            [build_log("a", (1,), (2,), at=5), build_log("b", (1,), (2,), at=0)],
            20,
            2,
            [("b", (0, 1), "max_reflections")],
        ),
    ],
)  # fmt: skip
def test_retired_generations(
    logs: list[StoredLog], generations: int, most: int | None, gone: list[tuple[object, ...]]
) -> None:
    assert choose_retired(logs, generations, most) == gone


def test_what_a_log_was_made_from() -> None:
    """Sources of reflections, and texts that a person replaced."""
    entries = (
        entry("A", 0, 2, sources=(3, 4), kind="reflection"),
        entry("A", 2, 4, replaces=9),
        entry("A", 4, 6, replaces=0),
        replace(entry("A", 6, 8), id=7),
    )
    assert list_made_from(ObservationLog(entries=entries)) == {3, 4, 9}


LOGS = st.lists(
    st.builds(
        lambda number, ids, made_from: build_log(str(number), *ids, made_from=made_from, kept=6),
        st.integers(),
        st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=9).map(tuple),
        st.lists(st.integers(1, 9), max_size=5).map(tuple),
    ),
    max_size=4,
    unique_by=lambda log: log.thread,
)


@given(logs=LOGS, most=st.integers(1, 20))
def test_what_an_undo_needs_stays(logs: list[StoredLog], most: int) -> None:
    """Every entry that the log was made from and that the newest six hold is still held; no more
    goes than must; a second run takes nothing."""
    gone = {(one.thread, number) for one in choose_retired(logs, 6, most) for number in one.numbers}
    left = []
    for log in logs:
        kept = tuple(one for one in log.older if (log.thread, one.number) not in gone)
        left.append(log._replace(older=kept))
        before = {id_ for one in log.older[-6:] for id_ in one.entries} & log.made_from
        assert before <= {id_ for one in kept for id_ in one.entries}
        assert len(kept) <= 6
    total = sum(len(log.older) for log in left)
    assert total >= min(most, sum(min(6, len(log.older)) for log in logs))
    assert choose_retired(left, 6, most) == []


DAY = 86_400.0
NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("age_s", "lifetime_s", "expired", "near"),
    [
        (9 * DAY, None, False, False),
        (0, 7 * DAY, False, False),
        (6.4 * DAY, 7 * DAY, False, False),
        (6.6 * DAY, 7 * DAY, False, True),
        (7 * DAY, 7 * DAY, False, True),
        (7.1 * DAY, 7 * DAY, True, True),
        (1_700, 3_600, False, False),
        (1_900, 3_600, False, True),
        (-DAY, 7 * DAY, False, False),  # written by a clock that was ahead
    ],
)
def test_expiry(age_s: float, lifetime_s: float | None, expired: bool, near: bool) -> None:
    assert is_expired(NOW - age_s, lifetime_s, NOW) is expired
    assert is_near_expiry(NOW - age_s, lifetime_s, NOW) is near


def test_thread_without_a_turn_is_near_expiry() -> None:
    """It is not known how long it has been there."""
    assert is_near_expiry(None, 7 * DAY, NOW)
    assert not is_near_expiry(None, None, NOW)


@given(st.floats(0, 1e9), st.floats(3_600, 1e9), st.floats(0, 1_800))
def test_what_expires_during_a_reply_was_near_expiry(
    age_s: float, lifetime_s: float, reply_s: float
) -> None:
    """So its request has kept it, for half an hour at least."""
    if is_expired(NOW - age_s, lifetime_s, NOW + reply_s - 1):
        assert is_near_expiry(NOW - age_s, lifetime_s, NOW)


@pytest.mark.parametrize(
    ("store_s", "machine_s", "jumped"),
    [(600, 600, False), (3_000, 600, False), (86_400, 600, True), (-86_400, 600, True)],
)
def test_clock_that_jumped(store_s: float, machine_s: float, jumped: bool) -> None:
    assert has_clock_jumped(store_s, machine_s) is jumped
