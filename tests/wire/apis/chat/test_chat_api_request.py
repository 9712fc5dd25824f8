# ruff: noqa: E501 - a case of a table is one line
"""Requests: split, and put together again with nothing else changed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.wire.apis.api import Unreadable
from om_proxy.wire.apis.chat.chat_message import asking_text, read_item, read_text
from om_proxy.wire.apis.registry import CHAT
from om_proxy.wire.apis.request_members import replace_messages, split_members

KEY = b"k" * 32
ODD = (
    b'{ "model":"m\\u0031","temperature":1.0,"seed":123456789012345678901234567890,"top_p":1E-2,\r\n'
    b'"messages" : [ {"role":"system", "content":"be kind"}, {"role":"user","content":"caf\xc3\xa9","x":{"y":[1,2.50]}} ],'
    b'"stream":true,"n":2,"metadata":{"messages":["not these"]},"unknown":null,"big":1e999 }'
)


def body(**members: Any) -> bytes:
    return json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "hi"}], **members}
    ).encode()


def test_routing() -> None:
    """Members that say where the words may go keep their bytes; others are not among them."""
    sent = b'{"provider": {"data_collection" : "deny"},"no-log":true,"n":1,"store":false,'
    request = CHAT.parse_request(sent + body()[1:])
    assert request.routing == (
        ("provider", b'{"data_collection" : "deny"}'),
        ("store", b"false"),
        ("no-log", b"true"),
    )
    assert CHAT.parse_request(body()).routing == ()
    told = {"tags": ["eu"], "metadata": {"tags": ["eu"]}, "allowed_model_region": "eu"}
    other = {"models": ["a/b"], "plugins": [{"id": "web"}], "extra_body": {"google": {}}}
    assert [name for name, _ in CHAT.parse_request(body(**told, **other)).routing] == [*told]


def test_options() -> None:
    """Members that may clash with a tool are named, whatever they say."""
    sent = body(reasoning_effort="none", guided_json={}, grammar=None, temperature=1)
    assert CHAT.parse_request(sent).options == {"reasoning_effort", "guided_json"}
    assert CHAT.parse_request(body()).options == set()


def test_split() -> None:
    """A request's messages are the bytes that were sent, its instructions apart."""
    request = CHAT.parse_request(ODD)
    assert (request.model, request.stream) == ("m1", True)
    assert request.instructions == (b'{"role":"system", "content":"be kind"}',)
    assert request.messages == (b'{"role":"user","content":"caf\xc3\xa9","x":{"y":[1,2.50]}}',)
    assert list(split_members(request)) == [
        "model",
        "temperature",
        "seed",
        "top_p",
        "messages",
        "stream",
        "n",
        "metadata",
        "unknown",
        "big",
    ]


def test_put_together() -> None:
    """Only the messages differ: every other byte is the client's."""
    request = CHAT.parse_request(ODD)
    sent = b'[ {"role":"system", "content":"be kind"}, {"role":"user","content":"caf\xc3\xa9","x":{"y":[1,2.50]}} ]'
    assert replace_messages(
        request, (*request.instructions, b'{"role":"user","content":"new"}')
    ) == ODD.replace(
        sent, b'[{"role":"system", "content":"be kind"},{"role":"user","content":"new"}]'
    )


def test_put_together_around_half_a_character() -> None:
    """What a strict parser refuses in another member goes on as it came; whoever reads it there
    shall say what is wrong with it."""
    sent = b'{"user":"\\ud83d","messages":[{"role":"user","content":"\\ud83d"}], "x":"\\\\ud83d\\ude00"}'
    request = CHAT.parse_request(sent)
    assert replace_messages(request, request.messages) == sent.replace(
        b'"content":"\\ud83d"', b'"content":"\\ufffd"'
    )


