"""Where the units of an `input` begin."""

from __future__ import annotations

import json

import pytest

from om_proxy.wire.apis.api import Unreadable
from om_proxy.wire.apis.responses.items import (
    count_leading,
    drop_marks,
    find_places,
    read_head,
    read_unit,
)
from tests.wire.apis.responses.samples import Item, answered, called, reasoned, said

CONTAINER = {"environment": {"type": "container_reference", "container_id": "c"}}
LOCAL = {"environment": {"type": "local"}}
OFFER = {"type": "additional_tools", "tools": []}


def write(items: list[Item]) -> list[bytes]:
    return [json.dumps(item).encode() for item in items]


@pytest.mark.parametrize(
    ("items", "starts"),
    [
        ([said("a"), said("b")], [0, 1]),
        ([reasoned(), said("a", "assistant"), called("c"), answered("c")], [0, 3]),
        ([called("c"), called("d"), answered("c"), answered("d"), called("e")], [0, 2, 3, 4]),
        ([said("a"), {"type": "web_search_call", "id": "w"}, said("b", "assistant")], [0, 1]),
        ([{"type": "unheard_of"}, {}, said("a", "stranger")], [0, 2]),
        # what the server ran belongs to the step
        ([called("s", "shell_call", **CONTAINER), answered("s", "shell_call_output")], [0]),
        ([called("s", "shell_call", **LOCAL), answered("s", "shell_call_output")], [0, 1]),
        (
            [
                called("t", "tool_search_call", execution="server"),
                answered("t", "tool_search_output", execution="server"),
                called("c"),
            ],
            [0],
        ),
        ([called("t", "tool_search_call"), answered("t", "tool_search_output")], [0, 1]),
        ([answered("c"), {"type": "program_output"}, said("a", "assistant")], [0, 1]),
        # of another step, it is the client's
        ([called("s", "shell_call", **CONTAINER), said("a"), answered("s")], [0, 1, 2]),
        ([{"type": "mcp_approval_request", "id": "r"}, {"type": "mcp_approval_response"}], [0, 1]),
        # an offer is no unit, and ends no step
        ([reasoned(), OFFER, called("c"), OFFER, answered("c")], [0, 4]),
        ([{"type": "configuration_update"}], []),
    ],
)
def test_units_begin(items: list[Item], starts: list[int]) -> None:
    places = find_places(write(items))
    assert places is not None
    assert list(places.starts) == starts


@pytest.mark.parametrize("length", range(1, 8))
def test_units_behind_a_known_one(length: int) -> None:
    """They begin where they begin in the whole, or the first new item goes on with the known."""
    whole = [said("a"), reasoned(), called("c"), answered("c"), OFFER, called("d"), answered("d")]
    raws = write(whole)
    starts = [0, 1, 3, 5, 6]
    known = [start for start in starts if start < length]
    later = find_places(raws[length:], raws[known[-1] : length])
    goes_on = length == 2
    assert (later is None) == goes_on
    if later is not None:
        assert [length + start for start in later.starts] == starts[len(known) :]
        assert [length + place for place in later.marked] == ([4] if length <= 4 else [])


@pytest.mark.parametrize(
    ("items", "count"),
    [
        ([said("a", "system"), OFFER, said("b", "developer"), said("c"), said("d", "system")], 3),
        ([said("a")], 0),
        ([], 0),
        ([said("a", "system")], 1),
        ([called("c")], 0),
    ],
)
def test_instructions_lead(items: list[Item], count: int) -> None:
    assert count_leading(write(items)) == count


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b'{"role":"user"}', "message"),
        (b'{"type":null,"role":"user"}', "message"),
        (b'{"type":7,"role":"user","environment":7}', "message"),
        (b'{"type":"x","environment":{"type":7},"n":1e999}', "x"),
        (b"{}", ""),
    ],
)
def test_odd_items_have_a_kind(raw: bytes, kind: str) -> None:
    assert read_head(raw).kind == kind


@pytest.mark.parametrize("raw", [b"7", b'"x"', b"[]", b"null", b"", b"\xff"])
def test_no_item(raw: bytes) -> None:
    with pytest.raises(Unreadable):
        read_head(raw)


MARK = '"prompt_cache_breakpoint": {"mode": "explicit"}'


@pytest.mark.parametrize(
    ("marked", "unmarked"),
    [
        ('{"a": 1.50, %s}', '{"a": 1.50}'),
        ('{%s, "a": 1}', '{"a": 1}'),
        (
            '{"content": [{"text": "x", %s}, {"text": "y"}]}',
            '{"content": [{"text": "x"}, {"text": "y"}]}',
        ),
        ("{%s}", "{}"),
        ('{"tools": [{%s}]}', None),
    ],
)
def test_marks_leave_no_trace(marked: str, unmarked: str | None) -> None:
    """A moving mark changes no digest. A tool's property may have the name of a mark."""
    raw = marked % MARK
    assert drop_marks(raw.encode()).decode() == (raw if unmarked is None else unmarked)


def test_texts_about_marks_stay() -> None:
    raw = json.dumps(said('the key "cache_control": {"type": "x"}, and so on')).encode()
    assert drop_marks(raw) == raw


def test_a_unit_is_the_list_of_its_items() -> None:
    """Offers are none of its items, and a text is the user's message."""
    raws = [b'{"type": "reasoning"}', json.dumps(OFFER).encode(), b'{"type":"x_call"}']
    assert read_unit(raws) == b'[{"type": "reasoning"},{"type":"x_call"}]'
    assert read_unit([b'"caf\\u00e9"']) == b'[{"role":"user","content":"caf\\u00e9"}]'
