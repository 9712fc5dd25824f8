"""A rewritten request differs in its messages only, and a model server that holds to the published
schema takes it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from tests.e2e.differential.both_ways import both_ways, differences, spoken
from tests.e2e.differential.chats import ODDITIES, members, messages, streams
from tests.e2e.differential.exchange import COMPLETED, COMPLETION, JSON, Exchange, answer
from tests.e2e.differential.published import refused
from tests.e2e.raw_upstream import ProxyUnderTest, run_with_raw_upstream
from tests.support.upstream_server import Call

pytestmark = pytest.mark.asyncio(loop_scope="module")
numbers = count(1)

FIRST = b'{"role":"user","content":"my \\u20ac first words","x":1.50}'
# as the model server wrote it, without the member that only answers have
REPLY = COMPLETION[COMPLETION.index(b'{"role"') : COMPLETION.index(b"}}]") + 1].replace(
    b',"refusal":null', b""
)
# Parsers for which half a character, NaN or a second key are no error; those of ODDITIES that are a
# chat and have messages.
LENIENT = (
    "no model",
    "messages first",
    "a result nobody asked for",
    "a call nobody answers",
    "half a character",
    "keys twice",
)
CHATS = [
    *members(),
    *messages(),
    *streams(),
    *(Exchange(f"odd: {n}", body=b) for n, b in ODDITIES if n in LENIENT),
]
LEADING = ("system", "developer")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ProxyUnderTest]:
    async with run_with_raw_upstream(tmp_path_factory.mktemp("rewritten")) as site:
        yield site


async def remembering(site: ProxyUnderTest) -> bytes:
    """The header of a thread in which one question was asked and answered."""
    thread = b"X-OM-Thread: rewritten-%d" % next(numbers)
    site.server.script = COMPLETED.script()
    first = Exchange("first", headers=(JSON, thread), body=b'{"messages":[' + FIRST + b"]}")
    assert (await spoken(site.port, first.wire(b"localhost", first.target))).status == 200
    await site.app.background.wait_idle()
    return thread


@pytest.mark.parametrize("exchange", [pytest.param(e, id=e.name) for e in CHATS])
async def test_outside_its_messages(site: ProxyUnderTest, exchange: Exchange) -> None:
    """Every byte of a rewritten body before and behind the messages is the client's, and every
    message the client sent is among them."""
    both = await both_ways(site, exchange, await remembering(site), b"X-OM-History: new")
    assert both.heard.all(b"x-om-status") == [b"applied"]
    assert differences(both, identity=True, rewritten=True) == []
    assert b"my \\u20ac first words" in both.seen.body
    if exchange.name == "odd: keys twice":  # parsers take the last; so does what is sent on, once
        assert both.seen.body.startswith(b'{"model":"b","messages":[')
        return
    before, sent, behind = cut_out(both.seen_directly.body)
    assert cut_out(both.seen.body) == (before, expected(sent), behind)


def cut_out(body: bytes) -> tuple[bytes, list[bytes], bytes]:
    """What stands before the messages, each of them, and what stands behind. The only `"messages"`
    of a body is its own."""
    before, name, rest = body.partition(b'"messages"')
    colon = rest.index(b"[")
    said, end = split(rest[colon:])
    return before + name + rest[:colon], said, rest[colon:][end:]


def split(text: bytes) -> tuple[list[bytes], int]:
    """The elements of the JSON list that `text` begins with, and where it ends. By another parser
    than the proxy's."""
    chars, at, found = (
        text.decode("latin-1"),
        1,
        list[bytes](),
    )  # a character a byte, so that places are those of the bytes
    while True:
        while chars[at] in " \t\r\n,":
            at += 1
        if chars[at] == "]":
            return found, at + 1
        _, end = json.JSONDecoder().raw_decode(chars, at)
        found.append(text[at:end])
        at = end


def expected(sent: list[bytes]) -> list[bytes]:
    """The client's instructions, what is remembered, and the rest of what the client sent; half a
    character is U+FFFD there."""
    leading = next(
        (n for n, raw in enumerate(sent) if json.loads(raw)["role"] not in LEADING), len(sent)
    )
    return [
        *sent[:leading],
        FIRST,
        REPLY,
        *(raw.replace(b"\\ud83d", b"\\ufffd") for raw in sent[leading:]),
    ]


# ── a server that holds to the published schema ───────────────────────────────────────────────────

NOTES = (
    "<observations>\nDate: Nov 14, 2023\n* 🔴 (10:00) User keeps crate <7> & \"its\" lid at Quarry Steps\n* ✅ (10:01) Told which dock\n"
    "</observations>\n<current-task>count the crates</current-task>\n<suggested-response>say how many</suggested-response>"
)  # fmt: skip


