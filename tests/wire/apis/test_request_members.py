"""Members of a request's body are replaced, and every other byte stays."""

from __future__ import annotations

import pytest

from om_proxy.wire.apis.registry import CHAT
from om_proxy.wire.apis.request_members import join_list, replace_members


@pytest.mark.parametrize(
    ("body", "values", "written"),
    [
        (b'{ "a" : 1E2,"messages":[] , "b":2}', {"b": b"3"}, b'{ "a" : 1E2,"messages":[] , "b":3}'),
        (b'{"b":2,"messages": []}', {"messages": b"[1]", "b": b"3"}, b'{"b":3,"messages": [1]}'),
        (b'{"a":1.50, "messages":[]}', {"b": b"3"}, b'{"a":1.50, "messages":[],"b":3}'),
        (
            b'{"a":1, "messages":[] } ',
            {"messages": b"[1]", "b": b"3"},
            b'{"a":1, "messages":[1] ,"b":3} ',
        ),
        (b'{"b":2, "messages":[],"c":4}', {"b": None, "c": b"5"}, b'{"messages":[],"c":5}'),
        (b'{"messages":[], "b":2}', {"absent": None}, b'{"messages":[], "b":2}'),
        (b'{"b":1,"messages":[],"b":2}', {"messages": b"[3]"}, b'{"b":2,"messages":[3]}'),
    ],
)
def test_members_are_replaced(body: bytes, values: dict[str, bytes | None], written: bytes) -> None:
    assert replace_members(CHAT.parse_request(body), values) == written


@pytest.mark.parametrize(
    ("raws", "joined"), [([], b"[]"), ([b"1"], b"[1]"), ([b"1", b"2"], b"[1,2]")]
)
def test_a_list_is_joined(raws: list[bytes], joined: bytes) -> None:
    assert join_list(raws) == joined
