"""What a body may make us do is bounded: values to be split, half characters to be mended."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.chat import LARGE, MOST, Unreadable, parse
from proxy.wire.surrogates import MOST as MOST_HALVES
from proxy.wire.surrogates import without_halves

PIECES = ("\\ud83d", "\\ude00", "\\uDBff", "\\\\", "\\n", "\\u00e9", "x", "\\uD83D\\uDE00", "é", "d83d")


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_halves(text: str) -> None:
    """Python reads halves as they are: what is mended reads the same but for them."""
    written = f'"{text}"'
    mended = without_halves(written.encode())
    read = json.loads(written)
    whole = "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in read)
    assert json.loads(mended or written) == whole
    assert (mended is not None) == (read != whole)
    assert mended is None or len(mended) == len(written.encode())


def test_halves_without_end() -> None:
    """More than anyone means are not mended."""
    few, many = (b'"' + b"\\ud83d" * count + b'"' for count in (MOST_HALVES, MOST_HALVES + 1))
    assert without_halves(few) == b'"' + b"\\ufffd" * MOST_HALVES + b'"'
    assert without_halves(many) is None


@pytest.mark.parametrize("value", [b"0", b"{}", b"[]", b'{"role":"user","content":"x"}'])
def test_values_without_end(value: bytes) -> None:
    """Messages by the million are no request; a large body with few is one."""
    many = max(MOST, LARGE // (len(value) + 1)) + 1
    with pytest.raises(Unreadable, match="more JSON values"):
        parse(b'{"messages":[' + b",".join([value] * many) + b"]}")
    assert len(parse(b'{"messages":[' + value + b',"' + b"x" * LARGE + b'"]}').messages) == 2


def test_tables_are_texts() -> None:
    """Commas and brackets inside of texts are no values, whatever their number: long histories hold data."""
    table = json.dumps({"role": "tool", "content": '{"a": [1, 2, 3]}, "b\\"' * 200_000}).encode()
    body = b'{"messages":[' + table + b"," + table + b"]}"
    assert body.count(b",") > MOST
    assert len(parse(body).messages) == 2


def test_values_inside_a_message() -> None:
    """They count as well: each message is read some time."""
    with pytest.raises(Unreadable, match="more JSON values"):
        parse(b'{"messages":[{"role":"user","content":[' + b",".join([b"{}"] * LARGE) + b"]}]}")


@pytest.mark.parametrize(
    "body", [b"[" * LARGE, b'{"messages":' + b"[" * LARGE, b'{"a":' * 100_000, b'{"messages":[' + b'{"a":' * 100_000]
)
def test_depth_without_end(body: bytes) -> None:
    """Nested as deep as a body is long."""
    with pytest.raises(Unreadable):
        parse(body)
