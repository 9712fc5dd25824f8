"""The rounds of a reply, with a model server that answers by plan: what it is asked, what the
client gets, and what each fault of a later round becomes."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import httpx
import orjson
import pytest

from om_proxy.common.errors import OmError, UpstreamError, UpstreamTimeout
from om_proxy.edge.exchange import Exchange
from om_proxy.edge.rounds.recall_offers import RecallRecord
from om_proxy.edge.rounds.recalling import Recalling
from om_proxy.edge.rounds.reply_rounds import MAX_WHOLE_BYTES
from om_proxy.memory.model import Key
from om_proxy.memory.recall.offering import Offer, ToolUse
from om_proxy.memory.rounds import LookUpAnswer, LookUpCall
from om_proxy.memory.token_prices import Usage
from om_proxy.observability.facts import Facts, LookUpsMade
from om_proxy.settings.identity.callers import Caller
from om_proxy.wire.apis.additions import Addition, Lessons, Trial
from om_proxy.wire.apis.registry import CHAT
from om_proxy.wire.server.capacity.budget import MemoryBudget
from om_proxy.wire.upstream import UpstreamResponse
from om_proxy.wire.upstream.transport import RawResponse
from tests.wire.apis.chat.look_ups import test_whole_splice as whole
from tests.wire.apis.chat.streamed_rounds import (
    DONE,
    calls_round,
    delta,
    own_call,
    read_as_client,
    text_round,
    their_call,
)
from tests.wire.apis.chat.streamed_rounds import piece as call_piece

BODY = b'{"model":"m","messages":[{"role":"user","content":"Which colour?"}],"stream":%s}'
CUT = object()  # the rest of a body breaks off here
HANG = object()  # nothing comes any more
Answer = UpstreamResponse | OmError


class Server:
    """A model server that gives these answers, one a request."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = [*answers]
        self.bodies: list[dict[str, Any]] = []
        self.closed = 0
        self.is_hanging = asyncio.Event()

    async def send(self, exchange: Exchange, body: bytes) -> UpstreamResponse:
        self.bodies.append(json.loads(body))
        answer = self.answers.pop(0)
        if isinstance(answer, OmError):
            raise answer
        return answer

    def respond(
        self, *pieces: Any, status: int = 200, kind: bytes = b"text/event-stream"
    ) -> UpstreamResponse:
        async def close(_response: RawResponse, _is_read: bool) -> None:
            self.closed += 1

        return UpstreamResponse(
            RawResponse(status, [(b"content-type", kind)], Pieces(pieces, self.is_hanging)), close
        )


class Pieces(httpx.AsyncByteStream):
    def __init__(self, pieces: Sequence[Any], is_hanging: asyncio.Event) -> None:
        self._pieces, self._is_hanging = pieces, is_hanging

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            if piece is CUT:
                raise httpx.ReadError("cut")
            if piece is HANG:
                self._is_hanging.set()
                await asyncio.Event().wait()
            yield piece


class Notebook:
    """Look-ups that find the same thing each time."""

    def __init__(self) -> None:
        self.steps: list[Sequence[LookUpCall]] = []

    async def answer(self, calls: Sequence[LookUpCall]) -> list[LookUpAnswer]:
        self.steps.append(calls)
        return [LookUpAnswer(f"It was blue ({call.id}).", "search", "found", 1) for call in calls]


