"""Clients that are slow on purpose are cut off in time and do not slow a good one down; scripts/slow-clients does it by the thousand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.bounds.serving import needs_proc
from tests.e2e.bounds.slow import measured

LIMITS = "{header_timeout: 1s, body_timeout: 1s, write_timeout: 1s}"
LATE = 2.5  # seconds a cut may come after its time: half a second for the looks, the rest for a machine that is busy
NOISE = 20.0  # ms of p99 that a busy machine makes of itself


@needs_proc
@pytest.mark.slow
async def test_slow_clients(tmp_path: Path) -> None:
    """Of each kind the first are cut off, and their next, and the good client's p99 stays within twice of what it was."""
    found = await measured(tmp_path, heads=80, bodies=80, readers=20, seconds=5, window=2, limits=LIMITS)
    for name, kind in found.slow.items():
        assert kind["ended"] >= kind["connections"] / 2 > 0, name
        assert 1.0 <= kind["longest"] < 1.0 + LATE, name
    assert found.beside.p99 <= max(2 * found.usual, found.usual + NOISE), found
    assert found.grown < 64
