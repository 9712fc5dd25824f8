"""The names of threads and resources: each has one spelling in a header, and is read back from
it."""

from __future__ import annotations

import string
from unittest.mock import patch
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from om_proxy.settings.identity.naming import (
    MAX_NAME_BYTES,
    decode_name,
    decode_path_segment,
    encode_name,
    normalize_name,
)

PLAIN = (
    string.ascii_letters + string.digits + "._:@/+=-"
)  # all that a name of the first release is made of
NAMES = st.text(min_size=1, max_size=100).map(normalize_name).filter(lambda name: name is not None)


def test_no_stored_name_can_be_read_as_an_encoded_one() -> None:
    """Names of the first release hold no `%`, so decoding changes none of them, and no two names
    become one."""
    assert "%" not in PLAIN
    assert decode_name(PLAIN) == encode_name(PLAIN) == normalize_name(PLAIN) == PLAIN


@settings(deadline=None)
@given(st.text(alphabet=PLAIN, min_size=1, max_size=MAX_NAME_BYTES))
def test_a_plain_name_stands_for_itself(name: str) -> None:
    """It is the same as before names could be encoded."""
    assert decode_name(name) == encode_name(name) == name


@settings(deadline=None)
@given(NAMES)
def test_what_is_encoded_is_read_back(name: str) -> None:
    """A name is decoded once, so a name that looks encoded stays as it is. Its spelling is a valid
    header value and a valid path segment."""
    spelled = encode_name(name)
    assert spelled.isascii()
    assert spelled.isprintable()
    assert not set(spelled) - set(PLAIN + "%")
    assert decode_name(spelled) == decode_path_segment(spelled) == name
    assert decode_path_segment(quote(name, safe="")) == name
    assert normalize_name(name) == name


def test_a_very_long_name_is_not_composed() -> None:
    """Composing sorts marks in quadratic time: a head full of them would block the server. A name
    with decomposed letters still fits."""
    with patch("om_proxy.settings.identity.naming.normalize", side_effect=AssertionError):
        assert decode_name(quote("a" + "\u0301\u0323" * 2_500)) is None
    assert normalize_name("u\u031b\u0323" * 85) == "ự" * 85


@settings(deadline=None)
@given(st.text(max_size=30))
def test_reading_never_fails(text: str) -> None:
    """Any header or path gives a name in its stored form, an empty name, or None."""
    for read in (decode_name(text), decode_path_segment(text)):
        assert read in (None, "") or normalize_name(read) == read


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a%20b", "a b"),
        ("K%C3%BCche", "Küche"),
        ("K%c3%bcche", "Küche"),
        ("%E5%AF%B9%E8%AF%9D%201", "对话 1"),
        ("a%2Fb", "a/b"),
        ("100%25", "100%"),
        ("%2525", "%25"),  # decoded once
        ("%27tis%2C%20%22so%22", '\'tis, "so"'),
        ("Ku%CC%88che", "Küche"),  # two spellings of the same letters (NFC)
        ("%D9%85%DB%8C%E2%80%8C%D8%AE%D9%88%D8%A7%D9%87%D9%85", "می\u200cخواهم"),
        ("%F0%9F%91%A9%E2%80%8D%F0%9F%9A%80", "👩\u200d🚀"),
        ("%20a%20", "a"),
        ("%20", ""),
        ("%20%20", ""),
    ],
)
def test_an_encoded_name(text: str, name: str) -> None:
    """White space, letters of every script and signs are part of a name. White space around it is
    removed."""
    assert decode_name(text) == decode_path_segment(text) == name


@pytest.mark.parametrize(
    "text",
    [
        "a%",
        "a%2",
        "a%zz",
        "%ff",
        "%C3",
        "%00",
        "a%0Ab",
        "a%0D%0AX-Injected%3A%201",
        "%7F",
        "%C2%85",
        "%ED%A0%80",  # half a character
        "a%E2%80%AEb",  # changes the direction of writing
        "%E2%80%A8",
        "%C0%AF",  # an overlong `/`
        "a%20" * 300,
        "%C3%BC" * 129,
        "x" * 257,
    ],
)
def test_what_is_no_name(text: str) -> None:
    """Control characters, half characters, other encodings than UTF-8, and more than 256 bytes."""
    assert decode_name(text) is None
    assert decode_path_segment(text) is None


@pytest.mark.parametrize("text", ["a b", "ü", "a,b", "a;b", "<t>", "a~b", "it's", "a%20 b", ""])
def test_a_header_spells_every_other_character(text: str) -> None:
    """A comma or a space must be encoded, because a server before us may have joined two
    headers."""
    assert decode_name(text) is None


@pytest.mark.parametrize("text", ["it's", "a~b", "(x)!*", "a,b", "a;b", "a&b"])
def test_a_path_may_hold_more(text: str) -> None:
    """A path may contain what JavaScript's encodeURIComponent leaves as it is, and other characters
    of a segment."""
    assert decode_path_segment(text) == text


def test_the_length_counts_in_bytes() -> None:
    """The length counts in bytes of UTF-8, as stored."""
    assert normalize_name("ü" * 128) == "ü" * 128
    assert normalize_name("ü" * 129) is None
