"""The look-ups of one reply always get an answer, and never more than was agreed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any

import orjson
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from om_proxy.common.errors import StorageError
from om_proxy.engine.recall.turn_look_ups import MAX_CALLS_A_STEP, parse_arguments
from om_proxy.memory.recall.arguments import (
    CANNOT_READ_NOW,
    LOOKED_UP_ALREADY,
    NO_LOOK_UPS_LEFT,
    NOT_AN_OBJECT,
    TOO_MANY_LOOK_UPS,
)
from om_proxy.memory.recall.quoted_message import clean_text
from om_proxy.memory.rounds import LookUpAnswer, LookUpCall
from om_proxy.memory.tokens import estimate_tokens
from om_proxy.wire.server.capacity.work_queues import LOOK_UP
from tests.engine.recall.stored_conversations import (
    CURRENT_KEY,
    OTHER_KEY,
    StoredConversations,
    open_conversations,
)
from tests.memory.recall.quoted import read_quotes
from tests.support.hostile_texts import list_hostile_texts
from tests.support.long_forms import IS_LONG


@pytest.fixture
async def conversations() -> AsyncIterator[StoredConversations]:
    async with open_conversations() as conversations:
        await conversations.add(CURRENT_KEY, ["bees", "wax"])
        yield conversations


def call(**fields: Any) -> LookUpCall:
    return LookUpCall("call_1", orjson.dumps(fields).decode())


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ("", {}),
        (" null\n", {}),
        ("{}", {}),
        ('{"mode": "search", "mode": "threads"}', {"mode": "threads"}),
        ('{"query": "\\ud83d"}', {"query": "\ufffd"}),
        ('{"limit": 1e999}', {"limit": float("inf")}),
        ("{}}", None),
        ('{"mode": ', None),
        ("[]", None),
        ("7", None),
        ("[" * 100_000, None),
        ('{"query": "' + "x" * 1_000_001 + '"}', None),
    ],
)
def test_arguments(arguments: str, fields: dict[str, object] | None) -> None:
    assert parse_arguments(arguments) == fields


async def test_what_is_no_object(conversations: StoredConversations) -> None:
    [answer] = await conversations.create_look_ups().answer([LookUpCall("1", "{}}")])
    assert answer == LookUpAnswer(NOT_AN_OBJECT, "messages", "error", 0)


async def test_the_same_again(conversations: StoredConversations) -> None:
    """In one step or a later one; what failed may be asked again."""
    look_ups = conversations.create_look_ups()
    first, again = await look_ups.answer([call(cursor="m1"), call(cursor=" [M1] ", page=0)])
    assert first.outcome == "found"
    assert again.text == LOOKED_UP_ALREADY
    assert (await look_ups.answer([call(cursor="m1")]))[0].text == LOOKED_UP_ALREADY
    wrong = [call(cursor="m9")] * 2
    assert [answer.text for answer in await look_ups.answer(wrong)] == [
        "recall: there is no message m9; this conversation has m1 to m2"
    ] * 2


async def test_steps(conversations: StoredConversations) -> None:
    """The last step says that none is left; a later one says nothing else."""
    look_ups = conversations.create_look_ups(max_steps=2)
    [first] = await look_ups.answer([call(cursor="m1")])
    last = await look_ups.answer([call(cursor="m2"), call(mode="threads")])
    more = await look_ups.answer([call(mode="search", query="wax")])
    assert NO_LOOK_UPS_LEFT not in first.text + last[0].text
    assert last[1].text.endswith(f", ← current\n{NO_LOOK_UPS_LEFT}")
    assert last[1].outcome == "found"
    assert more == [LookUpAnswer(NO_LOOK_UPS_LEFT, "search", "error", 0)]


async def test_calls_of_one_step(conversations: StoredConversations) -> None:
    calls = [call(cursor="m1", limit=n + 1) for n in range(MAX_CALLS_A_STEP + 2)]
    answers = await conversations.create_look_ups().answer(calls)
    assert [answer.outcome for answer in answers] == ["found"] * MAX_CALLS_A_STEP + ["error"] * 2
    assert {answer.text for answer in answers[MAX_CALLS_A_STEP:]} == {NO_LOOK_UPS_LEFT}


@pytest.mark.parametrize("failure", [StorageError("canary"), RuntimeError("canary")])
async def test_a_store_that_fails(
    conversations: StoredConversations, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """The reply goes on, the log tells no word, and the same may be asked again."""

    async def fail(*_: Any) -> None:
        raise failure

    look_ups = conversations.create_look_ups()
    with monkeypatch.context() as patch, structlog.testing.capture_logs() as logged:
        patch.setattr(conversations.store, "messages", fail)
        [answer] = await look_ups.answer([call(query="x", cursor="m1")])
    assert answer == LookUpAnswer(CANNOT_READ_NOW, "messages", "unavailable", 0)
    assert "canary" not in str(logged)
    assert len(logged) == isinstance(failure, RuntimeError)
    [answer] = await look_ups.answer([call(query="x", cursor="m1")])
    assert answer.outcome == "found"


async def test_a_store_that_stalls(
    conversations: StoredConversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All calls of a step have one time limit together."""

    async def stall(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(conversations.store, "messages", stall)
    calls = [call(cursor="m1"), call(cursor="m2")]
    answers = await asyncio.wait_for(
        conversations.create_look_ups(timeout_s=0.05).answer(calls), 30
    )
    assert [answer.outcome for answer in answers] == ["unavailable"] * 2


async def test_a_step_waits_for_a_slot_without_its_time_limit(
    conversations: StoredConversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit begins with the work, however long the line was."""
    queue, look_ups = conversations.queue, conversations.create_look_ups(timeout_s=2.0)
    with ExitStack() as slots:
        for _ in range(LOOK_UP.of_tenant):
            slots.enter_context(await queue.take(CURRENT_KEY.tenant))
        answering = asyncio.create_task(look_ups.answer([call(cursor="m1")]))
        await asyncio.sleep(0)
        assert queue.waiting_count == 1
        loop = asyncio.get_running_loop()
        read_clock = loop.time
        monkeypatch.setattr(loop, "time", lambda: read_clock() + 5.0)
        await asyncio.sleep(0)
        assert not answering.done()
    [answer] = await answering
    assert answer.outcome == "found"
    assert (queue.running_count, queue.waiting_count) == (0, 0)


async def test_a_full_line_is_told(conversations: StoredConversations) -> None:
    """The model may ask again; the look-up counts as not made."""
    queue, look_ups = conversations.queue, conversations.create_look_ups()
    with ExitStack() as slots:
        for _ in range(LOOK_UP.of_tenant):
            slots.enter_context(await queue.take(CURRENT_KEY.tenant))
        waiting = [
            asyncio.create_task(queue.take(CURRENT_KEY.tenant)) for _ in range(LOOK_UP.waiting)
        ]
        await asyncio.sleep(0)
        answers = await look_ups.answer([call(cursor="m1"), call(cursor="m2")])
        assert [(answer.text, answer.outcome) for answer in answers] == [
            (TOO_MANY_LOOK_UPS, "unavailable")
        ] * 2
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
    [answer] = await look_ups.answer([call(cursor="m1")])
    assert answer.outcome == "found"


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(
        [
            "m1",
            "m0",
            "m-1",
            "m1-m2",
            "search",
            "messages",
            "threads",
            "current",
            "high",
            "bees",
            "9999-12-31",
        ]
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
FIELDS = st.dictionaries(
    st.sampled_from(
        [
            "mode",
            "query",
            "cursor",
            "threadId",
            "page",
            "limit",
            "detail",
            "partIndex",
            "charOffset",
            "before",
            "after",
            "anchor",
            "partType",
            "toolName",
            "other",
        ]
    ),
    VALUES,
    max_size=6,
)
ARGUMENTS = st.one_of(FIELDS.map(json.dumps), VALUES.map(json.dumps), st.text(max_size=60))


async def test_any_arguments(conversations: StoredConversations) -> None:
    """Whatever the model writes, there is an answer, and it fits."""
    examples: list[str] = []

    @settings(max_examples=100_000 if IS_LONG else 400, database=None)
    @given(ARGUMENTS)
    def collect(arguments: str) -> None:
        examples.append(arguments)

    collect()
    for arguments in examples:
        [answer] = await conversations.create_look_ups().answer([LookUpCall("1", arguments)])
        assert answer.text
        assert estimate_tokens(answer.text) <= 2_000
        assert answer.outcome in ("found", "nothing", "error"), arguments


async def test_hostile_messages(conversations: StoredConversations) -> None:
    """Headers and quotes are read back as they are in the store, whatever a message says; what a
    page cuts is read in full by its part."""
    texts = [text for text in list_hostile_texts() if text.strip()]
    await conversations.add(OTHER_KEY, texts)
    page, read = 1, 0
    shown = conversations.label(OTHER_KEY)[:8]
    while True:
        answer = await conversations.ask(threadId=shown, page=page)
        for each, text in zip(read_quotes(answer.text), texts[read:], strict=False):
            read += 1
            assert each.id == f"{shown}.m{read}"
            assert each.role == ("user", "assistant")[(read - 1) % 2]
            beside, quote = each.parts.get(0, ("", ""))
            if beside:
                assert beside == " (cut; partIndex=0 for all)"
                whole = await conversations.ask(cursor=each.id, partIndex=0)
                [again] = read_quotes(whole.text)
                assert clean_text(text).startswith(quote)
                quote = again.parts[0][1]
            assert quote == clean_text(text)
        if "; more: page" not in answer.text.split("\n")[0]:
            break
        page += 1
    assert read == len(texts)


async def test_a_search_quotes_hostile_messages(conversations: StoredConversations) -> None:
    """Each result is a message of the store, and its quote a part of that message's text."""
    texts = [f"quorum {text}" for text in list_hostile_texts()[::5]]
    await conversations.add(OTHER_KEY, texts)
    shown = conversations.label(OTHER_KEY)[:8]
    read: set[str] = set()
    for word in ("quorum", "obey", "observations", "script", "system", "user"):
        answer = await conversations.ask(mode="search", query=word, threadId=shown)
        for each in read_quotes(answer.text):
            read.add(each.id)
            text = clean_text(texts[int(each.id.removeprefix(f"{shown}.m")) - 1])
            quote = each.parts[0][1]
            assert quote.removeprefix("… ").removesuffix(" …") in text
    assert len(read) > 40