@pytest.mark.parametrize(
    ("sent", "again"),
    [
        (b'{"model":"a", "messages":[1],"model":"b"}', b'{"model":"b","messages":[2]}'),
        (b'{"messages":[0],"messages":[1], "n":1}', b'{"messages":[2],"n":1}'),
        (b'{"\\u0061":1, "messages":[1],"a":2}', b'{"a":2,"messages":[2]}'),
        (b'{"a":",\\"messages\\":[1]", "messages":[1],"a":0}', b'{"a":0,"messages":[2]}'),
    ],
)
def test_a_member_twice(sent: bytes, again: bytes) -> None:
    """Its last value is kept: that is what parsers take it for."""
    assert replace_messages(CHAT.parse_request(sent), (b"2",)) == again


@pytest.mark.parametrize(
    ("roles", "leading"),
    [
        ([], []),
        (["user"], []),
        (["system", "user"], ["system"]),
        (["developer", "system", "user", "system"], ["developer", "system"]),
        (["system"], ["system"]),
        (["user", "system"], []),
        ([None, "system"], []),
    ],
)
def test_instructions_are_the_leading_run(roles: list[str | None], leading: list[str]) -> None:
    """Instructions are the system and developer messages before any other; later ones are ordinary
    messages."""
    request = CHAT.parse_request(
        body(messages=[{"role": role, "content": str(place)} for place, role in enumerate(roles)])
    )
    assert list(request.instruction_roles) == leading
    assert len(request.instructions) == len(leading)
    assert len(request.messages) == len(roles) - len(leading)


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"messages":null}',
        b'{"messages":{}}',
        b'{"messages":[',
        b'{"messages":[]} x',
        b"\xff\xfe{}",
        b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"messages":[],"x":' + b'{"x":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
        b'{"messages":[NaN]}',
    ],
)  # fmt: skip
def test_unreadable(bad: bytes) -> None:
    """What is no chat request says so, however deep or broken: it is then forwarded as it came."""
    with pytest.raises(Unreadable):
        CHAT.parse_request(bad)


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    """No bytes raise anything else."""
    try:
        CHAT.parse_request(data)
    except Unreadable:
        return


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(
    st.dictionaries(st.text(), JSON, max_size=5),
    st.lists(st.dictionaries(st.text(), JSON, max_size=4), max_size=4),
    st.booleans(),
)
def test_with_its_own_messages_it_means_the_same(
    members: dict[str, Any], messages: list[Any], ascii_: bool
) -> None:
    """Whatever stands in a request, put together from its own messages it is the same JSON, in the
    same order."""
    sent = json.dumps({**members, "messages": messages}, ensure_ascii=ascii_).encode(
        "utf-8", "replace"
    )
    try:
        request = CHAT.parse_request(sent)
    except Unreadable:
        return  # lone surrogates in a member's name
    again = replace_messages(request, request.instructions + request.messages)
    assert list(json.loads(again).items()) == list(json.loads(request.body).items())


@pytest.mark.parametrize(
    ("members", "model", "stream"),
    [
        ({}, "m", False),
        ({"model": None}, None, False),
        ({"model": 5, "stream": "true"}, None, False),
        ({"stream": True}, "m", True),
        ({"stream": None}, "m", False),
    ],
)
def test_members_of_other_kinds(members: dict[str, Any], model: str | None, stream: bool) -> None:
    """A member of the wrong kind is for the upstream to complain about, and none for us."""
    request = CHAT.parse_request(body(**members))
    assert (request.model, request.stream) == (model, stream)


def test_half_characters_do_not_cost_the_memory() -> None:
    """A text cut inside a surrogate pair is read with U+FFFD in that place; whole pairs and escaped
    backslashes stay."""
    sent = b'{"messages":[{"role":"user","content":"\\ud83d cut \\\\ud83d \\ud83d\\ude00"}]}'
    assert CHAT.parse_request(sent).messages == (
        b'{"role":"user","content":"\\ufffd cut \\\\ud83d \\ud83d\\ude00"}',
    )


