"""The format of an encrypted value."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.common.errors import UnopenedText
from om_proxy.storage.encryption.sealed_value import (
    OVERHEAD_BYTES,
    open_buffer,
    open_value,
    seal_value,
    wipe_buffer,
)

KEY = AESGCM(bytes(32))
PLACE = b"om|message|abc|1|raw"


@given(value=st.binary(max_size=300), place=st.binary(max_size=60))
def test_a_value_opens_at_its_place(value: bytes, place: bytes) -> None:
    sealed = seal_value(KEY, value, place)
    assert (sealed[:1], len(sealed)) == (b"\x01", len(value) + OVERHEAD_BYTES)
    assert open_value(KEY, sealed, place) == value == open_buffer(KEY, sealed, place)


@given(value=st.binary(max_size=40), data=st.data())
def test_a_value_with_any_bit_flipped_does_not_open(value: bytes, data: st.DataObject) -> None:
    sealed = bytearray(seal_value(KEY, value, PLACE))
    bit = data.draw(st.integers(0, 8 * len(sealed) - 1))
    sealed[bit // 8] ^= 1 << bit % 8
    for open_sealed in (open_value, open_buffer):
        with pytest.raises(UnopenedText):
            open_sealed(KEY, bytes(sealed), PLACE)


@given(value=st.binary(max_size=40), data=st.data())
def test_a_value_that_was_cut_or_lengthened_does_not_open(
    value: bytes, data: st.DataObject
) -> None:
    sealed = seal_value(KEY, value, PLACE)
    cut = sealed[: data.draw(st.integers(0, len(sealed) - 1))]
    for changed in (cut, sealed + b"\0"):
        with pytest.raises(UnopenedText):
            open_value(KEY, changed, PLACE)


def test_a_value_does_not_open_elsewhere_or_with_another_key() -> None:
    sealed = seal_value(KEY, b"text", PLACE)
    for key, place in ((KEY, b"om|message|abc|2|raw"), (AESGCM(bytes([1] * 32)), PLACE)):
        with pytest.raises(UnopenedText):
            open_value(key, sealed, place)


def test_equal_values_look_different() -> None:
    assert len({seal_value(KEY, b"text", PLACE) for _ in range(100)}) == 100


def test_a_wiped_buffer_has_its_length_and_no_other_byte() -> None:
    buffer = bytearray(b"secret")
    with memoryview(buffer):  # nobody can move it
        wipe_buffer(buffer)
    assert buffer == bytes(6)
