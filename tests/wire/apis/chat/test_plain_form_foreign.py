"""What came by another API goes into a chat prompt as every server of chat takes it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from om_proxy.wire.apis.chat.chat_message import Remark
from om_proxy.wire.apis.chat.plain_form import encode_message, fit_message

PICTURE = {
    "type": "image_url",
    "image_url": {"url": "data:image/png;base64,AA", "detail": "original"},
}
TEXT = {"type": "text", "text": "see"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("message", "fitting"),
    [
        (
            {"role": "user", "content": [TEXT, PICTURE]},
            [TEXT, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}],
        ),
        (
            {"role": "user", "content": [{"type": "file", "file": {"file_id": "f-1"}}]},
            [{"type": "text", "text": "[file f-1]"}],
        ),
        (
            {
                "role": "user",
                "content": [{"type": "file", "file": {"file_data": "d", "file_id": "f"}}],
            },
            [{"type": "file", "file": {"file_data": "d"}}],
        ),
        (
            {"role": "user", "content": [{"type": "novel", "x": 1}]},
            [{"type": "text", "text": "[file]"}],
        ),
        ({"role": "user", "content": "\ud83d"}, "\ufffd"),
        ({"role": "tool", "tool_call_id": "c", "content": [TEXT, PICTURE]}, "see\n[image]"),
        ({"role": "tool", "tool_call_id": "c", "content": []}, ""),
        ({"role": "assistant", "content": [TEXT, Remark(type="text", text="[search]")]}, "see"),
        ({"role": "assistant", "content": [], "tool_calls": [CALL]}, None),
    ],
)
def test_a_message_fits(message: dict[str, Any], fitting: object) -> None:
    written = json.loads(fit_message(message))
    assert written == {**message, "content": fitting}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": []},
        {"role": "assistant", "content": [Remark(type="text", text="[search]")]},
        {"role": "user", "content": [Remark(type="text", text="[search]")]},
    ],
)
def test_nothing_remains_of_a_message(message: dict[str, Any]) -> None:
    assert fit_message(message) == b""


def test_another_api_gets_all_but_remarks() -> None:
    """Its own writing decides what it can say."""
    message = {"role": "tool", "tool_call_id": "c", "content": [PICTURE, Remark(type="text")]}
    assert json.loads(encode_message(message)) == {**message, "content": [PICTURE]}
