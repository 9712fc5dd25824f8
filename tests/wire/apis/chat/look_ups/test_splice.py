"""The rounds of a streamed reply: the client sees one stream, wherever the bytes are cut."""

from __future__ import annotations

import json
from typing import Any

import pytest

from om_proxy.memory.token_prices import Usage
from om_proxy.wire.apis.chat.look_ups.splice import MAX_ROUND_BYTES, StreamSplice
from tests.support.long_forms import IS_LONG
from tests.wire.apis.chat.streamed_rounds import (
    DONE,
    calls_round,
    delta,
    event,
    own_call,
    piece,
    play,
    read_as_client,
    read_events,
    text_round,
    their_call,
    usage,
)

OWN, THEIRS = own_call(), their_call()
TEXT = text_round(2, "It is ", "blue.")
ONE_EVENT = [
    piece(0, '{"mode":"search"}', id="own", name="recall"),
    piece(1, '{"a":1}', id="theirs", name="f"),
]
# the rounds; the text, the ids of the client's calls, the finish, as the client sees them
CASES: dict[str, tuple[list[bytes], str | None, list[str], str]] = {
    "text": ([text_round(1, "Hello ", "you")], "Hello you", [], "stop"),
    "theirs": ([calls_round(1, *THEIRS)], None, ["theirs"], "tool_calls"),
    "ours, then text": ([calls_round(1, *OWN), TEXT], "It is blue.", [], "stop"),
    "text, ours, then text": (
        [calls_round(1, *OWN, text="Wait."), TEXT],
        "Wait.\n\nIt is blue.",
        [],
        "stop",
    ),
    "ours three times": (
        [calls_round(n, *own_call(id_=f"own-{n}")) for n in range(3)] + [TEXT],
        "It is blue.",
        [],
        "stop",
    ),
    "ours, then theirs": (
        [calls_round(1, *OWN), calls_round(2, *THEIRS)],
        None,
        ["theirs"],
        "tool_calls",
    ),
    "both, ours first": ([calls_round(1, *OWN, *their_call(1))], None, ["theirs"], "tool_calls"),
    "both, theirs first": ([calls_round(1, *THEIRS, *own_call(1))], None, ["theirs"], "tool_calls"),
    "both in one event": ([calls_round(1, ONE_EVENT)], None, ["theirs"], "tool_calls"),
    "theirs on both sides": (
        [calls_round(1, *THEIRS, *own_call(1), *their_call(2, "more"))],
        None,
        ["theirs", "more"],
        "tool_calls",
    ),
    "a name in pieces": (
        [
            calls_round(
                1,
                [piece(0, "", id="own", name="re")],
                [piece(0, "", name="call")],
                [piece(0, "{}")],
            ),
            TEXT,
        ],
        "It is blue.",
        [],
        "stop",
    ),
    "their name in pieces": (
        [
            calls_round(
                1,
                [piece(0, "", id="x", name="recall")],
                [piece(0, "", name="er")],
                [piece(0, "{}")],
            )
        ],
        None,
        ["x"],
        "tool_calls",
    ),
    "no arguments at all": (
        [calls_round(1, [piece(0, "", id="own", name="recall")]), TEXT],
        "It is blue.",
        [],
        "stop",
    ),
    "nothing after ours": ([calls_round(1, *OWN, text="Well.")], "Well.", [], "stop"),
    "several calls at one index": (
        [
            calls_round(
                1,
                [piece(0, "{}", id="own", name="recall")],
                [piece(0, '{"a":1}', id="theirs", name="f")],
            )
        ],
        None,
        ["theirs"],
        "tool_calls",
    ),
    "half a character": (
        [calls_round(1, *OWN, text="\ud83d"), text_round(2, "\ud83d", "\ude00!")],
        "\ud83d\n\n\ud83d\ude00!",
        [],
        "stop",
    ),
    "CRLF": (
        [part.replace(b"\n", b"\r\n") for part in (calls_round(1, *OWN), TEXT)],
        "It is blue.",
        [],
        "stop",
    ),
}


