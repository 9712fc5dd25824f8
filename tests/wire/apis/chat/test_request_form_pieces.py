"""Blocks of thought that came in pieces."""

from __future__ import annotations

from typing import Any

import pytest

from om_proxy.wire.apis.chat.request_form import join_pieces

MANY = 20_000


def text(text: str | None = None, index: int | None = 0, **more: Any) -> dict[str, Any]:
    named = {"type": "reasoning.text"} | ({} if index is None else {"index": index})
    return named | ({} if text is None else {"text": text}) | more


@pytest.mark.parametrize(
    ("pieces", "blocks"),
    [
        pytest.param([], [], id="none"),
        pytest.param(
            [text("I "), text("see."), text(signature="S")],
            [text("I see.", signature="S")],
            id="the signature comes last",
        ),
        pytest.param(
            [text("a", signature=None), text("b", format="f"), text("", signature="S")],
            [text("ab", signature="S", format="f")],
            id="null and empty members",
        ),
        pytest.param(
            [text("a"), text("x", 1), text("b"), text("y", 1)],
            [text("ab"), text("xy", 1)],
            id="two blocks at once",
        ),
        pytest.param(
            [text("a", signature="S"), text("b"), text(signature="T")],
            [text("a", signature="S"), text("b", signature="T")],
            id="an index that comes again behind a signature",
        ),
        pytest.param(
            [text("a", None), text("b", None), {"type": "reasoning.summary", "summary": "s"}],
            [text("ab", None), {"type": "reasoning.summary", "summary": "s"}],
            id="without an index",
        ),
        pytest.param(
            [text("a", None, signature="S"), text("b", None, signature="T")],
            [text("a", None, signature="S"), text("b", None, signature="T")],
            id="signed blocks without an index",
        ),
        pytest.param(
            [text("a", None), {"type": "redacted"}, text("b", None)],
            [text("a", None), {"type": "redacted"}, text("b", None)],
            id="another block between",
        ),
        pytest.param(
            [text("a", id="1"), text("b", id="2")],
            [text("a", id="1"), text("b", id="2")],
            id="two ids",
        ),
        pytest.param(
            [
                {"type": "reasoning.encrypted", "index": 0, "data": "QU", "id": "r"},
                {"type": "reasoning.encrypted", "index": 0, "data": "JD"},
                {"type": "reasoning.encrypted", "data": "QU"},
                {"type": "reasoning.encrypted", "data": "JD"},
            ],
            [
                {"type": "reasoning.encrypted", "index": 0, "data": "QUJD", "id": "r"},
                {"type": "reasoning.encrypted", "data": "QU"},
                {"type": "reasoning.encrypted", "data": "JD"},
            ],
            id="encrypted",
        ),
        pytest.param(
            [
                {"type": "thinking", "thinking": [{"type": "text", "text": "I "}]},
                {"type": "thinking", "thinking": [{"type": "text", "text": "see"}]},
                {"type": "thinking", "thinking": "."},
            ],
            [{"type": "thinking", "thinking": [{"type": "text", "text": "I see."}]}],
            id="lists of texts",
        ),
        pytest.param(
            [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, 5, None],
            [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, 5, None],
            id="texts of a content, and no blocks at all",
        ),
        pytest.param(
            [{"type": "text", "index": 1, "text": "a"}, {"type": "text", "index": 1, "text": "b"}],
            [{"type": "text", "index": 1, "text": "ab"}],
            id="texts of one index",
        ),
        pytest.param(
            [{"type": ["x"], "index": {}}, {"type": ["x"], "index": {}, "text": 5}],
            [{"type": ["x"], "index": {}, "text": 5}],
            id="odd values",
        ),
    ],
)
def test_pieces_make_blocks(pieces: list[Any], blocks: list[Any]) -> None:
    """A piece belongs to the block of its type and index, and joined blocks stay as they are."""
    assert join_pieces(pieces) == blocks
    assert join_pieces(blocks) == blocks


def test_many_pieces_are_joined_once() -> None:
    """A thought of any length is one text."""
    (block,) = join_pieces([text("a")] * MANY)
    assert block == text("a" * MANY)
