"""Intervals agree with published tables."""

import pytest

from om_proxy.proof.evaluation.report import (
    find_cluster_interval,
    find_mcnemar_p,
    find_wilson_interval,
)


@pytest.mark.parametrize(
    ("right", "asked", "interval"),
    [  # Newcombe 1998, Statistics in Medicine 17, table I, method 3
        (81, 263, (0.2553, 0.3662)),
        (15, 148, (0.0624, 0.1605)),
        (0, 20, (0.0, 0.1611)),
        (1, 29, (0.0061, 0.1718)),
        (29, 29, (0.8830, 1.0)),
        (0, 0, (0.0, 1.0)),
    ],
)
def test_the_interval_of_a_share_is_wilsons(right, asked, interval):
    assert find_wilson_interval(right, asked) == pytest.approx(interval, abs=0.00006)


@pytest.mark.parametrize(
    ("only_first", "only_second", "p"),
    [  # twice the tail of a fair coin
        (6, 16, 0.0525),
        (0, 5, 0.0625),
        (0, 6, 0.03125),
        (10, 10, 1.0),
        (0, 0, 1.0),
        (59, 121, 0.00000447),
    ],
)
def test_mcnemar_is_exact_and_two_sided(only_first, only_second, p):
    assert find_mcnemar_p(only_first, only_second) == pytest.approx(p, rel=0.01)
    assert find_mcnemar_p(only_second, only_first) == find_mcnemar_p(only_first, only_second)


def test_questions_of_one_conversation_count_as_one():
    """Ten conversations that are all right or all wrong say as little as ten questions."""
    clusters = {str(n): [n < 5] * 20 for n in range(10)}
    low, high = find_cluster_interval(clusters)
    assert low <= 0.2
    assert high >= 0.8
    assert find_cluster_interval({"one": [True] * 50}) == (0.0, 1.0)
    assert find_cluster_interval(clusters) == (low, high), "the same in each run"
