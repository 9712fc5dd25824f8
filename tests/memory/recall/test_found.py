"""What a store says of its own search."""

from __future__ import annotations

from om_proxy.memory.recall.found import Found


def test_a_search_tells_how_much_it_could_find() -> None:
    assert Found(30, {}, (), (), unread=10).share_read == 0.75
    assert Found(0, {}, (), (), unread=2).share_read == 0.0
    assert Found(0, {}, (), ()).share_read == 1.0
