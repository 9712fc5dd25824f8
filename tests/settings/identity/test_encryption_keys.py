"""Master keys as an operator writes them."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.settings.identity.encryption_keys import (
    KEY_RULE,
    is_key_source,
    name_master_key,
    parse_master_key,
)

KEYS = st.binary(min_size=32, max_size=32)


@given(key=KEYS)
def test_a_key_is_read_in_every_form(key: bytes) -> None:
    standard, url = base64.b64encode(key).decode(), base64.urlsafe_b64encode(key).decode()
    for text in (key.hex(), key.hex().upper(), standard, url, url.rstrip("="), f" {standard}\n"):
        assert parse_master_key(text) == key


@pytest.mark.parametrize(
    "text", ["", "hush", "0" * 63, "g" * 64, "A" * 42, "A" * 44 + "==", "é" * 43, "\0" * 43]
)
def test_anything_else_is_refused_without_being_told(text: str) -> None:
    with pytest.raises(ValueError, match="must be 32 bytes") as caught:
        parse_master_key(text)
    assert str(caught.value) == KEY_RULE


@given(key=KEYS, other=KEYS)
def test_an_id_tells_keys_apart_and_does_not_tell_the_key(key: bytes, other: bytes) -> None:
    name = name_master_key(key)
    assert len(name) == 12
    assert (name == name_master_key(other)) == (key == other)
    assert name not in key.hex()


@pytest.mark.parametrize(
    ("text", "is_source"), [("file:/run/key", True), ("command:kms get", True), ("AAAA", False)]
)
def test_where_a_key_is_and_what_it_is_are_told_apart(text: str, is_source: bool) -> None:
    assert is_key_source(text) == is_source
