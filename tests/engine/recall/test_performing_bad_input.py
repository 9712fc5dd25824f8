"""What a model may write that nobody would: queries and cursors of any form are answered by a text."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from om_proxy.memory.rounds import LookUpCall
from tests.engine.recall.stored_conversations import (
    CURRENT_KEY,
    StoredConversations,
    open_conversations,
)


@pytest.fixture
async def conversations() -> AsyncIterator[StoredConversations]:
    async with open_conversations() as conversations:
        await conversations.add(CURRENT_KEY, ["my violin", "Noted.", "in crate 7", "Noted."])
        yield conversations


@pytest.mark.parametrize(
    ("query", "is_found"),
    [
        ("violin " + "word " * 20_000, True),
        (" ".join(f"w{n}" for n in range(64)) + " violin", False),  # the 65th word
        ("?!. -- :*", False),
        ("a\0violin", True),
        ("\ud83d violin \udc00", True),
        ('"violin" NEAR/3 - crate: * OR (', True),
        ("violin'; DROP TABLE passage; --", True),
    ],
)
async def test_queries(conversations: StoredConversations, query: str, is_found: bool) -> None:
    """Words are words: no syntax of a store is read, and 64 of them count."""
    call = LookUpCall("1", json.dumps({"mode": "search", "query": query}))
    [answer] = await conversations.create_look_ups().answer([call])
    assert answer.outcome == ("found" if is_found else "nothing")
    assert ("my violin" in answer.text) is is_found


@pytest.mark.parametrize(
    ("cursor", "is_found"),
    [("m1", True), ("M1", True), ("1", True), (" [m1] ", True), ("m0", False), ("m-1", False)],
)
async def test_cursors(conversations: StoredConversations, cursor: str, is_found: bool) -> None:
    answer = await conversations.ask(mode="messages", cursor=cursor)
    assert ("my violin" in answer.text) is is_found
    assert answer.text.startswith("recall: ") is not is_found


async def test_two_calls_with_one_id(conversations: StoredConversations) -> None:
    """Both are answered, in order."""
    calls = [LookUpCall("same", '{"cursor":"m1"}'), LookUpCall("same", '{"cursor":"m3"}')]
    first, second = await conversations.create_look_ups().answer(calls)
    assert "my violin" in first.text.split("\n")[2]
    assert "in crate 7" in second.text.split("\n")[2]
