"""Read an answer's body and still relay the answer as it came: an error is inspected before the
client gets it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import httpx

from om_proxy.apis.compression import create_decoder
from om_proxy.errors import UpstreamError
from om_proxy.server.headers import find_header
from om_proxy.upstream import UpstreamResponse
from om_proxy.upstream.transport import RawResponse


async def buffer_body(
    answer: UpstreamResponse, limit: int
) -> tuple[UpstreamResponse, bytes | None]:
    """Return an equal answer, and its body decompressed; None for a body that is larger than `limit`
    bytes, breaks off or cannot be read.

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
                return _replay(answer, parts, chunks), None
    except UpstreamError as exc:
        return _replay(answer, parts, _break_off(exc)), None
    except BaseException:
        await answer.aclose()
        raise
    await answer.aclose()
    return _replay(answer, parts, chunks), _decompress(answer, b"".join(parts), limit)


class _ReplayedBody(httpx.AsyncByteStream):
    """The chunks already read of a body, then the rest of it."""

    def __init__(self, read: Sequence[bytes], rest: AsyncIterator[bytes]) -> None:
        self._read = read
        self._rest = rest

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._read:
            yield chunk
        async for chunk in self._rest:
            yield chunk


def _replay(
    answer: UpstreamResponse, read: Sequence[bytes], rest: AsyncIterator[bytes]
) -> UpstreamResponse:
    async def close(_answered: RawResponse, _read: bool) -> None:
        await answer.aclose()

    return UpstreamResponse(
        RawResponse(answer.status, answer.headers, _ReplayedBody(read, rest)), close
    )


async def _break_off(exc: UpstreamError) -> AsyncIterator[bytes]:
    """A body that breaks off at once, as the one before did."""
    raise exc
    yield b""


def _decompress(answer: UpstreamResponse, body: bytes, limit: int) -> bytes | None:
    headers = [(name.lower(), value) for name, value in answer.headers]
    decode = create_decoder(find_header(headers, b"content-encoding"), limit)
    try:
        return decode(body) if decode else None
    except Exception:  # any error of a decoder: the client gets the bytes, the proxy reads nothing
        return None
