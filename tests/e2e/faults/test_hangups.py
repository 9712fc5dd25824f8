"""Clients that leave wedge nothing and leave nothing behind; and the test that says so is one that
can fail."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.faults.hangups import AFTERWARDS, hung_up
from tests.e2e.faults.leavers import HELD, PHASES, POOL, TOGETHER

# Seconds. On a very busy machine a client waits longer and a connection closes later than in
# scripts/hangups, which has 5 s and 1 s.
PATIENCE = 30.0
CLOSED_WITHIN = 10.0


async def test_hangups(tmp_path: Path) -> None:
    """300 of them, in every phase; scripts/hangups does it with 10 000."""
    outcome = await hung_up(tmp_path, 300, patience=PATIENCE, within=CLOSED_WITHIN)
    assert outcome.broken() == []
    assert {hangup.phase for hangup in outcome.hangups} == {*PHASES, TOGETHER}
    cut = {hangup.phase for hangup in outcome.hangups if hangup.lag is not None}
    assert cut >= HELD, "each phase in which a connection must be cut has had one"


async def test_plain_httpx_wedges(tmp_path: Path) -> None:
    """The same clients, over a relay with httpx's own pool: its connections are lost for good, and
    in the end nobody gets an answer."""
    outcome = await hung_up(tmp_path, 300, against="httpx", patience=1.0)
    assert outcome.succeeded < POOL < AFTERWARDS
    assert outcome.broken()
