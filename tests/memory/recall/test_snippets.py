"""A snippet stands around the words that were looked for."""

from __future__ import annotations

import re
from collections.abc import Iterator

from om_proxy.memory.recall.snippets import Hit, cut_snippet, find_hits
from om_proxy.memory.tokens import estimate_tokens


def find_words(text: str) -> Iterator[Hit]:
    for run in re.finditer(r"\w+", text):
        yield Hit(run.start(), run.end(), frozenset((run[0].lower(),)))


def cut(text: str, *words: str, max_tokens: int = 20) -> str:
    return cut_snippet(text, find_hits(text, words, find_words), max_tokens, estimate_tokens)


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
    assert len(find_hits("x " * 100_000, ("x",), find_words)) <= 35_001
