"""A request is split into units, known ones too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory.transcript import sent_history
from om_proxy.memory.transcript.sent_history import recognise
from om_proxy.wire.apis import split
from om_proxy.wire.apis.api import Unreadable
from om_proxy.wire.apis.registry import CHAT
from om_proxy.wire.apis.responses.items import get_units
from om_proxy.wire.apis.responses.responses_api import RESPONSES
from om_proxy.wire.apis.split import SlicedMessages
from tests.wire.apis.responses.samples import answered, called, read, reasoned, said, write_unit


@pytest.fixture(autouse=True, scope="module")
def _of_short_lists_too() -> Iterator[None]:
    with (
        patch.object(sent_history, "MIN_DIGESTED_BYTES", 0),
        patch.object(split, "MIN_SPLIT_BODY_BYTES", 0),
        patch.object(split, "MIN_UNITS_BODY_BYTES", 0),
    ):
        yield


def test_a_request_is_split() -> None:
    request = read(
        [said("be brief", "developer"), said("hi"), reasoned(), called("c"), answered("c")],
        instructions="be kind",
        stream=True,
        tools=[{"type": "function"}],
        store=False,
    )
    assert (request.model, request.stream, request.offers_tools) == ("m", True, True)
    assert request.instruction_roles == ("system", "developer")
    assert [RESPONSES.asking_text(raw) for raw in request.instructions] == ["be kind", "be brief"]
    assert list(request.messages) == [
        write_unit(said("hi")),
        write_unit(reasoned(), called("c")),
        write_unit(answered("c")),
    ]
    assert request.routing == (("store", b"false"),)


def test_a_text_is_one_message() -> None:
    request = read("caf\u00e9")
    assert [json.loads(raw) for raw in request.messages] == [[said("caf\u00e9")]]
    assert RESPONSES.asking_text(request.messages[0]) == "caf\u00e9"


@pytest.mark.parametrize("empty", ["", [], [said("be kind", "system")]])
def test_no_messages(empty: Any) -> None:
    assert len(read(empty).messages) == 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"input":null}',
        b'{"input":7}',
        b'{"input":{}}',
        b'{"input":["x"]}',
        b'{"input":[[]]}',
        b'{"input":[null]}',
        b'{"messages":[]}',
        b'{"input":' + b"[" * 9_999,
    ],
)
def test_unreadable(body: bytes) -> None:
    with pytest.raises(Unreadable):
        RESPONSES.parse_request(body)


@pytest.mark.parametrize("value", [None, "", 7, [], {}])
def test_odd_optional_members_are_absent(value: Any) -> None:
    request = read("hi", model=value, stream=value, tools=value, instructions=value)
    assert request.instructions == ()
    assert (request.stream, request.offers_tools) == (False, False)


def test_half_characters_are_mended() -> None:
    request = RESPONSES.parse_request(b'{"input":"a\\ud83d"}')
    assert RESPONSES.asking_text(request.messages[0]) == "a\ufffd"
    assert RESPONSES.build_split(request, recognise((), request.messages).digests, 0) is None


@pytest.mark.parametrize(
    ("items", "has_replies"),
    [
        ("hi", False),
        ([said("hi")], False),
        ([said("hi"), said("yes", "assistant")], True),
        ([answered("c")], False),
        ([said("hi")] * 65, True),
    ],
)
def test_replies_are_seen(items: Any, has_replies: bool) -> None:
    assert RESPONSES.has_replies(read(items)) is has_replies


def test_pictures_are_seen() -> None:
    assert RESPONSES.has_pictures(b'{"input":[{"content":[{"type":"input_image"}]}]}')
    assert not RESPONSES.has_pictures(b'{"input":"an \\"input_image\\""}')


def test_only_the_asking_side_asks() -> None:
    units = read(
        [said("a"), said("b", "assistant"), answered("c"), said("d", "developer")]
    ).messages
    assert [RESPONSES.asking_text(raw) for raw in units] == ["a", "", "", "d"]


ITEMS = st.sampled_from(
    [
        said("hi"),
        said("yes", "assistant"),
        said("later", "developer"),
        reasoned(),
        called("c"),
        called("s", "shell_call", environment={"type": "container_auto"}),
        answered("c"),
        answered("s", "shell_call_output"),
        {"type": "additional_tools", "tools": []},
    ]
)


@given(st.lists(ITEMS, max_size=14), st.lists(ITEMS, max_size=6), st.lists(ITEMS, max_size=3))
def test_what_is_known_changes_nothing(head: list[Any], more: list[Any], led: list[Any]) -> None:
    """A request that goes on from a known one is split as if nothing were known."""
    first, longer = read([*led, *head]), read([*led, *head, *more])
    digests = recognise((), first.messages).digests
    known = RESPONSES.build_split(first, digests, 0)
    for _ in range(2):
        grown = RESPONSES.parse_request(longer.body, known)
        assert list(grown.messages) == list(longer.messages)
        assert grown.instructions == longer.instructions
        assert recognise((), grown.messages).digest == recognise((), longer.messages).digest
        known = RESPONSES.build_split(grown, recognise((), grown.messages).digests, 0)


def test_the_known_is_not_read() -> None:
    items = [said(f"message {number}") for number in range(12)]
    first = read(items)
    known = RESPONSES.build_split(first, recognise((), first.messages).digests, 0)
    grown = RESPONSES.parse_request(read([*items, said("more")]).body, known)
    elements = get_units(grown).elements
    assert isinstance(elements, SlicedMessages)
    assert len(elements.split.ends) == 8
    assert len(grown.frame) < len(grown.body)


def test_a_split_of_chat_is_no_split_of_this() -> None:
    """Its messages may have the same bytes."""
    messages = [said(f"message {number}") for number in range(12)]
    body = json.dumps({"messages": messages}, separators=(",", ":")).encode()
    chat = CHAT.parse_request(body)
    known = CHAT.build_split(chat, recognise((), chat.messages).digests, 0)
    assert known is not None
    request = RESPONSES.parse_request(read(messages).body, known)
    assert not isinstance(get_units(request).elements, SlicedMessages)


@pytest.mark.parametrize(
    ("members", "previous"),
    [
        ({}, None),
        ({"previous_response_id": None}, None),
        ({"previous_response_id": ""}, None),
        ({"previous_response_id": "resp_1"}, "resp_1"),
        ({"previous_response_id": 7}, "7"),
        ({"previous_response_id": {"id": "x"}}, '{"id":"x"}'),
    ],
)
def test_the_reply_that_a_request_follows(members: dict[str, Any], previous: str | None) -> None:
    """Its past is at the server, so such a request leaves nothing out."""
    request = read([said("one")], **members)
    assert (request.previous, RESPONSES.has_replies(request)) == (previous, previous is not None)


@pytest.mark.parametrize(
    ("items", "leaves"),
    [
        ("hi", False),
        ([said("one"), said("rule", "developer")], False),
        ([said("rule", "developer"), said("one")], True),
        ([{"type": "additional_tools", "tools": []}, said("one")], False),
    ],
)
def test_instructions_that_the_server_will_hold(items: Any, leaves: bool) -> None:
    assert read(items, instructions="Be brief.").leaves_instructions == leaves
