"""Each history of `histories/` is read as the file `expected.json` beside it says.

A folder is a case: `input.*` is the history, or the folder `input`. In `expected.json` a number in
`sent` or `reply` is a message's place in `messages`; anything else is the message itself.
"""

from __future__ import annotations

import json
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from om_proxy.proof.conversation import Call, Conversation, Message, Usage
from om_proxy.proof.readers.registry import read_history

HISTORIES = Path(__file__).parent / "histories"
CASES = sorted(path.parent.name for path in HISTORIES.glob("*/expected.json"))


@pytest.mark.parametrize("case", CASES)
def test_a_history_is_read_as_written_beside_it(case: str) -> None:
    """The program is found from the file alone."""
    (path,) = (HISTORIES / case).glob("input*")
    expected = json.loads((HISTORIES / case / "expected.json").read_text(encoding="utf-8"))
    found = list(read_history(path))
    assert [render_conversation(c) for c in found] == expected


def render_conversation(found: Conversation) -> dict[str, Any]:
    """Render a conversation in the form of `expected.json`."""
    return {
        "id": found.id,
        "title": found.title,
        "program": found.program,
        "messages": list(found.messages),
        "calls": [render_call(call, found.messages) for call in found.calls],
        "notices": dict(found.notices),
        "partial": found.is_partial,
    }


def list_tokens(usage: Usage) -> list[int]:
    tokens = list(astuple(usage))
    return tokens if usage.hour_tokens else tokens[:-1]


def render_call(call: Call, messages: tuple[Message, ...]) -> dict[str, Any]:
    def find_place(message: Message | None) -> Any:
        return messages.index(message) if message in messages else message

    return {
        "sent": [find_place(message) for message in call.sent],
        "reply": find_place(call.reply),
        "asked_at": call.asked_at,
        "replied_at": call.replied_at,
        "model": call.model,
        "usage": None if call.usage is None else list_tokens(call.usage),
        "kind": call.kind,
    }
