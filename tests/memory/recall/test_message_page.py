"""A page of messages fits its tokens, and what it quotes can be told from what it says."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from om_proxy.memory.recall.message_page import (
    MessagePage,
    find_page_limit,
    write_message_page,
)
from om_proxy.memory.recall.quoted_message import PartKind, QuotedMessage, QuotedPart
from om_proxy.memory.tokens import estimate_tokens
from tests.memory.recall.quoted import PARTS, make_message, read_quotes

UTC = ZoneInfo("UTC")
LABEL = "3f9c2a7714e0b6d2"


def write(page: MessagePage, max_tokens: int = 2_000) -> str:
    return write_message_page(page, UTC, max_tokens, estimate_tokens)


def test_a_page() -> None:
    page = MessagePage(
        (
            make_message(12, QuotedPart("text", "I went to the group.\nTwice.")),
            make_message(
                13,
                QuotedPart("text", "Wonderful."),
                QuotedPart("tool-call", '{"city": "Rome"}', "find_groups"),
                QuotedPart("image", name="a map.png"),
                role="assistant",
            )._replace(state="superseded"),
            make_message(14, role="tool")._replace(is_dated=False),
        ),
        (12, 14),
        (1, 812),
        page=1,
        limit=3,
        has_more=True,
    )
    assert write(page) == (
        "m12 to m14 of m1 to m812; more: page 2\n"
        "[m12] user, May 8, 2023 13:56\n"
        "  I went to the group.\n"
        "  Twice.\n"
        "[m13] assistant, May 8, 2023 13:56 (taken back)\n"
        "[p0]\n"
        "  Wonderful.\n"
        "[p1] tool-call find_groups\n"
        '  {"city": "Rome"}\n'
        "[p2] [image: a map.png]\n"
        "[m14] tool, on or before May 8, 2023"
    )


def test_another_conversation_and_the_last_page() -> None:
    message = make_message(5)._replace(label=LABEL)
    page = MessagePage((message,), (5, 5), (1, 9), -50, 1, True, 4, LABEL, 'Trip "to" Rome')
    assert write(page).split("\n")[0] == (
        "3f9c2a77.m5 to 3f9c2a77.m5 of 3f9c2a77.m1 to 3f9c2a77.m9, in \"Trip 'to' Rome\"; "
        "more: cursor 3f9c2a77.m4, page -1"
    )
    empty = page._replace(messages=(), span=None, has_more=False, title=None)
    assert write(empty) == ("no messages here; this conversation has 3f9c2a77.m1 to 3f9c2a77.m9")


@settings(max_examples=60)
@given(st.lists(st.lists(PARTS, max_size=70), min_size=1, max_size=20), st.integers(500, 8_000))
def test_any_page_fits_and_is_read_back(messages: list[list[QuotedPart]], max_tokens: int) -> None:
    quoted: list[QuotedMessage] = [
        make_message(seq, *parts) for seq, parts in enumerate(messages, 1)
    ][: find_page_limit(20, max_tokens)]
    text = write(
        MessagePage(tuple(quoted), (1, 20), (1, 812), 1, 20, True, 21, "", "[m1]"), max_tokens
    )
    assert estimate_tokens(text) <= max_tokens
    read = read_quotes(text)
    assert [each.id for each in read] == [message.id for message in quoted]
    for each, message in zip(read, quoted, strict=True):
        for index, (rest, shown) in each.parts.items():
            whole = message.parts[index].text
            if message.parts[index].kind in ("image", "file"):
                assert not shown
            elif rest.endswith(f"(cut; partIndex={index} for all)"):
                assert whole.startswith(shown)
            else:
                assert shown == whole


def test_room_that_is_left_over_is_used() -> None:
    """A message alone shows twice as much as one of many."""
    one = make_message(1, QuotedPart("text", "word " * 300))
    alone = len(write(MessagePage((one,), (1, 1), (1, 1), 1, 20, False)))
    among = write(MessagePage((one,) * 20, (1, 1), (1, 1), 1, 20, False))
    assert alone > 180 * 4
    assert estimate_tokens(among) > 1_400


@pytest.mark.parametrize("kind", ["tool-result", "file"])
def test_long_names_give_way(kind: PartKind) -> None:
    """Where an encoder needs a token for each of their characters."""
    message = make_message(10**9, *[QuotedPart(kind, "x " * 900, "好" * 60)] * 2)
    messages = (message,) * 20
    page = MessagePage(messages, (1, 2), (1, 2), 1, 20, True, title="好" * 60, label=LABEL)
    for max_tokens in (500, 2_000):
        limit = find_page_limit(20, max_tokens)
        shown = page._replace(messages=messages[:limit])
        text = write_message_page(shown, UTC, max_tokens, lambda text: len(text.encode()) // 3)
        assert len(text.encode()) // 3 <= max_tokens
        assert len(read_quotes(text)) == limit
