"""Units of the Messages API read as chat messages: the same fingerprint, by whichever API it came."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from om_proxy.wire.apis.api import Unreadable
from om_proxy.wire.apis.messages.messages_api import MESSAGES
from om_proxy.wire.apis.messages.reading import (
    MAX_REMARK_CHARS,
    read_chat_message,
    read_item,
    view_message,
)
from om_proxy.wire.apis.registry import CHAT

KEY = b"k" * 32
PNG = {"type": "base64", "media_type": "image/png", "data": "aWI="}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}
PNG_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aWI="}}


def said(role: str, content: Any, **members: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **members}


def call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "S"}
TOOL_USE = {"type": "tool_use", "id": "c1", "name": "look", "input": {"b": 1.5, "a": ["x"]}}
SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}}
FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "s1",
    "content": [{"type": "web_search_result", "title": "T", "encrypted_content": "E" * 9000}],
}


def result(content: Any, **members: Any) -> dict[str, Any]:
    return said(
        "user", [{"type": "tool_result", "tool_use_id": "c1", "content": content, **members}]
    )


def answer(content: Any) -> dict[str, Any]:
    return said("tool", content, tool_call_id="c1")


SAME = {
    "a string": (said("user", "hi"), said("user", "hi")),
    "a block": (said("user", [text("hi")]), said("user", "hi")),
    "citations": (
        said("assistant", [text("hi") | {"citations": [{"cited_text": "x"}]}]),
        said("assistant", "hi"),
    ),
    "thoughts": (
        said("assistant", [THOUGHT, {"type": "redacted_thinking", "data": "D"}, text("hi")]),
        said("assistant", "hi"),
    ),
    "a compaction": (
        said("assistant", [{"type": "compaction", "content": "all"}, text("hi")]),
        said("assistant", "hi"),
    ),
    "a call": (
        said("assistant", [text("I look."), TOOL_USE]),
        said("assistant", "I look.", tool_calls=[call("c1", "look", '{"a": ["x"], "b": 1.5}')]),
    ),
    "a call alone": (
        said("assistant", [TOOL_USE | {"input": {}}]),
        said("assistant", None, tool_calls=[call("c1", "look", "")]),
    ),
    "a result": (result("rain"), answer("rain")),
    "a result of blocks": (result([text("rain")], is_error=True), answer("rain")),
    "a result without content": (
        said("user", [{"type": "tool_result", "tool_use_id": "c1"}]),
        answer(""),
    ),
    "a result with an image": (
        result([text("see"), {"type": "image", "source": PNG}]),
        answer([text("see"), PNG_PART]),
    ),
    "an image": (
        said("user", [text("see"), {"type": "image", "source": PNG}]),
        said("user", [text("see"), PNG_PART]),
    ),
    "an image's address": (
        said("user", [{"type": "image", "source": {"type": "url", "url": "https://a/b.png"}}]),
        said("user", [{"type": "image_url", "image_url": {"url": "https://a/b.png"}}]),
    ),
    "an image's id": (
        said("user", [{"type": "image", "source": {"type": "file", "file_id": "f1"}}]),
        said("user", [{"type": "file", "file": {"file_id": "f1"}}]),
    ),
    "a document": (
        said("user", [{"type": "document", "source": PDF, "title": "a.pdf"}]),
        said(
            "user",
            [
                {
                    "type": "file",
                    "file": {
                        "filename": "a.pdf",
                        "file_data": "data:application/pdf;base64,JVBERg==",
                    },
                }
            ],
        ),
    ),
    "a document's id": (
        said("user", [{"type": "document", "source": {"type": "file", "file_id": "f1"}}]),
        said("user", [{"type": "file", "file": {"file_id": "f1"}}]),
    ),
    "a document of text": (
        said("user", [{"type": "document", "source": {"type": "text", "data": "words"}}]),
        said("user", "words"),
    ),
    "a document of content": (
        said("user", [{"type": "document", "source": {"type": "content", "content": [text("w")]}}]),
        said("user", "w"),
    ),
    "a search result": (
        said("user", [{"type": "search_result", "source": "s", "content": [text("a"), text("b")]}]),
        said("user", [text("a"), text("b")]),
    ),
    "a tool of the server": (
        said("assistant", [SEARCH, FOUND, text("It rains.")]),
        said("assistant", "It rains."),
    ),
    "system": (said("system", "be kind", clear_at="x"), said("system", "be kind")),
    "half a character": (said("user", "\\ud83d"), said("user", "\\ud83d")),
}


@pytest.mark.parametrize("name", SAME)
def test_a_unit_has_the_fingerprint_of_its_chat_message(name: str) -> None:
    """Calls and answers are the same, too."""
    unit, message = (orjson.dumps(value).replace(b"\\\\u", b"\\u") for value in SAME[name])
    ours, theirs = read_item(unit, KEY), CHAT.read_item(message, KEY)
    assert (ours.fp, ours.calls, ours.answers) == (theirs.fp, theirs.calls, theirs.answers)
    assert ours.role == theirs.role
    assert ours.raw == unit


@pytest.mark.parametrize("role", ["assistant", "user"])
def test_a_call_alone_has_no_content(role: str) -> None:
    """Chat refuses a message whose content is an empty list."""
    raw = orjson.dumps(said(role, [THOUGHT, TOOL_USE]))
    assert read_chat_message(raw)["content"] is None
    assert MESSAGES.asking_text(raw) == ""


def test_another_message_has_another_fingerprint() -> None:
    units = [said("user", "a"), said("assistant", "a"), result("a"), said("user", [SEARCH])]
    units += [said("user", [{"type": "new_kind", "x": n}]) for n in range(2)]
    assert len({read_item(orjson.dumps(unit), KEY).fp for unit in units}) == len(units)


def test_the_observer_is_told_of_the_servers_tools() -> None:
    """Clipped, and without what only the server can read."""
    long = FOUND | {"content": [{"title": "T" * 900}]}
    view = view_message(orjson.dumps(said("assistant", [SEARCH, FOUND, long, text("So.")])))
    assert view is not None
    query, found, clipped, words = view.parts()
    assert query == '[web_search: {"query":"x"}]'
    assert found == '[web_search_tool_result: [{"type":"web_search_result","title":"T"}]]'
    assert len(str(clipped)) < MAX_REMARK_CHARS + 50
    assert words == "So."


@pytest.mark.parametrize(
    ("unit", "asked"),
    [
        (said("user", [text("a"), {"type": "image", "source": PNG}, text("b")]), "a\nb"),
        (said("system", "be kind"), "be kind"),
        (said("assistant", "quoted"), ""),
        (result("quoted"), ""),
    ],
)
def test_what_asks(unit: dict[str, Any], asked: str) -> None:
    assert MESSAGES.asking_text(orjson.dumps(unit)) == asked


ODD = [None, 1, "x", [], {}, [None], [[1]], [{}], [{"type": 1}], [{"type": [1]}]]
ODD_BLOCKS = [
    {"type": kind, **dict.fromkeys(("text", "source", "content", "input", "id", "name"), odd)}
    for kind in (
        "text",
        "image",
        "document",
        "search_result",
        "tool_use",
        "tool_result",
        "mcp_tool_use",
    )
    for odd in ODD
] + [
    {"type": kind, "source": {"type": form, "data": odd, "content": odd, "url": odd}}
    for kind in ("image", "document")
    for form in ("base64", "text", "content", "url", "file")
    for odd in ODD
]


@pytest.mark.parametrize("role", ["user", "assistant", "system", "somebody", 7, ["user"], {}])
def test_odd_values_are_read(role: Any) -> None:
    """Whatever the members hold: a unit has a fingerprint and a view."""
    for content in (*ODD, *([block] for block in ODD_BLOCKS), [text("a"), *ODD_BLOCKS]):
        raw = orjson.dumps(said(role, content))
        assert read_item(raw, KEY).raw == raw
        view = view_message(raw)
        assert view is not None
        for part in view.parts():
            assert isinstance(part, str) or (part.payload(), part.render())
        assert isinstance(MESSAGES.asking_text(raw), str)


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", b'{"role":null}', b"\xff", b'{"role":' + b"[" * 9000]
)
def test_what_is_no_message(raw: bytes) -> None:
    with pytest.raises(Unreadable):
        read_item(raw, KEY)
    assert MESSAGES.asking_text(raw) == ""


def test_numbers_that_strict_parsers_refuse() -> None:
    """As in chat: read, but without a view."""
    raw = b'{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"n","input":NaN}]}'
    assert view_message(raw) is None
    assert read_chat_message(raw)["tool_calls"][0]["function"]["name"] == "n"
