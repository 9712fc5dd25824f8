"""The pieces of a part, joined, are the part."""

from __future__ import annotations

import re
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from om_proxy.memory.recall.arguments import LookUpFault
from om_proxy.memory.recall.message_page import MAX_RESULT_TOKENS, PartPiece, write_part_piece
from om_proxy.memory.recall.quoted_message import PartKind, QuotedMessage, QuotedPart
from om_proxy.memory.tokens import estimate_tokens
from tests.memory.recall.quoted import TEXT_STRATEGY, make_message, read_quotes

KINDS: tuple[PartKind, ...] = ("text", "tool-call")
UTC = ZoneInfo("UTC")


def write(message: QuotedMessage, part: int, offset: int = 0, tokens: int = 2_000) -> PartPiece:
    return write_part_piece(message, part, offset, UTC, tokens, estimate_tokens)


@settings(max_examples=60)
@given(TEXT_STRATEGY, st.sampled_from(KINDS), st.integers(500, 2_000))
def test_the_pieces_are_the_part(text: str, kind: PartKind, max_tokens: int) -> None:
    message = make_message(12, QuotedPart("text"), QuotedPart(kind, text, "ls"))
    joined, offset = "", 0
    while True:
        piece = write(message, 1, offset, max_tokens)
        assert estimate_tokens(piece.text) <= max_tokens
        [read] = read_quotes(piece.text)
        joined += read.parts[1][1]
        way_on = re.search(r"go on with charOffset=(\d+)$", piece.text.split("\n")[0])
        if way_on is None:
            break
        assert int(way_on[1]) > offset
        offset = int(way_on[1])
    assert joined == text


def test_a_result_is_read_to_a_bound() -> None:
    """It says that there is more that cannot be read."""
    message = make_message(12, QuotedPart("tool-result", "word " * 9_000, "ls"), role="tool")
    first = write(message, 0)
    second = write(message, 0, first.end)
    third = write(message, 0, second.end)
    assert first.text.startswith(
        f"p0 of m12, characters 0 to {first.end} of 45000; go on with charOffset={first.end}\n"
        "[m12] tool, May 8, 2023 13:56\n[p0] tool-result ls\n  word word"
    )
    assert third.end == third.readable_chars == MAX_RESULT_TOKENS * 4
    assert third.text.split("\n")[0].endswith("; the rest of this result cannot be read")
    with pytest.raises(LookUpFault) as raised:
        write(message, 0, third.end)
    assert raised.value.text == "recall: p0 of m12 has 16000 characters"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "recall: m12 has no parts"),
        (1, "recall: m12 has p0 only"),
        (3, "recall: m12 has p0 to p2"),
    ],
)
def test_no_such_part(count: int, text: str) -> None:
    with pytest.raises(LookUpFault) as raised:
        write(make_message(12, *[QuotedPart("text", "x")] * count), count)
    assert raised.value.text == text


def test_an_image_is_named() -> None:
    piece = write(make_message(12, QuotedPart("image", name="cat.png")), 0)
    assert piece.text == "p0 of m12\n[m12] user, May 8, 2023 13:56\n[p0] [image: cat.png]"
