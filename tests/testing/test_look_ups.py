"""The scripted actor looks up what its prompt does not show."""

from __future__ import annotations

import json

import pytest

from om_proxy.testing import look_ups

QUESTION = "At which pier lies our boat?"
RECALL_TOOL = {"type": "function", "function": {"name": "recall"}}
RESULT = (
    '1 of 9 messages for "pier boat"\n[m1] user, Mar 2, 2026 09:04\n  Our boat lies at pier 14.'
)


@pytest.mark.parametrize(
    ("request_", "tool"),
    [
        ({}, None),
        ({"tools": None}, None),
        ({"tools": [{"type": "function", "function": {"name": "weigh"}}]}, None),
        ({"tools": [{"type": "web_search"}, RECALL_TOOL]}, "recall"),
        (
            {"tools": [RECALL_TOOL, {"type": "function", "function": {"name": "om_recall"}}]},
            "om_recall",
        ),
    ],
)
def test_the_tool_is_found(request_: dict[str, object], tool: str | None) -> None:
    """It is the last one: a client may have one of its own."""
    assert look_ups.find_tool(request_) == tool


def test_a_question_is_searched_by_its_words() -> None:
    call = look_ups.call_tool("recall", QUESTION, 7)["tool_calls"][0]
    assert json.loads(call["function"]["arguments"])["query"] == "pier lie boat"
    result = {"role": "tool", "tool_call_id": call["id"], "content": RESULT}
    assert look_ups.is_result(result)
    assert not look_ups.is_result({**result, "tool_call_id": "call_1"})
    assert look_ups.find_answer(QUESTION, [result]) == "I looked it up: Our boat lies at pier 14."


@pytest.mark.parametrize(
    "content", ["", "recall: nothing found", "Our boat lies at pier 14, says the proxy itself."]
)
def test_only_quotes_answer(content: str) -> None:
    """The proxy's own lines begin at the left edge, and are no quotes."""
    result = {"role": "tool", "tool_call_id": "look-up-1", "content": content}
    assert look_ups.find_answer(QUESTION, [result]) is None
