"""Index words by example, in twelve languages and in code."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory.recall.words import (
    MAX_QUERY_WORDS,
    MAX_WORD_CHARS,
    find_words,
    query_words,
    words,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Caroline's paintings weren't finished", "carolin paint finish"),
        ("Größe der Straße", "gross der strass"),
        ("l'été à Montréal, naïve", "l et montreal naiv"),
        ("¿Dónde está el niño?", "dond esta el nino"),
        ("żółw w Krakowie", "zołw w krakowi"),
        ("São João não vem", "sao joao nao vem"),
        ("İstanbul'da ILIK hava", "istanbul da ilik hava"),
        ("Ёлка стоит в Москве", "елка стоит в москве"),
        ("Η Αθήνα είναι ωραία", "η αθηνα ειναι ωραια"),
        ("مُحَمَّد في المدرسة", "محمد في المدرسة"),
        ("שָׁלוֹם עולם", "שלום עולם"),
        ("मैं स्कूल जाता हूँ", "मैं स्कूल जाता हूँ"),
        ("我去了北京。好", "我去 去了 了北 北京 好"),
        ("東京タワーに3回", "東京 京タ タワ ワー ーに 3 回"),
        ("서울에 갔다", "서울 울에 갔다"),
        ("ไปวัด", "ไป ปว วั ัด"),
        ("parseHttpHeader(req_id)", "parsehttphead pars http header req id"),
        ("HTTPServer, iPhone 15, utf8", "httpserver http server iphon phone 15 utf8"),
        ("ＦＵＬＬ ½ ① Donau\u00addampf", "full 1 2 1 donaudampf"),
    ],
)
def test_words_of_languages_and_code(text: str, expected: str) -> None:
    assert words(text) == expected.split()


def test_a_decomposed_accent_is_an_accent() -> None:
    assert words("cafe\u0301") == words("café") == ["cafe"]


def test_a_long_run_is_left_out() -> None:
    """A hash is no word. A sentence without spaces is no long word."""
    assert words(f"{'a' * (MAX_WORD_CHARS + 1)} {'b' * MAX_WORD_CHARS}") == ["b" * MAX_WORD_CHARS]
    assert len(words("中" * 100)) == 99


def test_a_query_of_stop_words_keeps_them() -> None:
    assert query_words("Who are you?") == ["who", "are", "you"]
    assert query_words("Who is Ada? Ada!") == ["ada"]


@pytest.mark.parametrize("query", ["", "?!… —", "\0", "\ud800\udfff", "_"])
def test_a_query_without_a_word_has_none(query: str) -> None:
    assert query_words(query) == []


def test_a_long_query_counts_its_first_words() -> None:
    found = query_words(" ".join(f"w{number}" for number in range(50_000)))
    assert found == [f"w{number}" for number in range(MAX_QUERY_WORDS)]


def test_syntax_of_a_database_is_words() -> None:
    assert query_words('"quorum" NEAR(zeta*) -beta: OR') == ["quorum", "near", "zeta", "beta"]


def test_words_are_found_at_their_places() -> None:
    text = "the parseHeader\ud800 Größe"
    found = [(text[place.start : place.end], place.words) for place in find_words(text)]
    assert found == [("parseHeader", ("parsehead", "pars", "header")), ("Größe", ("gross",))]


@pytest.mark.parametrize("joint", [*map(chr, range(128)), "a" * 99])
def test_a_text_beside_a_letter_of_no_ascii_has_the_same_words(joint: str) -> None:
    """A text in ASCII is cut by a shorter way, at the same places."""
    text = f"fooBar{joint}9baz {joint}"
    assert [*words(text), "ж"] == words(f"{text} ж")


TEXT_STRATEGY = st.text(st.characters(exclude_categories=()), max_size=40)


@given(TEXT_STRATEGY, TEXT_STRATEGY)
def test_a_space_separates_words(a: str, b: str) -> None:
    """The words of two texts joined by a space are the words of each."""
    assert words(f"{a} {b}") == words(a) + words(b)


@given(TEXT_STRATEGY)
def test_words_hold_nothing_that_an_index_could_split(text: str) -> None:
    """SQLite's `ascii` tokenizer takes a word as it is: its ASCII characters are lower case letters
    and digits."""
    for word in words(text):
        assert word
        assert all(ord(char) >= 128 or (char.isalnum() and not char.isupper()) for char in word)
        word.encode()
