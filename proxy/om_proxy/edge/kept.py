"""An answer whose body was read and can still be relayed as it came: an error that is looked into before anyone gets it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import httpx

from om_proxy.edge.headers import header
from om_proxy.errors import UpstreamError
from om_proxy.upstream import Answer
from om_proxy.upstream.transport import Answered
from om_proxy.wire.encoding import decoder


async def kept(answer: Answer, limit: int) -> tuple[Answer, bytes | None]:
    """The same answer, and its body uncompressed; None for a body that is larger than `limit` bytes, breaks off or cannot be read.

    With a body, the connection has been given back, and the answer may be left without closing it.
    """
    parts: list[bytes] = []
    size = 0
    chunks = answer.chunks()
    try:
        async for chunk in chunks:
            parts.append(chunk)
            size += len(chunk)
            if size > limit:
                return _again(answer, parts, chunks), None
    except UpstreamError as exc:
        return _again(answer, parts, _broken(exc)), None
    except BaseException:
        await answer.aclose()
        raise
    await answer.aclose()
    return _again(answer, parts, chunks), _plain(answer, b"".join(parts), limit)


class _Body(httpx.AsyncByteStream):
    """What was read of a body, and then what is left of it."""

    def __init__(self, read: Sequence[bytes], rest: AsyncIterator[bytes]) -> None:
        self._read = read
        self._rest = rest

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._read:
            yield chunk
        async for chunk in self._rest:
            yield chunk


def _again(answer: Answer, read: Sequence[bytes], rest: AsyncIterator[bytes]) -> Answer:
    async def close(_answered: Answered, _read: bool) -> None:
        await answer.aclose()

    return Answer(Answered(answer.status, answer.headers, _Body(read, rest)), close)


async def _broken(exc: UpstreamError) -> AsyncIterator[bytes]:
    """A body that breaks off here, once more."""
    raise exc
    yield b""


def _plain(answer: Answer, body: bytes, limit: int) -> bytes | None:
    decode = decoder(header(answer.headers, b"content-encoding"), limit)
    try:
        return decode(body) if decode else None
    except Exception:  # whatever a damaged body makes of a decoder: the client gets the bytes, we read nothing
        return None
