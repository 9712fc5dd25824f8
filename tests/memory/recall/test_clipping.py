"""A text is cut to tokens, however its tokens are spread."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory.recall.clipping import (
    cut_snippet,
    find_fitting_chars,
    find_hits,
    move_to_word_end,
)
from om_proxy.memory.recall.words import query_words
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


def cut(text: str, *words: str, max_tokens: int = 20) -> str:
    return cut_snippet(
        text, find_hits(text, query_words(" ".join(words))), max_tokens, estimate_tokens
    )


def test_a_short_text_is_shown_whole() -> None:
    assert cut("The group meets on Mondays.", "group") == "The group meets on Mondays."


def test_the_most_different_words_win() -> None:
    text = f"{'honey ' * 50}and the bees make honey in May {'wax ' * 50}"
    snippet = cut(text, "honey", "bees", "may")
    assert "bees make honey in May" in snippet
    assert snippet.startswith("… ")
    assert snippet.endswith(" …")
    assert estimate_tokens(snippet) <= 20 + 2


def test_the_ends_of_a_text() -> None:
    text = f"Bees fly. {'and so on ' * 60}In the end they sleep"
    assert cut(text, "bees").startswith("Bees fly. and")
    assert cut(text, "sleep").endswith("In the end they sleep")
    assert cut(text).startswith("Bees fly.")


def test_the_end_of_a_long_text_is_looked_through() -> None:
    text = "x " * 100_000 + "quorum"
    assert cut(text, "quorum").endswith("quorum")
    assert len(find_hits("x " * 100_000, ("x",))) <= 35_001
