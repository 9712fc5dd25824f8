"""Replies with look-ups over real sockets: what the client sees, what the model server gets, and what
the thread keeps."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest
import pytest_asyncio

from om_proxy.observability.facts import TurnEnded
from tests.e2e.planned_rounds import Talk, run_with_planned_rounds, say
from tests.e2e.previewing import list_message_bytes
from tests.e2e.raw_upstream import ProxyUnderTest
from tests.support.upstream_server import Call, Script, script_answer
from tests.wire.apis.chat.look_ups import test_whole_splice as whole

pytestmark = pytest.mark.asyncio(loop_scope="module")  # one proxy, each test with its own thread

numbers = count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ProxyUnderTest]:
    async with run_with_planned_rounds(tmp_path_factory.mktemp("replies")) as site:
        yield site


@pytest.fixture(params=[True, False], ids=["stream", "whole"])
def talk(site: ProxyUnderTest, request: pytest.FixtureRequest) -> Talk:
    return Talk(site, stream=request.param, thread=f"t{next(numbers)}")


@pytest.mark.parametrize("is_shared", [False, True], ids=["a round before", "the same round"])
async def test_a_tool_loop_goes_on_with_what_was_looked_up(talk: Talk, is_shared: bool) -> None:
    """The model looks up, calls a tool of the client, and then three more: each prompt begins with
    the bytes of the one before, and has the look-up once, in its place."""
    await talk.begin_with_a_turn()
    rounds = ["ot"] if is_shared else ["o", "t"]
    got = await talk.ask(*(say(talk.round(n, "", calls)) for n, calls in enumerate(rounds)))
    before = list_message_bytes(talk.seen[-1].body)
    for number in range(1, 5):
        message = talk.read_message(got)
        (call,) = message["tool_calls"]
        talk.history += [message, {"role": "tool", "tool_call_id": call["id"], "content": "3"}]
        ends = number == 4
        says = talk.text(9, "Done.") if ends else talk.round(number + 1, "", "t")
        got = await talk.ask(say(says))
        (prompt,) = (list_message_bytes(seen.body) for seen in talk.seen)
        assert prompt[: len(before)] == before
        assert [b'"own-0"' in one for one in prompt[3:5]] == [True, True]  # the call, its result
        assert sum(b'"own-0"' in one for one in prompt) == 2
        before = prompt
    assert talk.read(got) == "Done."
    assert not await talk.has_stored(b"own-0")


# what the rounds say: a text, calls of ours (o) and theirs (t); what the client gets
SAID: dict[str, tuple[list[tuple[str, str]], str, list[str]]] = {
    "text": ([("Blue.", "")], "Blue.", []),
    "ours, then text": ([("", "o"), ("Blue.", "")], "Blue.", []),
    "text, ours, then text": ([("Wait.", "o"), ("Blue.", "")], "Wait.\n\nBlue.", []),
    "ours three times": ([("", "o")] * 3 + [("Blue.", "")], "Blue.", []),
    "ours twice in one round": ([("", "oo"), ("Blue.", "")], "Blue.", []),
    "ours and theirs": ([("", "ot")], "", ["theirs-0"]),
    "theirs and ours": ([("Hm.", "to")], "Hm.", ["theirs-0"]),
    "ours, then theirs": ([("", "o"), ("", "t")], "", ["theirs-1"]),
    "more than max_steps": ([("", "o")] * 5 + [("Blue.", "")], "Blue.", []),
}


@pytest.mark.parametrize("name", SAID)
async def test_what_the_client_sees(talk: Talk, name: str) -> None:
    """One message without a trace of the proxy's calls, and its own calls as the server sent them;
    the thread keeps that. Between two requests of the client it is no different."""
    rounds, text, theirs = SAID[name]
    await talk.begin_with_a_turn()
    got = await talk.ask(say(talk.round(9, "", "t")))
    talk.history += [
        talk.read_message(got),
        {"role": "tool", "tool_call_id": "theirs-9", "content": "3"},
    ]
    got = await talk.ask(*(say(talk.round(n, *said)) for n, said in enumerate(rounds)))
    message = talk.read_message(got)
    assert (message["content"] or "") == text
    assert message.get("tool_calls", []) == [talk.their_call(id_) for id_ in theirs]
    assert b"recall" not in got.body
    assert len(talk.seen) == len(rounds)
    assert not await talk.has_stored(b'"own')


async def test_a_forged_call_looks_nothing_up(talk: Talk) -> None:
    """What the client says that the model called is the client's own."""
    await talk.begin_with_a_turn()
    forged = {"role": "assistant", "content": None, "tool_calls": [whole.call("x")]}
    result = {"role": "tool", "tool_call_id": "x", "content": "3"}
    talk.history += [forged, result, {"role": "user", "content": "And?"}]
    got = await talk.ask(say(talk.text(1, "Blue.")))
    assert talk.read(got) == "Blue."
    assert got.header(b"x-om-recall-steps") == ([] if talk.stream else [b"0"])
    assert list_message_bytes(talk.seen[0].body) == list_message_bytes(talk.sent)
    assert len(talk.seen) == 1


async def test_a_server_that_compresses_all_the_same(talk: Talk) -> None:
    """Each round is read, and the client gets plain bytes."""
    await talk.begin_with_a_turn()

    def say_packed(data: bytes) -> Script:
        kind = b"text/event-stream" if talk.stream else b"application/json"
        headers = b"Content-Type: " + kind, b"Content-Encoding: gzip"
        return script_answer(gzip.compress(data), *headers)

    got = await talk.ask(say_packed(talk.ours("Wait.")), say_packed(talk.text(2, "Blue.")))
    assert talk.read(got) == "Wait.\n\nBlue."
    assert got.header(b"content-encoding") == []


@pytest.mark.parametrize("is_stream", [True, False])
async def test_rounds_of_a_reply_that_is_drained(tmp_path: Path, is_stream: bool) -> None:
    """With `on_disconnect: drain` they go on to the end of the reply, which is stored whole."""
    async with run_with_planned_rounds(tmp_path, ", on_disconnect: drain") as site:
        talk = Talk(site, stream=is_stream, thread="t")
        await talk.begin_with_a_turn()
        has_left, has_ended = asyncio.Event(), asyncio.Event()

        async def answer_later(call: Call) -> None:
            await has_left.wait()
            await say(talk.ours())(call)

        talk.plan(answer_later, say(talk.text(2, "Blue.")))
        site.app.facts.subscribe(lambda _: has_ended.set(), TurnEnded)
        client = await talk.send()
        await site.server.wait_seen(1)
        await client.close()
        has_left.set()
        await asyncio.wait_for(has_ended.wait(), 60)
        await site.app.background.wait_idle()
        assert (await talk.stored())[3:] == [("Blue.", "live")]
        assert await talk.count_look_ups() == 1
