"""Faults between the rounds of a reply, over real sockets (docs/spec/recall.md#faults-of-rounds): a
raw client, the program as `om-proxy serve` serves it, and a model server that answers by plan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import orjson
import pytest
import pytest_asyncio

from om_proxy.look_ups.turn_look_ups import TurnLookUps
from om_proxy.memory.model import Key
from tests.apis.chat import test_whole_splice as whole
from tests.apis.chat.streamed_rounds import (
    DONE,
    calls_round,
    delta,
    piece,
    read_as_client,
    text_round,
    their_call,
)
from tests.e2e.previewing import list_message_bytes
from tests.e2e.raw_upstream import ProxyUnderTest, run_with_raw_upstream
from tests.edge.test_recalling_faults import plant_fault
from tests.support.raw_client import RawClient, RawResponse
from tests.support.upstream_server import SSE_HEAD, Call, Script, SeenRequest, chunk, script_answer

pytestmark = pytest.mark.asyncio(loop_scope="module")  # one proxy, each test with its own thread

READ_TIMEOUT_S = 1.0
MAX_CLOSE_S = 1.0
QUERY = '{"query":"crates"}'
OURS = [[piece(0, QUERY, id="own", name="recall")]]
ERROR = b'{"error":{"message":"busy","code":"busy"}}'
numbers = count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ProxyUnderTest]:
    """With another conversation of the resource, so that every request is offered the tool."""
    async with run_with_raw_upstream(
        tmp_path_factory.mktemp("rounds"),
        upstream=f", read_timeout: {READ_TIMEOUT_S}s",
        memory=", retrieval: {enabled: true, offer: always, scope: resource}",
    ) as site:
        await Talk(site, stream=False, thread="other").begin_with_a_turn()
        yield site


@pytest.fixture(params=[True, False], ids=["stream", "whole"])
def talk(site: ProxyUnderTest, request: pytest.FixtureRequest) -> Talk:
    return Talk(site, stream=request.param, thread=f"t{next(numbers)}")


@pytest.fixture
def stream(site: ProxyUnderTest) -> Talk:
    return Talk(site, stream=True, thread=f"t{next(numbers)}")


def write_response(data: bytes) -> bytes:
    """Write a response as a model server sends it, whole."""
    if data.startswith(b"data:"):
        return SSE_HEAD + chunk(data) + chunk(b"")
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(data) + data


def say(data: bytes) -> Script:
    async def script(call: Call) -> None:
        call.send(write_response(data))

    return script


async def break_off(call: Call) -> None:
    call.close()


async def reset(call: Call) -> None:
    call.reset()


async def stay_silent(call: Call) -> None:
    await call.closed.wait()


def refuse(status: bytes) -> Script:
    return script_answer(ERROR, b"Content-Type: application/json", status=status)


def wait_then_say(seconds: float, data: bytes) -> Script:
    async def script(call: Call) -> None:
        await asyncio.sleep(seconds)
        call.send(write_response(data))

    return script


@dataclass
class Talk:
    """One thread, and its client that shows its whole history."""

    site: ProxyUnderTest
    stream: bool
    thread: str
    history: list[dict[str, Any]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    sent: bytes = b""

    def plan(self, *scripts: Script) -> None:
        """Have the model server answer the next requests so, and hang up on any more."""
        rest = iter(scripts)

        async def script(call: Call) -> None:
            self.calls.append(call)
            await next(rest, break_off)(call)

        self.site.server.seen.clear()
        self.calls.clear()
        self.site.server.script = script

    async def send(self) -> RawClient:
        body = {"model": "m", "stream": self.stream, "messages": self.history}
        self.sent = orjson.dumps(body)
        client = await RawClient.connect(self.site.port)
        credentials = b"Authorization: Bearer k", b"X-OM-Resource: r"
        client.send(self.sent, headers=(*credentials, b"X-OM-Thread: " + self.thread.encode()))
        return client

    async def ask(self, *scripts: Script) -> RawResponse:
        """Send the history, and have the model server answer so."""
        self.plan(*scripts)
        client = await self.send()
        try:
            return await client.answer()
        finally:
            await client.close()
            await self.site.app.background.wait_idle()

    async def begin_with_a_turn(self) -> None:
        """Take a turn without a look-up, and ask the next question."""
        self.history = [{"role": "user", "content": "Hello."}]
        await self.ask(say(self.text(9, "Hi.")))
        self.history += [
            {"role": "assistant", "content": "Hi."},
            {"role": "user", "content": "Which crates?"},
        ]

    # ── what the model server says ──

    def text(self, number: int, text: str) -> bytes:
        return text_round(number, text) if self.stream else whole.reply(number, text)

    def ours(self, text: str = "") -> bytes:
        """A round that looks up; streamed, it may begin with a text."""
        if self.stream:
            return calls_round(1, *OURS, text=text)
        return whole.reply(1, text or None, whole.call("own", arguments=QUERY))

    def silent_ours(self) -> bytes:
        """A round that looks up and of which no byte goes to the client."""
        if not self.stream:
            return self.ours()
        return b"".join(delta(1, tool_calls=event) for event in OURS) + (
            delta(1, "tool_calls") + DONE
        )

    def both(self) -> bytes:
        """A round that looks up and calls a tool of the client, and says nothing else."""
        if not self.stream:
            return whole.reply(1, None, whole.call("own"), whole.call("theirs", "f"))
        events = [*OURS, *their_call(1)]
        return b"".join(delta(1, tool_calls=e) for e in events) + delta(1, "tool_calls") + DONE

    def round(self, number: int, text: str, calls: str) -> bytes:
        """A round that says the text, and calls the proxy's tool (`o`) and the client's (`t`)."""
        made = [
            self.their_call(f"theirs-{number}")
            if who == "t"
            else whole.call(f"own-{number}{'b' * place}", arguments=QUERY)
            for place, who in enumerate(calls)
        ]
        if not self.stream:
            return whole.reply(number, text or None, *made)
        if not made:
            return text_round(number, text)
        events = [[{"index": index, **call}] for index, call in enumerate(made)]
        return calls_round(number, *events, text=text)

    def their_call(self, id_: str) -> dict[str, Any]:
        return whole.call(id_, "f", '{"a":1}')

    def begin(
        self, number: int, text: str, then: Callable[[Call], Coroutine[Any, Any, None]]
    ) -> Script:
        """A round of which half is said."""
        said = delta(number, role="assistant", content="") + delta(number, content=text)

        async def script(call: Call) -> None:
            if self.stream:
                call.send(SSE_HEAD + chunk(said))
            else:
                call.send(write_response(self.text(number, text))[:-40])
            await then(call)

        return script

    # ── what came of it ──

    @property
    def bodies(self) -> list[Any]:
        return [orjson.loads(seen.body) for seen in self.seen]

    @property
    def seen(self) -> list[SeenRequest]:
        return self.site.server.seen

    def read(self, got: RawResponse) -> str:
        """Read a complete reply's text, with the strictness of an SDK."""
        assert (got.status, got.whole) == (200, True)
        assert b"recall" not in got.body
        return str(self.read_message(got)["content"])

    def read_message(self, got: RawResponse) -> dict[str, Any]:
        """Read a complete reply's message, as the client sends it back."""
        assert b'"own"' not in got.body
        if not self.stream:
            message: dict[str, Any] = orjson.loads(got.body)["choices"][0]["message"]
            return message
        read = read_as_client(got.body).choices[0].message
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for call in read.tool_calls or ()
        ]
        return {
            "role": "assistant",
            "content": read.content,
            **({"tool_calls": calls} if calls else {}),
        }

    async def key(self) -> Key:
        threads = await self.site.app.store.threads(None)
        return next(info.key for info in threads if info.key.thread == self.thread)

    async def stored(self) -> list[tuple[str, str]]:
        """The thread's messages: their texts, and their states."""
        stored = await self.site.app.store.stored_messages(await self.key(), 0, limit=99)
        return [(str(orjson.loads(one.message.item.raw)["content"]), one.state) for one in stored]

    async def has_stored(self, data: bytes) -> bool:
        live = await self.site.app.store.messages(await self.key(), 0)
        return any(data in message.item.raw for message in live)

    async def count_look_ups(self) -> int:
        """Count the live messages that keep look-ups."""
        live = await self.site.app.store.messages(await self.key(), 0)
        return sum(message.look_ups is not None for message in live)


async def cut_before_a_byte(call: Call) -> None:
    call.send(SSE_HEAD)
    call.close()


LOST: dict[str, Script] = {
    "refused": refuse(b"400 Bad Request"),
    "overloaded": refuse(b"503 Busy"),
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
