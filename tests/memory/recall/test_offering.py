"""When the tool is offered; tests/apis/chat/test_recall_tool.py has the requests."""

from __future__ import annotations

from om_proxy.memory.recall.offering import Offer, ToolUse, decide_offering


def test_a_refusal_counts_last() -> None:
    """What the request itself says is told before what its model server refused."""
    plain = ToolUse(1, False, frozenset())
    assert decide_offering(plain, is_refused=True) == (Offer.REFUSED, None)
    assert decide_offering(plain._replace(choices=2), is_refused=True).word is Offer.CHOICES
    assert decide_offering(plain, is_refused=False).tool == "recall"
