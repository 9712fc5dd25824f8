"""What comments cost a stream's first byte: the figures of `scripts/bench first-byte`."""

from __future__ import annotations

import pytest

from tests.bench.first_byte import summarize


def test_differences_are_taken_round_by_round() -> None:
    """A round that was slow for all says nothing about the comments."""
    times_ms = {
        "none": [1.0, 9.0, 1.1, 1.2, 30.0],
        "inline": [1.1, 9.1, 1.2, 1.3, 30.1],
        "inline,text": [1.5, 9.5, 1.6, 1.7, 30.5],
    }
    none, inline, with_text = summarize(times_ms)
    assert (none.p50_ms, none.later_ms) == (1.2, 0.0)
    assert inline.later_ms == pytest.approx(0.1)
    assert with_text.later_ms == pytest.approx(0.5)
    assert with_text.low_ms <= with_text.later_ms <= with_text.high_ms