def normal(data: bytes) -> bytes:
    return data.replace(b"\r\n", b"\n")


@pytest.mark.parametrize("name", CASES)
def test_one_reply(name: str) -> None:
    """openai-python reads one message, with the client's calls as the server sent them."""
    rounds, text, ids, finish = CASES[name]
    out, _ = play(rounds)
    choice = read_as_client(normal(out)).choices[0]
    assert "recall" not in {call.function.name for call in choice.message.tool_calls or ()}
    assert b'"own' not in out
    assert choice.message.content == text
    assert [call.id for call in choice.message.tool_calls or ()] == ids
    assert {c.function.arguments for c in choice.message.tool_calls or ()} <= {'{"a":1}', "{}"}
    assert choice.finish_reason == finish


@pytest.mark.parametrize("name", CASES)
def test_cut_anywhere(name: str) -> None:
    """Each round cut at each byte, in the short form at each fifth, gives the same bytes."""
    rounds = CASES[name][0]
    whole, ends = play(rounds)
    for cut in range(1, max(map(len, rounds)), 1 if IS_LONG else 5):
        assert play(rounds, cut) == (whole, ends), cut


@pytest.mark.parametrize("name", ["text", "theirs"])
def test_without_look_ups_no_byte_differs(name: str) -> None:
    rounds = CASES[name][0]
    keep_alive = b": PROCESSING\n\n" + rounds[0]
    assert play(rounds)[0] == rounds[0]
    assert play([keep_alive])[0] == keep_alive


def test_broken_off_anywhere() -> None:
    """What goes out before a stream breaks off has no trace of the tool, and is no complete reply
    unless the round was complete."""
    data = calls_round(1, *OWN, *their_call(1), text="Wait.")
    for cut in range(len(data)):
        out = StreamSplice("recall", "sum").feed(data[:cut])
        assert b'"recall"' not in out
        assert DONE not in out
        assert b'"finish_reason": "tool_calls"' not in out


def test_what_a_round_came_to() -> None:
    """The calls, the message for the next round, and the server's usage."""
    _, (end, last) = play([calls_round(1, *OWN, text="Wait."), TEXT])
    assert end.calls == (("own", '{"mode":"search"}'),)
    assert end.usage == Usage(100, 50, 0, 10)
    assert not end.is_shared
    assert json.loads(end.message or b"") == {
        "role": "assistant",
        "content": "Wait.",
        "tool_calls": [
            {
                "id": "own",
                "type": "function",
                "function": {"name": "recall", "arguments": '{"mode":"search"}'},
            }
        ],
    }
    assert last.calls == ()


def test_a_shared_message_is_kept_with_our_calls_only() -> None:
    """The client has the others."""
    _, (end,) = play([calls_round(1, *THEIRS, *own_call(1))])
    assert end.is_shared
    assert [call["id"] for call in json.loads(end.message or b"")["tool_calls"]] == ["own"]


def test_reasoning_goes_out_and_goes_back() -> None:
    """Reasoning of every round reaches the client, and goes back with its round, unknown members
    included."""
    thinking = [delta(1, reasoning_content="Hm. "), delta(1, signature="c2ln")]
    _, start, rest = calls_round(1, *OWN).partition(delta(1, role="assistant", content=None))
    out, ends = play([start + b"".join(thinking) + rest, delta(2, reasoning_content="So.") + TEXT])
    assert (
        "".join(
            c["choices"][0]["delta"].get("reasoning_content", "")
            for c in read_events(out)
            if c["choices"]
        )
        == "Hm. So."
    )
    message = json.loads(ends[0].message or b"")
    assert (message["reasoning_content"], message["signature"]) == ("Hm. ", "c2ln")


