"""A conversation knows whether its file was whole, and its calls share their messages."""

from __future__ import annotations

from om_proxy.proof.conversation import UNREADABLE_LINES, Conversation, Message, Prefix


def create_conversation(unreadable: int, lines: int) -> Conversation:
    return Conversation("c", None, "p", (), (), {UNREADABLE_LINES: unreadable}, lines)


def test_above_one_percent_of_unreadable_lines_it_is_partial() -> None:
    assert create_conversation(1, 99).is_partial
    assert not create_conversation(1, 100).is_partial


def test_a_prefix_is_the_sequence_of_the_first_messages() -> None:
    messages: list[Message] = [{"content": str(n)} for n in range(4)]
    prefix = Prefix(messages, 3)
    messages.append({"content": "new"})
    assert list(prefix) == messages[:3]
    assert prefix[-1] == messages[2]
    assert prefix[1:] == messages[1:3]
    assert len(prefix) == 3