def test_message_bytes_do_not_hold_the_body() -> None:
    """A message kept for long is a copy: it must not keep a body of megabytes alive."""
    assert all(type(raw) is bytes for raw in CHAT.parse_request(ODD).messages)


@pytest.mark.parametrize("role", ["", "model", "ASSISTANT"])
def test_a_reply_that_comes_back_with_another_role(role: str) -> None:
    """It is the stored one: that has the assistant's role."""
    raw = b'{"role":"%s","content":"a"}' % role.encode()
    assert (read_item(raw, KEY).role, read_item(raw, KEY).raw) == ("assistant", raw)


def test_item() -> None:
    """A message becomes an item: role, calls, the call it answers, and a fingerprint."""
    call = b'{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"b"},{"x":1},7]}'
    result = b'{"role":"tool","tool_call_id":"a","content":"42"}'
    assert (
        read_item(call, KEY).role,
        read_item(call, KEY).calls,
        read_item(call, KEY).answers,
    ) == (
        "assistant",
        ("a", "b"),
        None,
    )
    assert (
        read_item(result, KEY).calls,
        read_item(result, KEY).answers,
        read_item(result, KEY).raw,
    ) == (
        (),
        "a",
        result,
    )
    assert len(read_item(call, KEY).fp) == 16
    assert read_item(result, KEY).fp != read_item(result, b"other").fp


@pytest.mark.parametrize(
    "raw",
    [
        b"7",
        b'"x"',
        b"[]",
        b"{}",
        b'{"role":null}',
        b"{",
        b'{"role":"user","content":' + b"[" * 100_000,
    ],
)
def test_no_item(raw: bytes) -> None:
    """What is no message says so."""
    with pytest.raises(Unreadable):
        read_item(raw, KEY)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "a"}, "a"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": "b"}]}, "a\nb"),
        ({"content": None}, ""),
        ({}, ""),
        ({"content": [1, None, {"text": 2}]}, ""),
        ([], ""),
    ],
)  # fmt: skip
def test_read_text(message: Any, text: str) -> None:
    """A message's text, or nothing; never an error."""
    assert read_text(json.dumps(message).encode()) == text


@pytest.mark.parametrize("odd", [b"1e400", b"-1e400", b"NaN"])
def test_a_message_with_a_number_beyond_a_double(odd: bytes) -> None:
    """One odd number in a message does not take the memory from its thread."""
    made = read_item(b'{"role": "user", "content": "hi", "u": ' + odd + b"}", KEY)
    assert made.fp == read_item(b'{"role": "user", "content": "hi"}', KEY).fp


@pytest.mark.parametrize(
    ("members", "offered"),
    [
        (b'"tools":[{"type":"function"}]', True),
        (b'"tools" : [ {"type":"function"} ]', True),
        (b'"functions":[{"name":"f"}]', True),
        (b'"tools":[],"functions":[{"name":"f"}]', True),
        (b'"tools":[]', False),
        (b'"tools":[\n  ]', False),
        (b'"tools":null', False),
        (b'"tools":{"a":[1]}', False),
        (b'"tools":"[1]"', False),
        (b'"metadata":{"tools":[1]}', False),
        (b'"user":"\\"tools\\":[1]"', False),
        (b'"x":1', False),
    ],
)
def test_whether_tools_are_offered(members: bytes, offered: bool) -> None:
    """Told by the request's own member, and only where there is at least one tool."""
    request = CHAT.parse_request(
        b'{"messages":[{"role":"user","content":"the \\"tools\\": []"}],%s}' % members
    )
    assert request.offers_tools is offered


@pytest.mark.parametrize(
    ("role", "text"),
    [
        ("user", "hi"),
        ("system", "hi"),
        ("developer", "hi"),
        ("assistant", ""),
        ("tool", ""),
        ("", "hi"),
    ],
)
def test_a_text_that_asks(role: str, text: str) -> None:
    """What a model or a tool wrote asks for nothing."""
    assert asking_text(json.dumps({"role": role, "content": "hi"}).encode()) == text
