"""Faults of the proxy in the rounds of a reply: the client gets what the model server said, without
the proxy's calls, wherever that can still be given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

import pytest

from om_proxy.memory.rounds import LookUpAnswer, LookUpCall
from om_proxy.wire.apis.registry import CHAT
from tests.edge.rounds.test_recalling import OURS, Play, Server, streamed, unstreamed
from tests.wire.apis.chat.look_ups import test_whole_splice as whole
from tests.wire.apis.chat.streamed_rounds import (
    DONE,
    calls_round,
    delta,
    piece,
    read_as_client,
    text_round,
    their_call,
)


def plant_fault(monkeypatch: pytest.MonkeyPatch, step: str, at_call: int = 1) -> None:
    """Have this step of the splice fail, at this call of it."""
    for maker in ("create_stream_splice", "create_whole_splice"):
        monkeypatch.setattr(CHAT, maker, partial(break_splice, getattr(CHAT, maker), step, at_call))


def break_splice(create: Callable[..., Any], step: str, at_call: int, *arguments: Any) -> Any:
    splice, calls = create(*arguments), count(1)
    whole = getattr(splice, step)

    def fail(*args: Any) -> Any:
        if next(calls) == at_call:
            raise RuntimeError("a fault of ours")
        return whole(*args)

    setattr(splice, step, fail)
    return splice


@pytest.mark.parametrize(
    ("step", "stream"), [("feed", True), ("feed", False), ("end_round", False), ("finish", False)]
)
async def test_a_fault_before_a_byte(
    step: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gets the round without the proxy's calls, and the receipt says `degraded`."""
    server = Server()
    if stream:  # nothing goes out before the names are known
        data = b"".join(delta(1, tool_calls=more) for more in [*OURS, *their_call(1)])
        server.answers = streamed(server, data + delta(1, "tool_calls") + DONE)
    else:
        shared = whole.reply(1, None, whole.call("own"), whole.call("theirs", "f"))
        server.answers = unstreamed(server, shared)
    play = Play(server, stream=stream)
    plant_fault(monkeypatch, step)
    answer = await play.follow()
    assert play.exchange.status == "degraded"  # before the head goes out
    out = b"".join([chunk async for chunk in answer.chunks()])
    await answer.aclose()
    assert b'"own"' not in out
    assert b"theirs" in out
    if stream:
        (call,) = read_as_client(out).choices[0].message.tool_calls or ()
        assert call.id == "theirs"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("step", ["feed", "end_round"])
async def test_a_fault_in_a_round_of_nothing_else(
    step: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a round is asked for once more without the tool."""
    server = Server()
    if stream:
        first = b"".join(delta(1, tool_calls=pieces) for pieces in OURS) + delta(1, "tool_calls")
        server.answers = streamed(server, first + DONE, text_round(2, "Unknown."))
    else:
        first = whole.reply(1, None, whole.call("own"))
        server.answers = unstreamed(server, first, whole.reply(2, "Unknown."))
    play = Play(server, stream=stream)
    plant_fault(monkeypatch, step)
    data, is_broken = await play.read()
    assert not is_broken
    assert b"Unknown." in data
    assert ["tools" in body for body in server.bodies] == [False]
    assert play.exchange.status == "degraded"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("step", ["begin_round", "feed", "end_round", "finish"])
async def test_a_fault_in_a_later_round(
    step: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the later round says reaches the client all the same, with one role."""
    server = Server()
    if stream:
        calling = delta(2, tool_calls=[piece(0, "{}", id="theirs", name="recaller")])
        later = calling + delta(2, "tool_calls") + DONE
        server.answers = streamed(server, calls_round(1, *OURS, text="Wait."), later)
    else:
        later = whole.reply(2, None, whole.call("theirs", "f"))
        server.answers = unstreamed(server, whole.reply(1, "Wait.", whole.call("own")), later)
    play = Play(server, stream=stream)
    plant_fault(monkeypatch, step, 1 if step in ("begin_round", "finish") else 2)
    data, is_broken = await play.read()
    if stream and step in ("end_round", "finish"):  # the call went out already
        assert is_broken
        return
    assert not is_broken
    assert b"theirs" in data
    assert b'"own"' not in data
    if stream:
        assert data.count(b'"role"') == 1
    assert play.exchange.status == "degraded"


async def test_two_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the calls cannot be taken out either, the connection breaks before any trace of them."""
    server = Server()
    server.answers = streamed(server, b"".join(delta(1, tool_calls=part) for part in OURS) + DONE)
    play = Play(server, stream=True)
    plant_fault(monkeypatch, "feed")

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("one more")

    monkeypatch.setattr(CHAT, "take_out_calls", fail)
    assert await play.read() == (b"", True)


async def test_a_fault_behind_bytes_of_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """It breaks the connection, so the reply is kept as interrupted."""
    server = Server()
    server.answers = streamed(server, calls_round(1, *OURS, text="Wait."))
    play = Play(server, stream=True)
    plant_fault(monkeypatch, "end_round")
    data, is_broken = await play.read()
    assert is_broken
    assert b"Wait." in data
    assert play.exchange.status == "degraded"


@pytest.mark.parametrize("place", ["look-ups", "write_answer", "write_round"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_fault_between_rounds(
    place: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is as if the next round were lost: the model is asked once more without the tool."""
    server = Server()
    if stream:
        server.answers = streamed(
            server, calls_round(1, *OURS, text="Wait."), text_round(2, "Unknown.")
        )
    else:
        first = whole.reply(1, "Wait.", whole.call("own"))
        server.answers = unstreamed(server, first, whole.reply(2, "Unknown."))
    play = Play(server, stream=stream)
    write_round, written = CHAT.write_round, count(1)

    async def fail_look_up(calls: Sequence[LookUpCall]) -> list[LookUpAnswer]:
        raise RuntimeError("a fault of ours")

    def fail(*arguments: Any, **more: Any) -> bytes:
        if place == "write_answer" or next(written) == 1:
            raise RuntimeError("a fault of ours")
        return write_round(*arguments, **more)

    if place == "look-ups":
        monkeypatch.setattr(play.notebook, "answer", fail_look_up)
    else:
        monkeypatch.setattr(CHAT, place, fail)
    data, is_broken = await play.read()
    assert not is_broken
    assert b"Wait." in data
    assert b"Unknown." in data
    assert play.exchange.status == "degraded"
    assert play.record.rounds == []


async def test_a_fault_at_the_end_of_a_stream_without_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What went out stays, and the connection breaks: nobody knows whether the reply is complete."""
    server = Server()
    server.answers = streamed(server, text_round(1, "Blue."))
    plant_fault(monkeypatch, "end_round")
    play = Play(server, stream=True)
    data, is_broken = await play.read()
    assert is_broken
    assert data == text_round(1, "Blue.")
    assert play.exchange.status == "degraded"