class Play:
    """One request whose first answer is here."""

    def __init__(
        self,
        server: Server,
        *,
        stream: bool,
        max_steps: int = 4,
        budget: MemoryBudget | None = None,
        **retrieval: Any,
    ) -> None:
        self.server, self.notebook, self.looked_up = server, Notebook(), list[LookUpsMade]()
        body = BODY % (b"true" if stream else b"false")
        settings = SimpleNamespace(scope="resource", usage="sum", **retrieval)
        context = SimpleNamespace(
            effective=SimpleNamespace(memory=SimpleNamespace(retrieval=settings))
        )
        caller = Caller(Key("t", "r", "th"), "t")
        self.record = RecallRecord(Offer.OFFERED, "recall", max_steps)
        self.exchange = Exchange({}, body, CHAT.parse_request(body), caller, cast(Any, None), 0.0)
        self.exchange.context = cast(Any, context)
        self.exchange.turn = cast(Any, SimpleNamespace(body=body))
        self.exchange.recall = self.record
        facts = Facts()
        facts.subscribe(self.looked_up.append, LookUpsMade)
        self.created: list[object] = []
        self.recalling = Recalling(server.send, self._create_look_ups, facts, budget)

    async def _create_look_ups(self, turn: object) -> Notebook:
        self.created.append(turn)
        return self.notebook

    async def follow(self) -> UpstreamResponse:
        first = self.server.answers.pop(0)
        assert isinstance(first, UpstreamResponse)
        return await self.recalling.follow(self.exchange, first)

    async def read(self) -> tuple[bytes, bool]:
        """Return the client's bytes, and whether its connection broke."""
        answer, data = await self.follow(), b""
        try:
            async for chunk in answer.chunks():
                data += chunk
        except UpstreamError:
            return data, True
        finally:
            await answer.aclose()
        return data, False


JSON = b"application/json"
OURS, THEIRS = own_call(), their_call()


def streamed(server: Server, *rounds: bytes) -> list[Answer]:
    return [server.respond(data) for data in rounds]


def unstreamed(server: Server, *rounds: bytes) -> list[Answer]:
    return [server.respond(data, kind=JSON) for data in rounds]


async def test_a_look_up_in_a_stream() -> None:
    """The next round is the first one with the model's message and the answer behind it."""
    server = Server()
    server.answers = streamed(server, calls_round(1, *OURS, text="Wait."), text_round(2, "Blue."))
    play = Play(server, stream=True)
    data, is_broken = await play.read()
    assert not is_broken
    assert read_as_client(data).choices[0].message.content == "Wait.\n\nBlue."
    (body,) = server.bodies
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "tool"]
    assert body["messages"][2] == {
        "role": "tool",
        "tool_call_id": "own",
        "content": "It was blue (own).",
    }
    assert [tool["function"]["name"] for tool in body["tools"]] == ["recall"]
    assert play.record.usages == [Usage(100, 50, 0, 10)] * 2
    assert [json.loads(r.assistant)["content"] for r in play.record.rounds] == ["Wait."]
    assert [fact.look_ups for fact in play.looked_up] == [(("search", "found"),)]
    assert server.closed == 2


async def test_the_usage_of_the_last_round_is_known_at_its_end() -> None:
    """The turn is stored before the client gets the end of the stream. Then each round counts."""
    server = Server()
    last = text_round(2, "Blue.")
    server.answers = [
        server.respond(calls_round(1, *OURS)),
        server.respond(last.removesuffix(DONE), DONE),
    ]
    play = Play(server, stream=True)
    answer = await play.follow()
    async for chunk in answer.chunks():
        if DONE in chunk:
            break
    assert play.record.list_usages() == [Usage(100, 50, 0, 10)] * 2
    await answer.aclose()


async def test_a_look_up_without_a_stream() -> None:
    server = Server()
    server.answers = unstreamed(
        server, whole.reply(1, None, whole.call("own")), whole.reply(2, "Blue.")
    )
    play = Play(server, stream=False)
    answer = await play.follow()
    data = b"".join([chunk async for chunk in answer.chunks()])
    assert json.loads(data)["choices"][0]["message"]["content"] == "Blue."
    assert (b"content-length", b"%d" % len(data)) in answer.headers
    assert (play.record.steps, play.record.is_whole) == (1, True)


@pytest.mark.parametrize("stream", [True, False])
async def test_without_look_ups_nothing_differs(stream: bool) -> None:
    server = Server()
    data = calls_round(1, *THEIRS) if stream else whole.reply(1, "Hi", whole.call("x", "f"))
    server.answers = (streamed if stream else unstreamed)(server, data)
    play = Play(server, stream=stream)
    assert await play.read() == (data, False)
    assert (server.bodies, play.record.steps) == ([], 0)


