"""A round whose splice failed: the proxy's calls are taken out, and all else stays as it came."""

from __future__ import annotations

import json

import pytest

from om_proxy.wire.apis.chat.look_ups.plain_rounds import take_out_calls
from tests.wire.apis.chat.look_ups.test_splice import CASES, normal
from tests.wire.apis.chat.look_ups.test_whole_splice import call, reply
from tests.wire.apis.chat.streamed_rounds import (
    calls_round,
    delta,
    own_call,
    piece,
    play,
    read_as_client,
    text_round,
    their_call,
)


def take_out(data: bytes, *, is_stream: bool = True, is_later: bool = False) -> bytes:
    return take_out_calls(data, "recall", is_stream=is_stream, is_later=is_later).data


@pytest.mark.parametrize("name", CASES)
def test_the_client_reads_what_the_splice_gives_it(name: str) -> None:
    """For a round alone both give the same message."""
    data = CASES[name][0][0]
    plain, spliced = (read_as_client(normal(out)) for out in (take_out(data), play([data])[0]))
    assert plain.choices == spliced.choices
    assert plain.usage == spliced.usage


@pytest.mark.parametrize("data", [text_round(1, "Hi"), calls_round(1, *their_call()), b": x\n\n"])
def test_without_own_calls_no_byte_differs(data: bytes) -> None:
    assert take_out_calls(data, "recall", is_stream=True, is_later=False) == (data, False)


def test_a_later_round_repeats_no_role() -> None:
    out = take_out(text_round(2, "Blue."), is_later=True)
    assert b"role" not in out
    assert read_as_client(out).choices[0].message.content == "Blue."


@pytest.mark.parametrize(
    ("data", "is_void"),
    [
        (calls_round(1, *own_call()), True),
        (calls_round(1, *own_call(), text="Wait."), False),
        (calls_round(1, *own_call(), *their_call(1)), False),
        (b'data: {"error": {}}\n\n', False),
    ],
)
def test_whether_it_says_anything_else(data: bytes, is_void: bool) -> None:
    plain = take_out_calls(data, "recall", is_stream=True, is_later=False)
    assert plain.is_void is is_void
    assert b"recall" not in plain.data.replace(b"recaller", b"")


def test_several_calls_at_one_index() -> None:
    """They are told apart by their ids, and the client's call keeps its index."""
    data = calls_round(
        1,
        [piece(0, "{}", id="own", name="recall")],
        [piece(0, '{"a":1}', id="theirs", name="f")],
    )
    (read,) = read_as_client(take_out(data)).choices[0].message.tool_calls or ()
    assert (read.id, read.function.name) == ("theirs", "f")


def test_a_name_that_comes_with_every_piece() -> None:
    data = calls_round(
        1,
        [piece(0, '{"a"', id="own", name="recall"), piece(1, "{", id="theirs", name="f")],
        [piece(0, ":1}", name="recall"), piece(1, "}", name="f")],
    )
    out = take_out(data)
    assert b"recall" not in out
    (read,) = read_as_client(out).choices[0].message.tool_calls or ()
    assert read.id == "theirs"


@pytest.mark.parametrize("index", [[0], {"a": 0}])
def test_an_index_that_is_no_number(index: object) -> None:
    odd = {**piece(0, "{}", id="own", name="recall"), "index": index}
    with pytest.raises(ValueError, match="index"):
        take_out(delta(1, tool_calls=[odd]))


def test_an_event_that_cannot_be_read() -> None:
    """One that may hide a call is an error; any other stays."""
    odd = delta(1, content="Hi")[:-5] + b"\n\n"
    assert take_out(odd + text_round(1, "Hi")).startswith(odd)
    with pytest.raises(ValueError, match="cannot be read"):
        take_out(delta(1, tool_calls=own_call()[0])[:-5] + b"\n\n")


def test_a_reply_that_is_no_stream() -> None:
    shared = reply(1, "Hm \ud83d", call("own"), call("theirs", "f"))
    message = json.loads(take_out(shared, is_stream=False))["choices"][0]["message"]
    assert message["tool_calls"] == [call("theirs", "f")]
    plain = take_out_calls(reply(1, None, call("own")), "recall", is_stream=False, is_later=False)
    assert plain.is_void
    assert json.loads(plain.data)["choices"][0]["finish_reason"] == "stop"
    untouched = reply(1, None, call("theirs", "f"))
    assert take_out(untouched, is_stream=False) == untouched
