"""Chat messages written as messages of this API: nothing that the API refuses, nothing lost that it
takes."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from om_proxy.wire.apis.chat.chat_message import write_call_id
from om_proxy.wire.apis.messages.elements import write_element
from om_proxy.wire.apis.messages.reading import read_item
from om_proxy.wire.apis.messages.writing import write_chat_message, write_value
from om_proxy.wire.apis.registry import CHAT

KEY = b"k" * 32
PNG_URL = "data:image/png;base64,aWI="
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aWI="}}
PDF_URL = "data:application/pdf;base64,JVBERg=="
PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def call(arguments: Any, **members: Any) -> dict[str, Any]:
    return {
        "id": "c1",
        "type": "function",
        "function": {"name": "n", "arguments": arguments},
        **members,
    }


def said(role: str, content: Any, **members: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **members}


def use(arguments: Any, call_id: str = "c1") -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "n", "input": arguments}


def file(**members: Any) -> dict[str, Any]:
    return {"type": "file", "file": members}


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


CASES: list[tuple[dict[str, Any], str, list[Any]]] = [
    (said("user", "hi"), "user", [text("hi")]),
    (
        said("assistant", [text("a"), text("b")], reasoning_content="hm"),
        "assistant",
        [text("a"), text("b")],
    ),
    (said("assistant", None, refusal="no"), "assistant", [text("no")]),
    (said("assistant", [{"type": "thinking", "thinking": "hm"}]), "assistant", []),
    (said("system", "be kind"), "user", [text("be kind")]),
    (said("developer", "be kind"), "user", [text("be kind")]),
    (said("user", " \n"), "user", []),
    (said("user", ["a", text(""), 7]), "user", [text("a")]),
    (said("assistant", "", tool_calls=[call('{"a":1.5}')]), "assistant", [use({"a": 1.5})]),
    (said("assistant", "I look.", tool_calls=[call("")]), "assistant", [text("I look."), use({})]),
    (said("assistant", None, tool_calls=[call("[1]")]), "assistant", [use({"input": [1]})]),
    (said("assistant", None, tool_calls=[call("{")]), "assistant", [use({"input": "{"})]),
    (
        said("assistant", None, tool_calls=[{"id": "c1", "custom": {"name": "n", "input": "ls"}}]),
        "assistant",
        [use({"input": "ls"})],
    ),
    (said("assistant", "a", tool_calls=[3, {}, {"function": 1}]), "assistant", [text("a")]),
    (
        said("tool", "rain", tool_call_id="c1"),
        "user",
        [{"type": "tool_result", "tool_use_id": "c1", "content": [text("rain")]}],
    ),
    (said("tool", "", tool_call_id="c1"), "user", [{"type": "tool_result", "tool_use_id": "c1"}]),
    (
        said("tool", [image(PNG_URL)], tool_call_id="c1"),
        "user",
        [{"type": "tool_result", "tool_use_id": "c1", "content": [PNG]}],
    ),
    (said("user", [text("see"), image(PNG_URL)]), "user", [text("see"), PNG]),
    (
        said("user", [image("https://a/b.png")]),
        "user",
        [{"type": "image", "source": {"type": "url", "url": "https://a/b.png"}}],
    ),
    (said("user", [image("data:image/tiff;base64,aWI=")]), "user", [text("[file: image_url]")]),
    (said("user", [image("ftp://a/b.png")]), "user", [text("[file: image_url]")]),
    (
        said("user", [file(file_data=PDF_URL, filename="a.pdf")]),
        "user",
        [{"type": "document", "source": PDF, "title": "a.pdf"}],
    ),
    (
        said("user", [file(file_data="data:text/csv;base64,YSxi", filename="a.csv")]),
        "user",
        [
            {
                "type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": "a,b"},
                "title": "a.csv",
            }
        ],
    ),
    (said("user", [file(file_data="data:text/csv;base64,/w==")]), "user", [text("[file: file]")]),
    (said("user", [file(file_id="f1")]), "user", [text("[file: f1]")]),
    (
        said("user", [{"type": "input_audio", "input_audio": {"format": "mp3"}}]),
        "user",
        [text("[file: mp3]")],
    ),
]


@pytest.mark.parametrize(("message", "role", "blocks"), CASES)
def test_a_message_is_written(message: dict[str, Any], role: str, blocks: list[Any]) -> None:
    written = write_chat_message(message, has_tools=True)
    assert (written.role, [orjson.loads(block) for block in written.blocks]) == (role, blocks)


@pytest.mark.parametrize("number", [0, 1, 8, 9, 14, 16, 17, 18, 21])
def test_what_is_written_reads_as_it_was(number: int) -> None:
    """Its fingerprint is that of the chat message."""
    message, role, _ = CASES[number]
    written = write_chat_message(message, has_tools=True)
    item = read_item(write_element(write_value(role), written.blocks), KEY)
    assert item.fp == CHAT.read_item(orjson.dumps(message), KEY).fp


def test_an_id_that_is_refused_is_replaced_in_call_and_result_alike() -> None:
    calls = said("assistant", None, tool_calls=[call("{}") | {"id": "a:1"}])
    result = said("tool", "x", tool_call_id="a:1")
    written = [write_chat_message(message, has_tools=True).blocks[0] for message in (calls, result)]
    call_id = orjson.loads(written[0])["id"]
    assert call_id == orjson.loads(written[1])["tool_use_id"] == write_call_id("a:1")
    assert call_id == write_call_id(call_id)
    assert write_call_id("x" * 65) != write_call_id("x" * 66)
    assert write_call_id("") == write_call_id("") != ""
    assert write_call_id("\ud83d")


def test_without_tools_a_step_is_text() -> None:
    calls = write_chat_message(
        said("assistant", "I look.", tool_calls=[call("{}")]), has_tools=False
    )
    result = write_chat_message(said("tool", "rain", tool_call_id="c1"), has_tools=False)
    assert not calls.is_step
    assert not result.is_step
    blocks = [orjson.loads(block) for block in (*calls.blocks, *result.blocks)]
    assert blocks == [
        text("I look."),
        text("[tool call: n {}]"),
        text("[tool result]"),
        text("rain"),
    ]


def test_half_a_character_is_replaced() -> None:
    block = write_chat_message(said("user", "\ud83d"), has_tools=True).blocks[0]
    assert orjson.loads(block) == text("\ufffd")
