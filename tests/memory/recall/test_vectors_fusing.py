"""Words and vectors are fused by their scores."""

from __future__ import annotations

import pytest

from om_proxy.memory.recall.found import RankedMessage
from om_proxy.memory.recall.vectors import Similarity, SimilarMessage, fuse, weigh_vectors


def by_words(seq: int, score: float) -> RankedMessage:
    return RankedMessage("t", seq, score, 2, float(seq), "user", ("zeta",))


def similar(seq: int, cosine: float, role: str = "user", length: int = 10) -> SimilarMessage:
    return SimilarMessage("t", seq, role, float(seq), length, cosine)


@pytest.mark.parametrize(
    ("mean_words", "weight"),
    [(0, 0.2), (20, 0.2), (40, 0.4), (60, 0.6), (100, 1.0), (150, 1.0)],
)
def test_vectors_count_more_among_long_messages(mean_words: float, weight: float) -> None:
    assert weigh_vectors(mean_words) == pytest.approx(weight)


@pytest.mark.parametrize(
    ("message", "z"),
    [
        (similar(1, 0.8), 1.0),
        (similar(1, 0.6), 0.5),
        (similar(1, 0.4), 0.0),
        (similar(1, -1.0), 0.0),
        (similar(1, 0.9), 1.0),
        (similar(1, 0.8, "assistant", 60), 1.0),
        (similar(1, 0.8, "assistant", 120), 0.85),
        (similar(1, 0.8, "tool", 0), 1.0),
        (similar(1, 0.8, "user", 6_000), 1.0),
    ],
)
def test_a_cosine_counts_from_the_median_to_the_largest(message: SimilarMessage, z: float) -> None:
    """Long answers gain less. The weight here is 1, the best score by words 10."""
    similarity = Similarity((message,), 0.4, 0.8, 100)
    found = {hit.seq: hit.score for hit in fuse([by_words(9, 10.0)], similarity)}
    assert found.get(1, 0.0) == pytest.approx(10 * z)
    fused = fuse([by_words(9, 10.0), by_words(1, 3.0)], similarity)
    assert {hit.seq: hit.score for hit in fused}[1] == pytest.approx(3 + 10 * z)


def test_what_words_found_keeps_its_passage() -> None:
    similarity = Similarity((similar(1, 0.5), similar(3, 0.8)), 0.2, 0.8, 20)
    fused = fuse([by_words(2, 5.0), by_words(1, 4.5)], similarity)
    assert [(hit.seq, hit.place, hit.words) for hit in fused] == [
        (2, 2, ("zeta",)),
        (1, 2, ("zeta",)),
        (3, 0, ()),
    ]
    assert [hit.score for hit in fused] == pytest.approx([5.0, 5.0, 1.0])


def test_equal_messages_have_the_newer_first() -> None:
    fused = fuse([], Similarity((similar(1, 0.8), similar(2, 0.8)), 0.2, 0.8, 20))
    assert [(hit.seq, hit.score) for hit in fused] == [(2, 0.2), (1, 0.2)]


@pytest.mark.parametrize("messages", [(), (similar(1, 0.5),)])
def test_a_resource_without_a_spread_keeps_the_ranking(
    messages: tuple[SimilarMessage, ...],
) -> None:
    """One message, or none with a vector, says nothing."""
    ranked = [by_words(2, 5.0), by_words(1, 4.0)]
    assert fuse(ranked, Similarity(messages, 0.5, 0.5, 20)) == ranked
