"""What a verdict says of what is stored."""

from __future__ import annotations

import pytest

from om_proxy.memory.model import View
from om_proxy.memory.transcript.verdict import Verdict, takes_back_later_request


@pytest.mark.parametrize(
    ("cut_seq", "seq", "asked_at", "takes_back"),
    [
        pytest.param(4, 5, 2.0, True, id="its question"),
        pytest.param(4, 4, 2.0, False, id="its reply alone, which another attempt may replace"),
        pytest.param(4, 5, 1.0, False, id="of one that came at the same time"),
        pytest.param(4, 5, 0.0, False, id="of one whose time is not known"),
        pytest.param(None, 5, 2.0, False, id="nothing"),
    ],
)
def test_a_late_request(cut_seq: int | None, seq: int, asked_at: float, takes_back: bool) -> None:
    verdict = Verdict(case="branch", cut_seq=cut_seq, end=9, after_seq=4, style="full")
    view = View(count=1, digest=b"", chain=b"", seq=seq, end=9, asked_at=asked_at)
    assert takes_back_later_request(verdict, [view], 1.0) is takes_back
