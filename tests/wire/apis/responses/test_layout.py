"""The rewritten body: order, bytes and invariants."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory.prompt.context import Layout
from om_proxy.memory.prompt.tail import Piece
from om_proxy.wire.apis.api import Request
from om_proxy.wire.apis.responses.items import read_head
from om_proxy.wire.apis.responses.reading import read_chat_message
from om_proxy.wire.apis.responses.responses_api import RESPONSES
from tests.wire.apis.responses.samples import (
    Item,
    answered,
    called,
    list_pieces,
    read,
    read_input,
    said,
    store,
    write_unit,
)

TALK = [said("one"), said("two", "assistant"), said("three")]
ODD = {"role": "developer", "content": 7}
BLOCK, HINT = said("block", "developer"), said("hint")


def rewrite(
    request: Request,
    tail: list[Piece],
    layout: Layout = "blocks",
    block: str = "block",
    hint: str = "hint",
) -> bytes:
    return RESPONSES.rewrite_body(request, block, hint, tail, layout)


def test_blocks_stand_between_instructions_and_tail() -> None:
    request = read([said("be kind", "system"), *TALK])
    body = rewrite(request, list_pieces(request, 2))
    system = said("block", "system")
    assert read_input(body) == [said("be kind", "system"), system, HINT, TALK[2]]
    assert read_input(rewrite(request, list_pieces(request, 1)))[2:] == [HINT, *TALK[1:]]


@pytest.mark.parametrize("member", [None, "be kind"])
def test_without_leading_items_the_block_is_the_developers(member: str | None) -> None:
    request = read(TALK, instructions=member)
    body = rewrite(request, list_pieces(request, 2))
    assert read_input(body) == [BLOCK, HINT, TALK[2]]
    assert json.loads(body)["instructions"] == member


@pytest.mark.parametrize(
    ("items", "member", "leading", "instructions"),
    [
        (TALK, "be kind", [], "be kind\n\nblock\n\nhint"),
        (TALK, None, [], "block\n\nhint"),
        (
            [said("x", "system"), *TALK],
            "be kind",
            [said("x", "system")],
            "be kind\n\nblock\n\nhint",
        ),
        ([said("x", "system"), *TALK], None, [said("x\n\nblock\n\nhint", "system")], None),
        (
            [{"role": "developer", "content": [{"type": "input_text", "text": "x"}]}, *TALK],
            "",
            [
                {
                    "role": "developer",
                    "content": [
                        {"type": "input_text", "text": "x"},
                        {"type": "input_text", "text": "block\n\nhint"},
                    ],
                }
            ],
            "",
        ),
        # a content that takes no text
        ([ODD, *TALK], None, [ODD, said("block\n\nhint", "developer")], None),
    ],
)
def test_merged_texts_end_the_instructions(
    items: list[Item], member: str | None, leading: list[Item], instructions: str | None
) -> None:
    request = read(items, **({} if member is None else {"instructions": member}))
    body = rewrite(request, list_pieces(request, 2), "merged")
    assert read_input(body) == [*leading, TALK[2]]
    assert json.loads(body).get("instructions") == instructions


def test_instructions_that_are_no_text_stay() -> None:
    request = read(TALK, instructions=[said("x", "system")])
    body = rewrite(request, list_pieces(request, 2), "merged")
    assert json.loads(body)["instructions"] == [said("x", "system")]
    assert read_input(body) == [said("block\n\nhint", "developer"), TALK[2]]


def test_a_hint_stands_before_the_model() -> None:
    request = read(TALK, instructions="be kind")
    body = rewrite(request, list_pieces(request, 1), "merged")
    assert read_input(body) == [HINT, *TALK[1:]]
    assert json.loads(body)["instructions"] == "be kind\n\nblock"


def test_without_instructions_both_are_the_users() -> None:
    request = read(TALK)
    assert read_input(rewrite(request, list_pieces(request, 2), "user")) == [
        said("block\n\nhint"),
        TALK[2],
    ]


def test_all_is_in_order() -> None:
    """What leads, kept items, block, hint, loaded tools, tail."""
    search = [
        called("t", "tool_search_call"),
        {"type": "tool_search_output", "call_id": "t", "tools": [{"name": "f"}]},
    ]
    items = [said("lead", "developer"), said("one"), said("later", "system"), *search, said("two")]
    request = read(items)
    body = rewrite(request, list_pieces(request, 4))
    assert read_input(body) == [items[0], items[2], BLOCK, HINT, *search, items[-1]]


def test_stored_units_fill_the_tail() -> None:
    request = read([said("three")])
    chat = json.dumps({"role": "assistant", "content": "two"}).encode()
    tail = [*store(write_unit(said("one"))), *store(chat, api="chat"), *list_pieces(request)]
    assert read_input(rewrite(request, tail)) == [BLOCK, HINT, *TALK]


def test_a_text_stays_one_as_long_as_it_is_alone() -> None:
    request = RESPONSES.parse_request(b'{"input" : "caf\\u00e9"}')
    tail = list_pieces(request)
    assert rewrite(request, tail, block="", hint="") == request.body
    assert (
        rewrite(request, tail, "merged")
        == b'{"input" : "caf\\u00e9","instructions":"block\\n\\nhint"}'
    )
    assert b'{"role":"user","content":"caf\\u00e9"}]' in rewrite(request, tail)


def test_all_other_bytes_stay() -> None:
    """Also those of items in the tail, marks and offers included."""
    last = b'{ "type":"message", "role":"user", "content":[{"type":"input_text","text":"x","cache_control":{"type":"y"}}]}'
    offer = b'{"type": "additional_tools",  "tools":[]}'
    body = b'{ "store":  false,"input":[{"role":"user","content":"a"}, %s,%s ] , "seed": 1E2}' % (
        last,
        offer,
    )
    request = RESPONSES.parse_request(body)
    written = rewrite(request, list_pieces(request, 1))
    block, hint = (json.dumps(item, separators=(",", ":")).encode() for item in (BLOCK, HINT))
    items = b",".join((block, hint, last, offer))
    assert written == b'{ "store":  false,"input":[%s] , "seed": 1E2}' % items


# Random conversations: each item's step is whole, each call has its result.
@st.composite
def conversations(draw: Any) -> list[list[Item]]:
    """Turns, each as the units of a talk that may go on behind it."""
    turns = []
    for number in range(draw(st.integers(1, 5))):
        turn = [[said(f"question {number}")]]
        for call in range(draw(st.integers(0, 2))):
            name = f"call_{number}_{call}"
            kind = draw(st.sampled_from(["function", "custom_tool", "tool_search"]))
            step: list[Item] = [called(name, f"{kind}_call", id=f"fc_{name}")]
            if draw(st.booleans()):
                content = draw(st.sampled_from([{}, {"encrypted_content": "E"}]))
                step.insert(0, {"type": "reasoning", "id": f"rs_{name}", "summary": [], **content})
            names = [{"name": draw(st.sampled_from("fg"))}]
            result = {"tools": names} if kind == "tool_search" else {}
            turn += [
                step,
                [
                    answered(
                        name,
                        f"{kind}_call_output" if not result else "tool_search_output",
                        **result,
                    )
                ],
            ]
        if draw(st.booleans()):
            turn.append([said(f"rule {number}", draw(st.sampled_from(["system", "developer"])))])
        turn.append([{"role": "assistant", "id": f"msg_{number}", "content": f"answer {number}"}])
        turns.append(turn)
    return turns


def check(items: list[Item]) -> None:
    """What the model's server asks of an `input`."""
    ids = [item["id"] for item in items if "id" in item]
    assert len(ids) == len(set(ids))
    calls = [item["call_id"] for item in items if item["type_"] == "call"]
    assert len(calls) == len(set(calls))
    results = [item["call_id"] for item in items if item["type_"] == "result"]
    assert sorted(calls) == sorted(results)
    for place, item in enumerate(items):
        if item["type_"] == "result":
            before = items[:place]
            assert item["call_id"] in [i["call_id"] for i in before if i["type_"] == "call"]
        if item.get("type") == "reasoning":
            following = items[place + 1]
            assert following["type_"] == "call"
            assert following["id"].removeprefix("fc_") == item["id"].removeprefix("rs_")


