"""A text is cut to tokens, however its tokens are spread."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory.recall.clipping import find_fitting_chars, move_to_word_end
from om_proxy.memory.tokens import estimate_tokens


@given(st.text(st.sampled_from("aé好 \n"), max_size=400), st.integers(-1, 120))
def test_what_fits(text: str, max_tokens: int) -> None:
    """It fits, and is not far from what would fit."""
    chars = find_fitting_chars(text, max_tokens, estimate_tokens)
    assert estimate_tokens(text[:chars]) <= max(max_tokens, 0)
    if chars < len(text):
        assert estimate_tokens(text[: chars + max(8, len(text) // 16)]) >= max_tokens


def test_a_long_text_is_not_counted_whole() -> None:
    counted: list[int] = []

    def count(text: str) -> int:
        counted.append(len(text))
        return len(text)

    assert find_fitting_chars("x" * 10_000_000, 100, count) == 100
    assert sum(counted) < 5_000


def test_words_stay_whole() -> None:
    assert move_to_word_end("one two three", 9) == 8
    assert move_to_word_end("one two", 7) == 7
    assert move_to_word_end("x" * 50, 40) == 40
