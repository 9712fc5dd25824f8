"""Vectors are short, whole, and made from a bounded text."""

from __future__ import annotations

import struct
from math import inf, nan

import pytest

from om_proxy.memory.recall.passages import MessageText
from om_proxy.memory.recall.vectors import (
    MAX_EMBEDDED_CHARS,
    encode_vector,
    write_embedded_text,
)


@pytest.mark.parametrize("numbers", [[3.0, -4.0], [3e300, -4e300], [3e-300, -4e-300]])
def test_a_vector_has_two_bytes_a_number_and_the_length_one(numbers: list[float]) -> None:
    assert struct.unpack("<2e", encode_vector(numbers)) == pytest.approx((0.6, -0.8), abs=1e-3)


@pytest.mark.parametrize(
    "numbers",
    [[], [0.0, 0.0], [1.0, nan], [nan], [inf, 1.0], [10**400, 1.0], [1.0] * 9_000],
    ids=["none", "zero", "some_nan", "nan", "infinite", "large", "many"],
)
def test_what_is_no_direction_is_refused(numbers: list[float]) -> None:
    with pytest.raises(ValueError, match="a vector"):
        encode_vector(numbers)


def text(said: str, speaker: str = "") -> MessageText:
    return MessageText(1, "user", 1.0, speaker, (said,), ("tool",))


@pytest.mark.parametrize(
    ("length", "before_length", "has_before"),
    [(60, 60, True), (61, 5, False), (5, 61, False), (0, 0, True)],
)
def test_short_messages_take_the_one_before(
    length: int, before_length: int, has_before: bool
) -> None:
    written = write_embedded_text(text("own", "Ann"), length, text("earlier"), before_length)
    assert written == ("earlier\ntool\n" if has_before else "") + "Ann: own\ntool"
    assert write_embedded_text(text("own"), length, None, 0) == "own\ntool"


def test_a_text_is_cut() -> None:
    """The own words of a message stay, whatever stands before it."""
    assert len(write_embedded_text(text("a" * 9_000), 1, None, 0)) == MAX_EMBEDDED_CHARS
    written = write_embedded_text(text("own"), 1, text("b" * 9_000), 1)
    assert len(written) == MAX_EMBEDDED_CHARS
    assert written.endswith("own\ntool")
