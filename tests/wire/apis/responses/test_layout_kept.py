"""Which covered items stay in the prompt."""

from __future__ import annotations

import pytest

from om_proxy.wire.apis.responses.items import get_units
from om_proxy.wire.apis.responses.layout import (
    MAX_KEPT_INSTRUCTIONS,
    MAX_KEPT_SEARCHES,
    list_kept,
    list_loaded,
)
from om_proxy.wire.apis.responses.responses_api import RESPONSES
from tests.wire.apis.responses.samples import (
    Item,
    answered,
    called,
    read,
    reasoned,
    said,
    write_unit,
)


def keep(items: list[Item], covered: int) -> list[bytes]:
    units = get_units(read([said("begin"), *items]))
    return list_kept(units, set(range(covered + 1, len(units))))


def load(items: list[Item], covered: int) -> list[bytes]:
    units = get_units(read([said("begin"), *items]))
    return list_loaded(units, set(range(covered + 1, len(units))))


def write(items: list[Item]) -> list[bytes]:
    return [write_unit(item)[1:-1] for item in items]


OFFER = {"type": "additional_tools", "tools": [{"name": "g"}]}
UPDATE = {"type": "configuration_update", "x": 1}


@pytest.mark.parametrize(
    ("items", "covered", "kept"),
    [
        ([said("a", "developer"), said("b"), said("c", "system"), said("d")], 2, ["a"]),
        ([said("a", "developer"), said("b"), said("c", "system"), said("d")], 3, ["a", "c"]),
        # of equal texts the newest, digits aside
        (
            [said("it is 10:15", "system"), said("x", "system"), said("it is 11:20", "system")],
            3,
            ["x", "it is 11:20"],
        ),
        ([said("a", "system"), said("a", "developer")], 2, ["a", "a"]),
        ([{**said("a", "system"), "clear_at": "next_user_message"}, said("b")], 2, []),
        ([said("a"), called("c"), answered("c")], 3, []),
    ],
)
def test_instructions_are_kept(items: list[Item], covered: int, kept: list[str]) -> None:
    expected = [
        raw for raw, item in zip(write(items), items, strict=True) if item.get("content") in kept
    ]
    assert keep(items, covered) == expected


def test_few_instructions_are_kept() -> None:
    items = [said(chr(0x4E00 + number), "system") for number in range(40)]
    assert keep(items, 40) == write(items)[-MAX_KEPT_INSTRUCTIONS:]


def test_offers_are_kept_once() -> None:
    items = [OFFER, said("a"), UPDATE, OFFER, said("b"), UPDATE]
    assert keep(items, 1) == write([OFFER, UPDATE])
    assert keep(items[:2], 0) == write([OFFER])


def search(number: int, *names: str) -> list[Item]:
    tools = [{"type": "function", "name": name} for name in names]
    call_id = f"search_{number}"
    output = {"type": "tool_search_output", "call_id": call_id, "tools": tools}
    return [reasoned(number), called(call_id, "tool_search_call"), output]


def test_loaded_tools_stay_with_their_step() -> None:
    """The whole step, with all results of its calls."""
    step = [*search(1, "f")[:2], called("c"), answered("c"), search(1, "f")[2]]
    assert load([*step, said("more")], 4) == write(step)
    # the tail shows a part, or all of it
    assert load([*step, said("more")], 1) == []
    assert load([*step, said("more")], 0) == []
    # a result is missing
    assert load([*step[:3], step[4], said("more")], 3) == []


def test_for_each_tool_the_newest_is_kept() -> None:
    items = [*search(1, "f"), *search(2, "g"), said("a"), *search(3, "f"), said("b")]
    assert load(items, 8) == write([*search(2, "g"), *search(3, "f")])


def test_few_searches_are_kept() -> None:
    items = [item for number in range(20) for item in search(number, f"f{number}")]
    assert load(items, 40) == write(items[-3 * MAX_KEPT_SEARCHES :])


def test_a_search_of_the_server_stays_with_its_step() -> None:
    tools = [{"name": "f"}]
    step = [
        called("t", "tool_search_call", execution="server"),
        {"type": "tool_search_output", "execution": "server", "tools": tools},
        said("yes", "assistant"),
    ]
    assert load([*step, said("more")], 1) == write(step)


def test_texts_about_tools_load_none() -> None:
    items = [said("tool_search_output"), called("c", x="tool_search_output"), answered("c")]
    assert load([*items, said("more")], 3) == []


def test_numbers_beyond_bounds_keep_items_where_they_are() -> None:
    """A strict parser refuses them, and the client may send them."""
    step = search(1, "f")
    body = read(
        [said("begin"), {**said("a", "system"), "clear_at": 7, "n": 7}, *step, said("more")]
    )
    odd = RESPONSES.parse_request(
        body.body.replace(b'"n":7', b'"n":1e999').replace(b'"f"}', b'"f","n":1e999}')
    )
    units = get_units(odd)
    assert len(list_kept(units, {4})) == 1
    assert len(list_loaded(units, {4})) == len(step)