async def test_a_stream_without_calls_comes_event_by_event() -> None:
    """Half an event waits for its end; no event waits for another one. The look-ups of a reply that
    makes none are not even created."""
    server, events = Server(), [delta(1, content=word) for word in ("A", "B")]
    halves = [events[0][:9], events[0][9:]]
    server.answers = [server.respond(*halves, events[1], DONE, b"data: half")]
    play = Play(server, stream=True)
    answer = await play.follow()
    assert [chunk async for chunk in answer.chunks()] == [*events, DONE, b"data: half"]
    assert not play.created
    assert server.closed == 0
    await answer.aclose()
    assert server.closed == 1


async def test_a_compressed_stream_is_decompressed_once() -> None:
    """A tool call in its middle: what reads the rest goes on with the same decoder."""
    server = Server()
    packed = gzip.compress(calls_round(1, *OURS, text="Wait. " * 50))
    pieces = [packed[start : start + 40] for start in range(0, len(packed), 40)]
    server.answers = [server.respond(*pieces), server.respond(text_round(2, "Blue."))]
    server.answers[0].headers.append((b"content-encoding", b"gzip"))
    data, is_broken = await Play(server, stream=True).read()
    assert not is_broken
    assert (read_as_client(data).choices[0].message.content or "").endswith("Wait. \n\nBlue.")


async def test_both_kinds_of_calls() -> None:
    """The look-ups are made and kept, and the reply is complete."""
    server = Server()
    server.answers = streamed(server, calls_round(1, *THEIRS, *own_call(1)))
    play = Play(server, stream=True)
    data, _ = await play.read()
    assert [c.id for c in read_as_client(data).choices[0].message.tool_calls or ()] == ["theirs"]
    assert play.record.beside is not None
    assert play.record.rounds == []
    assert len(play.notebook.steps) == 1
    assert server.bodies == []


async def test_no_more_steps_than_allowed() -> None:
    """The last round must not call, and a call all the same is taken out. It says nothing else, so
    one more round goes without the tool."""
    server = Server()
    server.answers = streamed(
        server, *(calls_round(n, *OURS) for n in range(3)), text_round(3, "Blue.")
    )
    play = Play(server, stream=True, max_steps=2)
    data, _ = await play.read()
    assert read_as_client(data).choices[0].message.content == "Blue."
    assert [body.get("tool_choice") for body in server.bodies] == [None, "none", None]
    assert ["tools" in body for body in server.bodies] == [True, True, False]
    assert len(play.notebook.steps) == 2


async def test_a_last_round_with_text_ends() -> None:
    server = Server()
    server.answers = streamed(server, calls_round(1, *OURS), calls_round(2, *OURS, text="Blue."))
    data, _ = await Play(server, stream=True, max_steps=1).read()
    choice = read_as_client(data).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Blue.", "stop")


LOST: dict[str, Callable[[Server], Answer]] = {
    "refused": lambda server: server.respond(b'{"error":{}}', status=400, kind=JSON),
    "overloaded": lambda server: server.respond(b'{"error":{}}', status=503, kind=JSON),
    "unreachable": lambda server: UpstreamError("away"),
    "too slow": lambda server: UpstreamTimeout("slow"),
    "broken before its first byte": lambda server: server.respond(CUT),
}


@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_later_round_is_lost(fault: str, stream: bool) -> None:
    """The round before is asked once more without the tool, and its answer is the reply. Nothing of
    the look-up is kept, because the reply was not made from it."""
    server = Server()
    respond = streamed if stream else unstreamed
    first = calls_round(1, *OURS) if stream else whole.reply(1, None, whole.call("own"))
    last = text_round(2, "Unknown.") if stream else whole.reply(2, "Unknown.")
    server.answers = [*respond(server, first), LOST[fault](server), *respond(server, last)]
    play = Play(server, stream=stream)
    data, is_broken = await play.read()
    assert not is_broken
    assert b"Unknown." in data
    if stream:
        read_as_client(data)
    assert [len(body["messages"]) for body in server.bodies] == [3, 1]
    assert ["tools" in body for body in server.bodies] == [True, False]
    assert play.record.rounds == []


