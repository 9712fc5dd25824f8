"""The parts of a message, as a look-up shows them."""

from __future__ import annotations

from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from om_proxy.common.apis import ApiName
from om_proxy.memory.model import Item
from om_proxy.memory.recall.quoted_message import QuotedPart
from om_proxy.wire.apis.api import Unreadable
from om_proxy.wire.apis.message_parts import read_message_parts, summarize_message
from om_proxy.wire.apis.registry import read_item


@pytest.mark.parametrize(
    ("role", "message", "parts"),
    [
        ("user", {"content": "one\r\ntwo\x1b"}, [QuotedPart("text", "one\ntwo")]),
        ("user", {"content": ""}, []),
        (
            "user",
            {
                "content": [
                    {"type": "text", "text": "see"},
                    {"type": "image_url", "image_url": {"url": "https://x.example/a/cat.png?w=1"}},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                    {"type": "file", "file": {"filename": "plan.pdf", "file_data": "AAAA"}},
                ]
            },
            [
                QuotedPart("text", "see"),
                QuotedPart("image", "", "cat.png?w=1"),
                QuotedPart("image", "", "image_url"),
                QuotedPart("file", "", "plan.pdf"),
            ],
        ),
        (
            "assistant",
            {
                "content": [
                    {"type": "thinking", "thinking": "secret"},
                    {"type": "refusal", "refusal": "No."},
                ],
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "ls", "arguments": "{}"}},
                    {"id": "2", "type": "function", "function": {}},
                    {
                        "id": "3",
                        "type": "function",
                        "function": {"name": "rm", "arguments": {"a": 1}},
                    },
                ],
            },
            [
                QuotedPart("text", "No."),
                QuotedPart("tool-call", "{}", "ls"),
                QuotedPart("tool-call", '{"a":1}', "rm"),
            ],
        ),
        ("assistant", {"content": None, "refusal": "No."}, [QuotedPart("text", "No.")]),
        (
            "tool",
            {"content": "2 files", "tool_call_id": "1"},
            [QuotedPart("tool-result", "2 files")],
        ),
        ("function", {"content": "7", "name": "add"}, [QuotedPart("tool-result", "7", "add")]),
    ],
)
def test_parts(role: str, message: dict[str, object], parts: list[QuotedPart]) -> None:
    raw = orjson.dumps({"role": role, **message})
    assert list(read_message_parts(Item(raw, role, bytes(16)))) == parts


def test_what_no_parser_takes() -> None:
    """Half a surrogate pair is replaced; bytes that are no message are shown as they are."""
    assert read_message_parts(Item(rb'{"content": "a\ud83d"}', "user", bytes(16))) == (
        QuotedPart("text", "a\ufffd"),
    )
    assert read_message_parts(Item(b'{"content": \xff', "user", bytes(16))) == (
        QuotedPart("text", '{"content": \ufffd'),
    )


CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("message", "speaker", "parts"),
    [
        pytest.param({"role": "user", "content": "hello"}, "User", ("hello",), id="text"),
        pytest.param({"role": "assistant", "content": None}, "Assistant", (), id="nothing said"),
        pytest.param({"role": "user", "content": "  \n"}, "User", (), id="blanks"),
        pytest.param({"role": "user"}, "User", (), id="no content"),
        pytest.param({"content": "hi"}, "", ("hi",), id="no role"),
        pytest.param(
            {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {}}, "and", {}]},
            "User",
            ("see", "[image_url]", "and", "[attachment]"),
            id="parts: what is no text is named",
        ),
        pytest.param({"role": "assistant", "content": None, "tool_calls": [CALL]}, "Assistant", ("[calls look]",), id="a call"),
        pytest.param(
            {"role": "assistant", "content": "so", "tool_calls": [CALL] * 2}, "Assistant", ("so", *["[calls look]"] * 2), id="both"
        ),
        pytest.param({"role": "assistant", "tool_calls": [{}, 7, {"function": {}}]}, "Assistant", ("[calls a tool]",), id="odd calls"),
        pytest.param({"role": "tool", "tool_call_id": "c", "content": "42"}, "Tool", ("42",), id="a result"),
        pytest.param({"role": "user", "content": 7}, "User", (), id="content of no known kind"),
        pytest.param({"role": "user", "content": [7, None, {"text": 7, "type": "x"}]}, "User", ("[x]",), id="odd parts"),
        pytest.param({"role": "r" * 99, "content": "x"}, "R" + "r" * 39, ("x",), id="a long role"),
        pytest.param({"role": 7, "content": "x", "tool_calls": 7}, "7", ("x",), id="a role that is none"),
    ],
)  # fmt: skip
def test_what_is_said(message: dict[str, Any], speaker: str, parts: tuple[str, ...]) -> None:
    assert summarize_message(orjson.dumps(message), "chat") == (speaker, parts)


@pytest.mark.parametrize(
    "raw", [b"", b"\xff", b"[]", b"7", b'"x"', b"{", b'{"role":"user"', b"[" * 100_000]
)
def test_what_is_no_message_says_nothing(raw: bytes) -> None:
    assert summarize_message(raw, "chat") == ("Unknown", ())


names = st.sampled_from(["role", "content", "type", "text", "tool_calls", "function", "name"])
json = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
)


@given(st.dictionaries(st.sampled_from(["role", "content", "tool_calls"]), json))
def test_any_message_can_be_told(message: dict[str, Any]) -> None:
    """Never an exception, never a part that says nothing."""
    speaker, parts = summarize_message(orjson.dumps(message), "chat")
    assert len(speaker) <= 40
    assert all(part.strip() for part in parts)


def test_lone_surrogates_can_be_told() -> None:
    assert summarize_message(b'{"role":"user","content":"a\\ud800b"}', "chat")[0] in (
        "User",
        "Unknown",
    )


@pytest.mark.parametrize(
    ("api", "raw"),
    [
        ("chat", b'{"role":"user","content":[{"type":"text","text":"hello"}]}'),
        (
            "messages",
            b'{"role":"user","content":[{"type":"document","source":{"type":"text","data":"hello"}}]}',
        ),
        (
            "responses",
            b'[{"type":"message","role":"user","content":[{"type":"input_text","text":"hello"}]}]',
        ),
    ],
)
def test_a_message_is_read_by_the_room_of_its_api(api: str, raw: bytes) -> None:
    """One of an API that this release does not know is text: its bytes."""
    item = read_item(raw, bytes(32), api)
    assert item.api == api
    assert read_message_parts(item) == (QuotedPart("text", "hello"),)
    assert summarize_message(raw, api) == ("User", ("hello",))
    item = replace(item, api=cast(ApiName, "newer"))
    assert read_message_parts(item) == (QuotedPart("text", raw.decode()),)
    assert summarize_message(raw, "newer") == ("Unknown", ())
    with pytest.raises(Unreadable, match="cannot read messages of newer"):
        read_item(raw, bytes(32), "newer")
