"""An error is inspected before it is relayed, and its bytes stay as they came."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator

import httpx
import pytest

from om_proxy.common.errors import UpstreamError
from om_proxy.edge.buffered_response import buffer_body
from tests.edge.test_relay import Chunks, answer_of

LIMIT = 10
GZIP = (b"content-encoding", b"gzip")


@pytest.mark.parametrize("chunks", [(), (b"abc",), (b"abc", b"de"), (b"0123456789",)])
async def test_a_whole_body(chunks: tuple[bytes, ...]) -> None:
    """A body is read and replayed, and its connection is free at once."""
    body = Chunks(*chunks)
    answer, read = await buffer_body(
        await answer_of(body, (b"x-request-id", b"1"), status=400), LIMIT
    )
    assert body.closed
    assert read == b"".join(chunks)
    assert (answer.status, await answer.read()) == (400, b"".join(chunks))
    assert (b"x-request-id", b"1") in answer.headers
    await answer.aclose()


async def test_a_body_beyond_the_limit() -> None:
    """A body above the limit is read no further than that. The rest follows as it comes."""
    body = Chunks(b"012345", b"6789a", b"bc")
    answer, read = await buffer_body(await answer_of(body, status=400), LIMIT)
    assert (read, body.pulled, body.closed) == (None, 2, False)
    assert [chunk async for chunk in answer.chunks()] == [b"012345", b"6789a", b"bc"]
    await answer.aclose()
    assert body.closed


async def test_a_body_that_breaks_off() -> None:
    """A body that breaks off does so for the client too, after everything that came."""
    answer, read = await buffer_body(
        await answer_of(Chunks(b"abc", httpx.ReadError("gone")), status=400), LIMIT
    )
    assert read is None
    chunks = answer.chunks()
    assert await anext(chunks) == b"abc"
    with pytest.raises(UpstreamError):
        await anext(chunks)
    await answer.aclose()


async def test_a_compressed_body() -> None:
    """A compressed body is read decompressed and relayed as it came."""
    packed = gzip.compress(b"abc")
    answer, read = await buffer_body(await answer_of(Chunks(packed), GZIP, status=400), 100)
    assert (read, await answer.read()) == (b"abc", packed)


@pytest.mark.parametrize(
    ("body", "encoding"),
    [(b"no gzip", b"gzip"), (gzip.compress(b"x" * 9_000), b"gzip"), (b"abc", b"br")],
    ids=["damaged", "a bomb", "unknown to us"],
)
async def test_a_body_that_cannot_be_read(body: bytes, encoding: bytes) -> None:
    """The client gets an unreadable body unchanged."""
    answer, read = await buffer_body(
        await answer_of(Chunks(body), (b"content-encoding", encoding), status=400), 100
    )
    assert (read, await answer.read()) == (None, body)


class Endless(Chunks):
    """A body that sends one chunk and then nothing more."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"a"
        self.waiting.set()
        await asyncio.Event().wait()


async def test_who_waits_for_the_body_leaves() -> None:
    """A client that leaves while the body is read cuts the upstream's connection."""
    body = Endless()
    reading = asyncio.create_task(buffer_body(await answer_of(body, status=400), LIMIT))
    await body.waiting.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert body.closed


async def test_a_body_in_many_pieces() -> None:
    """Bytes are counted as they come, and not again with every chunk."""
    counted = 0

    class Piece(bytes):
        def __len__(self) -> int:
            nonlocal counted
            counted += 1
            return super().__len__()

    body = Chunks(*(Piece(b"a") for _ in range(1_000)))
    _, read = await buffer_body(await answer_of(body, status=400), 1_000)
    assert read == b"a" * 1_000
    assert counted <= 2_000
