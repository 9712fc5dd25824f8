"""A fingerprint is equal for every spelling of one message, and for nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory import message_view as fingerprints
from om_proxy.wire.apis.chat.chat_message import view_parsed
from om_proxy.wire.apis.json_text import write_canonical

KEY = b"key of a tenant"


def fingerprint(message: Mapping[str, Any], key: bytes) -> bytes:
    return fingerprints.fingerprint(view_parsed(message), key, write_canonical)


def call(arguments: str | None, call_id: str = "c1", name: str = "look") -> dict[str, Any]:
    return {
        "tool_calls": [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        ]
    }


def image(url: str, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}, **more}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(
            {"content": "x"},
            {"content": [{"type": "text", "text": "x"}]},
            id="string and text part",
        ),
        pytest.param({"content": "x"}, {"content": " x\n"}, id="outer whitespace"),
        pytest.param(
            {"content": "a\nb"},
            {"content": [{"text": "a"}, {"type": "text", "text": "b"}]},
            id="text parts",
        ),
        pytest.param({"content": None}, {}, id="null content"),
        pytest.param({"content": ""}, {"content": []}, id="empty content"),
        pytest.param({"content": "x", "name": None}, {"content": "x"}, id="null field"),
        pytest.param({"content": "x", "reasoning_content": "hm"}, {"content": "x"}, id="reasoning"),
        pytest.param(
            {"content": "x", "annotations": [1], "odd": 2}, {"content": "x"}, id="unknown keys"
        ),
        pytest.param(
            {"content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]},
            {"content": "x"},
            id="cache mark on a text part",
        ),
        pytest.param(
            {"content": [image("https://a/b", cache_control={})]},
            {"content": [image("https://a/b")]},
            id="cache mark on an image",
        ),
        pytest.param(
            call('{"a":1,"b":2}'), call('{ "b": 2, "a": 1 }'), id="arguments are compared as JSON"
        ),
        pytest.param(call(""), call("{}"), id="no arguments"),
        pytest.param(
            call("{}") | {"content": ""}, call("{}") | {"content": None}, id="calls without text"
        ),
        pytest.param(
            {"content": None, "refusal": "no"},
            {"content": [{"type": "refusal", "refusal": "no"}]},
            id="refusal as field or part",
        ),
    ],
)
def test_spellings_of_one_message(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Clients respell messages between one call and the next; that makes them no other message."""
    assert fingerprint({"role": "assistant", **one}, KEY) == fingerprint(
        {"role": "assistant", **other}, KEY
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(
            {"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}, id="role"
        ),
        pytest.param({"content": "x"}, {"content": "X"}, id="text"),
        pytest.param({"content": "a b"}, {"content": "a  b"}, id="inner whitespace"),
        pytest.param(call('{"a":1}'), call('{"a":2}'), id="arguments"),
        pytest.param(call('{"a":'), call('{"a": '), id="arguments that are no JSON are text"),
        pytest.param(call("{}", "c1"), call("{}", "c2"), id="call id"),
        pytest.param(call("{}", name="a"), call("{}", name="b"), id="function name"),
        pytest.param({"content": "x"}, {"content": "x", "name": "ann"}, id="name"),
        pytest.param(
            {"tool_call_id": "a", "content": "x"},
            {"tool_call_id": "b", "content": "x"},
            id="answered call",
        ),
        pytest.param(
            {"content": [image("https://a")]}, {"content": [image("https://b")]}, id="image"
        ),
        pytest.param({"content": "x"}, {"content": "x", "refusal": "no"}, id="refusal"),
        pytest.param({"audio": {"id": "a"}}, {"audio": {"id": "b"}}, id="audio"),
        pytest.param(
            {"function_call": {"name": "a"}},
            {"function_call": {"name": "b"}},
            id="legacy function call",
        ),
    ],
)
def test_different_messages(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Messages that say or do something else have different fingerprints."""
    assert fingerprint({"role": "user", **one}, KEY) != fingerprint({"role": "user", **other}, KEY)


def test_tenants_do_not_share_fingerprints() -> None:
    """The same words under another key are another value, so stored prints of two tenants cannot be
    matched."""
    message = {"role": "user", "content": "x"}
    assert fingerprint(message, KEY) != fingerprint(message, b"another")
    assert len(fingerprint(message, KEY)) == 16


@pytest.mark.parametrize(
    "message",
    [
        pytest.param({"role": "user", "content": "\ud800"}, id="lone surrogate"),
        pytest.param({"role": "user", "content": [{"type": "x", "n": 10**40}]}, id="huge integer"),
        pytest.param({"role": "assistant", **call("[" * 3000 + "]" * 3000)}, id="deep arguments"),
        pytest.param(
            {"role": "user", "content": [orjson.loads('{"type":' + "[" * 900 + "]" * 900 + "}")]},
            id="deep part",
        ),
        pytest.param({"role": "assistant", "tool_calls": [None, 3, {"id": "a"}]}, id="odd calls"),
        pytest.param({"role": ["odd"], "content": {"odd": 1}}, id="odd types"),
        pytest.param(
            {
                "role": "assistant",
                "tool_calls": [{"id": "a", "custom": {"name": "n", "input": "x"}}],
            },
            id="custom tool",
        ),
    ],
)
def test_odd_messages_have_a_fingerprint_too(message: dict[str, Any]) -> None:
    """Any JSON has a fingerprint of its own; nothing raises."""
    assert len(fingerprint(message, KEY)) == 16


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(
        st.sampled_from(["role", "content", "tool_calls", "name", "audio", "x"]), json_values
    )
)
def test_any_json_object(message: dict[str, Any]) -> None:
    """Always 16 bytes, and the order of keys means nothing."""
    again = dict(reversed(message.items()))
    assert fingerprint(message, KEY) == fingerprint(again, KEY)
    assert len(fingerprint(message, KEY)) == 16


@given(st.text(), st.text(alphabet=" \t\r\n"))
def test_whitespace_around_a_text(text: str, space: str) -> None:
    """Clients trim replies; a trimmed text is the same text."""
    one, other = ({"role": "assistant", "content": t} for t in (text, space + text + space))
    assert fingerprint(one, KEY) == fingerprint(other, KEY)
