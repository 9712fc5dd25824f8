"""The tail of a prompt as messages: the client's as they came, results right behind their calls."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from om_proxy.memory.prompt.tail import Piece
from om_proxy.wire.apis.api import BrokenPrompt
from om_proxy.wire.apis.messages.messages_api import MESSAGES
from tests.wire.apis.messages.test_layout import (
    CALLS,
    KEY,
    RESULTS,
    A,
    Q,
    R,
    call,
    result,
    said,
    text,
    write,
)

THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
A_CITING = said("assistant", text("a") | {"citations": None})


def test_a_message_that_is_whole_is_sent_as_it_came() -> None:
    raws = [
        b'{"role":"user", "content":"q"}',
        b'{ "content":[{"type":"tool_use","id":"c","name":"n","input":{"x":1E2}}],"role":"assistant"}',
        b'{"role":"user","content":[ {"type":"text","text":"first"},'
        b'{"cache_control":{"type":"ephemeral"},"type":"tool_result","tool_use_id":"c"} ],"x":null}',
    ]
    request = MESSAGES.parse_request(b'{"messages":[' + b",".join(raws) + b"]}")
    items = [MESSAGES.read_item(raw, KEY) for raw in request.messages]
    pieces = [
        Piece(item.raw, item.role, item.calls, item.answers, 1, 1, index)
        for index, item in enumerate(items)
    ]
    body = MESSAGES.rewrite_body(request, "", "", pieces, "blocks")
    assert body == b'{"messages":[' + b",".join(raws) + b"]}"


def test_of_a_message_in_part_each_block_keeps_its_bytes() -> None:
    block = b'{ "type":"text", "text":"and?", "cache_control":{"type":"ephemeral"}, "x":1E2 }'
    raw = b'{"role":"user","content":[%s, %s]}' % (orjson.dumps(result("c")), block)
    request = MESSAGES.parse_request(b'{"messages":[' + raw + b"]}")
    piece = Piece(b"", "user", (), None, 1, 1, 1)
    body = MESSAGES.rewrite_body(request, "", "", [piece], "blocks")
    assert body == b'{"messages":[{"role":"user","content":[' + block + b"]}]}"


@pytest.mark.parametrize(
    ("messages", "tail", "written"),
    [
        # stored steps: neighbouring results are one message
        (
            [R],
            [Q, CALLS, said("user", result("c1")), said("user", result("c2")), A, 0],
            [Q, CALLS, said("user", result("c1"), result("c2")), A, R],
        ),
        # one result from the store, one from the client: both behind their call
        (
            [Q, CALLS, said("user", result("c2"), text("and?"))],
            [0, 1, said("user", result("c1")), 2, 3],
            [Q, CALLS, said("user", result("c1"), result("c2"), text("and?"))],
        ),
        ([Q, CALLS, RESULTS], [0, 1, 2, 3, 4], [Q, CALLS, RESULTS]),
        # the results of the client in another order
        (
            [Q, CALLS, said("user", result("c2"), result("c1"))],
            [0, 1, 3, 2],
            [Q, CALLS, said("user", result("c1"), result("c2"))],
        ),
        # empty texts, which this API's models write and refuse
        ([R], [Q, said("assistant", text(""), text("a")), said("assistant"), 0], [Q, A, R]),
        (
            [R],
            [Q, said("assistant", text(" \n"), text("a") | {"citations": None}), 0],
            [Q, A_CITING, R],
        ),
        ([R], [Q, said("assistant", text("") | {"citations": None}), 0], [Q, R]),
        # thoughts that nothing follows, of a reply that was too long: refused, too
        ([R], [Q, said("assistant", THOUGHT), 0], [Q, R]),
        ([R], [Q, said("assistant", text("a"), THOUGHT, text("")), 0], [Q, A, R]),
        (
            [R],
            [Q, said("assistant", THOUGHT, text("a")), 0],
            [Q, said("assistant", THOUGHT, text("a")), R],
        ),
        # chat messages
        (
            [R],
            [
                {"role": "system", "content": "be kind"},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"id": "c:1", "function": {"name": "n", "arguments": "{}"}}],
                },
                {"role": "tool", "tool_call_id": "c:1", "content": ""},
                {"role": "assistant", "content": " "},
                0,
            ],
            [
                said("user", text("be kind")),
                said("assistant", call("d3a6c5f6")),
                said("user", {"type": "tool_result", "tool_use_id": "d3a6c5f6"}),
                R,
            ],
        ),
    ],
)
def test_the_tail(messages: list[Any], tail: list[Any], written: list[Any]) -> None:
    found = write(messages, tail)["messages"]
    for message in found:  # the hash of an id
        for block in message["content"]:
            for name in ("id", "tool_use_id"):
                if len(block.get(name, "")) == len("call_") + 32:
                    block[name] = "d3a6c5f6"
    assert found == written


def test_without_tools_steps_of_other_apis_are_texts() -> None:
    calls = {"id": "c", "function": {"name": "n", "arguments": "{}"}}
    tail = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [calls]},
        {"role": "tool", "tool_call_id": "c", "content": "x"},
        0,
    ]
    assert write([R], tail, tools=[])["messages"] == [
        Q,
        said("assistant", text("[tool call: n {}]")),
        said("user", text("[tool result]"), text("x")),
        R,
    ]


# ── what would be refused ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("messages", "tail"),
    [
        ([R], [CALLS, 0]),
        ([R], [Q, CALLS, said("user", result("c1")), 0]),
        ([R], [Q, said("user", result("c1")), 0]),
        ([Q, CALLS, RESULTS], [0, 1, 2, 4]),
        ([Q, CALLS, RESULTS], [0, 2, 3, 4]),
    ],
)
def test_a_broken_step_of_ours_is_not_sent(messages: list[Any], tail: list[Any]) -> None:
    with pytest.raises(BrokenPrompt):
        write(messages, tail)


@pytest.mark.parametrize(
    ("messages", "tail"),
    [
        ([Q, said("user", result("c9")), A, R], [1, 2, 3]),
        ([Q, CALLS], [0, 1]),
        ([Q, CALLS, R], [0, 1, 2]),
        ([Q, A, CALLS, R], [2, 3]),
    ],
)
def test_what_the_client_breaks_itself_is_sent(messages: list[Any], tail: list[int]) -> None:
    written = write(messages, tail)["messages"]
    assert written[-len(tail) :] == [messages[index] for index in tail]


def test_stored_steps_are_texts_where_the_request_has_no_tools() -> None:
    """A server demands tools beside calls."""
    request = MESSAGES.parse_request(b'{"messages":[{"role":"user","content":"and now?"}]}')
    raws = [
        orjson.dumps(said("assistant", THOUGHT, call("c"))),
        orjson.dumps(said("user", result("c"))),
    ]
    pieces = [
        Piece(raws[0], "assistant", ("c",), None, 1, 1, -1, api="messages"),
        Piece(raws[1], "tool", (), "c", 1, 2, -1, api="messages"),
        Piece(request.messages[0], "user", (), None, 1, 3, 0),
    ]
    body = MESSAGES.rewrite_body(request, "", "hint", pieces, "blocks")
    assert b"tool_use" not in body
    assert b"tool_result" not in body
    assert b"signature" not in body
    assert [message["role"] for message in orjson.loads(body)["messages"]] == [
        "user",
        "assistant",
        "user",
        "user",
    ]
