"""Values of an export are read back as they were."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.common.errors import UsageError
from om_proxy.management.memory_export import encode_value
from om_proxy.management.moving.value_decoding import ValueDecoder
from om_proxy.memory.model import Cell, Failures, View

texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=9)
cells = st.builds(Cell, texts, *([st.integers(0, 9)] * 4))


@given(st.binary(min_size=16, max_size=16), texts, st.lists(cells, max_size=2).map(tuple))
def test_any_value_comes_back(data: bytes, text: str, cells: tuple[Cell, ...]) -> None:
    for value in (
        View(count=1, digest=data, chain=data, seq=2, end=3, asked_at=0.0, cells=cells),
        Failures(3, 0.1 + 0.2, True, text),
    ):
        record = json.loads(msgspec.json.encode(encode_value(value)))
        decoder = ValueDecoder()
        assert decoder.build(type(value), record, "it") == value
        assert not decoder.unknown_fields


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (7, "it is not an object"),
        ({"count": True}, "it.count is not a int"),
        ({"count": 2**63}, "64 bits"),
        ({"retry_at": "1"}, "it.retry_at is not a float"),
        ({"suspended": 1}, "it.suspended is not a bool"),
        ({"cause": 5}, "it.cause is not a text"),
        ({"cause": {"base64": "?"}}, "valid base64"),
        ({"cause": {"base64": "/w=="}}, "UTF-8"),
    ],
)
def test_value_of_another_kind_names_its_place(record: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ValueDecoder().build(Failures, record, "it")


def test_missing_and_unknown_fields() -> None:
    """What is missing has its default; what must be there is asked for."""
    decoder = ValueDecoder()
    assert decoder.build(Failures, {"later": 1}, "it") == Failures()
    assert decoder.unknown_fields == {"it.later"}
    with pytest.raises(UsageError, match="it: "):
        decoder.build(View, {}, "it")
    with pytest.raises(UsageError, match="a list"):
        decoder.build(View, {"cells": 5}, "it")
