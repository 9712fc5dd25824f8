"""What a reply needed is found by its shape, and only counts once no raw message holds it."""

from __future__ import annotations

import pytest

from om_proxy.proof.conversation import Message
from om_proxy.proof.needed import NeededLater, list_literals
from om_proxy.proof.playing import write_message

TOLD: Message = {
    "role": "user", "content": "Port 8471 is set in src/app/ports.py, by openGate. See https://a.example/x?y=1.",
}  # fmt: skip
ASKED: Message = {"role": "user", "content": "Go on."}
REPLY: Message = {
    "role": "assistant",
    "content": "openGate it is, and newName.",
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "read", "arguments": '{"path": "src/app/ports.py\\n8471"}'},
        }
    ],
}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see https://a.example/x?y=1, then stop.", ["https://a.example/x?y=1"]),
        ("in src/om.py, /etc/hosts and ./run", ["src/om.py", "/etc/hosts", "./run"]),
        ("12 of 8471, 10:30 and 1,250.75.", ["8471", "10:30", "1,250.75"]),
        ("make_note, openGate and v2b but not Word or plain", ["make_note", "openGate", "v2b"]),
    ],
)
def test_literals_are_paths_numbers_urls_and_identifiers(text: str, found: list[str]) -> None:
    assert list(list_literals(text)) == found


def take_call(*prompt: Message) -> NeededLater:
    needed = NeededLater()
    sent = [write_message(message) for message in (TOLD, ASKED)]
    needed.add_call(sent, prompt, write_message(REPLY))
    return needed


def test_what_stands_raw_is_not_counted() -> None:
    assert take_call(TOLD, ASKED).count == 0


def test_what_no_raw_message_holds_is_in_notes_or_missing() -> None:
    """Names that were never in the history do not count; notes are those of the proxy's message."""
    notes: Message = {
        "role": "system",
        "content": "openGate <observations>Port 8471 is set.</observations>",
    }
    needed = take_call(notes, ASKED)
    assert needed.in_notes == {"8471"}
    assert needed.missing == ["openGate", "src/app/ports.py"]


def test_a_literal_counts_at_the_first_reply_that_needs_it() -> None:
    needed = take_call(ASKED)
    needed.add_call(map(write_message, (TOLD, ASKED, REPLY, ASKED)), [ASKED], write_message(REPLY))
    assert needed.count == 3
