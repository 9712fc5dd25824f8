"""A value opens in its own table, row and column of its own memory alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.common.errors import UnopenedText
from om_proxy.storage.encryption.data_key import DataKey

SECRET = bytes(32)
PLACES = st.tuples(
    st.sampled_from([b"message", b"observation", b"thread"]),
    st.integers(0, 2**62),
    st.sampled_from([b"raw", b"text", b"title"]),
)


@given(place=PLACES, other=PLACES, value=st.binary(max_size=50))
def test_a_row_that_was_moved_does_not_open(
    place: tuple[bytes, int, bytes], other: tuple[bytes, int, bytes], value: bytes
) -> None:
    key = DataKey(bytes(16), bytearray(SECRET))
    sealed = key.seal(*place, value)
    if other == place:
        assert key.open(*other, sealed) == value
    else:
        with pytest.raises(UnopenedText):
            key.open(*other, sealed)


def test_a_value_opens_under_the_id_of_its_key_alone() -> None:
    """Even if another memory's key had the same bytes."""
    sealed = DataKey(bytes(16), bytearray(SECRET)).seal(b"message", 1, b"raw", b"text")
    with pytest.raises(UnopenedText):
        DataKey(bytes([1] * 16), bytearray(SECRET)).open(b"message", 1, b"raw", sealed)


def test_a_key_does_not_show_its_bytes() -> None:
    secret = b"0123456789abcdef0123456789abcdef"
    assert repr(DataKey(bytes(16), bytearray(secret))) == "<DataKey 00000000>"


def test_a_secret_is_wiped_once_nothing_uses_its_key() -> None:
    secret = bytearray(b"0123456789abcdef0123456789abcdef")
    key = DataKey(bytes(16), secret)
    used_elsewhere = key
    del key
    sealed = used_elsewhere.seal(b"message", 1, b"raw", b"text")
    assert used_elsewhere.open(b"message", 1, b"raw", sealed) == b"text"
    del used_elsewhere
    assert secret == bytes(32)
