"""Vectors of messages: their bytes, the text that one is made from, and how what they find similar
is fused with what words found (docs/contributing/recall.md#vectors).

A vector has the length 1. It is stored as half-precision floats, two bytes a number.

Scores are fused, not ranks. By ranks the weaker list pushes good results down as far as it pushes
bad ones: LoCoMo's R@10 falls from .80 to .72.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import isfinite, sqrt
from typing import NamedTuple

from om_proxy.memory.recall.found import RankedMessage
from om_proxy.memory.recall.passages import MessageText
from om_proxy.memory.recall.ranking import SHORT_MESSAGE_WORDS, weigh_length

MAX_EMBEDDED_CHARS = 1_500
MAX_VECTOR_NUMBERS = 8_192  # models give 256 to 4 096
LONG_OTHER_ROLE_CUT = 0.3
# the weight of vectors, by the mean words of the resource's messages: chats name things, documents
# describe them
CHAT_WORDS, CHAT_WEIGHT = 20.0, 0.2
DOCUMENT_WORDS, DOCUMENT_WEIGHT = 100.0, 1.0
MAX_COUNTED_WORDS = 150  # of one message


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


# ── fusing ────────────────────────────────────────────────────────────────────────────────────────


class SimilarMessage(NamedTuple):
    """A message whose vector was compared with the query's."""

    thread: str
    seq: int
    role: str
    at: float  # unix seconds
    length: int  # words
    cosine: float


class Similarity(NamedTuple):
    """The result of comparing the vectors of a resource."""

    messages: tuple[SimilarMessage, ...]  # the most similar ones, and those that words found
    median: float  # cosine of all messages that were compared
    largest: float
    mean_words: float  # of them, MAX_COUNTED_WORDS at most counted of each


def weigh_vectors(mean_words: float) -> float:
    """Return how much the most similar message adds, as a share of the best score by words."""
    share = (mean_words - CHAT_WORDS) / (DOCUMENT_WORDS - CHAT_WORDS)
    return CHAT_WEIGHT + min(1.0, max(0.0, share)) * (DOCUMENT_WEIGHT - CHAT_WEIGHT)


def fuse(ranked: Sequence[RankedMessage], similarity: Similarity) -> list[RankedMessage]:
    """Return the messages that fit the words or the meaning, the best first.

    The score by words gains `best score · weight · z`: z is 1 for the most similar message, and 0
    for the median one and below. Without any message that has the words, the best score is 1.
    """
    best = max((message.score for message in ranked), default=0.0) or 1.0
    weight = best * weigh_vectors(similarity.mean_words)
    gains = {
        (message.thread, message.seq): (weight * _scale_cosine(message, similarity), message)
        for message in similarity.messages
    }
    fused = [
        message._replace(score=message.score + gains.pop((message.thread, message.seq), (0.0,))[0])
        for message in ranked
    ]
    fused += (
        RankedMessage(message.thread, message.seq, gain, 0, message.at, message.role, ())
        for gain, message in gains.values()
        if gain > 0
    )
    fused.sort(key=lambda message: (-message.score, -message.at, message.thread, -message.seq))
    return fused


def _scale_cosine(message: SimilarMessage, similarity: Similarity) -> float:
    span = similarity.largest - similarity.median
    if span <= 0:
        return 0.0
    z = min(1.0, max(0.0, (message.cosine - similarity.median) / span))
    return z * weigh_length(message.role, message.length, LONG_OTHER_ROLE_CUT)
