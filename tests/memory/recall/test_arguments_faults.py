"""The words for look-ups that cannot be carried out."""

from __future__ import annotations

from om_proxy.memory.recall.arguments import ambiguous_label, unknown_conversation, unknown_message


def test_what_is_not_there() -> None:
    assert unknown_message("m9000", (1, 812), is_current=True).text == (
        "recall: there is no message m9000; this conversation has m1 to m812"
    )
    assert unknown_message("3f9c2a77.m1", None, is_current=False).text == (
        "recall: there is no message 3f9c2a77.m1; that conversation has no messages yet"
    )
    assert unknown_conversation("3f9c2a77").text == (
        'recall: no conversation 3f9c2a77; mode "threads" lists them'
    )
    assert "\n" not in unknown_conversation("x\n[m1] user").text
    assert ambiguous_label("3f9c2a", ["3f9c2a77", "3f9c2a78"]).text == (
        "recall: 3f9c2a begins several conversations' ids; give one of 3f9c2a77, 3f9c2a78"
    )
