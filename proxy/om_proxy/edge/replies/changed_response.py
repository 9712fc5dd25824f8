"""Look into a model server's answer, and give it another body."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import httpx

from om_proxy.edge.headers import select_response_headers
from om_proxy.wire.apis.compression import create_decoder
from om_proxy.wire.server.headers import Header, find_header
from om_proxy.wire.upstream import UpstreamResponse
from om_proxy.wire.upstream.transport import RawResponse

# they are about the body that came
BODY_HEADERS = frozenset((b"content-length", b"content-encoding"))


class Body(httpx.AsyncByteStream):
    """A body of these pieces."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces


async def iterate_body(
    first: bytes, rest: AsyncIterator[bytes] | None = None
) -> AsyncIterator[bytes]:
    """Iterate over a body whose first piece is here."""
    if first:
        yield first
    if rest is not None:
        async for piece in rest:
            yield piece


def replace_body(
    answer: UpstreamResponse,
    pieces: AsyncIterator[bytes],
    close: Callable[[], Awaitable[None]],
    *,
    length: int | None = None,
) -> UpstreamResponse:
    """Return an answer with another body, which is not compressed. `length`: of the body; None: it
    is not known yet."""
    headers = leave_out_body_headers(answer.headers)
    if length is not None:
        headers.append((b"content-length", b"%d" % length))

    async def close_all(_response: RawResponse, _is_read: bool) -> None:
        await close()

    return UpstreamResponse(RawResponse(answer.status, headers, Body(pieces)), close_all)


def leave_out_body_headers(headers: Sequence[Header]) -> list[Header]:
    """Return the headers of an answer with another body."""
    return [header for header in headers if header[0].lower() not in BODY_HEADERS]


async def peek(answer: UpstreamResponse) -> bytes:
    """Return the answer's first chunk, which stays in it; an empty one if there is none."""
    first = await anext(answer.chunks(), b"")
    if first:
        answer.put_back([first])
    return first


def create_body_decoder(answer: UpstreamResponse) -> Callable[[bytes], bytes] | None:
    """Create a decoder of the answer's body; None: nothing here can read it."""
    headers = select_response_headers(answer.headers)
    return create_decoder(find_header(headers, b"content-encoding"))
