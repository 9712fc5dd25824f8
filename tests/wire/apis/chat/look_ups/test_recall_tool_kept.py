"""Look-ups of earlier replies among the messages of a prompt."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from om_proxy.memory.prompt.tail import Piece
from om_proxy.memory.rounds import LookedUp, Round
from om_proxy.wire.apis.chat.look_ups.recall_tool import write_tail

OUR_CALL = b'{"id":"o1","type":"function","function":{"name":"recall","arguments":"{}"}}'
OUR_OTHER_CALL = b'{"id":"o2",  "function":{"name":"recall","arguments":"{}"}}'
CLIENT_CALL = b'{"id":"t1","type":"function","function":{"name":"weather","arguments":"{}"}}'
FOUND_RESULT = b'{"role":"tool","tool_call_id":"o1","content":"found"}'
NOTHING_RESULT = b'{"role":"tool","tool_call_id":"o2","content":"nothing found"}'
CALL = (
    b'{"role":"assistant","content":null,"reasoning_content":"\\ud83d","tool_calls":['
    + OUR_CALL
    + b"]}"
)
REPLY = b'{"role":"assistant","content":"Rome"}'


def piece(raw: bytes, look_ups: LookedUp | None = None) -> Piece:
    return Piece(raw, "assistant", (), None, 1, 1, 0, look_ups)


def calling(*calls: bytes) -> bytes:
    return b'{"content": "\\ud83d", "tool_calls" : [' + b",".join(calls) + b'],"x":1e999}'


def test_without_look_ups_messages_are_as_they_came() -> None:
    """Nothing is parsed, whatever it is."""
    assert write_tail([piece(b"no JSON"), piece(REPLY)]) == [b"no JSON", REPLY]


def test_what_the_client_did_not_send_gets_the_form_of_a_request() -> None:
    """A stored reply, and a stored round. The client's own message keeps its bytes."""
    answer = b'{"role":"assistant","content":"Rome","annotations":[]}'
    caller = b'{"role":"assistant","content":null,"refusal":null,"tool_calls":[' + OUR_CALL + b"]}"
    stored = Piece(answer, "assistant", (), None, 1, 1, -1)
    assert write_tail([stored, piece(answer)]) == [REPLY, answer]
    rounds = LookedUp((Round(caller, (FOUND_RESULT,)),))
    *_, called, result, reply = write_tail([replace(stored, look_ups=rounds)])
    assert (called, result, reply) == (caller.replace(b'"refusal":null,', b""), FOUND_RESULT, REPLY)


def test_rounds_come_before_their_reply() -> None:
    """Byte for byte, in their order, and only there."""
    rounds = LookedUp((Round(CALL, (FOUND_RESULT,)), Round(CALL, (FOUND_RESULT, NOTHING_RESULT))))
    assert write_tail([piece(b"{}"), piece(REPLY, rounds), piece(b"{}")]) == [
        *(b"{}", CALL, FOUND_RESULT, CALL, FOUND_RESULT, NOTHING_RESULT, REPLY, b"{}")
    ]


BOTH = Round(calling(OUR_CALL, CLIENT_CALL, OUR_OTHER_CALL), (FOUND_RESULT, NOTHING_RESULT))


@pytest.mark.parametrize(
    "beside", [BOTH, Round(calling(OUR_CALL, OUR_OTHER_CALL), (FOUND_RESULT, NOTHING_RESULT))]
)
def test_calls_go_back_into_the_message_that_made_them(beside: Round) -> None:
    """Before the client's, as their results come first. All other bytes of the client's message
    stay; the upstream's message may hold the client's calls or not."""
    earlier = Round(CALL, (FOUND_RESULT,))
    written = write_tail(
        [piece(calling(CLIENT_CALL), LookedUp((earlier,), beside)), piece(b"result")]
    )
    with_calls = calling(OUR_CALL, OUR_OTHER_CALL, CLIENT_CALL)
    assert written == [CALL, FOUND_RESULT, with_calls, FOUND_RESULT, NOTHING_RESULT, b"result"]


def test_a_signed_call_stays_the_first() -> None:
    """Gemini signs the first call of a message only, and refuses another one in its place."""
    signed = CLIENT_CALL[:-1] + b',"extra_content":{"google":{"thought_signature":"S"}}}'
    written = write_tail([piece(calling(signed), LookedUp((), BOTH))])
    assert written == [calling(signed, OUR_CALL, OUR_OTHER_CALL), FOUND_RESULT, NOTHING_RESULT]


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
    assert write_tail(
        [piece(calling(CLIENT_CALL), LookedUp((), Round(b"no JSON", (FOUND_RESULT,))))]
    ) == [calling(CLIENT_CALL)]
    assert len(write_tail([piece(calling(CLIENT_CALL), LookedUp((), nameless))])) == 2
