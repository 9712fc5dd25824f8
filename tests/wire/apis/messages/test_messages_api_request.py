"""Requests of the Messages API, split whole or behind what is known of their thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory.prompt.tail import Piece
from om_proxy.memory.transcript import sent_history
from om_proxy.memory.transcript.sent_history import recognise
from om_proxy.wire.apis import split
from om_proxy.wire.apis.api import BrokenPrompt, Request, Unreadable
from om_proxy.wire.apis.messages.elements import get_units
from om_proxy.wire.apis.messages.messages_api import MESSAGES
from om_proxy.wire.apis.split import SlicedMessages, Split

MARK = {"cache_control": {"type": "ephemeral"}}


@pytest.fixture(autouse=True, scope="module")
def _of_short_lists_too() -> Iterator[None]:
    with (
        patch.object(sent_history, "MIN_DIGESTED_BYTES", 0),
        patch.object(split, "MIN_UNITS_BODY_BYTES", 0),
    ):
        yield


def result(call_id: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "1"}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


ELEMENTS = st.sampled_from(
    [
        {"role": "user", "content": "q"},
        {"role": "user", "content": [text("q"), text("r")]},
        {"role": "user", "content": [result("a"), result("b")]},
        {"role": "user", "content": [result("a"), text("so?") | MARK]},
        {"role": "assistant", "content": [text("it is")]},
        {"role": "system", "content": "now"},
    ]
)


def write(messages: list[Any], **members: Any) -> bytes:
    return orjson.dumps(
        {"model": "m", "max_tokens": 9, "system": "be kind", **members, "messages": messages}
    )


def keep(request: Request) -> Split | None:
    return MESSAGES.build_split(request, recognise((), request.messages).digests, 7)


def rewrite(request: Request) -> bytes | None:
    """Write the request with its newest unit alone; None where that would break a step."""
    last = len(request.messages) - 1
    item = MESSAGES.read_item(request.messages[last], b"k")
    piece = Piece(item.raw, item.role, item.calls, item.answers, 1, 1, last)
    try:
        return MESSAGES.rewrite_body(request, "B", "H", [piece], "blocks")
    except BrokenPrompt:
        return None


@given(st.lists(ELEMENTS, min_size=5, max_size=14), st.lists(ELEMENTS, max_size=4))
def test_behind_what_is_known_a_request_is_the_same(known: list[Any], more: list[Any]) -> None:
    kept = keep(MESSAGES.parse_request(write(known)))
    body = write([*known, *more], stream=True)
    fast, slow = MESSAGES.parse_request(body, kept), MESSAGES.parse_request(body)
    assert list(fast.messages) == list(slow.messages)
    assert (fast.model, fast.stream, fast.instructions) == ("m", True, slow.instructions)
    assert recognise((), fast.messages).digest == recognise((), slow.messages).digest
    assert rewrite(fast) == rewrite(slow)


def test_a_known_history_is_not_parsed() -> None:
    messages = [{"role": ("user", "assistant")[n % 2], "content": str(n)} for n in range(20)]
    kept = keep(MESSAGES.parse_request(write(messages)))
    assert kept is not None
    request = MESSAGES.parse_request(write([*messages, messages[0]]), kept)
    assert isinstance(get_units(request).elements, SlicedMessages)
    other = MESSAGES.parse_request(write([messages[0], *messages]), kept)
    assert not isinstance(get_units(other).elements, SlicedMessages)


@pytest.mark.parametrize("marked_count", [1, 2, 3, 4])
def test_behind_moving_marks_the_history_is_known(marked_count: int) -> None:
    """A client may mark its newest messages, however many results each has."""
    turn = [
        {"role": "user", "content": [result(str(n)) for n in range(5)]},
        {"role": "assistant", "content": "it is"},
    ]
    sent = [*turn * 20, turn[0]]
    kept = keep(MESSAGES.parse_request(write(mark_newest(sent, marked_count))))
    behind = mark_newest([*sent, turn[1], turn[0]], marked_count)
    assert isinstance(
        get_units(MESSAGES.parse_request(write(behind), kept)).elements, SlicedMessages
    )


def mark_newest(messages: list[Any], count: int) -> list[Any]:
    """Mark the last blocks of so many of the newest messages of the user."""
    places = [i for i, message in enumerate(messages) if message["role"] == "user"][-count:]
    marked = list(messages)
    for i in places:
        *blocks, last = messages[i]["content"]
        marked[i] = {"role": "user", "content": [*blocks, last | MARK]}
    return marked


def test_a_moving_mark_changes_no_unit() -> None:
    marked = {"role": "user", "content": [text("q") | MARK]}
    units = [
        MESSAGES.parse_request(write([message])).messages[0]
        for message in (marked, {"role": "user", "content": "q"})
    ]
    assert units[0] == units[1]


@pytest.mark.parametrize(
    ("system", "instructions"),
    [
        ("be kind", [{"role": "system", "content": "be kind"}]),
        ([text("be kind") | MARK], [{"role": "system", "content": [text("be kind") | MARK]}]),
        ([], []),
        ("", []),
        (None, []),
        ({"x": 1}, []),
    ],
)
def test_the_member_system_holds_the_instructions(system: Any, instructions: list[Any]) -> None:
    request = MESSAGES.parse_request(write([{"role": "user", "content": "q"}], system=system))
    assert [orjson.loads(raw) for raw in request.instructions] == instructions
    assert request.instruction_roles == ("system",) * len(instructions)
    assert len(request.messages) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"messages":{}}',
        b'{"messages":[1]}',
        b'{"messages":["x"]}',
        b'{"messages":[[]]}',
        b'{"messages":' + b"[" * 5000,
        b'{"messages":[' + b"{}," * 1_500_000 + b"{}]}",
    ],
)
def test_what_is_no_request(body: bytes) -> None:
    with pytest.raises(Unreadable):
        MESSAGES.parse_request(body)


def test_half_a_character_is_replaced() -> None:
    request = MESSAGES.parse_request(b'{"messages":[{"role":"user","content":"\\ud83d"}]}')
    assert "\ufffd".encode() in request.messages[0] or b"\\ufffd" in request.messages[0]
    assert keep(request) is None


@pytest.mark.parametrize(
    ("messages", "has_replies"),
    [
        ([{"role": "user", "content": "the assistant"}], False),
        ([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], True),
        ([{"role": "user", "content": [result(str(n)) for n in range(65)]}], True),
        ([], False),
    ],
)
def test_what_repeats_earlier_messages(messages: list[Any], has_replies: bool) -> None:
    assert MESSAGES.has_replies(MESSAGES.parse_request(write(messages))) == has_replies


def test_what_the_members_say() -> None:
    body = write([], tools=[{"name": "n"}], metadata={"user_id": "u"}, service_tier="auto")
    request = MESSAGES.parse_request(body)
    assert request.offers_tools
    assert not MESSAGES.parse_request(write([], tools=[])).offers_tools
    assert dict(request.routing) == {"metadata": b'{"user_id":"u"}', "service_tier": b'"auto"'}


def test_pictures_are_known_by_their_block() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://a/b"}}
    assert MESSAGES.has_pictures(write([{"role": "user", "content": [image]}]))
    assert not MESSAGES.has_pictures(write([{"role": "user", "content": "an image"}]))