def mark(items: list[Item]) -> Iterator[Item]:
    for item in items:
        head = read_head(json.dumps(item).encode())
        kind = "result" if head.is_result else "call" if head.kind.endswith("_call") else "other"
        yield {**item, "type_": kind}


@given(conversations(), st.data(), st.sampled_from(["blocks", "merged", "user"]))
def test_invariants(turns: list[list[list[Item]]], data: st.DataObject, layout: Layout) -> None:
    """Wherever the notes end, and whatever comes from the store."""
    units = [unit for turn in turns for unit in turn] + [[said("at last")]]
    request = read([item for unit in units for item in unit])
    starts = [i for i, unit in enumerate(units) if unit[0].get("role") in ("user", "assistant")]
    cut = data.draw(st.sampled_from(starts))
    sent_from = data.draw(st.sampled_from([start for start in starts if start >= cut]))
    stored = [write_unit(*unit) for unit in units[cut:sent_from]]
    chat = data.draw(st.booleans())
    if chat:
        stored = [json.dumps(read_chat_message(raw)).encode() for raw in stored]
    shorter = read([item for unit in units[sent_from:] for item in unit])
    whole, filled = (
        rewrite(request, list_pieces(request, cut), layout),
        rewrite(
            shorter,
            [*store(*stored, api="chat" if chat else "responses"), *list_pieces(shorter)],
            layout,
        ),
    )
    for body in (whole, filled):
        items = read_input(body)
        check(list(mark(items)))
        assert items[-1] == said("at last")
        kept = [item["content"] for item in items if str(item.get("content")).startswith("rule")]
        assert len(kept) == len(set(kept))
    rules = {
        item["content"]
        for unit in units
        for item in unit
        if str(item.get("content")).startswith("rule")
    }
    texts = {str(item.get("content")) for item in read_input(whole)}
    assert {rule.strip("0123456789") for rule in rules} <= {
        text.strip("0123456789") for text in texts
    }
    assert not orjson.loads(whole).keys() - {"model", "input", "instructions"}


@given(conversations(), st.data())
def test_what_stands_before_the_tail_stays(
    turns: list[list[list[Item]]], data: st.DataObject
) -> None:
    """Between two activations, a conversation only grows at its end."""
    units = [unit for turn in turns for unit in turn]
    starts = [i for i, unit in enumerate(units) if unit[0].get("role") == "user"]
    cut = data.draw(st.sampled_from(starts))
    now, later = (
        read([item for unit in (*units, *more) for item in unit])
        for more in ([[said("more")]], [[said("more")], [said("rule", "system")], [said("end")]])
    )
    shorter, longer = (rewrite(request, list_pieces(request, cut)) for request in (now, later))
    items = read_input(shorter)
    assert read_input(longer)[: len(items)] == items


def test_the_prompt_stands_in_for_the_past_at_the_server() -> None:
    request = read([said("two")], previous_response_id="resp_1", store=True)
    body = rewrite(request, [*store(write_unit(said("one"))), *list_pieces(request)])
    assert "previous_response_id" not in orjson.loads(body)
    assert orjson.loads(body)["store"] is True
    assert read_input(body)[-2:] == [said("one"), said("two")]
