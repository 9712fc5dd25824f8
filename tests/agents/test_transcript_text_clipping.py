"""Long texts cut to a budget, with a note of how much is gone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.agents.transcript_text import clip_middle, compute_fair_share
from tests.agents.scripted_llm import words


def test_head_and_tail_stay() -> None:
    """Seven tenths of the kept text are its beginning, the rest its end; the note says how much is
    missing."""
    text = " ".join(f"{n:03}" for n in range(100))
    cut = clip_middle(text, 10, words)
    head, note, tail = cut.split("\n")
    assert (head.split(), tail.split()) == (
        ["000", "001", "002", "003", "004", "005", "006"],
        ["097", "098", "099"],
    )
    assert note == "[… about 90 tokens left out …]"


@pytest.mark.parametrize("most", [None, 3, 4])
def test_what_fits_stays_whole(most: int | None) -> None:
    """A text within its limit stays whole."""
    assert clip_middle("one two three", most, words) == "one two three"


@pytest.mark.parametrize(
    ("sizes", "budget", "share"),
    [
        ([], 10, None),
        ([3, 4], 7, None),
        ([3, 4], 6, 3),
        ([1, 100], 50, 49),
        ([100, 100, 1], 51, 25),
        ([5, 5, 5], 0, 0),
    ],
)
def test_fair_share(sizes: list[int], budget: int, share: int | None) -> None:
    """The longest texts are cut first, all to the same length."""
    assert compute_fair_share(sizes, budget) == share


@given(st.lists(st.integers(0, 1_000)), st.integers(0, 5_000))
def test_shares_fit(sizes: list[int], budget: int) -> None:
    """Capped sizes fit the budget, and no cap is smaller than it must be."""
    share = compute_fair_share(sizes, budget)
    if share is None:
        assert sum(sizes) <= budget
    else:
        assert sum(min(size, share) for size in sizes) <= budget
        assert sum(min(size, share + 1) for size in sizes) > budget
