"""The hostile texts: what they hold, and that their judges find it."""

from __future__ import annotations

import json

import pytest

from tests.support.hostile_texts import (
    COUNT,
    encode_json,
    encode_path,
    find_markup,
    find_terminal_commands,
    list_hostile_names,
    list_hostile_texts,
    list_megabyte_lines,
    list_utf8_texts,
)


def test_every_kind_is_there() -> None:
    texts = list_hostile_texts()
    assert len(set(texts)) == len(texts) == COUNT
    assert texts == list_hostile_texts()
    whole = "".join(texts)
    kinds = ("</observations>", "\u202e", "\x1b]8;;", "\x1b[31m", "\U0001f534", "\x00", "\ud83d")
    assert [kind for kind in kinds if kind not in whole] == []
    assert len(list_utf8_texts()) > 0.9 * COUNT
    assert len(list_hostile_names()) > 100


def test_a_line_is_a_megabyte() -> None:
    for line in list_megabyte_lines():
        assert len(line.splitlines()) == 1
        assert len(line.encode()) >= 2**20 - 5


@pytest.mark.parametrize(
    ("shown", "found"),
    [
        ("plain, café 🔴, אב\n\tnext", []),
        ("a\x1b[2J", ["\x1b"]),
        ("\x9b2K\x7f\x00", ["\x9b", "\x7f", "\x00"]),
        ("a\u202eb\u2066", ["\u202e", "\u2066"]),
        ("\\x1b[2J", []),
        ("a\rb", ["\r"]),
    ],
)
def test_a_terminal_command_is_found(shown: str, found: list[str]) -> None:
    assert find_terminal_commands(shown) == found


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ("<p>plain</p>", ["p"]),
        ("<p>&lt;script&gt;</p>", ["p"]),
        ("<p><img src=x onerror=alert(1)>", ["p", "img"]),
    ],
)
def test_markup_is_found(page: str, found: list[str]) -> None:
    assert find_markup(page) == found


def test_each_can_be_written() -> None:
    """As JSON of ASCII, and as one segment of a path."""
    for text in list_hostile_texts():
        assert json.loads(encode_json(text)) == text
        assert encode_path(text).isascii()
        assert not set("/?# \r\n") & set(encode_path(text))
