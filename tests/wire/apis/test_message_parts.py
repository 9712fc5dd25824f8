"""The parts of a message, as a look-up shows them."""

from __future__ import annotations

import orjson
import pytest

from om_proxy.memory.recall.quoted_message import QuotedPart
from om_proxy.wire.apis.message_parts import read_message_parts


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
    assert list(read_message_parts(raw, role)) == parts


def test_what_no_parser_takes() -> None:
    """Half a surrogate pair is replaced; bytes that are no message are shown as they are."""
    assert read_message_parts(rb'{"content": "a\ud83d"}', "user") == (
        QuotedPart("text", "a\ufffd"),
    )
    assert read_message_parts(b'{"content": \xff', "user") == (
        QuotedPart("text", '{"content": \ufffd'),
    )
