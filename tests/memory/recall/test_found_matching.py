"""Passages that match words, of passages at hand."""

from __future__ import annotations

from msgspec.structs import replace

from om_proxy.memory.recall.found import (
    FoundPassage,
    PassageFilter,
    choose_matches,
    find_note_lines,
    match_passages,
    order_by_fit,
)
from om_proxy.memory.recall.passages import IndexPlace, MessageText, cut_passages
from om_proxy.memory.recall.words import words
from tests.memory.building import memory, transcript, with_log


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


ENTRIES = with_log(memory(transcript(("user", 10))), 5, 5).log.entries
OLDER = replace(ENTRIES[0], at=100.0, text="* 🔴 Ann moved to Rome\n  * with two cats\n\n* 🟡 Rain")
NEWER = replace(ENTRIES[1], at=200.0, text="* 🟡 The cats of Rome are fed by Ann")


def find(query: str) -> list[tuple[int, str, int]]:
    found = find_note_lines([OLDER, NEWER], words(query))
    return [(line.entry.id, line.text, line.found) for line in found]


def test_lines_are_numbered_as_their_text_has_them() -> None:
    """Other characters that end a line somewhere are part of it."""
    odd = replace(NEWER, text="Rain\n\n* Rome\u2028* Rome again\r\n* Rome")
    found = find_note_lines([OLDER, odd], words("rome rain"))
    assert [(line.entry.id, line.number) for line in found] == [
        (1, 1),
        (1, 4),
        (2, 1),
        (2, 3),
        (2, 4),
    ]
    assert found[3].text == "* Rome\u2028* Rome again"


def test_a_line_is_found_by_one_word_in_any_of_its_forms() -> None:
    assert find("CAT") == [
        (1, "* with two cats", 1),
        (2, "* 🟡 The cats of Rome are fed by Ann", 1),
    ]


def test_different_words_of_a_line_are_counted() -> None:
    assert find("Ann Rome Ann cats") == [
        (1, "* 🔴 Ann moved to Rome", 2),
        (1, "* with two cats", 1),
        (2, "* 🟡 The cats of Rome are fed by Ann", 3),
    ]


def test_without_a_word_nothing_is_found() -> None:
    assert find("") == []
    assert find("Oslo") == []


def test_the_line_with_more_of_the_words_is_better_then_the_newer_one() -> None:
    found = find_note_lines([NEWER, OLDER], words("Rome cats"))
    assert [(line.entry.id, line.found) for line in sorted(found, key=order_by_fit)] == [
        (1, 1),
        (1, 1),
        (2, 2),
    ]
    tied = sorted(find_note_lines([NEWER, OLDER], words("Rome")), key=order_by_fit)
    assert [line.entry.id for line in tied] == [1, 2]
