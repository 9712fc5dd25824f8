"""The disk in trouble under a real process: nothing acknowledged is lost, doubled or out of order,
and everything that is said of it is true. Short: each outage lasts until the breaker has opened;
`scripts/disk-faults` has the long ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.disk.outage import KINDS, outage
from tests.e2e.disk.troubles import Impossible
from tests.support.long_forms import long_form

# a full disk as a shim makes it, a lock, and errors of reads and writes
SHORT_KINDS = ("full-shim", "lock", "eio")


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind in SHORT_KINDS else long_form) for kind in KINDS],
)
async def test_trouble_of_the_disk(tmp_path: Path, kind: str) -> None:
    """Clients that send all their history, and clients that send only their newest message."""
    try:
        report = await outage(tmp_path, kind, None)
    except Impossible as exc:
        pytest.skip(str(exc))
    assert report.is_sound, report
    assert report.ready_during == {"degraded"}
    assert report.acknowledged >= 4 * 2 * 9
    if kind != "eio":  # what can not be read is not told
        assert report.short_prompts == 0, report
