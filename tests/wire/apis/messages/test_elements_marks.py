"""Cache marks: found wherever a block may carry one, and removed as if they had never been there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from om_proxy.wire.apis.messages.elements import list_marks, remove_marks

MARK = {"type": "ephemeral"}


def write(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


TEXT = {"type": "text", "text": "a"}


def marked(block: dict[str, Any], **mark: str) -> dict[str, Any]:
    return block | {"cache_control": MARK | mark}


def first(block: dict[str, Any]) -> dict[str, Any]:
    return {"cache_control": MARK} | block


RESULT = {"type": "tool_result", "tool_use_id": "c", "content": [TEXT, marked(TEXT), TEXT]}
BARE_RESULT = RESULT | {"content": [TEXT, TEXT, TEXT]}
DOCUMENT = {"type": "document", "source": {"type": "content", "content": [marked(TEXT)]}}
BARE_DOCUMENT = {"type": "document", "source": {"type": "content", "content": [TEXT]}}


@pytest.mark.parametrize(
    ("block", "bare", "count"),
    [
        (TEXT, TEXT, 0),
        (marked(TEXT), TEXT, 1),
        (first(TEXT), TEXT, 1),
        ({"type": "text", "cache_control": MARK, "text": "a"}, TEXT, 1),
        (marked(RESULT), BARE_RESULT, 2),
        (DOCUMENT, BARE_DOCUMENT, 1),
        ({"cache_control": MARK}, {}, 1),
        ({"type": "tool_use", "input": marked({"x": 1})}, None, 0),
        ({"type": "text", "text": '"cache_control":{}'}, None, 0),
        (TEXT | {"cache_control": None}, TEXT, 0),
    ],
)
def test_a_block_without_its_marks(
    block: dict[str, Any], bare: dict[str, Any] | None, count: int
) -> None:
    """It has the bytes that a client writes which marks nothing; a word in a text or in arguments is
    no mark."""
    raw = write(block)
    assert remove_marks(raw) == write(block if bare is None else bare)
    assert len(list(list_marks(raw))) == count


def test_marks_are_listed_in_order() -> None:
    element = {"content": [TEXT, marked(RESULT, ttl="1h"), marked(TEXT, ttl="5m")]}
    marks = [json.loads(raw).get("ttl") for raw in list_marks(json.dumps(element).encode())]
    assert marks == [None, "1h", "5m"]


@pytest.mark.parametrize(
    "raw",
    [
        b'"cache_control"',
        b'{"cache_control"',
        b'["cache_control"]',
        b'{"content":"cache_control","source":["cache_control"]}',
        b'{"content":[1,["cache_control"]]}',
    ],
)
def test_odd_values_stay(raw: bytes) -> None:
    assert remove_marks(raw) == raw
    assert list(list_marks(raw)) == []


def test_a_mark_that_is_sent_twice_is_removed() -> None:
    raw = b'{"cache_control":{},"type":"text","cache_control":{"x":1},"text":"a"}'
    assert json.loads(remove_marks(raw)) == TEXT


def test_deep_nesting_is_left_alone() -> None:
    """Blocks hold blocks three levels deep; what is deeper is no model's."""
    raw = b'{"content":[' * 500 + b'{"cache_control":{}}' + b"]}" * 500
    assert remove_marks(raw) == raw
    assert list(list_marks(raw)) == []


def test_a_block_without_marks_keeps_its_bytes() -> None:
    raw = b'{ "type":"tool_use", "input" : {"cache_control":{"x":1E2}}, "content":[ 1 ] }'
    assert remove_marks(raw) == raw
