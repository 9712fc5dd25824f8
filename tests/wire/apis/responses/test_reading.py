"""A unit reads as the chat message that says the same."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from om_proxy.memory.tokens import count
from om_proxy.wire.apis.api import Unreadable
from om_proxy.wire.apis.chat.plain_form import encode_message
from om_proxy.wire.apis.registry import CHAT
from om_proxy.wire.apis.responses.reading import read_chat_message, read_item, view_message
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


def function(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


EQUALS: list[tuple[list[Item], dict[str, Any]]] = [
    ([said("hi")], {"role": "user", "content": "hi"}),
    (
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        {"role": "user", "content": "hi"},
    ),
    (
        [
            {
                "type": "message",
                "id": "msg_1",
                "status": "completed",
                "role": "assistant",
                "phase": "final_answer",
                "content": [{"type": "output_text", "text": "yes", "annotations": [{}]}],
            }
        ],
        {"role": "assistant", "content": "yes"},
    ),
    (
        [reasoned(), called("c", id="fc_1", status="completed", arguments='{"a": 1, "b": 2}')],
        {"role": "assistant", "tool_calls": [function("c", "f", '{"b":2,"a":1}')]},
    ),
    (
        [said("one", "assistant"), called("c"), said("two", "assistant")],
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
            "tool_calls": [function("c", "f", "{}")],
        },
    ),
    (
        [{"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x y"}],
        {
            "role": "assistant",
            "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f", "input": "x y"}}],
        },
    ),
    (
        [{"type": "apply_patch_call", "call_id": "c", "id": "ap_1", "operation": {"path": "x"}}],
        {
            "role": "assistant",
            "tool_calls": [function("c", "apply_patch_call", '{"operation": {"path": "x"}}')],
        },
    ),
    (
        [{"type": "mcp_approval_request", "id": "r", "name": "f", "arguments": "{}"}],
        {
            "role": "assistant",
            "tool_calls": [
                function("r", "mcp_approval_request", '{"name": "f", "arguments": "{}"}')
            ],
        },
    ),
    (
        [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}],
        {"role": "assistant", "content": None, "refusal": "no"},
    ),
    ([answered("c")], {"role": "tool", "tool_call_id": "c", "content": "sunny"}),
    (
        [
            answered(
                "c",
                output=[
                    {"type": "input_text", "text": "a"},
                    {"type": "input_image", "image_url": PICTURE, "detail": "auto"},
                ],
            )
        ],
        {
            "role": "tool",
            "tool_call_id": "c",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "image_url", "image_url": {"url": PICTURE}},
            ],
        },
    ),
    (
        [
            answered(
                "c",
                "computer_call_output",
                output={"type": "computer_screenshot", "image_url": PICTURE},
            )
        ],
        {
            "role": "tool",
            "tool_call_id": "c",
            "content": [{"type": "image_url", "image_url": {"url": PICTURE}}],
        },
    ),
    (
        [{"type": "mcp_approval_response", "approval_request_id": "r", "approve": True}],
        {"role": "tool", "tool_call_id": "r", "content": '{"approve":true}'},
    ),
    (
        [answered("c", "shell_call_output", output=[{"stdout": "x"}])],
        {"role": "tool", "tool_call_id": "c", "content": '{"output":[{"stdout":"x"}]}'},
    ),
    (
        [{"role": "user", "content": [{"type": "input_file", **PDF}]}],
        {"role": "user", "content": [{"type": "file", "file": PDF}]},
    ),
    (
        [{"role": "user", "content": [{"type": "input_image", "file_id": "f", "detail": "low"}]}],
        {"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]},
    ),
    (
        [{"role": "user", "content": [{"type": "input_image", "image_url": "u", "detail": "low"}]}],
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "u", "detail": "low"}}],
        },
    ),
    ([said("be kind", "developer")], {"role": "developer", "content": "be kind"}),
]


@pytest.mark.parametrize(("items", "message"), EQUALS)
def test_a_unit_is_known_in_chat(items: list[Item], message: dict[str, Any]) -> None:
    """Its fingerprint, calls and answers are those of the chat message."""
    item = read_item(write_unit(*items), KEY)
    in_chat = CHAT.read_item(orjson.dumps(message), KEY)
    assert item.fp == in_chat.fp
    assert (item.role, item.calls, item.answers) == (in_chat.role, in_chat.calls, in_chat.answers)
    written = CHAT.read_item(orjson.dumps(read_chat_message(item.raw)), KEY)
    assert written.fp == in_chat.fp


@pytest.mark.parametrize(
    "dropped",
    [
        {"type": "web_search_call", "id": "w", "status": "completed", "action": {"query": "rain"}},
        {"type": "mcp_call", "id": "m", "name": "f", "arguments": "{}", "output": "rain"},
        called("t", "tool_search_call", execution="server", query="rain"),
    ],
)
def test_what_the_server_ran_is_told_to_the_observer_alone(dropped: Item) -> None:
    """Clients drop it, so no fingerprint depends on it; and no other API is told."""
    step, alone = (
        write_unit(dropped, said("yes", "assistant")),
        write_unit(said("yes", "assistant")),
    )
    assert read_item(step, KEY).fp == read_item(alone, KEY).fp
    assert read_item(step, KEY).calls == ()
    assert encode_message(read_chat_message(step)) == encode_message(
        {"role": "assistant", "content": [{"type": "text", "text": "yes"}]}
    )
    view = view_message(step)
    assert view is not None
    words, told = view.parts()
    assert (words, "rain" in str(told)) == ("yes", True)
    assert count(view, len) > len("yes")


def test_what_the_server_ran_is_clipped() -> None:
    picture = {
        "type": "image_generation_call",
        "id": "i",
        "result": "A" * 9_999,
        "prompt": "x" * 9_999,
    }
    view = view_message(write_unit(picture))
    assert view is not None
    (part,) = view.parts()
    assert isinstance(part, str)
    assert "AAAA" not in part
    assert len(part) < 2_100


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", b"\xff", b"[7]", b'[{"type":"message"}]', b"[" * 9_999]
)
def test_no_unit(raw: bytes) -> None:
    with pytest.raises(Unreadable):
        read_item(raw, KEY)


def test_numbers_beyond_bounds_are_read_lax() -> None:
    """A strict parser refuses them, and the client may send them."""
    raw = b'[{"role":"user","content":"hi","n":1e999}]'
    assert read_item(raw, KEY).fp == read_item(write_unit(said("hi")), KEY).fp
    assert view_message(raw) is None


ODD = [
    None,
    7,
    "x",
    [],
    {},
    [None],
    [{}],
    {"type": 7},
    [{"type": []}],
    [["x"]],
    [{"type": "input_text"}],
]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(
    "member", ["role", "content", "output", "call_id", "name", "arguments", "id", "action"]
)
def test_odd_members_raise_nothing(odd: Any, member: str) -> None:
    for item in (
        said("x"),
        said("x", "assistant"),
        called("c"),
        answered("c"),
        called("c", "x_call"),
    ):
        if (member, odd) != ("role", None):
            assert read_item(write_unit({**item, member: odd}), KEY).role


@pytest.mark.parametrize("role", [7, ["user"], {}])
def test_a_role_that_is_no_text_is_an_unknown_one(role: Any) -> None:
    for item in ({**said("x"), "role": role}, {"type": "message", "role": role, "content": "x"}):
        assert read_item(write_unit(item), KEY).role not in ("user", "assistant")
