"""Clients that are slow on purpose are cut off in time and do not slow a good one down;
scripts/slow-clients does it by the thousand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.bounds import slow
from tests.e2e.bounds.serving import needs_proc
from tests.support.long_forms import IS_LONG

LIMITS = "{header_timeout: 1s, body_timeout: 1s, write_timeout: 3s}"
# seconds a cut may come after its time: one for the looks, the rest for a machine that is busy
LATE = 10.0
NOISE = 60.0  # ms that a busy machine, on which other tests run meanwhile, makes of itself


EVERY = slow.EVERY if IS_LONG else 4 * slow.EVERY  # seconds between two requests of the good client

NUMBERS = {"heads": 80, "bodies": 80, "streams": 4, "replies": 16}

FEWEST_REQUESTS = 3  # of a quiet window; a busy machine answers fewer, which tell nothing


@needs_proc
@pytest.mark.slow
async def test_slow_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All readers are cut off, and of those that trickle the first and their next. The good client
    is served as before; its p99, which needs a quiet machine, the script looks at."""
    monkeypatch.setattr(slow, "EVERY", EVERY)
    found = await slow.measured(tmp_path, NUMBERS, seconds=8, window=1.5, limits=LIMITS)
    for name, within in (("heads", 1), ("bodies", 1), ("streams", 3), ("replies", 3)):
        kind = found.slow[name]
        assert kind["connections"] / 2 <= kind["ended"] >= 4, found
        assert within <= kind["longest"] < within + LATE, found
    usual = max(one.p50 for one in found.quiet)
    # else its requests wait for each other without any slow client, the longer the window is
    if usual < 1_000 * EVERY and min(one.count for one in found.quiet) >= FEWEST_REQUESTS:
        assert found.beside.p50 <= max(2 * usual, usual + NOISE), found
    assert found.grown < 160, found
