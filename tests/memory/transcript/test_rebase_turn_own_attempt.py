"""A request finds what an earlier try of it has stored, and nothing that another request said."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from om_proxy.memory.model import Memory
from om_proxy.memory.transcript.rebase_turn import find_own_attempt
from tests.memory.clients import build_thread, chat, parse, reply

CAME_AT = 5.0


@pytest.mark.parametrize(
    ("stored", "stored_at", "may_be_stored", "seq", "reply_seq"),
    [
        pytest.param("u1 a1 u2", 6.0, False, 3, 0, id="the message alone"),
        pytest.param("u1 a1 u2 u3 a3", 6.0, False, 3, 0, id="others spoke behind it"),
        pytest.param("u1 a1 u2 a2", 6.0, True, 3, 4, id="the whole turn"),
        pytest.param("u1 a1 u2 a2 u3 a3", 6.0, True, 3, 4, id="others went on"),
        pytest.param("u1 a1 u2 u3 a3 a2", 6.0, True, 3, 6, id="its reply behind others"),
        pytest.param("u1 a1 u2 a2", 6.0, False, 0, 0, id="no commit of it was begun"),
        pytest.param("u1 a1 u2 a9", 6.0, True, 0, 0, id="another reply"),
        pytest.param("u1 a1 u2", 4.0, True, 0, 0, id="said before the request came"),
        pytest.param("u1 a1 u3 a3", 6.0, True, 0, 0, id="something else"),
    ],
)
def test_a_request_that_is_not_recorded_any_more(
    stored: str, stored_at: float, may_be_stored: bool, seq: int, reply_seq: int
) -> None:
    thread = build_thread(stored)
    tail = tuple(replace(message, at=stored_at) for message in thread.memory.tail)
    memory: Memory = replace(thread.memory, tail=tail, views=())
    own = find_own_attempt(
        memory,
        thread.read_sent(chat("u2")),
        CAME_AT,
        parse(reply("2")).fp,
        may_be_stored=may_be_stored,
    )
    assert ((own.seq, own.reply) if own else (0, 0)) == (seq, reply_seq)


@pytest.mark.parametrize(
    ("shown", "asked_at", "is_found"),
    [
        pytest.param("u1 a1 u2 a2 u3", 7.0, True, id="by a later request"),
        pytest.param("u1 a1 u2 a2 u3", 4.0, False, id="by an earlier request"),
        pytest.param("u2 a2 u3", 7.0, True, id="in a window"),
        pytest.param("u3", 7.0, False, id="a client that sends its newest message says it again"),
    ],
)
def test_a_turn_that_another_process_has_stored(
    shown: str, asked_at: float, is_found: bool
) -> None:
    """Its client has shown the turn since."""
    thread = build_thread("u1 a1 u2 a2")
    thread.turn(chat(shown), reply("3"))
    newest = replace(thread.memory.views[-1], asked_at=asked_at)
    tail = tuple(replace(message, at=6.0) for message in thread.memory.tail)
    memory: Memory = replace(thread.memory, tail=tail, views=(newest,))
    own = find_own_attempt(
        memory, thread.read_sent(chat("u2")), CAME_AT, parse(reply("2")).fp, may_be_stored=False
    )
    assert ((own.seq, own.reply) if own else (0, 0)) == ((3, 4) if is_found else (0, 0))
