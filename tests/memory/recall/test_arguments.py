"""What the model asks is read as it is meant, or refused in words that help."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

import pytest

from om_proxy.memory.recall.arguments import (
    NO_CURSOR_FOR_PART,
    NO_QUERY,
    UNKNOWN_MODE,
    LookUp,
    LookUpFault,
    find_mode,
    read_look_up,
)
from om_proxy.memory.recall.message_ids import MessageId

ROME = ZoneInfo("Europe/Rome")
MAY_8_IN_ROME = 1_683_496_800.0


def read(fields: dict[str, Any]) -> LookUp:
    return read_look_up(fields, ROME)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, LookUp(mode="messages")),
        ({"mode": None, "cursor": None, "page": None}, LookUp(mode="messages")),
        ({"mode": "threads", "page": -2}, LookUp(mode="threads", page=2)),
        ({"query": "bees"}, LookUp(mode="search", query="bees")),
        (
            {"query": "bees", "cursor": "m2"},
            LookUp(mode="messages", query="bees", cursor=MessageId(2)),
        ),
        ({"cursor": 12}, LookUp(mode="messages", cursor=MessageId(12))),
        ({"cursor": "m1-m9", "anchor": "end"}, LookUp(mode="messages", cursor=MessageId(9))),
        ({"limit": 0, "page": 0}, LookUp(mode="messages", limit=1, page=1)),
        ({"limit": 99, "page": -99}, LookUp(mode="messages", limit=20, page=-50)),
        ({"limit": "3", "page": 2.0}, LookUp(mode="messages", limit=3, page=2)),
        ({"cursor": "m1", "detail": "high"}, LookUp(mode="messages", cursor=MessageId(1), part=0)),
        (
            {"cursor": "m1", "partIndex": 2, "charOffset": -5},
            LookUp(mode="messages", cursor=MessageId(1), part=2),
        ),
        ({"after": "2023-05-08"}, LookUp(mode="messages", after=MAY_8_IN_ROME)),
        ({"before": "2023-05-07T22:00:00Z"}, LookUp(mode="messages", before=MAY_8_IN_ROME)),
        (
            {"mode": "threads", "before": " 2023-05-07T22:00:00Z [3F9C2A77]"},
            LookUp(mode="threads", before=MAY_8_IN_ROME, behind="3f9c2a77"),
        ),
        (
            {"mode": "threads", "before": "2023-05-08 000000"},
            LookUp(mode="threads", before=MAY_8_IN_ROME),
        ),
        ({"threadId": "", "toolName": "", "unheard": [1]}, LookUp(mode="messages")),
        (
            {"partType": "tool-invocation", "toolName": "ls"},
            LookUp(
                mode="messages",
                part_kinds=frozenset(("tool-call", "tool-result")),
                tool_name="ls",
            ),
        ),
    ],
)
def test_what_is_asked(fields: dict[str, Any], expected: LookUp) -> None:
    assert read(fields) == expected


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"mode": "find"}, UNKNOWN_MODE),
        ({"mode": ["search"]}, UNKNOWN_MODE),
        ({"mode": "search"}, NO_QUERY),
        ({"mode": "search", "query": " \n"}, NO_QUERY),
        ({"cursor": "m12-m40"}, "recall: m12-m40 is a range; give one id, m12 or m40"),
        ({"cursor": "yesterday"}, "recall: cursor must be one message id, such as m12"),
        ({"cursor": True}, "recall: cursor must be a text"),
        ({"query": 7}, "recall: query must be a text"),
        ({"limit": "many"}, "recall: limit must be a whole number"),
        ({"page": True}, "recall: page must be a whole number"),
        ({"page": 1.5}, "recall: page must be a whole number"),
        ({"partIndex": 0}, NO_CURSOR_FOR_PART),
        ({"detail": "full"}, "recall: detail must be low or high"),
        ({"before": "last week"}, "recall: before must be an ISO date, such as 2023-05-08"),
        ({"after": "9999-12-31T23:59:59-23:59"}, None),  # whatever the platform makes of it
    ],
)
def test_faults(fields: dict[str, Any], text: str | None) -> None:
    """Each says what to do. No exception tells a word of the caller."""
    if text is None:
        read(fields)
        return
    with pytest.raises(LookUpFault) as raised:
        read(fields)
    assert raised.value.text == text
    assert "yesterday" not in str(raised.value)


def test_a_mode_for_the_figures() -> None:
    assert find_mode({"mode": "search"}) == "search"
    assert find_mode({"mode": "find"}) == "messages"
