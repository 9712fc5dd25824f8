"""What a search found, as text."""

from __future__ import annotations

import re
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st

from om_proxy.memory.recall.found_messages import (
    FoundMessages,
    SeqPlace,
    join_neighbours,
    write_found_messages,
    write_nothing_found,
)
from om_proxy.memory.recall.quoted_message import QuotedPart
from om_proxy.memory.tokens import estimate_tokens
from tests.memory.recall.quoted import PARTS, make_message, read_quotes
from tests.support.long_forms import IS_LONG

UTC = ZoneInfo("UTC")


def write(found: FoundMessages, max_tokens: int = 2_000) -> tuple[str, int]:
    return write_found_messages(found, UTC, max_tokens, estimate_tokens)


def test_what_was_found() -> None:
    other = make_message(
        40,
        QuotedPart("text", "On it."),
        QuotedPart("tool-call", f"{'- ' * 90}the group meets on Mondays {'- ' * 90}", "notes"),
        role="assistant",
    )._replace(label="3f9c2a7714e0b6d2", title="Trip to Rome")
    found = FoundMessages(
        'support "group"',
        ("support", "group"),
        (make_message(118, QuotedPart("text", "I went to a support group.")), other),
        31,
        share_read=0.436,
    )
    text, shown = write(found)
    first, *rest = text.split("\n")
    assert first == (
        "2 of 31 messages for \"support 'group'\", best first (indexed 43 %). "
        'To read around one: mode "messages", cursor its id.'
    )
    assert rest[:3] == [
        "[m118] user, May 8, 2023 13:57",
        "  I went to a support group.",
        '[3f9c2a77.m40] assistant, May 8, 2023 13:56, in "Trip to Rome"',
    ]
    assert "the group meets on Mondays" in rest[3]
    assert shown == 2


@settings(max_examples=60 if IS_LONG else 20)
@given(st.lists(st.lists(PARTS, max_size=4), min_size=1, max_size=40), st.integers(500, 2_000))
def test_any_answer_fits_and_is_read_back(
    messages: list[list[QuotedPart]], max_tokens: int
) -> None:
    quoted = tuple(make_message(seq, *parts) for seq, parts in enumerate(messages, 1))
    text, shown = write(FoundMessages("[m7] x", ("x", "9"), quoted, 50), max_tokens)
    assert estimate_tokens(text) <= max_tokens
    assert [each.id for each in read_quotes(text)] == [each.id for each in quoted[:shown]]
    assert text.startswith(f"{shown} of 50 messages")


def test_a_long_query_and_title_give_way() -> None:
    """Where an encoder needs three tokens for each of their characters."""

    def count_tokens(text: str) -> int:
        others = len(re.sub("[\x00-\x7f]", "", text))
        return 3 * others + (len(text) - others) // 4 + 1

    message = make_message(12, QuotedPart("text", "🔴" * 600))
    message = message._replace(label="3f9c2a7714e0b6d2", title="🔴" * 60)
    found = FoundMessages("🔴" * 200, ("x",), (message,) * 5, 9)
    text, shown = write_found_messages(found, UTC, 500, count_tokens)
    assert count_tokens(text) <= 500
    assert shown == len(read_quotes(text)) > 1


def test_results_that_touch_are_one() -> None:
    ranked = [SeqPlace("t", seq) for seq in (9, 3, 40, 4, 8)] + [SeqPlace("u", 10)]
    assert join_neighbours(ranked, 2) == [
        SeqPlace("t", 8),
        SeqPlace("t", 9),
        SeqPlace("t", 3),
        SeqPlace("t", 4),
    ]


def test_nothing_found() -> None:
    """The words that no message has are named as they were asked."""
    query = "The Quorum of zeta bees"
    counts = {"quorum": 0, "zeta": 0, "bee": 3}
    assert write_nothing_found(query, counts, 1.0) == (
        "recall: nothing found; no message has: Quorum, zeta. Try other words"
    )
    assert write_nothing_found("!?", {}, 0.5) == (
        "recall: nothing found (indexed 50 %). Try other words"
    )
    many = " ".join(f"w{n}" for n in range(20))
    assert write_nothing_found(many, {}, 1.0).endswith("w7, …. Try other words")


def test_messages_that_do_not_fit_are_not_written() -> None:
    """Four times as many results take no more counting: what is left out anyway is not written."""

    def count_calls(results: int) -> int:
        calls = 0

        def count_tokens(text: str) -> int:
            nonlocal calls
            calls += 1
            return estimate_tokens(text)

        said = [
            make_message(n, QuotedPart("text", "a support group " * 40)) for n in range(results)
        ]
        found = FoundMessages("support", ("support",), tuple(said), results)
        _, shown = write_found_messages(found, UTC, 2_000, count_tokens)
        assert 10 < shown < results
        return calls

    assert count_calls(400) < 1.1 * count_calls(100)
