"""Passages that match words, of passages at hand."""

from __future__ import annotations

from om_proxy.memory.recall.found import FoundPassage, PassageFilter
from om_proxy.memory.recall.matching import choose_matches, match_passages
from om_proxy.memory.recall.passages import IndexPlace, MessageText, cut_passages


def make_thread(name: str, *texts: str, start: float = 0.0) -> list[FoundPassage]:
    messages = [
        MessageText(seq, ("assistant", "user")[seq % 2], start + seq, "Ada", (text,))
        for seq, text in enumerate(texts, 1)
    ]
    return [
        FoundPassage(name, passage) for passage in cut_passages(messages, IndexPlace(), None)[0]
    ]


PASSAGES = [
    *make_thread("one", "quorum zeta", "beta", "gamma", "zeta", "delta"),
    *make_thread("two", "zeta", "quorum", start=100.0),
]


def list_places(found: tuple[FoundPassage, ...]) -> list[tuple[str, int]]:
    return [(each.thread, each.passage.seq) for each in found]


def test_matches_come_with_their_neighbours() -> None:
    found = match_passages(PASSAGES, ["quorum", "nothing"], unread=3)
    assert (found.messages, dict(found.counts)) == (7, {"quorum": 2, "nothing": 0})
    assert list_places(found.matches) == [("two", 2), ("one", 1)]
    assert sorted(list_places(found.neighbours)) == [("one", 2), ("two", 1)]
    assert not found.left_out
    assert found.share_read == 0.7


def test_side_words_match() -> None:
    found = match_passages(PASSAGES, ["ada"])
    assert (len(found.matches), found.counts["ada"]) == (7, 7)


def test_a_filter_narrows_matches_and_not_counts() -> None:
    for passage_filter, expected in (
        (PassageFilter(thread="one"), [("one", 4), ("one", 1)]),
        (PassageFilter(before=101.0), [("one", 4), ("one", 1)]),
        (PassageFilter(after=4.0), [("two", 1), ("one", 4)]),
        (PassageFilter(roles=("user",)), [("two", 1), ("one", 1)]),
    ):
        found = match_passages(PASSAGES, ["zeta"], passage_filter)
        assert list_places(found.matches) == expected
        assert found.counts["zeta"] == 3


def test_the_rarest_words_and_the_newest_passages_come_first() -> None:
    assert choose_matches({"rare": [2], "often": [1, 2, 3, 4]}, 3) == ({2, 3, 4}, True)
    assert choose_matches({"rare": [2], "often": [1, 2, 3, 4]}, 4) == ({1, 2, 3, 4}, False)


def test_nothing_is_found_in_nothing() -> None:
    found = match_passages([], ["zeta"])
    assert (found.matches, found.share_read) == ((), 1.0)