@dataclass
class Strict:
    """A model server that refuses what the published schema refuses. It takes notes too, and calls
    tools when it is asked to."""

    refusals: list[str] = field(default_factory=list)
    observed: int = 0
    layouts: set[tuple[str, ...]] = field(
        default_factory=set
    )  # the roles that rewritten prompts began with

    async def __call__(self, call: Call) -> None:
        request = orjson.loads(call.seen.body)
        why = refused(request)
        if why is not None:
            self.refusals.append(why)
            call.send(
                answer(
                    orjson.dumps({"error": {"message": why}}), JSON, status=b"400 Bad Request"
                ).wire
            )
            return
        if call.seen.header(b"authorization") == [b"Bearer sk-observer"]:
            self.observed += 1
            call.send(completion({"role": "assistant", "content": NOTES}))
            return
        if "<observations>" in call.seen.body.decode():
            self.layouts.add(tuple(said["role"] for said in request["messages"][:4]))
        call.send(completion(self._reply(request)))

    def _reply(self, request: Any) -> dict[str, Any]:
        if "look up" not in orjson.dumps(request["messages"][-1]).decode():
            return {"role": "assistant", "content": "There are twelve crates on the dock. " * 12}
        calls = [
            {
                "id": f"call_{next(numbers)}",
                "type": "function",
                "function": {"name": "count", "arguments": '{"x":1.0}'},
            }
            for _ in range(2)
        ]
        return {"role": "assistant", "content": None, "tool_calls": calls}


def completion(message: dict[str, Any]) -> bytes:
    return answer(
        orjson.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}), JSON
    ).wire


SMALL = (
    ", retrieval: false, observation: {message_tokens: 1200, buffer_tokens: 300, block_timeout: 5s}, "
    "reflection: {observation_tokens: 100000}"
)
OPENINGS: list[tuple[str, list[dict[str, Any]]]] = [
    ("no instructions", []),
    ("a system message", [{"role": "system", "content": "Be brief."}]),
    (
        "a developer message in parts",
        [{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}],
    ),
    (
        "two",
        [{"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Be kind."}],
    ),
]


@pytest.mark.sample(5)
@pytest.mark.parametrize("layout", ["blocks", "merged"])
@pytest.mark.parametrize("newest", [False, True], ids=["whole history", "newest message"])
@pytest.mark.parametrize("opening", [pytest.param(row[1], id=row[0]) for row in OPENINGS])
async def test_a_strict_server_takes_them(
    tmp_path: Path, opening: list[dict[str, Any]], newest: bool, layout: str
) -> None:
    """Through turns with text, images and parallel tools, observed and shortened again and again:
    not one request is refused."""
    strict, statuses = Strict(), []
    async with run_with_raw_upstream(
        tmp_path, f"context: {{layout: {layout}}}", memory=SMALL
    ) as site:
        site.server.script = strict
        history: list[dict[str, Any]] = []
        for turn in range(14):
            said = [question(turn)]
            while said:
                history += said
                body = write_request([*opening, *(said if newest else history)])
                headers = (JSON, b"Authorization: Bearer sk-a", b"X-OM-Thread: t")
                heard = await spoken(
                    site.port,
                    Exchange("x", headers=headers, body=body).wire(
                        b"localhost", "/v1/chat/completions"
                    ),
                )
                await site.app.background.wait_idle()
                assert heard.status == 200, heard.body
                check(
                    body,
                    [
                        s.body
                        for s in site.server.seen
                        if s.header(b"authorization") == [b"Bearer sk-a"]
                    ][-1],
                )
                statuses += heard.all(b"x-om-status")
                history.append(orjson.loads(heard.body)["choices"][0]["message"])
                said = [
                    {"role": "tool", "tool_call_id": c["id"], "content": "12 crates"}
                    for c in history[-1].get("tool_calls", ())
                ]
    assert strict.refusals == []
    assert strict.observed >= 3
    assert statuses.count(b"applied") >= 8
    most = max(1, len(opening)) if layout == "merged" else len(opening) + 1
    assert strict.layouts, "no prompt had an observation block"
    assert all(sum(role in LEADING for role in roles) == most for roles in strict.layouts)


def write_request(messages: list[dict[str, Any]]) -> bytes:
    """A body as a client of another language writes it."""
    tools = b'"tools" : ' + json.dumps(TOOLS, indent=1).encode()
    return (
        b'{"model":"m",\n"messages" : '
        + orjson.dumps(messages)
        + b' , "temperature":0.70, '
        + tools
        + b"}\n"
    )


def check(body: bytes, sent_on: bytes) -> None:
    """Outside its messages every byte stays, and its newest message is the last one."""
    (before, mine, behind), (before_too, sent, behind_too) = cut_out(body), cut_out(sent_on)
    assert (before_too, sent[-1:], behind_too) == (before, mine[-1:], behind)


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "count",
            "parameters": {"type": "object", "properties": {"x": {"type": "number"}}},
        },
    }
]


def question(turn: int) -> dict[str, Any]:
    text = (
        f"Crate {turn} weighs {turn} kilos, is painted red and goes to dock {turn} at Quarry Steps. "
        * 6
    )
    if turn % 3 == 1:
        return {"role": "user", "content": f"look up crate {turn}, please. {text}"}
    if turn % 5 == 2:
        image = {
            "type": "image_url",
            "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"},
        }
        return {"role": "user", "content": [{"type": "text", "text": text}, image]}
    return {"role": "user", "content": text, "name": "ann"}
