"""Scores and their uncertainty: Wilson's interval, McNemar's exact test, F1 of words, and intervals
over whole conversations."""

from __future__ import annotations

import math
import random
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

NORMAL_QUANTILE_95 = 1.959963984540054
BOOTSTRAP_ROUNDS = 2_000
_ARTICLES = re.compile(r"\b(?:a|an|the|and)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def find_wilson_interval(right: int, asked: int) -> tuple[float, float]:
    """Return the 95 % score interval of a share (Wilson 1927, without continuity correction)."""
    if not asked:
        return 0.0, 1.0
    z2 = NORMAL_QUANTILE_95**2
    centre = (right + z2 / 2) / (asked + z2)
    share = right / asked
    half = (
        NORMAL_QUANTILE_95
        * math.sqrt(share * (1 - share) / asked + z2 / (4 * asked**2))
        / (1 + z2 / asked)
    )
    return max(0.0, centre - half), min(1.0, centre + half)


def find_mcnemar_p(only_first: int, only_second: int) -> float:
    """Return the two-sided p-value of McNemar's exact test: that of a fair coin, for the questions
    that only one of two systems answered."""
    discordant = only_first + only_second
    tail = sum(math.comb(discordant, k) for k in range(min(only_first, only_second) + 1))
    p: float = 2 * tail / 2**discordant
    return min(1.0, p)


def find_cluster_interval(right_by_cluster: Mapping[str, Sequence[bool]]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a share whose questions come in clusters: whole clusters
    are drawn again. With one cluster nothing is known: 0 to 1."""
    clusters = [verdicts for verdicts in right_by_cluster.values() if verdicts]
    if len(clusters) < 2:
        return 0.0, 1.0
    dice = random.Random(0)  # noqa: S311  # the same interval in each run; no secret
    shares = sorted(
        _find_share(dice.choices(clusters, k=len(clusters))) for _ in range(BOOTSTRAP_ROUNDS)
    )
    outside = round(BOOTSTRAP_ROUNDS * 0.025)
    return shares[outside], shares[-outside - 1]


def _find_share(clusters: Sequence[Sequence[bool]]) -> float:
    return sum(map(sum, clusters)) / sum(map(len, clusters))


def score_f1(reply: str, answer: str) -> float:
    """Return the F1 of the words of both, without articles and punctuation. Unlike LoCoMo's own
    script, words are not stemmed."""
    said, wanted = Counter(_split_words(reply)), Counter(_split_words(answer))
    shared = (said & wanted).total()
    if not shared:
        return 0.0
    precision, recall = shared / said.total(), shared / wanted.total()
    return 2 * precision * recall / (precision + recall)


def score_parts_f1(reply: str, answer: str) -> float:
    """Return the mean, over the answer's parts between commas, of the best F1 of a reply's part."""
    parts = answer.split(",")
    return sum(max(score_f1(said, part) for said in reply.split(",")) for part in parts) / len(
        parts
    )


def _split_words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()
