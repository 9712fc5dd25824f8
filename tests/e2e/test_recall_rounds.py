"""Faults between the rounds of a reply, over real sockets
(docs/contributing/recall.md#faults-of-rounds)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from om_proxy.engine.recall.turn_look_ups import TurnLookUps
from tests.e2e.planned_rounds import (
    ERROR,
    Talk,
    break_off,
    refuse,
    reset,
    run_with_planned_rounds,
    say,
    stay_silent,
    wait_then_say,
)
from tests.e2e.raw_upstream import ProxyUnderTest
from tests.edge.rounds.test_recalling_faults import plant_fault
from tests.support.upstream_server import SSE_HEAD, Call, Script
from tests.wire.apis.chat.streamed_rounds import DONE

pytestmark = pytest.mark.asyncio(loop_scope="module")  # one proxy, each test with its own thread

READ_TIMEOUT_S = 3.0
MAX_CLOSE_S = 2.5  # before the read timeout
numbers = count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ProxyUnderTest]:
    async with run_with_planned_rounds(
        tmp_path_factory.mktemp("rounds"), f", read_timeout: {READ_TIMEOUT_S}s"
    ) as site:
        yield site


@pytest.fixture(params=[True, False], ids=["stream", "whole"])
def talk(site: ProxyUnderTest, request: pytest.FixtureRequest) -> Talk:
    return Talk(site, stream=request.param, thread=f"t{next(numbers)}")


@pytest.fixture
def stream(site: ProxyUnderTest) -> Talk:
    return Talk(site, stream=True, thread=f"t{next(numbers)}")


async def cut_before_a_byte(call: Call) -> None:
    call.send(SSE_HEAD)
    call.close()


LOST: dict[str, Script] = {
    "refused": refuse(b"400 Bad Request"),
    "overloaded": refuse(b"503 Busy\r\nRetry-After: 1"),
    "reset": reset,
    "broken before its first byte": cut_before_a_byte,
    "too slow": stay_silent,
}


@pytest.mark.parametrize("fault", LOST)
async def test_a_later_round_is_lost(talk: Talk, fault: str) -> None:
    """The round before is asked once more without the tool, and its answer is the reply. Nothing of
    the look-up is kept."""
    await talk.begin_with_a_turn()
    got = await talk.ask(say(talk.ours("Wait.")), LOST[fault], say(talk.text(2, "Unknown.")))
    text = talk.read(got)
    assert text.endswith("Unknown.")
    first, second, _ = talk.bodies
    assert second["messages"][: len(first["messages"])] == first["messages"]
    assert [m["role"] for m in second["messages"][-2:]] == ["assistant", "tool"]
    assert talk.seen[2].body == talk.sent
    assert got.header(b"x-om-status") == [b"raw"]
    assert (await talk.stored())[3:] == [(text, "live")]
    assert await talk.count_look_ups() == 0


@pytest.mark.parametrize(
    ("status", "word"),
    [
        (b"400 Bad Request", b"refused"),
        (b"500 Internal Server Error", b"refused"),
        (b"503 Busy\r\nRetry-After: 1", b"offered"),
        (b"429 Too Many Requests", b"offered"),
    ],
)
async def test_refused_rounds_are_learnt(tmp_path: Path, status: bytes, word: bytes) -> None:
    """A server that takes the tool, and twice in a row not what was looked up, is offered it no
    longer. One that is busy says nothing of it."""
    async with run_with_planned_rounds(tmp_path) as site:
        talk = Talk(site, stream=True, thread="t")
        await talk.begin_with_a_turn()
        for _ in range(2):
            got = await talk.ask(
                say(talk.ours("Wait.")), refuse(status), say(talk.text(2, "Unknown."))
            )
            assert got.header(b"x-om-recall") == [b"offered"]
        got = await talk.ask(say(talk.text(1, "Blue.")))
        assert got.header(b"x-om-recall") == [word]


async def test_every_later_round_is_lost(talk: Talk) -> None:
    """Before a byte went out, the client gets the last error as it came."""
    await talk.begin_with_a_turn()
    got = await talk.ask(say(talk.silent_ours()), LOST["reset"], LOST["overloaded"])
    assert (got.status, got.body) == (503, ERROR)
    assert len(talk.seen) == 3
    assert (await talk.stored())[3:] == []


async def test_every_later_round_is_lost_behind_text(stream: Talk) -> None:
    """The connection breaks, and the reply is kept as interrupted."""
    await stream.begin_with_a_turn()
    got = await stream.ask(say(stream.ours("Wait.")), LOST["reset"], LOST["overloaded"])
    assert (got.status, got.whole, DONE in got.body) == (200, False, False)
    assert len(stream.seen) == 3
    assert (await stream.stored())[3:] == [("Wait.", "interrupted")]


async def test_every_later_round_is_lost_behind_nothing(stream: Talk) -> None:
    """The stream ends with the error, and an empty reply is kept as interrupted."""
    await stream.begin_with_a_turn()
    got = await stream.ask(say(stream.ours("")), LOST["reset"], LOST["overloaded"])
    assert (got.status, got.whole) == (200, True)
    assert got.body.endswith(b"data: " + ERROR + b"\n\n" + DONE)
    assert len(stream.seen) == 3
    assert (await stream.stored())[3:] == [("", "interrupted")]


@pytest.mark.parametrize("rounds", [1, 2])
async def test_a_round_breaks_off(talk: Talk, rounds: int) -> None:
    """The connection breaks. What the client saw is kept as interrupted."""
    await talk.begin_with_a_turn()
    before = [say(talk.ours("Wait."))] * (rounds - 1)
    got = await talk.ask(*before, talk.begin(rounds, "Blue.", break_off))
    assert (got.whole, DONE in got.body) == (False, False)
    assert b"recall" not in got.body
    assert len(talk.seen) == rounds
    seen = "Wait.\n\nBlue." if rounds == 2 else "Blue."
    assert (await talk.stored())[3:] == ([(seen, "interrupted")] if talk.stream else [])


async def test_an_error_in_a_later_round(talk: Talk) -> None:
    """It is passed on as it came."""
    await talk.begin_with_a_turn()
    error = b"data: " + ERROR + b"\n\n" if talk.stream else ERROR
    got = await talk.ask(say(talk.ours("Wait.")), say(error))
    assert (got.status, got.whole) == (200, True)
    assert got.body.endswith(error)
    assert len(talk.seen) == 2
    assert [state for _, state in await talk.stored()][3:] == (
        ["interrupted"] if talk.stream else []
    )


LEFT_IN = ["first round", "look-up", "head of a round", "later round"]


@pytest.mark.parametrize("state", LEFT_IN)
async def test_the_client_leaves(talk: Talk, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is under way ends within a second, no further round begins, and nothing is stored that
    the client had not seen."""
    await talk.begin_with_a_turn()
    is_looking, is_stopped = asyncio.Event(), asyncio.Event()

    async def hang(*_: Any) -> Any:
        is_looking.set()
        try:
            await asyncio.Event().wait()
        finally:
            is_stopped.set()

    if state == "look-up":
        monkeypatch.setattr(TurnLookUps, "answer", hang)
    ours, seen = say(talk.ours("Wait.")), "Wait."
    match state:
        case "first round":
            talk.plan(talk.begin(1, "Wait.", stay_silent))
        case "look-up":
            talk.plan(ours)
        case "head of a round":
            talk.plan(ours, stay_silent)
        case "later round":
            talk.plan(ours, talk.begin(2, "Blue.", stay_silent))
            seen = "Wait.\n\nBlue."
    rounds = 2 if "round" in state and state != "first round" else 1
    client = await talk.send()
    await talk.site.server.wait_seen(rounds)
    if talk.stream:
        await client.until(seen[-5:].encode())
    if state == "look-up":
        await is_looking.wait()
    client.leave()
    ended = is_stopped if state == "look-up" else talk.calls[-1].closed
    await asyncio.wait_for(ended.wait(), MAX_CLOSE_S)
    await talk.site.app.background.wait_idle()
    assert len(talk.seen) == rounds
    assert (await talk.stored())[2:] == [
        ("Which crates?", "live"),
        *([(seen, "interrupted")] if talk.stream else []),
    ]


