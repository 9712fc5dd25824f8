"""Names of conversations."""

from __future__ import annotations

import time

import pytest

from om_proxy.memory.recall.passages import MessageText
from om_proxy.wire.apis.titles import (
    MAX_FIRST_WORDS_CHARS,
    asks_for_title,
    cut_first_words,
    read_title,
)

OPEN_WEBUI_TITLE = (
    "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat."
)
OPEN_WEBUI_TAGS = "### Task:\nGenerate 1-3 broad tags categorizing the main themes of the chat."


@pytest.mark.parametrize(
    ("texts", "is_title"),
    [
        ([OPEN_WEBUI_TITLE], True),
        ([OPEN_WEBUI_TAGS], False),
        (["You are a title generator.", "Our boat leaks."], True),
        (["### Task:\nSuggest 3-5 follow-up questions." + "x" * 200 + " title"], False),
        ([], False),
    ],
)
def test_a_request_for_a_title_is_told_from_other_side_requests(
    texts: list[str], is_title: bool
) -> None:
    assert asks_for_title(texts) is is_title


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ('{"title": "⛵ A \\"leaking\\" boat"}', '⛵ A "leaking" boat'),
        ('```json\n{ "title": "A boat" }\n```', "A boat"),
        ("<language>English</language><title>\nA boat\n</title>", "A boat"),
        ('"A boat"', "A boat"),
        ("**Title: A  boat**", "A boat"),
        ("<think>Which\none?</think>\n\nA boat", "A boat"),
        ('{"title": "' + "long " * 40 + '"}', ("long " * 20)[:100]),
        ('{"title": "bad \\x escape"}', None),
        ("Certainly! Here is one:\nA boat", None),
        ("x" * 101, None),
        ('""', None),
        ("", None),
    ],
)
def test_the_title_is_read_out_of_an_answer(answer: str, title: str | None) -> None:
    assert read_title(answer) == title


def test_an_answer_of_unclosed_tags_is_read_at_once() -> None:
    """A client can have a model write them, and all other requests would wait."""
    began = time.process_time()
    assert read_title("<title>" * 30_000) is None
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("  Plan three\ndays. ", "Plan three days."),
        ("a" * 60, "a" * 60),
        ("word " * 20, "word " * 11 + "word…"),
        (" \n", None),
    ],
)
def test_the_first_words_stand_in_one_line(text: str, words: str | None) -> None:
    cut = cut_first_words(MessageText(1, "user", 0.0, spoken=(text,)))
    assert cut == words
    assert cut is None or len(cut) <= MAX_FIRST_WORDS_CHARS
