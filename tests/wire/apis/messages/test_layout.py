"""Bodies written again: memory's texts in `system`, the tail in `messages`, every other byte as it
came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from om_proxy.memory.prompt.context import Layout
from om_proxy.memory.prompt.tail import Piece
from om_proxy.wire.apis.api import BrokenPrompt
from om_proxy.wire.apis.messages.messages_api import MESSAGES
from om_proxy.wire.apis.registry import CHAT

KEY = b"k" * 32
MARK = {"cache_control": {"type": "ephemeral"}}
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
HINT = {"role": "user", "content": "H"}


def text(words: str, **members: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **members}


def said(role: str, *blocks: Any) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def call(call_id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "n", "input": {}}


def result(call_id: str, **members: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "x", **members}


Q, A, R = said("user", text("q")), said("assistant", text("a")), said("user", text("r"))
CALLS = said("assistant", text("I look."), call("c1"), call("c2"))
RESULTS = said("user", result("c1"), result("c2"), text("and?"))


def stored(message: dict[str, Any]) -> Piece:
    """A piece from the store: of this API, or a chat message."""
    raw = orjson.dumps(message)
    is_ours = isinstance(message["content"], list) and "tool_calls" not in message
    item = (MESSAGES if is_ours else CHAT).read_item(raw, KEY)
    return Piece(raw, item.role, item.calls, item.answers, 1, 1, -1, api=item.api)


def write(
    messages: Sequence[dict[str, Any]],
    tail: Sequence[int | dict[str, Any]],
    *,
    block: str = "B",
    hint: str = "H",
    layout: Layout = "blocks",
    **members: Any,
) -> dict[str, Any]:
    """Write a body. `tail`: units of the request by their number, and stored messages."""
    members = {"model": "m", "tools": [{"name": "n"}], **members}
    request = MESSAGES.parse_request(orjson.dumps({**members, "messages": messages}))
    items = [MESSAGES.read_item(raw, KEY) for raw in request.messages]
    pieces = [
        Piece(items[part].raw, items[part].role, items[part].calls, items[part].answers, 1, 1, part)
        if isinstance(part, int)
        else stored(part)
        for part in tail
    ]
    written: dict[str, Any] = orjson.loads(
        MESSAGES.rewrite_body(request, block, hint, pieces, layout)
    )
    return written


# ── system ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("layout", "system", "written"),
    [
        ("blocks", "be kind", [text("be kind"), text("B\n\nH")]),
        ("blocks", [text("be kind", **MARK)], [text("be kind", **MARK), text("B\n\nH", **MARK)]),
        ("blocks", None, [text("B\n\nH")]),
        ("blocks", "", [text("B\n\nH")]),
        ("blocks", [], [text("B\n\nH")]),
        ("merged", "be kind", "be kind\n\nB\n\nH"),
        ("merged", [text("be kind")], [text("be kind"), text("B\n\nH")]),
        ("merged", None, "B\n\nH"),
        ("user", "be kind", "be kind\n\nB\n\nH"),
    ],
)
def test_the_texts_are_behind_system(layout: Layout, system: Any, written: Any) -> None:
    assert write([Q, A, R], [2], layout=layout, system=system)["system"] == written


def test_an_absent_system_is_added_last() -> None:
    request = MESSAGES.parse_request(b'{ "messages" : [{"role":"user","content":"q"}], "x": 1E2 }')
    piece = Piece(b"", "user", (), None, 1, 1, 0)
    body = MESSAGES.rewrite_body(request, 'a "b"', "", [piece], "blocks")
    added = rb',"system":[{"type":"text","text":"a \"b\""}]'
    assert body == request.body[:-1] + added + b"}"


def test_without_texts_system_stays() -> None:
    assert write([Q, A, R], [0, 1, 2], block="", hint="", system="be kind") == {
        "model": "m",
        "tools": [{"name": "n"}],
        "system": "be kind",
        "messages": [Q, A, R],
    }


@pytest.mark.parametrize("layout", ["blocks", "merged"])
def test_the_hint_is_the_users_where_the_tail_begins_with_the_model(layout: Layout) -> None:
    written = write([Q, A, R], [1, 2], layout=layout, system=[])
    assert written["messages"] == [HINT, A, R]
    assert written["system"] in ("B", [text("B")])


def test_a_system_that_no_server_takes() -> None:
    with pytest.raises(BrokenPrompt):
        write([Q], [0], system={"x": 1})


# ── marks ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("members", "messages", "mark"),
    [
        ({}, [Q], {}),
        ({"system": [text("s", **HOUR)]}, [Q], HOUR),
        ({"tools": [{"name": "n", **HOUR}], "system": "s"}, [Q], HOUR),
        ({"tools": [HOUR], "system": [text("s", **MARK)]}, [Q], MARK),
        ({}, [said("user", text("q", **HOUR))], HOUR),
        ({}, [said("user", text("p", **HOUR), text("q", **MARK))], HOUR),
        ({"cache_control": HOUR["cache_control"]}, [Q], HOUR),
        ({"cache_control": None}, [Q], {}),
        ({"tools": [MARK], "system": [text("s", **MARK)]}, [said("user", text("q", **MARK))], MARK),
        ({"tools": [MARK, MARK], "system": [text("s", **MARK)], **MARK}, [Q], {}),
        ({"tools": [{"name": "n", "input_schema": {"properties": MARK}}]}, [Q], {}),
        ({"tools": 7, "system": [text("s", cache_control=7)]}, [Q], MARK),
    ],
)
def test_our_block_is_marked_where_the_client_marks_anything(
    members: dict[str, Any], messages: list[Any], mark: dict[str, Any]
) -> None:
    """And has a mark left of four. It lasts as long as the one before it, else the one behind."""
    system = write(messages, [0], **members)["system"]
    assert system[-1] == text("B\n\nH", **mark)


def test_marks_of_what_is_left_out_do_not_count() -> None:
    marked = said("user", text("q", **MARK))
    system = write([marked, A, marked, A, marked, A, marked], [6])["system"]
    assert system == [text("B\n\nH", **MARK)]


def test_the_first_message_is_the_users() -> None:
    with pytest.raises(BrokenPrompt):
        write([Q, A, R], [1, 2], hint="")
    assert write([A, R], [0, 1], hint="")["messages"] == [A, R]