async def test_a_fault_of_ours_before_a_byte(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client gets the round without the proxy's calls, and its receipt says so; the thread
    keeps what the client got."""
    await talk.begin_with_a_turn()
    plant_fault(monkeypatch, "feed")
    got = await talk.ask(say(talk.both()))
    assert got.header(b"x-om-status") == [b"degraded"]
    assert [call["id"] for call in talk.read_message(got)["tool_calls"]] == ["theirs"]
    assert b'"own"' not in got.body
    assert len(talk.seen) == 1
    assert [state for _, state in await talk.stored()][3:] == ["live"]
    assert await talk.count_look_ups() == 0


async def test_a_fault_of_ours_in_a_round_of_nothing_else(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for once more without the tool."""
    await talk.begin_with_a_turn()
    plant_fault(monkeypatch, "end_round")
    got = await talk.ask(say(talk.silent_ours()), say(talk.text(2, "Unknown.")))
    assert (talk.read(got), got.header(b"x-om-status")) == ("Unknown.", [b"degraded"])
    assert talk.seen[1].body == talk.sent
    assert (await talk.stored())[3:] == [("Unknown.", "live")]


async def test_a_fault_of_ours_in_the_middle_of_a_round(
    stream: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes of it went out: the connection breaks, and they are kept as interrupted."""
    await stream.begin_with_a_turn()
    plant_fault(monkeypatch, "end_round")
    got = await stream.ask(say(stream.ours("Wait.")))
    assert (got.whole, DONE in got.body, b"recall" in got.body) == (False, False, False)
    assert len(stream.seen) == 1
    assert (await stream.stored())[3:] == [("Wait.", "interrupted")]


async def test_a_fault_of_ours_between_two_rounds(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is as if the next round were lost."""
    await talk.begin_with_a_turn()

    async def fail(*_: Any) -> Any:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(TurnLookUps, "answer", fail)
    got = await talk.ask(say(talk.ours("Wait.")), say(talk.text(2, "Unknown.")))
    text = talk.read(got)
    assert text.endswith("Unknown.")
    # a stream's head is out by then
    assert got.header(b"x-om-status") == [b"raw" if talk.stream else b"degraded"]
    assert talk.seen[1].body == talk.sent
    assert (await talk.stored())[3:] == [(text, "live")]


@pytest.mark.parametrize("is_whole", [True, False], ids=["regenerate", "retry"])
async def test_the_same_request_again(talk: Talk, is_whole: bool) -> None:
    """It has a loop of its own: nothing of the first one is sent again, and one reply stands."""
    await talk.begin_with_a_turn()
    ours = say(talk.ours())
    end = say(talk.text(2, "Red.")) if is_whole else talk.begin(2, "Red.", break_off)
    assert (await talk.ask(ours, end)).whole is is_whole
    first = [seen.body for seen in talk.seen]
    assert talk.read(await talk.ask(ours, say(talk.text(2, "Blue.")))) == "Blue."
    assert [seen.body for seen in talk.seen] == first
    live = [text for text, state in await talk.stored() if state == "live"]
    assert live[3:] == ["Blue."]
    assert await talk.count_look_ups() == 1


async def test_each_round_has_its_own_read_timeout(talk: Talk) -> None:
    """Together they take longer than it."""
    await talk.begin_with_a_turn()
    got = await talk.ask(
        wait_then_say(READ_TIMEOUT_S * 0.6, talk.ours()),
        wait_then_say(READ_TIMEOUT_S * 0.6, talk.text(2, "Blue.")),
    )
    assert talk.read(got) == "Blue."
