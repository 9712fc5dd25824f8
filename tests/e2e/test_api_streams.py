"""Streams of the Messages API and the Responses API with memory, over raw sockets: cut at each byte,
held at their end, and written in each way that servers write them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import orjson
import pytest
import pytest_asyncio

from om_proxy.memory.model import Key, Memory
from om_proxy.settings.identity.tenants import LOCAL_TENANT
from om_proxy.wire.apis.registry import get_api
from tests.e2e.api_wires import JSON, SAID, WIRES, Wire, find_turn_end, script_pieces
from tests.e2e.raw_upstream import ProxyUnderTest, read_reason, run_with_raw_upstream
from tests.support.long_forms import IS_LONG
from tests.support.raw_client import RawClient
from tests.support.upstream_server import SSE_HEAD, Call, chunk, script_answer

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.api),
]
numbers = count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ProxyUnderTest]:
    async with run_with_raw_upstream(tmp_path_factory.mktemp("api_streams")) as site:
        yield site


def name_thread() -> tuple[bytes, Key]:
    thread = f"stream-{next(numbers)}"
    return f"X-OM-Thread: {thread}".encode(), Key(LOCAL_TENANT, thread, thread)


async def read_memory(site: ProxyUnderTest, key: Key) -> Memory:
    return await site.app.store.load(key)


async def list_said(site: ProxyUnderTest, key: Key) -> list[Any]:
    """List the contents of the live messages, as chat messages say them."""
    messages = await site.app.store.messages(key, 0)
    return [get_api(m.item.api).read_chat_message(m.item.raw)["content"] for m in messages]


def join_texts(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def count_whole_parts(wire: Wire, stream: bytes) -> int:
    """Count the items or blocks that are whole in this beginning of a stream."""
    done = {"messages": b'"content_block_stop"', "responses": b'"response.output_item.done"'}
    return sum(done[wire.api] in event for event in stream.split(b"\n\n")[:-1])


async def test_cut_at_each_byte(site: ProxyUnderTest, wire: Wire) -> None:
    """The client gets the bytes that came and a broken connection. Before the end of the turn, the
    whole parts are the interrupted reply; behind it, the reply is stored. The short form cuts at
    every third byte, and at each one about the end of a line."""
    pieces = wire.write_events()
    stream = b"".join(pieces)
    end = find_turn_end(wire, pieces)
    for cut in range(len(stream)):
        is_near_end_of_line = b"\n" in stream[max(cut - 2, 0) : cut + 2]
        if not (IS_LONG or cut % 3 == 0 or is_near_end_of_line):
            continue
        named, key = name_thread()
        got = await wire.ask(
            site,
            wire.body("hi", stream=True),
            named,
            script=script_pieces(stream[:cut], ends=False),
        )
        assert (got.status, got.body, got.whole) == (200, stream[:cut], False), cut
        said = list(map(join_texts, await list_said(site, key)))
        broken = (await site.app.store.outline(key)).superseded
        is_stored = cut >= end
        assert said == (["hi", SAID] if is_stored else ["hi"]), cut
        assert len(broken) == (0 if is_stored else count_whole_parts(wire, stream[:cut])), cut


async def test_the_end_waits_for_the_commit(
    site: ProxyUnderTest, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything before the event that ends the turn is out while the store is stopped, and nothing
    of the blank line that ends it."""
    pieces = wire.write_events()
    stream = b"".join(pieces)
    end = find_turn_end(wire, pieces)
    may_store, asks = asyncio.Event(), asyncio.Event()
    engine = site.app.chat._engine
    close_turn = engine.close_turn

    async def wait_to_close(*args: Any, **named: Any) -> Any:
        asks.set()
        await may_store.wait()
        return await close_turn(*args, **named)

    monkeypatch.setattr(engine, "close_turn", wait_to_close)
    named, key = name_thread()

    async def script(call: Call) -> None:
        for start in range(0, len(stream), 7):
            call.send((b"" if start else SSE_HEAD) + chunk(stream[start : start + 7]))
            await asyncio.sleep(0)
        call.send(chunk(b""))

    site.server.script = script
    client = await RawClient.connect(site.port)
    client.send(wire.body("hi", stream=True), path=wire.path, headers=(named,))
    await client.until(b"\r\n\r\n")
    await asyncio.wait_for(asks.wait(), 30)
    arrived = b""
    while len(arrived) < end - len(pieces[find_last(wire, pieces)]):
        arrived += await read_chunk(client)
    assert stream.startswith(arrived)
    assert len(arrived) < end, "no client acts on an event before its blank line"
    assert (await read_memory(site, key)).count == 0
    may_store.set()
    while len(arrived) < len(stream):
        arrived += await read_chunk(client)
    assert arrived == stream
    await client.close()
    assert (await read_memory(site, key)).count == 2


def find_last(wire: Wire, pieces: list[bytes]) -> int:
    end = find_turn_end(wire, pieces)
    return next(i for i in range(len(pieces)) if len(b"".join(pieces[: i + 1])) == end)


async def read_chunk(client: RawClient) -> bytes:
    size = int(await client.until(b"\r\n"), 16)
    return (await asyncio.wait_for(client.reader.readexactly(size + 2), 30))[:-2]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("is_named", [True, False], ids=["named", "unnamed"])
async def test_ways_to_write_events(
    site: ProxyUnderTest, wire: Wire, line_end: bytes, is_named: bool
) -> None:
    """They pass as they came, with pings and comments, and are read."""
    pieces = wire.write_events(named=is_named, line_end=line_end)
    named, key = name_thread()
    got = await wire.ask(
        site, wire.body("hi", stream=True), named, script=script_pieces(*pieces, b": late\n\n")
    )
    assert (got.body, got.whole) == (b"".join(pieces) + b": late\n\n", True)
    assert read_reason(got) == "raw"
    assert list(map(join_texts, await list_said(site, key))) == ["hi", SAID]


@pytest.mark.parametrize("asks_for_stream", [True, False])
async def test_json_for_a_stream_and_a_stream_for_json(
    site: ProxyUnderTest, wire: Wire, asks_for_stream: bool
) -> None:
    named, key = name_thread()
    stream = b"".join(wire.write_events())
    script = script_answer(wire.answer(), JSON) if asks_for_stream else script_pieces(stream)
    got = await wire.ask(site, wire.body("hi", stream=asks_for_stream), named, script=script)
    assert got.body == (wire.answer() if asks_for_stream else stream)
    assert list(map(join_texts, await list_said(site, key))) == ["hi", SAID]


async def test_an_error_in_a_stream(site: ProxyUnderTest, wire: Wire) -> None:
    """The client gets it; the reply is an interrupted one, and the question asked again is a
    retry."""
    error: dict[str, Any] = {"type": "error", "error": {"type": "overloaded_error", "message": "x"}}
    pieces = [*wire.write_events()[:-2], b"event: error\ndata: %s\n\n" % orjson.dumps(error)]
    named, key = name_thread()
    got = await wire.ask(site, wire.body("hi", stream=True), named, script=script_pieces(*pieces))
    assert (got.body, got.whole) == (b"".join(pieces), True)
    assert await list_said(site, key) in (["hi"], [[{"type": "text", "text": "hi"}]])
    await wire.ask(site, wire.body("hi"), named, b"x-stainless-retry-count: 1")
    assert list(map(join_texts, await list_said(site, key))) == ["hi", SAID]
