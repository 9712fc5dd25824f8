"""Comments before a client's streams: listen between client and proxy, and judge what came over the
wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from om_proxy.engine.event_feed.inline import MAX_INLINE_BYTES
from om_proxy.testing.scripted import OBSERVER, Fault, ScriptedServer

COMMENT = b": om "
STREAM_HEAD = b"content-type: text/event-stream"
# one note, told as it ends and as it becomes active, and the status: just below MAX_INLINE_BYTES
LONG_NOTE_CHARS = 6_100
WORDS = (
    *(
        "door",
        "sill",
        "paint",
        "screw",
        "level",
        "grout",
        "tile",
        "plank",
        "lamp",
        "hinge",
        "panel",
    ),
    *(
        "brick",
        "joint",
        "wire",
        "switch",
        "pipe",
        "valve",
        "tap",
        "drain",
        "shelf",
        "frame",
        "glue",
    ),
)
LEAST_LONG_BYTES = MAX_INLINE_BYTES - 2_048


class LongNotes(ScriptedServer):
    """A scripted model server whose observer writes at great length."""

    def choose_answer(
        self, model: str, messages: Sequence[dict[str, Any]], fault: Fault | None
    ) -> dict[str, Any]:
        answer = super().choose_answer(model, messages, fault)
        if model != OBSERVER or fault:
            return dict(answer)
        head, close, tail = str(answer["content"]).partition("\n</observations>")
        rng = Random(len(head))
        while len(head) < LONG_NOTE_CHARS:
            words = " ".join(rng.choices(WORDS, k=12))
            head += f"\n* \U0001f7e2 (10:00) {words}; data: [DONE] is no end"
        return {**answer, "content": head + close + tail}


@dataclass
class Wire:
    """What goes between a client and the proxy, of each connection."""

    url: str
    requests: list[bytearray] = field(default_factory=list)
    replies: list[bytearray] = field(default_factory=list)


@asynccontextmanager
async def listen_between(base: str) -> AsyncIterator[Wire]:
    """Listen on a loopback port, and pass on both ways to the proxy, byte for byte."""
    host, port = base.removeprefix("http://").split(":")
    open_tasks: set[asyncio.Task[None]] = set()

    async def pass_on(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        proxy, to_proxy = await asyncio.open_connection(host, int(port))
        wire.requests.append(bytearray())
        wire.replies.append(bytearray())
        try:
            await asyncio.gather(
                _pump(client, to_proxy, wire.requests[-1]),
                _pump(proxy, to_client, wire.replies[-1]),
            )
        finally:
            to_proxy.close()
            to_client.close()

    def accept(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(pass_on(client, to_client))
        open_tasks.add(task)
        task.add_done_callback(open_tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    wire = Wire(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        yield wire
    finally:
        server.close()
        for task in open_tasks:
            task.cancel()
        await asyncio.gather(*open_tasks, return_exceptions=True)


async def _pump(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, heard: bytearray
) -> None:
    """Pass on until the source ends, and keep what was heard."""
    with suppress(ConnectionError):  # either side left: so does the other
        while piece := await source.read(1 << 16):
            heard += piece
            target.write(piece)
            await target.drain()
        target.write_eof()


def judge_comments(replies: Sequence[bytes], streamed: int, events: str) -> str:
    """Hold the streams on the wire to the promises, and return figures. Raises AssertionError for
    what does not hold.

    Each stream of ours begins with comments, which stand before its first event and nowhere else.
    """
    blocks = [block for reply in replies for block in find_comment_blocks(bytes(reply))]
    assert len(blocks) == streamed, "each streamed turn begins with comments"
    longest = max(map(len, blocks))
    assert longest <= MAX_INLINE_BYTES
    told = [read_comments(block) for block in blocks]
    assert all(parts[0]["type"] == "data-om-status" for parts in told)
    happened = [part["data"] for parts in told for part in parts[1:]]
    texts = [data["observations"] for data in happened if data.get("observations")]
    assert happened, "one of the streams tells what happened while it waited"
    assert bool(texts) == (events == "inline,text"), "texts are there if they were asked for"
    assert not texts or longest > LEAST_LONG_BYTES, f"no comments of 16 KiB, but {longest} bytes"
    count = sum(map(len, told))
    return f", {count} comments before {len(blocks)} streams, up to {longest} bytes"


def find_comment_blocks(heard: bytes) -> list[bytes]:
    """Return the comments before each stream of a connection, which may hold several replies."""
    blocks = []
    for reply in heard.split(STREAM_HEAD)[1:]:
        body = join_chunks(reply.partition(b"\r\n\r\n")[2])
        first_event = body.find(b"data: {")
        comments, rest = body[:first_event], body[first_event:]
        assert b"\n" + COMMENT not in rest, "no comment behind the first event"
        if comments:
            blocks.append(comments)
    return blocks


def join_chunks(body: bytes) -> bytes:
    """Return a chunked body without its framing, up to its last whole chunk."""
    joined = bytearray()
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            break
        joined += rest[:length]
        body = rest[length + 2 :]
    return bytes(joined)


def read_comments(block: bytes) -> list[dict[str, Any]]:
    """Return what the comments say. Each is one line with an empty line behind it."""
    lines = block.split(b"\n\n")
    assert lines.pop() == b""
    assert all(line.startswith(COMMENT) and b"\n" not in line for line in lines)
    return [json.loads(line.removeprefix(COMMENT)) for line in lines]
