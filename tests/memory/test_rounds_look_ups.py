"""The seam between the tool loop and the look-ups."""

from __future__ import annotations

from om_proxy.memory.rounds import LookUpAnswer, LookUpCall


def test_no_text_stands_in_a_repr() -> None:
    """So a value that gets into a log line or an error tells nothing of a conversation."""
    call = LookUpCall("call_1", '{"query": "canary"}')
    answer = LookUpAnswer("[m1] user\n  canary", "search", "found", 1)
    assert "canary" not in f"{call!r} {[call]} {answer!r} {[answer]}"
    assert repr(answer) == "<LookUpAnswer search found 1>"
