"""Every answer fits its tokens, whether a message has one byte or ten million."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from random import Random

import pytest

from om_proxy.memory.tokens import estimate_tokens
from tests.engine.recall.stored_conversations import (
    CURRENT_KEY,
    OTHER_KEY,
    StoredConversations,
    open_conversations,
)
from tests.memory.recall.quoted import read_quotes
from tests.support.long_forms import IS_LONG

SIZES = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)
# what texts are filled with: words, one long word, lines, what is escaped, two tokens a character
FILLINGS = ("violin ", "x", "a\n", "<", "好", "\u202e\x1b[2J")


@pytest.fixture
async def conversations() -> AsyncIterator[StoredConversations]:
    async with open_conversations() as conversations:
        yield conversations


@pytest.mark.parametrize(
    ("max_tokens", "sizes"), [(500, SIZES[:-2]), (2_000, SIZES if IS_LONG else SIZES[:-1])]
)
async def test_every_mode_fits(
    conversations: StoredConversations, max_tokens: int, sizes: Sequence[int]
) -> None:
    """And as much of a long part is shown as fits."""
    random = Random(max_tokens)
    texts = []
    for size in sizes:
        filling = random.choice(FILLINGS)
        texts.append(f"violin{size} {filling * (size // len(filling))}"[-size:] or "x")
    builder = await conversations.add(CURRENT_KEY, texts)
    await conversations.commit(builder, title="好" * 500)
    await conversations.add(OTHER_KEY, ["a violin"] * 30)
    rights = {"max_tokens": max_tokens}
    asked: list[dict[str, object]] = [
        {},
        {"page": -1},
        {"mode": "threads"},
        {"mode": "search", "query": "violin1000000 " + "violin " * 100},
        {"mode": "search", "query": "好好"},
        *({"cursor": f"m{seq}", "limit": 1} for seq in (1, 5, len(sizes))),
        *({"cursor": f"m{seq}", "partIndex": 0} for seq in (1, 5, len(sizes))),
        {"cursor": f"m{len(sizes)}", "partIndex": 0, "charOffset": sizes[-1] // 2},
    ]
    for fields in asked:
        answer = await conversations.ask(rights=rights, **fields)
        assert answer.outcome in ("found", "nothing"), fields
        assert estimate_tokens(answer.text) <= max_tokens, fields
        if "partIndex" in fields and fields["cursor"] != "m1":
            assert estimate_tokens(answer.text) > max_tokens * 0.9, fields


async def test_the_pieces_of_a_long_part_are_the_part(conversations: StoredConversations) -> None:
    """Whatever its characters are; each piece says where the next one begins."""
    random = Random(3)
    text = "".join(random.choices("ab <\n\t好🔴&;", k=60_000))
    await conversations.add(CURRENT_KEY, [text])
    joined, offset = "", "0"
    while offset:
        answer = await conversations.ask(cursor="m1", partIndex=0, charOffset=offset)
        assert estimate_tokens(answer.text) <= 2_000
        joined += read_quotes(answer.text)[0].parts[0][1]
        way_on = re.search(r"go on with charOffset=(\d+)$", answer.text.split("\n")[0])
        offset = way_on[1] if way_on else ""
    assert joined == text