async def test_a_refused_round_is_sent_in_its_plain_form() -> None:
    """A server may refuse what it has just said; then role, text and calls go back alone. So they
    do in the rounds after it."""
    server = Server()
    first = whole.reply(1, None, whole.call("own"))
    thinking = first.replace(b'"role"', b'"reasoning_content":"hm","role"')
    assert thinking != first
    refusal = server.respond(b'{"error":{}}', status=400, kind=JSON)
    server.answers = [
        *unstreamed(server, thinking),
        refusal,
        *unstreamed(server, thinking),
        *unstreamed(server, whole.reply(3, "Blue.")),
    ]
    data, _ = await Play(server, stream=False).read()
    assert b"Blue." in data
    callers = [[m for m in body["messages"] if "tool_calls" in m] for body in server.bodies]
    assert [["reasoning_content" in m for m in each] for each in callers] == [
        *([True], [False], [False, False])
    ]
    assert all("tools" in body for body in server.bodies)


async def test_refused_forms_are_learnt() -> None:
    """After two replies in a row whose round was accepted in its plain form alone, the next one's is
    plain at once."""
    lessons = Lessons()
    thinking = whole.reply(1, None, whole.call("own")).replace(
        b'"role"', b'"reasoning_content":"hm","role"'
    )
    for forms in ([True, False], [True, False], [False]):
        server = Server()
        refusals = [server.respond(b'{"error":{}}', status=400, kind=JSON)] * (len(forms) - 1)
        answer = unstreamed(server, whole.reply(2, "Blue."))
        server.answers = [*unstreamed(server, thinking), *refusals, *answer]
        play = Play(server, stream=False)
        play.exchange.trial = Trial(lessons, Addition.TOOL, float)
        data, _ = await play.read()
        assert b"Blue." in data
        assert [b"reasoning_content" in orjson.dumps(body) for body in server.bodies] == forms


@pytest.mark.parametrize("stream", [True, False])
async def test_every_later_round_is_lost(stream: bool) -> None:
    """Without a byte sent, the client gets the model server's error as it came."""
    server = Server()
    first = (
        calls_round(1, *OURS)[calls_round(1).index(b"\n\n") + 2 :]
        if stream
        else whole.reply(1, None, whole.call("own"))
    )
    error = server.respond(b'{"error":{"code":"busy"}}', status=503, kind=JSON)
    server.answers = [
        *(streamed if stream else unstreamed)(server, first),
        UpstreamError("away"),
        error,
    ]
    play = Play(server, stream=stream)
    answer = await play.follow()
    assert answer.status == 503
    assert await answer.read() == b'{"error":{"code":"busy"}}'


@pytest.mark.parametrize("stream", [True, False])
async def test_no_server_for_later_rounds(stream: bool) -> None:
    """Without a byte sent, the proxy tells its own error; behind text, the connection breaks."""
    server = Server()
    first = (
        delta(1, tool_calls=OURS[0]) + delta(1, "tool_calls") + DONE
        if stream
        else whole.reply(1, None, whole.call("own"))
    )
    server.answers = [
        *(streamed if stream else unstreamed)(server, first),
        UpstreamError("away"),
        UpstreamError("gone"),
    ]
    with pytest.raises(UpstreamError, match="gone"):
        await Play(server, stream=stream).follow()
    server.answers = [
        *streamed(server, calls_round(1, *OURS, text="Wait.")),
        UpstreamError("away"),
        UpstreamError("gone"),
    ]
    data, is_broken = await Play(server, stream=True).read()
    assert is_broken
    assert b"Wait." in data
    assert DONE not in data


