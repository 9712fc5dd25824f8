"""Stored units as items: those of this API as they are, and chat messages by what they say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.wire.apis.responses.reading import read_item
from om_proxy.wire.apis.responses.writing import write_chat_message, write_stored
from tests.wire.apis.responses.samples import (
    KEY,
    Item,
    answered,
    called,
    reasoned,
    said,
    write_unit,
)

PICTURE = "data:image/png;base64,AAAA"
PDF = {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}
LONG_ID = "call.with/odd signs"
HASHED_ID = write_chat_message({"role": "tool", "tool_call_id": LONG_ID, "content": ""})[0][
    "call_id"
]


def text(words: str) -> Item:
    return {"type": "input_text", "text": words}


@pytest.mark.parametrize(
    ("message", "items"),
    [
        ({"role": "user", "content": "hi"}, [said("hi")]),
        (
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
            [said("a\nb")],
        ),
        ({"role": "system", "content": "be kind"}, [said("be kind", "system")]),
        (
            {"role": "developer", "content": [{"type": "text", "text": "x"}]},
            [said("x", "developer")],
        ),
        ({"role": "user", "content": ""}, []),
        ({"role": "assistant", "content": ""}, []),
        ({"role": "assistant", "content": "yes"}, [said("yes", "assistant")]),
        ({"role": "assistant", "content": None, "refusal": "no"}, [said("no", "assistant")]),
        (
            {
                "role": "assistant",
                "content": "wait",
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                ],
            },
            [said("wait", "assistant"), called("c")],
        ),
        (
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": LONG_ID, "type": "custom", "custom": {"name": "f", "input": "x y"}}
                ],
            },
            [called(HASHED_ID, arguments='{"input":"x y"}')],
        ),
        (
            {"role": "assistant", "function_call": {"name": "f", "arguments": ""}},
            [called("f")],
        ),
        ({"role": "function", "name": "f", "content": "sunny"}, [answered("f")]),
        ({"role": "tool", "tool_call_id": "c", "content": "sunny"}, [answered("c")]),
        ({"role": "tool", "tool_call_id": "c", "content": None}, [answered("c", output="")]),
        (
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "see"},
                    {"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}},
                    {"type": "image_url", "image_url": {"url": "http://x/y"}},
                    {"type": "file", "file": PDF},
                    {"type": "file", "file": {"file_id": "file-1"}},
                    {
                        "type": "file",
                        "file": {
                            "filename": "a.zip",
                            "file_data": "data:application/zip;base64,AA",
                        },
                    },
                    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
                ],
            },
            [
                {
                    "role": "user",
                    "content": [
                        text("see"),
                        {"type": "input_image", "image_url": PICTURE, "detail": "low"},
                        {"type": "input_image", "image_url": "http://x/y", "detail": "auto"},
                        {"type": "input_file", **PDF},
                        text("[file: file-1]"),
                        text("[file: a.zip]"),
                        text("[file: wav]"),
                    ],
                }
            ],
        ),
        (
            {"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": "u"}}]},
            [said("[file: image_url]", "assistant")],
        ),
    ],
)
def test_a_chat_message_is_written(message: dict[str, Any], items: list[Item]) -> None:
    assert write_chat_message(message) == items
    assert [json.loads(raw) for raw in write_stored(json.dumps(message).encode(), "chat")] == items


def test_a_call_and_its_result_keep_one_id() -> None:
    call = {"id": LONG_ID, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    (written,) = write_chat_message({"role": "assistant", "tool_calls": [call]})
    assert written["call_id"] == HASHED_ID
    assert len(HASHED_ID) <= 64


SEARCH = {"type": "web_search_call", "id": "ws_1"}
REPLY = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "yes"}],
}


@pytest.mark.parametrize(
    ("stored", "written"),
    [
        # as it is, ids too
        ([REPLY], [REPLY]),
        ([SEARCH, REPLY], [SEARCH, REPLY]),
        ([reasoned(encrypted_content="E"), called("c", id="fc_1")], None),
        # the server alone has the reasoning: no id may point to it
        ([reasoned(), called("c", id="fc_1")], [called("c")]),
        ([reasoned(encrypted_content=None), REPLY], [said("yes", "assistant")]),
        (
            [reasoned(), SEARCH, {"type": "mcp_approval_request", "id": "r"}],
            [{"type": "mcp_approval_request", "id": "r"}],
        ),
        ([reasoned()], []),
        # of a reply that broke off: no server takes reasoning without what followed it
        ([REPLY, reasoned(encrypted_content="E")], [REPLY]),
    ],
)
def test_reasoning_goes_with_its_content(stored: list[Item], written: list[Item] | None) -> None:
    raws = write_stored(write_unit(*stored), "responses")
    assert [json.loads(raw) for raw in raws] == (stored if written is None else written)


def test_a_step_that_its_server_holds_is_referred_to() -> None:
    """Only its hidden reasoning is: the rest keeps its ids beside it."""
    call = called("c", id="fc_1")
    raws = write_stored(write_unit(reasoned(), call), "responses", is_held=True)
    assert [json.loads(raw) for raw in raws] == [{"type": "item_reference", "id": "rs_1"}, call]
    nameless = {"type": "reasoning", "summary": []}
    raws = write_stored(write_unit(nameless, call), "responses", is_held=True)
    assert [json.loads(raw) for raw in raws] == [called("c")]


def test_stored_items_keep_their_bytes() -> None:
    raws = [b'{"role": "user", "content": "caf\\u00e9", "n": 1.50}', b'{"type":"x"}']
    assert write_stored(b"[" + b",".join(raws) + b"]", "responses") == raws


def test_odd_stored_bytes_are_written() -> None:
    """Chat takes numbers and half characters that a strict parser refuses."""
    raws = write_stored(b'{"role":"user","content":"a\\ud83d","n":1e999}', "chat")
    assert [json.loads(raw) for raw in raws] == [said("a\ufffd")]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('ab{"', max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                ["type", "text", "id", "function", "name", "arguments", "url", "file", "image_url"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


@given(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool", "system", "function", "x"])},
        optional=dict.fromkeys(
            ("content", "tool_calls", "function_call", "tool_call_id", "refusal", "audio", "name"),
            VALUES,
        ),
    )
)
def test_any_chat_message_is_written(message: dict[str, Any]) -> None:
    """Whatever it holds, what is written reads as a unit."""
    for raw in write_stored(json.dumps(message).encode(), "chat"):
        assert read_item(b"[" + raw + b"]", KEY).role
