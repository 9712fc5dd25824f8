"""Hidden characters are made visible, and printable text stays."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.cli.answers import escape_json, escape_line, escape_text

ANY_TEXT = st.text(st.characters())  # with lone surrogates


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Zoë’s Küche 対話\u3000🔴", "Zoë’s Küche 対話\u3000🔴"),
        ("\x1b[31mred", "\\u001b[31mred"),
        ("\x1b]8;;http://x\x07link", "\\u001b]8;;http://x\\u0007link"),
        ("\x9b31m", "\\u009b31m"),
        ("a\nb\tc\r", "a\\u000ab\\u0009c\\u000d"),
        ("abc\u202ecba\u2066x\u2069", "abc\\u202ecba\\u2066x\\u2069"),
        ("one\u2028two\u2029three\x85", "one\\u2028two\\u2029three\\u0085"),
        ("ad\u200bmin\ufeff\u00ad", "ad\\u200bmin\\ufeff\\u00ad"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("a\0b", "a\\u0000b"),
    ],
)
def test_a_line_shows_every_character(text: str, line: str) -> None:
    assert escape_line(text) == line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one\n\ttwo\r\nthree", "one\n\ttwo\nthree"),
        ("one\rtwo", "one\\u000dtwo"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("👩\u200d🚀", "👩\u200d🚀"),
        ("ad\u200dmin", "ad\\u200dmin"),
        ("é\u200d\u200dé", "é\\u200d\\u200dé"),
        ("\x1b]0;title\x07", "\\u001b]0;title\\u0007"),
    ],
)
def test_a_text_keeps_its_lines_and_joined_words(text: str, shown: str) -> None:
    assert escape_text(text) == shown


@given(ANY_TEXT)
def test_nothing_hidden_survives(text: str) -> None:
    """No control, format, surrogate, private or unassigned character, and no line separator."""
    for shown, kept in ((escape_line(text), ""), (escape_text(text), "\n\t\u200c\u200d")):
        hidden = {char for char in shown if unicodedata.category(char)[0] in "C"} | (
            set(shown) & {"\u2028", "\u2029"}
        )
        assert hidden <= set(kept)


@given(st.dictionaries(ANY_TEXT, ANY_TEXT))
def test_json_keeps_its_value(value: dict[str, str]) -> None:
    """Only the way in which a character is written changes."""
    shown = escape_json(json.dumps(value, ensure_ascii=False, indent=2))
    assert json.loads(shown) == json.loads(json.dumps(value, ensure_ascii=False))
    assert shown.replace("\n", "").isprintable()