async def test_a_round_breaks_off() -> None:
    """In the middle of any round the client's connection breaks, and it saw no trace of a call."""
    first = calls_round(1, *OURS, text="Wait.")
    for pieces in ([first[:300], CUT], [CUT]):
        server = Server()
        server.answers = [server.respond(*pieces)]
        data, is_broken = await Play(server, stream=True).read()
        assert is_broken
        assert b"recall" not in data
    server = Server()
    server.answers = [server.respond(first), server.respond(delta(2, content="Bl"), CUT)]
    data, is_broken = await Play(server, stream=True).read()
    assert is_broken
    assert data.endswith(b"\n\n")
    assert DONE not in data


async def test_an_error_event_of_a_later_round() -> None:
    server = Server()
    error = b'data: {"error": {"message": "overloaded"}}\n\n'
    server.answers = streamed(server, calls_round(1, *OURS), error)
    data, _ = await Play(server, stream=True).read()
    assert data.endswith(error)


async def test_another_kind_than_was_asked_for() -> None:
    """The answer is read by what it is: JSON to a request for a stream, and a stream without its
    type. A body that nothing here can read goes on as it came."""
    server = Server()
    server.answers = unstreamed(
        server, whole.reply(1, None, whole.call("own")), whole.reply(2, "Blue.")
    )
    assert b"Blue." in (await Play(server, stream=True).read())[0]
    server.answers = [
        server.respond(data, kind=b"text/plain")
        for data in (calls_round(1, *OURS), text_round(2, "Blue."))
    ]
    assert b"Blue." in (await Play(server, stream=True).read())[0]
    odd = server.respond(b"??")
    odd.headers.append((b"content-encoding", b"unknown"))
    server.answers = [odd]
    assert await Play(server, stream=True).read() == (b"??", False)


async def test_a_large_reply_is_passed_on() -> None:
    server = Server()
    large = whole.reply(1, "x" * MAX_WHOLE_BYTES, whole.call("own"))
    server.answers = unstreamed(server, large)
    assert await Play(server, stream=False).read() == (large, False)


async def test_comments_between_rounds() -> None:
    """A client that asks for comments is told of each look-up, without its words."""
    server = Server()
    server.answers = streamed(server, calls_round(1, *OURS), text_round(2, "Blue."))
    play = Play(server, stream=True)
    play.exchange.comments = cast(Any, object())
    data, _ = await play.read()
    (comment,) = [line for line in data.split(b"\n") if line.startswith(b": om")]
    told = json.loads(comment[5:])
    assert told["type"] == "data-om-recall"
    assert {name: told["data"][name] for name in ("step", "mode", "found")} == {
        "step": 1,
        "mode": "search",
        "found": 1,
    }
    assert set(told["data"]) == {"step", "mode", "found", "ms"}


async def read_while_charged(play: Play, budget: MemoryBudget) -> tuple[bytes, int]:
    """Return the client's bytes, and the most bytes that were charged meanwhile."""
    answer, data, most = await play.follow(), b"", 0
    async for chunk in answer.chunks():
        data += chunk
        most = max(most, budget.held_bytes)
    await answer.aclose()
    return data, most


@pytest.mark.parametrize("has_room", [True, False])
@pytest.mark.parametrize("calls", [True, False])
async def test_what_is_held_of_a_long_stream_is_charged(calls: bool, has_room: bool) -> None:
    """It counts while it is held, and is freed with the reply. Without room nothing is held, and a
    look-up is made all the same: its round begins without what went out before."""
    words = "w" * 1_000
    text = b"".join(delta(1, content=words) for _ in range(1_000))
    server = Server()
    if calls:
        end = b"".join(delta(1, tool_calls=pieces) for pieces in OURS) + delta(1, "tool_calls")
    else:
        end = delta(1, "stop")
    pieces = [text[at : at + 50_000] for at in range(0, len(text), 50_000)]
    server.answers = [server.respond(*pieces, end + DONE), server.respond(text_round(2, "Blue."))]
    budget = MemoryBudget(lambda: (8 << 20) if has_room else (1 << 20))
    play = Play(server, stream=True, budget=budget)
    data, most = await read_while_charged(play, budget)
    reply = read_as_client(data).choices[0].message.content or ""
    assert reply == words * 1_000 + ("\n\nBlue." if calls else "")
    assert most >= 2 * len(text) if has_room else most < 1 << 20
    assert budget.held_bytes == 0
    if calls:
        said = server.bodies[0]["messages"][1]["content"]
        assert said == (words * 1_000 if has_room else None)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("fault", ["overloaded", "unreachable"])
