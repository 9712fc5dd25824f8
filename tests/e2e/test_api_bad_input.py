"""What no client should send to the Messages API or the Responses API passes as it came, is read as
far as it goes, and breaks no conversation (each row of the contract's table)."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import orjson
import pytest
import pytest_asyncio

from om_proxy.memory.model import Key
from om_proxy.settings.identity.tenants import LOCAL_TENANT
from tests.e2e.api_wires import MESSAGES, RESPONSES, WIRES, Wire, script_pieces
from tests.e2e.raw_upstream import ProxyUnderTest, read_reason, run_with_raw_upstream

pytestmark = pytest.mark.asyncio(loop_scope="module")
each_wire = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.api)
numbers = count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ProxyUnderTest]:
    async with run_with_raw_upstream(tmp_path_factory.mktemp("bad_input")) as site:
        yield site


def name_thread() -> tuple[bytes, Key]:
    thread = f"bad-{next(numbers)}"
    return f"X-OM-Thread: {thread}".encode(), Key(LOCAL_TENANT, thread, thread)


async def check_passes(
    site: ProxyUnderTest, wire: Wire, body: bytes, reason: str, *headers: bytes
) -> None:
    """It goes up and down by the byte, nothing is stored, and nothing is told of a thread."""
    named, key = name_thread()
    got = await wire.ask(site, body, named, *headers)
    assert (site.seen.body, got.body) == (body, wire.answer())
    assert read_reason(got) == f"off/{reason}"
    assert (await site.app.store.load(key)).version == 0


async def check_memory(site: ProxyUnderTest, wire: Wire, *sent: Any, **members: Any) -> bytes:
    """What is sent goes out as it is; so does it with the conversation in front of it, where the
    thread has one. Return that prompt."""
    named, key = name_thread()
    body = wire.body(*sent, **members)
    got = await wire.ask(site, body, named)
    assert (site.seen.body, got.body, read_reason(got)) == (body, wire.answer(), "raw")
    assert (await site.app.store.load(key)).turns == 1
    named, _ = name_thread()
    await wire.ask(site, wire.body("my first words", **members), named)
    got = await wire.ask(site, body, named)
    assert (got.status, got.body) == (200, wire.answer())
    assert read_reason(got) in ("applied", "raw", "degraded/tool-pairs", "degraded/memory-error")
    return site.seen.body


@pytest.mark.parametrize(
    "body",
    [
        *(b'{"model":"m"%s}' % rest for rest in (b"", b',"input":null', b',"input":7')),
        b'{"model":"m","input":{"role":"user"}}',
        b'{"model":"m","input":["hi"]}',
        b'{"model":"m","input":[null]}',
        b'{"model":"m","input":[[]]}',
        b"[]",
        b"{",
    ],
)
async def test_no_input(site: ProxyUnderTest, body: bytes) -> None:
    await check_passes(site, RESPONSES, body, "unreadable")


@pytest.mark.parametrize(
    "body",
    [
        *(b'{"model":"m"%s}' % rest for rest in (b"", b',"messages":null', b',"messages":"hi"')),
        b'{"model":"m","messages":{"role":"user"}}',
        b'{"model":"m","messages":["hi"]}',
        b'{"model":"m","messages":[null]}',
        b'{"model":"m","messages":[[]]}',
        b"[]",
        b"{",
    ],
)
async def test_no_messages(site: ProxyUnderTest, body: bytes) -> None:
    await check_passes(site, MESSAGES, body, "unreadable")


@each_wire
@pytest.mark.parametrize("encoding", [b"gzip", b"zstd"])
async def test_a_compressed_request(site: ProxyUnderTest, wire: Wire, encoding: bytes) -> None:
    """It is for the model server to read."""
    body = gzip.compress(wire.body("hi"))  # what is inside is never looked at
    await check_passes(site, wire, body, "unreadable", b"Content-Encoding: " + encoding)
    assert site.seen.header(b"content-encoding") == [encoding]


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        (RESPONSES, b'{"model":"m","input":""}'),
        (RESPONSES, b'{"model":"m","input":[]}'),
        (RESPONSES, b'{"model":"m","input":[],"instructions":"be kind"}'),
        (RESPONSES, b'{"model":"m","input":[{"role":"developer","content":"be kind"}]}'),
        (MESSAGES, b'{"model":"m","messages":[]}'),
        (MESSAGES, b'{"model":"m","messages":[],"system":"be kind"}'),
    ],
)
async def test_instructions_alone(site: ProxyUnderTest, wire: Wire, body: bytes) -> None:
    await check_passes(site, wire, body, "no-messages")


async def test_an_item_without_a_type_is_a_message(site: ProxyUnderTest) -> None:
    """It is the same as one that says its type."""
    named, key = name_thread()
    typed = {"type": "message", "role": "user", "content": "hi"}
    await RESPONSES.ask(site, RESPONSES.body("hi"), named)
    got = await RESPONSES.ask(site, RESPONSES.body(typed, RESPONSES.reply(), "more"), named)
    assert read_reason(got) == "raw"
    assert (await site.app.store.load(key)).count == 4


UNKNOWN: list[tuple[Wire, dict[str, Any]]] = [
    (RESPONSES, {"type": "hologram", "id": "h1", "beam": [1, {"x": None}]}),
    (RESPONSES, {"role": "oracle", "content": "hm"}),
    (RESPONSES, {"role": "user", "content": [{"type": "smell", "data": "x"}]}),
    (RESPONSES, {"role": 7, "type": [], "content": 8}),
    (MESSAGES, {"role": "oracle", "content": "hm"}),
    (MESSAGES, {"role": 7, "content": 8}),
    (MESSAGES, {"role": "user", "content": [{"type": "smell", "data": "x"}, 7, None]}),
]


@pytest.mark.parametrize(("wire", "unknown"), UNKNOWN)
async def test_unknown_words(site: ProxyUnderTest, wire: Wire, unknown: dict[str, Any]) -> None:
    """They are kept in their unit, and sent on."""
    sent = await check_memory(site, wire, unknown, "hi")
    assert orjson.dumps(unknown) in sent


async def test_a_message_of_nobody(site: ProxyUnderTest) -> None:
    """As in chat: memory cannot say whose it is."""
    named, key = name_thread()
    body = MESSAGES.body({"content": "no role"}, "hi")
    got = await MESSAGES.ask(site, body, named)
    assert (site.seen.body, got.body) == (body, MESSAGES.answer())
    assert read_reason(got) == "degraded/unreadable"
    assert (await site.app.store.load(key)).version == 0


def call(wire: Wire, call_id: str) -> dict[str, Any]:
    if wire is RESPONSES:
        return {"type": "function_call", "call_id": call_id, "name": "n", "arguments": "{}"}
    block = {"type": "tool_use", "id": call_id, "name": "n", "input": {}}
    return {"role": "assistant", "content": [block]}


def result(wire: Wire, call_id: str) -> dict[str, Any]:
    if wire is RESPONSES:
        return {"type": "function_call_output", "call_id": call_id, "output": "x"}
    block = {"type": "tool_result", "tool_use_id": call_id, "content": "x"}
    return {"role": "user", "content": [block]}


@each_wire
async def test_broken_steps_of_the_client(site: ProxyUnderTest, wire: Wire) -> None:
    """A call id twice, or a result without its call, goes out as it was sent."""
    c, r = call(wire, "c"), result(wire, "c")
    for sent in ([c, r, c, r, "hi"], [r, "hi"], ["a", r, "hi"], ["a", c, "hi"], ["a", c, c, r]):
        written = orjson.loads(await check_memory(site, wire, *sent))[wire.member]
        asked = orjson.loads(wire.body(*sent))[wire.member]
        assert written[-len(asked) :] == asked


@each_wire
@pytest.mark.parametrize(
    "text",
    [rb'"\ud83d"', rb'"\udc00 \ud83d"', b'"\\ud83d\\ude00"'],
    ids=["a half", "two halves", "a pair"],
)
async def test_half_characters(site: ProxyUnderTest, wire: Wire, text: bytes) -> None:
    """They go out as they came, and the turn is stored."""
    named, key = name_thread()
    body = wire.body("TEXT").replace(b'"TEXT"', text)
    got = await wire.ask(site, body, named)
    assert (site.seen.body, read_reason(got)) == (body, "raw")
    await wire.ask(site, wire.body("next"), named)
    assert (await site.app.store.load(key)).count == 4


@each_wire
async def test_bounds(site: ProxyUnderTest, wire: Wire) -> None:
    """Deep nesting, and more values than any request has, pass as they came."""
    deep = b'{"model":"m","%s":%s' % (wire.member.encode(), b"[" * 100_000)
    await check_passes(site, wire, deep, "unreadable")
    item = b'{"role":"user","content":"x"}'
    many = b'{"model":"m","%s":[%s]}' % (wire.member.encode(), b",".join([item] * 1_000_000))
    await check_passes(site, wire, many, "unreadable")
    nested = {"role": "user", "content": "hi", "x": "DEEP"}
    body = wire.body(nested).replace(b'"DEEP"', b"[" * 900 + b"]" * 900)
    named, _ = name_thread()
    got = await wire.ask(site, body, named)
    assert (site.seen.body, got.status) == (body, 200)


@each_wire
async def test_null_and_nothing_are_absent(site: ProxyUnderTest, wire: Wire) -> None:
    named = {
        "messages": ({"system": None}, {"system": []}, {"system": ""}, {"tools": None}),
        "responses": ({"instructions": None}, {"instructions": ""}, {"previous_response_id": None}),
    }[wire.api]
    for members in (*named, {"stream": None}, {"model": None}, {"metadata": None}):
        assert b"my first words" in await check_memory(site, wire, "hi", **members)


async def test_a_reference_to_what_is_unknown(site: ProxyUnderTest) -> None:
    """Of another thread, of another tenant, or of none."""
    named, _ = name_thread()
    await RESPONSES.ask(site, RESPONSES.body("hi"), named)
    reference = {"type": "item_reference", "id": "i1"}
    for body in (
        RESPONSES.body(reference, "more"),
        RESPONSES.body("more", previous_response_id="resp_1"),
    ):
        await check_passes(site, RESPONSES, body, "server-state")


@each_wire
@pytest.mark.parametrize(
    "reply", [b"", b"{", b"[]", b"null", b"<html>", b'{"output":7,"content":8}']
)
async def test_replies_that_are_none(site: ProxyUnderTest, wire: Wire, reply: bytes) -> None:
    """They are relayed, as a stream and in one piece, and the question stays."""
    for stream in (False, True):
        named, key = name_thread()
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: %s\r\n\r\n" % (
            b"text/event-stream" if stream else b"application/json"
        )
        got = await wire.ask(
            site, wire.body("hi", stream=stream), named, script=script_pieces(reply, head=head)
        )
        assert (got.status, got.body, got.whole) == (200, reply, True)
        assert (await site.app.store.load(key)).count <= 2
        got = await wire.ask(site, wire.body("next"), named)
        assert got.body == wire.answer()


# ── what chat has too ─────────────────────────────────────────────────────────────────────────────


@each_wire
async def test_inline_comments(site: ProxyUnderTest, wire: Wire) -> None:
    """They stand before the first event of a stream, and nowhere in JSON."""
    stream = b"".join(wire.write_events())
    inline = b"X-OM-Events: inline"
    named, _ = name_thread()
    got = await wire.ask(
        site, wire.body("hi", stream=True), named, inline, script=script_pieces(stream)
    )
    comments, _, rest = got.body.partition(b"\n\n")
    assert comments.startswith(b': om {"type":"data-om-status"')
    assert rest == stream
    assert not site.seen.header(b"x-om-events")
    got = await wire.ask(site, wire.body("hi"), named, inline)
    assert got.body == wire.answer()


@each_wire
async def test_a_retry_of_the_sdk(site: ProxyUnderTest, wire: Wire) -> None:
    """The message that it sends again is the one that is stored; without the header it is said
    twice."""
    for retries, said in ((b"0", 6), (b"1", 4)):
        named, key = name_thread()
        for text in ("one", "ok"):
            await wire.ask(site, wire.body(text), named, b"x-stainless-retry-count: 0")
        header = b"x-stainless-retry-count: " + retries
        await wire.ask(site, wire.body("ok"), named, header)
        assert (await site.app.store.load(key)).count == said
