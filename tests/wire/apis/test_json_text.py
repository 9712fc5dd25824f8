"""Where a member stands in the text of its object."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from om_proxy.wire.apis.json_text import find_value_span
from tests.support.weighing import measure_peak_bytes

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def members(text: bytes) -> dict[str, Raw]:
    return msgspec.json.decode(text, type=dict[str, Raw])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"x":1}', b"1"),
        (b' {\n"x" :\t1.50 \r\n} ', b"1.50"),
        (b'{"a":{"x":2},"x":[1, 2],"b":"}"}', b"[1, 2]"),
        (b'{"\\u0078":"\\"x\\":1"}', b'"\\"x\\":1"'),
        (b'{"\\"x\\":":",\\"x\\":1","x":{}}', b"{}"),
        (b'{"\\\\":1,"x":2}', b"2"),
        ('{"ключ":"é","x":"€"}'.encode(), '"€"'.encode()),
    ],
)
def test_place(text: bytes, value: bytes) -> None:
    """Its value's text, whatever the names and values around it look like."""
    place = find_value_span("x", members(text), text)
    assert place is not None
    assert text[place] == value


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1}',
        b"{}",
        b'{"x":1,"x":2}',
        b'{"a":1,"x":1,"a":1}',
        b'{"a":1,"x":1,"\\u0061":1}',
        b'{"x":[1],"a":2,"x":[2]}',
    ],
)
def test_no_place(text: bytes) -> None:
    """None that is not there, and none of an object that says something twice."""
    assert find_value_span("x", members(text), text) is None


@given(
    st.dictionaries(st.text(), VALUES, max_size=5),
    VALUES,
    st.booleans(),
    st.sampled_from([None, 1, "\t"]),
)
def test_any_object(
    around: dict[str, Any], value: Any, ascii_: bool, indent: int | str | None
) -> None:
    """However an object is written, the value alone is found."""
    text = json.dumps({**around, "x": value}, ensure_ascii=ascii_, indent=indent).encode(
        "utf-8", "replace"
    )
    try:
        place = find_value_span("x", members(text), text)
    except msgspec.DecodeError:
        return  # half a character
    if place is None:  # two names that were told apart by half a character only
        assert not ascii_
        return
    assert json.loads(text[place]) == json.loads(
        json.dumps({**around, "x": value}["x"], ensure_ascii=ascii_).encode("utf-8", "replace")
    )


def test_a_name_without_end() -> None:
    """An escape in a name takes no memory: matched one by one, each with a way back, they took
    seventy bytes a byte."""
    text = b'{"' + b"\\n" * 200_000 + b'":1,"x":2}'
    around = members(text)
    assert find_value_span("x", around, text) == slice(len(text) - 2, len(text) - 1)
    assert measure_peak_bytes(lambda: find_value_span("x", around, text)) < 4 * len(text)
