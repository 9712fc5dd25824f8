"""Look-ups of earlier replies among the messages of a prompt."""

from __future__ import annotations

import pytest

from om_proxy.apis.chat.kept_look_ups import write_tail
from om_proxy.memory.prompt.tail import Piece
from om_proxy.memory.rounds import LookedUp, Round

OURS = b'{"id":"o1","type":"function","function":{"name":"recall","arguments":"{}"}}'
OTHER = b'{"id":"o2",  "function":{"name":"recall","arguments":"{}"}}'
THEIRS = b'{"id":"t1","type":"function","function":{"name":"weather","arguments":"{}"}}'
FOUND = b'{"role":"tool","tool_call_id":"o1","content":"found"}'
NOTHING = b'{"role":"tool","tool_call_id":"o2","content":"nothing found"}'
CALL = b'{"role":"assistant","content":null,"reasoning":"\\ud83d","tool_calls":[' + OURS + b"]}"
REPLY = b'{"role":"assistant","content":"Rome"}'


def piece(raw: bytes, look_ups: LookedUp | None = None) -> Piece:
    return Piece(raw, "assistant", (), None, 1, 1, True, look_ups)


def calling(*calls: bytes) -> bytes:
    return b'{"content": "\\ud83d", "tool_calls" : [' + b",".join(calls) + b'],"x":1e999}'


def test_without_look_ups_messages_are_as_they_came() -> None:
    """Nothing is parsed, whatever it is."""
    assert write_tail([piece(b"no JSON"), piece(REPLY)]) == [b"no JSON", REPLY]


def test_rounds_come_before_their_reply() -> None:
    """Byte for byte, in their order, and only there."""
    rounds = LookedUp((Round(CALL, (FOUND,)), Round(CALL, (FOUND, NOTHING))))
    assert write_tail([piece(b"{}"), piece(REPLY, rounds), piece(b"{}")]) == [
        *(b"{}", CALL, FOUND, CALL, FOUND, NOTHING, REPLY, b"{}")
    ]


BOTH = Round(calling(OURS, THEIRS, OTHER), (FOUND, NOTHING))


@pytest.mark.parametrize("beside", [BOTH, Round(calling(OURS, OTHER), (FOUND, NOTHING))])
def test_calls_go_back_into_the_message_that_made_them(beside: Round) -> None:
    """Before the client's, as their results come first. All other bytes of the client's message
    stay; the upstream's message may hold the client's calls or not."""
    earlier = Round(CALL, (FOUND,))
    written = write_tail([piece(calling(THEIRS), LookedUp((earlier,), beside)), piece(b"result")])
    with_calls = calling(OURS, OTHER, THEIRS)
    assert written == [CALL, FOUND, with_calls, FOUND, NOTHING, b"result"]


@pytest.mark.parametrize(
    "message",
    [
        REPLY,  # no calls
        b'{"tool_calls":null}',
        b'{"tool_calls":[],"tool_calls":[]}',  # two places
        b"no JSON",
    ],
)
def test_a_message_without_a_place_for_calls_stays_alone(message: bytes) -> None:
    """Results without their call would be refused."""
    assert write_tail([piece(message, LookedUp((), BOTH))]) == [message]


def test_a_result_that_names_no_call_is_left_out_with_it() -> None:
    """A server sent a call without an id."""
    nameless = Round(b'{"tool_calls":[{"function":{}}]}', (b'{"role":"tool"}',))
    assert write_tail([piece(calling(THEIRS), LookedUp((), Round(b"no JSON", (FOUND,))))]) == [
        calling(THEIRS)
    ]
    assert len(write_tail([piece(calling(THEIRS), LookedUp((), nameless))])) == 2
