"""Lines of notes that have words of a query."""

from __future__ import annotations

from msgspec.structs import replace

from om_proxy.memory.recall.note_lines import find_note_lines, order_by_fit
from om_proxy.memory.recall.words import words
from tests.memory.building import memory, transcript, with_log

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
