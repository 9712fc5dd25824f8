"""The steady state of reflecting, played through the memory's own rules."""

from __future__ import annotations

import pytest

from om_proxy.memory.lifecycle.thresholds import Limits
from tests.bench.cost_steady import (
    ENTRY_TOKENS,
    NEW_TOKENS,
    Steady,
    play_notes,
    write_as_accepted,
    write_as_asked,
)


@pytest.mark.parametrize(
    ("share", "written", "rewrites"), [(0.75, 3.0, 3.0), (0.6, 1.5, 1.75), (0.5, 1.0, 1.25)]
)
def test_shares_of_the_log(share: float, written: float, rewrites: float) -> None:
    """What a share of r frees costs r / (1 - r). The oldest notes are rewritten 1 to 3 times, where
    the whole log was 7 to 12 times."""
    found = play_notes(Limits(), lambda source, _: round(share * source))
    assert found.written_per_new == pytest.approx(written, rel=0.1)
    assert found.rewrites == pytest.approx(rewrites, rel=0.1)
    assert found.read_per_new == pytest.approx(written / share, rel=0.1)


def test_shorter_reflections_cost_less() -> None:
    """What is asked for is below what is accepted."""
    accepted, asked = (
        play_notes(Limits(), length) for length in (write_as_accepted, write_as_asked)
    )
    assert 0 < asked.written_per_new < accepted.written_per_new
    assert 0 < asked.rewrites <= accepted.rewrites


def test_small_logs_are_not_reflected() -> None:
    """Nothing before the first swap counts: it happens once."""
    found = play_notes(
        Limits(
            reflect_ahead_from_tokens=None,
            reflect_from_tokens=10_000,
            reflect_block_from_tokens=10_000,
        ),
        lambda *_: ENTRY_TOKENS,
    )
    assert found.new == pytest.approx(NEW_TOKENS, abs=ENTRY_TOKENS)
    assert (
        found.oldest_rewritten == 2
    )  # in 208 reflections: to one entry, then that with its equals, and again


def test_nothing_new_is_no_ratio() -> None:
    assert Steady().written_per_new == Steady().rewrites == 0


def test_a_reflector_writes_little_more_than_what_is_new() -> None:
    """Where it writes as much as it is asked for; and somewhat more at the very most. Rewriting the
    whole log at half of R: 0.99, and the oldest notes 5.5 times."""
    found = play_notes(Limits(), write_as_asked)
    assert found.written_per_new <= 1.25
    assert found.rewrites <= 1.5
    assert play_notes(Limits(), write_as_accepted).written_per_new <= 1.6