@pytest.mark.parametrize(("rule", "told"), [("sum", (300, 150)), ("first", (100, 50))])
def test_usage(rule: Any, told: tuple[int, int]) -> None:
    """All rounds are summed up, or the prompt is the first round's."""
    out, _ = play([calls_round(1, *OWN), calls_round(2, *OWN), TEXT], usage_rule=rule)
    reported = read_as_client(out).usage
    assert reported is not None
    assert reported.prompt_tokens_details is not None
    assert (reported.prompt_tokens, reported.prompt_tokens_details.cached_tokens) == told
    assert reported.completion_tokens == 30
    assert reported.total_tokens == told[0] + 30


def test_no_usage_where_none_was_asked_for() -> None:
    rounds = [
        data.replace(usage(n, 100, 10, 50), b"")
        for n, data in ((1, calls_round(1, *OWN)), (2, TEXT))
    ]
    out, _ = play(rounds)
    assert read_as_client(out).usage is None


def test_usage_in_every_event() -> None:
    """Servers that count as they go: each count gets the sums of the rounds before."""

    def count(data: bytes, tokens: int) -> bytes:
        return data.replace(
            b'"model": "m"', b'"model": "m", "usage": {"completion_tokens": %d}' % tokens
        )

    rounds = [
        count(calls_round(1, *OWN).replace(usage(1, 100, 10, 50), b""), 7),
        count(delta(2, content="Blue."), 1) + count(delta(2, "stop"), 3) + DONE,
    ]
    out, _ = play(rounds)
    counts = [
        chunk["usage"]["completion_tokens"] for chunk in read_events(out) if chunk["id"] == "id-1"
    ]
    assert counts == [7, 8, 10]


def test_usage_in_an_event_that_is_taken_out() -> None:
    """Beside a role that is not repeated, or a last call of the proxy's tool, usage goes out all
    the same."""

    def put_in(data: bytes) -> bytes:
        return data.replace(b'"model": "m"', b'"model": "m", "usage": {"prompt_tokens": 7}', 1)

    first = calls_round(1, *OWN)
    role = put_in(delta(2, role="assistant", content=""))
    called = put_in(delta(2, tool_calls=[piece(0, "{}", id="own", name="recall")]))
    for last in (role + delta(2, content="Blue.") + delta(2, "stop"), called + delta(2, "stop")):
        out, _ = play([first, last + DONE])
        counts = [
            chunk["usage"]["prompt_tokens"] for chunk in read_events(out) if chunk.get("usage")
        ]
        assert counts == [107]


def test_only_our_call_again_at_the_end() -> None:
    """The call is taken out, and the finish says so."""
    out, (end,) = play([calls_round(1, *OWN, text="Well.")])
    assert end.is_visible
    choice = read_as_client(out).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Well.", "stop")


def test_their_calls_go_out_while_they_come() -> None:
    """Only names are waited for: arguments of the client's tools stream."""
    splice = StreamSplice("recall", "sum")
    assert splice.feed(delta(1, tool_calls=[piece(0, "", id="x", name="recall")])) == b""
    assert splice.feed(b": ping\n\n") == b": ping\n\n"
    assert splice.feed(delta(1, tool_calls=[piece(0, "", name="er")])).count(b"data:") == 2
    more = delta(1, tool_calls=[piece(0, "{")])
    assert splice.feed(more) == more


def test_servers_with_one_index_and_with_none() -> None:
    """Several calls under one index are told apart by their ids (deltas.py)."""
    same = [piece(0, "{}", id="own", name="recall")], [piece(0, '{"a":1}', id="theirs", name="f")]
    none = [[{k: v for k, v in pieces[0].items() if k != "index"}] for pieces in same]
    for events in (same, none):
        out, (end,) = play([calls_round(1, *events)])
        assert [c.id for c in end.calls] == ["own"]
        assert b'"own"' not in out
        assert b'"theirs"' in out


