"""Vectors of messages: their bytes, and the text that one is made from.

A vector has the length 1. It is stored as half-precision floats, two bytes a number.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import isfinite, sqrt
from typing import NamedTuple

from om_proxy.memory.recall.passages import MessageText
from om_proxy.memory.recall.ranking import SHORT_MESSAGE_WORDS

MAX_EMBEDDED_CHARS = 1_500
MAX_VECTOR_NUMBERS = 8_192  # models give 256 to 4 096


class StoredVector(NamedTuple):
    """The vector of a message, with what ranking asks of the message."""

    thread: str
    seq: int
    role: str
    at: float  # unix seconds
    length: int  # words
    vector: bytes


def encode_vector(numbers: Sequence[float]) -> bytes:
    """Return the bytes of a vector of the length 1. Raise ValueError for what is no direction: no
    number at all, too many, all zero, or one that is not finite or larger than a float."""
    if not 0 < len(numbers) <= MAX_VECTOR_NUMBERS:
        raise ValueError("a vector of no usable length")
    try:
        is_finite = all(map(isfinite, numbers))
    except OverflowError as exc:  # JSON has integers without a bound
        raise ValueError("a vector without a direction") from exc
    largest = max(map(abs, numbers))
    if not is_finite or not largest:
        raise ValueError("a vector without a direction")
    scaled = [number / largest for number in numbers]  # so that no square overflows
    norm = sqrt(sum(number * number for number in scaled))
    return struct.pack(f"<{len(scaled)}e", *(number / norm for number in scaled))


def write_embedded_text(
    text: MessageText, length: int, before: MessageText | None, before_length: int
) -> str:
    """Return what a message's vector is made from. A short message is understood with the short one
    before it. `length`, `before_length`: their words."""
    own = _join_texts(text)
    if before and max(length, before_length) <= SHORT_MESSAGE_WORDS:
        return f"{_join_texts(before)}\n{own}"[-MAX_EMBEDDED_CHARS:]
    return own[:MAX_EMBEDDED_CHARS]


def _join_texts(text: MessageText) -> str:
    said = "\n".join((*text.spoken, *text.called, *text.result))
    return f"{text.speaker}: {said}" if text.speaker else said