async def test_later_rounds_are_lost_before_any_text(fault: str, stream: bool) -> None:
    """A stream that has shown nothing ends with the error as an event, as model servers end one;
    without a stream the error comes as it is."""
    server = Server()
    busy = b'{"error":{"code":"rate_limit_exceeded",\n"message":"busy"}}'

    def lose() -> Answer:
        return (
            UpstreamError("away")
            if fault == "unreachable"
            else server.respond(busy, status=429, kind=JSON)
        )

    if not stream:
        first = whole.reply(1, None, whole.call("own"))
        server.answers = [*unstreamed(server, first), lose(), lose()]
        if fault == "unreachable":
            with pytest.raises(UpstreamError):
                await Play(server, stream=False).follow()
        else:
            assert (await Play(server, stream=False).follow()).status == 429
        return
    server.answers = [*streamed(server, calls_round(1, *OURS)), lose(), lose()]
    data, is_broken = await Play(server, stream=True).read()
    assert not is_broken
    events = data.split(b"\n\n")
    assert b'"role": "assistant"' in events[0]
    code = "rate_limit_exceeded" if fault == "overloaded" else "om_upstream_unreachable"
    assert json.loads(events[1].removeprefix(b"data: "))["error"]["code"] == code
    assert events[2:] == [b"data: [DONE]", b""]


MISNAMED = ["functions.recall", "Recall", "RECALL", "default_api.recall"]


@pytest.mark.parametrize("is_theirs", [False, True])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", MISNAMED)
async def test_a_misnamed_tool(name: str, stream: bool, is_theirs: bool) -> None:
    """Its call is the proxy's, and goes back under the right name, unless the client has a tool of
    that name."""
    server = Server()
    if stream:
        called = [[call_piece(0, "", id="own", name=name)], [call_piece(0, '{"query":"x"}')]]
        server.answers = streamed(server, calls_round(1, *called), text_round(2, "Blue."))
    else:
        server.answers = unstreamed(
            server, whole.reply(1, None, whole.call("own", name)), whole.reply(2, "Blue.")
        )
    play = Play(server, stream=stream)
    play.record.use = ToolUse(1, False, frozenset([name] if is_theirs else []))
    data, is_broken = await play.read()
    assert not is_broken
    assert (name.encode() in data) == is_theirs
    assert (b"Blue." in data) != is_theirs
    if not is_theirs:
        (call,) = server.bodies[0]["messages"][1]["tool_calls"]
        assert call["function"]["name"] == "recall"


async def test_json_beside_a_look_up() -> None:
    """Without a stream the reply is the last round's text. In a stream the text that went out is
    the reply; without any, the look-up is made."""
    use = ToolUse(1, False, frozenset(), wants_json=True)
    first, last = '{"a":1}', '{"a":2}'
    server = Server()
    server.answers = unstreamed(
        server, whole.reply(1, first, whole.call("own")), whole.reply(2, last)
    )
    play = Play(server, stream=False)
    play.record.use = use
    data, _ = await play.read()
    assert json.loads(data)["choices"][0]["message"]["content"] == last
    for text, said, asked in ((first, first, 0), ("", last, 1)):
        server = Server()
        server.answers = streamed(server, calls_round(1, *OURS, text=text), text_round(2, last))
        play = Play(server, stream=True)
        play.record.use = use
        data, is_broken = await play.read()
        assert not is_broken
        choice = read_as_client(data).choices[0]
        assert (choice.message.content, choice.finish_reason) == (said, "stop")
        assert (len(server.bodies), len(play.notebook.steps)) == (asked, asked)