def test_a_character_cut_between_two_events() -> None:
    """Its halves are valid JSON but no text. The events are read all the same, and the client gets
    the halves as they came."""
    high, low = "\ud83d", "\ude00"
    own = [piece(0, '{"query":"' + high, id="own", name="recall")], [piece(0, low + '"}')]
    theirs = [piece(1, '{"a":"' + high, id="x", name="f")], [piece(1, low + '"}')]
    halves = delta(2, content="Blue " + high) + delta(2, content=low)
    out, (end, _) = play([calls_round(1, *own), halves + delta(2, "stop") + DONE])
    assert [json.loads(call.arguments)["query"] for call in end.calls] == ["\ufffd\ufffd"]
    chunks = list(read_events(out))
    assert {chunk["id"] for chunk in chunks} == {"id-1"}
    texts = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
    assert "".join(texts) == "Blue " + high + low

    out, _ = play([calls_round(1, *own, *theirs)])
    deltas = [choice["delta"] for chunk in read_events(out) for choice in chunk["choices"]]
    calls = [call for each in deltas for call in each.get("tool_calls", ())]
    assert [call["index"] for call in calls] == [0, 0]
    assert "".join(c["function"]["arguments"] for c in calls) == '{"a":"' + high + low + '"}'


def test_what_went_out_is_read_only_for_a_call_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of events before a call of the client's tools are not read again, and those before
    one of ours at the round's end."""
    read: list[bytes] = []
    read_chunk = StreamSplice._read_chunk
    monkeypatch.setattr(
        StreamSplice, "_read_chunk", lambda self, e: (read.append(e), read_chunk(self, e))[1]
    )
    thinking = delta(1, reasoning_content="Hm. ") * 3_000
    for calls, is_ours in ((THEIRS, False), (OWN, True)):
        read.clear()
        splice = StreamSplice("recall", "sum")
        splice.feed(thinking)
        splice.feed(calls_round(1, *calls))
        assert len(read) < 10
        assert splice.is_end_long is is_ours
        _, end = splice.end_round()
        assert (len(read) > 3_000) is is_ours
        if is_ours:
            assert json.loads(end.message or b"")["reasoning_content"] == "Hm. " * 3_000


def test_an_end_without_done() -> None:
    """A finish ends a round; a body that ends without one is no complete round."""
    data = calls_round(1, *OWN)
    assert play([data.removesuffix(DONE)])[1][0].is_finished
    out, (end,) = play(
        [data[: data.index(b'"finish_reason": "tool_calls"')].rpartition(b"data:")[0]]
    )
    assert not end.is_finished
    assert DONE not in out


def test_what_is_no_chunk_goes_out_as_it_came() -> None:
    odd = b'data: tool_calls\n\ndata: {"choices": "tool_calls"}\n\nevent: error\ndata: {"error": {"message": "tool_calls"}}\n\n'
    assert play([odd + DONE])[0] == odd + DONE
    error = event(error={"message": "overloaded"})
    assert error in play([calls_round(1, *OWN), error + DONE])[0]


def test_a_round_that_is_too_long_is_the_clients() -> None:
    """It cannot be sent back to the model, so nothing of it is taken out."""
    long = delta(1, content="x" * (MAX_ROUND_BYTES // 2))
    data = long + long + long + calls_round(1, *THEIRS)
    out, (end,) = play([data])
    assert out == data
    assert end.calls == ()


def test_the_strict_client_finds_faults() -> None:
    """The reader that these tests trust refuses a second role, a gap in the index, two finishes."""
    good = calls_round(1, *THEIRS)
    for bad in (
        good.replace(DONE, delta(1, role="assistant", content="") + DONE),
        calls_round(1, *their_call(1)),
        good.replace(DONE, delta(1, "stop") + DONE),
        good.replace(b"id-1", b"id-2", 1),
    ):
        with pytest.raises((AssertionError, IndexError)):
            read_as_client(bad)
