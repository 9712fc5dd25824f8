"""Views of chat messages that no client sends: those of other APIs' messages."""

from __future__ import annotations

from om_proxy.wire.apis.chat.chat_message import Remark, view_parsed


def test_a_remark_is_read_and_not_compared() -> None:
    """What a server's own tool said is told, and a message is the same without it."""
    said = {"type": "text", "text": "rain"}
    remark = Remark({"type": "text", "text": "[web_search: 3 results]"})
    view = view_parsed({"role": "assistant", "content": [remark, said]})
    assert list(view.parts()) == ["[web_search: 3 results]", "rain"]
    assert view.compared_content() == ("rain", [])
