"""A part of a text for people, with the words found in it."""

from __future__ import annotations

import pytest

from om_proxy.memory.recall.clipping import cut_excerpt
from om_proxy.memory.recall.words import query_words

LONG = "And so it goes on. " * 100


@pytest.mark.parametrize(
    ("text", "query", "marked"),
    [
        ("Our boat lies at pier 14.", "boats", ["boat"]),
        ("Our boat lies at pier 14.", "pier, boat", ["boat", "pier"]),
        ("Das Café hat zu.", "cafe", ["Café"]),
        ("🔴 The mast is high.", "mast", ["mast"]),
        ("会议在星期二", "星期", ["会议在星期二"]),
        ("Nothing of it.", "boat", []),
        ("The and of.", "the and", []),
        ("", "boat", []),
    ],
)
def test_words_are_marked_as_they_stand(text: str, query: str, marked: list[str]) -> None:
    """Whatever their endings, accents and neighbours are."""
    excerpt = cut_excerpt(text, query_words(query), 300)
    assert excerpt.text == text
    assert [excerpt.text[start:end] for start, end in excerpt.marks] == marked


def test_a_long_text_is_cut_around_the_words() -> None:
    excerpt = cut_excerpt(f"{LONG}The vault opens at noon. {LONG}", ["vault"], 300)
    assert excerpt.text.startswith("… ")
    assert excerpt.text.endswith(" …")
    assert len(excerpt.text) <= 304
    ((start, end),) = excerpt.marks
    assert excerpt.text[start:end] == "vault"


@pytest.mark.parametrize("words", [[], ["vault"]])
def test_a_long_text_without_the_words_is_cut_at_its_end(words: list[str]) -> None:
    assert cut_excerpt(LONG, words, 300) == (f"{LONG[:299]}…", ())


def test_a_word_far_into_a_long_text_is_found() -> None:
    """At the end of a message as large as the index keeps any part of."""
    excerpt = cut_excerpt("x " * 200_000 + "quorum", ["quorum"], 300)
    assert [excerpt.text[start:end] for start, end in excerpt.marks] == ["quorum"]
