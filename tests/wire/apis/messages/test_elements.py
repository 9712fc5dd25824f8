"""Messages cut into units: a result each, and what else a user says."""

from __future__ import annotations

from array import array
from typing import Any
from unittest.mock import patch

import orjson
import pytest

from om_proxy.wire.apis.api import Unreadable
from om_proxy.wire.apis.messages import elements
from om_proxy.wire.apis.messages.elements import ElementUnits, cut_element, find_starts, read_units
from om_proxy.wire.apis.split import NONE_MARKED

MARK = {"cache_control": {"type": "ephemeral"}}
A = {"type": "tool_result", "tool_use_id": "a", "content": "1"}
B = {"type": "tool_result", "tool_use_id": "b", "content": "2"}
TEXT = {"type": "text", "text": "so?"}
IMAGE = {"type": "image", "source": {"type": "url", "url": "https://a/b.png"}}
CALL = {"type": "tool_use", "id": "a", "name": "n", "input": {"type": "tool_result"}}


def said(role: str, content: Any) -> bytes:
    return orjson.dumps({"role": role, "content": content})


@pytest.mark.parametrize(
    ("element", "units"),
    [
        (said("user", "hi"), [said("user", [{"type": "text", "text": "hi"}])]),
        (said("user", [TEXT, IMAGE]), [said("user", [TEXT, IMAGE])]),
        (said("user", [A, B]), [said("user", [A]), said("user", [B])]),
        (said("user", [A, B, TEXT]), [said("user", [A]), said("user", [B]), said("user", [TEXT])]),
        (said("user", [TEXT, A, IMAGE]), [said("user", [A]), said("user", [TEXT, IMAGE])]),
        (said("user", [A | MARK, TEXT | MARK]), [said("user", [A]), said("user", [TEXT])]),
        (said("assistant", [TEXT, CALL]), [said("assistant", [TEXT, CALL])]),
        (said("system", "be kind"), [said("system", [{"type": "text", "text": "be kind"}])]),
        (said("user", []), [said("user", [])]),
        (said("user", None), [said("user", None)]),
        (said("user", {"type": "tool_result"}), [said("user", {"type": "tool_result"})]),
        (said("user", [1, A, "x"]), [said("user", [A]), said("user", [1, "x"])]),
        (b'{"content":"x","more":1}', [b'{"role":null,"content":[{"type":"text","text":"x"}]}']),
        (b"{}", [b"{}"]),
    ],
)
def test_the_units_of_an_element(element: bytes, units: list[bytes]) -> None:
    """Their stored bytes have no marks; a string is a block of text; what is odd stays."""
    assert find_starts([element]) == array("L", [0] * len(units))
    assert read_units(element) == units
    assert list(ElementUnits([element], find_starts([element]), NONE_MARKED)) == units


def test_blocks_keep_their_bytes() -> None:
    blocks = [b'{ "type":"tool_result", "tool_use_id":"\\u0061", "content":1E2 }', b'{"x":2.50}']
    element = b'{"role":"user", "content": [' + b" , ".join(blocks) + b"]}"
    assert cut_element(element) == [(blocks[0],), (blocks[1],)]


def test_units_begin_where_their_elements_do() -> None:
    raws = [said("user", "q"), said("assistant", [CALL]), said("user", [A, B, TEXT])]
    assert find_starts(raws) == array("L", [0, 1, 2, 2, 2])


def test_a_result_costs_the_same_among_thousands() -> None:
    """Each element is read once, not once for each of its units."""
    raw = said("user", [A] * 20_000)
    units = ElementUnits([raw], find_starts([raw]), NONE_MARKED)
    with patch.object(elements, "read_units", wraps=elements.read_units) as read:
        assert set(units) == {said("user", [A])}
    assert read.call_count == 1


@pytest.mark.parametrize("raw", [b"1", b'"tool_result"', b"[]", b"null"])
def test_what_is_no_object_is_no_message(raw: bytes) -> None:
    with pytest.raises(Unreadable):
        find_starts([raw])
