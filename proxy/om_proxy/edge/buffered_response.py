"""Look into a model server's answer, and still relay it as it came, or give it another body. So an
error can be inspected before the client gets it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import httpx

from om_proxy.common.errors import UpstreamError
from om_proxy.common.running_time import limit_running_time
from om_proxy.edge.headers import is_event_stream, read_client_headers, select_response_headers
from om_proxy.wire.apis import refusals
from om_proxy.wire.apis.api import FindFirstWord
from om_proxy.wire.apis.compression import create_decoder
from om_proxy.wire.apis.sse import EventCutter, cut_events
from om_proxy.wire.server.headers import Header, find_header
from om_proxy.wire.upstream import UpstreamResponse
from om_proxy.wire.upstream.transport import RawResponse

# they are about the body that came
BODY_HEADERS = frozenset((b"content-length", b"content-encoding"))
# How long the client waits for events that say only that a reply begins.
MAX_OPENING_S = 1.0
# Each of these events, and one that tells a failure, repeats the instructions and the tools.
MAX_OPENING_BYTES = 1 << 20


async def buffer_body(
    answer: UpstreamResponse, max_bytes: int, *, is_compressed: bool = True
) -> tuple[UpstreamResponse, bytes | None]:
    """Read the body. Return an equal answer, and the body decompressed; None for a body that is
    larger than `max_bytes`, breaks off or cannot be read.

    `is_compressed`: False if the body is known not to be. If there is a body, the connection is
    released already, and the answer need not be closed.
    """
    read_chunks: list[bytes] = []
    read_bytes = 0
    chunks = answer.chunks()
    try:
        async for chunk in chunks:
            read_chunks.append(chunk)
            read_bytes += len(chunk)
            if read_bytes > max_bytes:
                answer.put_back(read_chunks)
                return answer, None
    except UpstreamError as exc:
        return _replay(answer, read_chunks, exc), None
    except BaseException:
        await answer.aclose()
        raise
    await answer.aclose()
    answer.put_back(read_chunks)
    body = b"".join(read_chunks)
    return answer, _decompress(answer, body, max_bytes) if is_compressed else body


async def buffer_error(answer: UpstreamResponse) -> tuple[UpstreamResponse, bytes | None]:
    """Do as `buffer_body` for an error. One in a stream may stand behind what repeats the request."""
    is_inside = answer.status != answer.told_status
    return await buffer_body(
        answer, MAX_OPENING_BYTES if is_inside else refusals.MAX_ERROR_BODY_BYTES
    )


async def look_for_error(answer: UpstreamResponse) -> UpstreamResponse:
    """Look whether a 200 tells an error before anything else, and note the error's status. Return an
    equal answer. Of a stream, nothing is read after its first event."""
    decode = create_body_decoder(answer)
    if decode is None:
        return answer
    read_chunks: list[bytes] = []
    begun = b""
    try:
        async for chunk in answer.chunks():
            read_chunks.append(chunk)
            begun += decode(chunk)
            if refusals.has_first_event(begun) or len(begun) > refusals.MAX_ERROR_BODY_BYTES:
                break
    except UpstreamError as exc:
        return _replay(answer, read_chunks, exc)
    except Exception:  # any error of a decoder: the client gets the bytes, the proxy reads nothing
        begun = b""
    except BaseException:
        await answer.aclose()
        raise
    # in one: a stream's reader expects no more than its first chunk to be put back
    if read_chunks:
        answer.put_back([b"".join(read_chunks)])
    if begun.lstrip().startswith(b"{"):
        answer, whole = await buffer_body(answer, refusals.MAX_ERROR_BODY_BYTES)
        begun = whole or b""
    answer.told_status = refusals.read_wrapped_status(begun) or answer.status
    return answer


async def wait_for_first_word(
    answer: UpstreamResponse, find_first_word: FindFirstWord
) -> UpstreamResponse:
    """Wait until a stream says more than that a reply begins, for `MAX_OPENING_S` at most. If it says
    that the prompt is too long, note the status of that. Return an equal answer."""
    decode = create_body_decoder(answer)
    if decode is None or not is_event_stream(read_client_headers(answer)):
        return answer
    cutter, read_chunks, read_bytes = EventCutter(), list[bytes](), 0
    events, word = b"", None
    try:
        async with limit_running_time(MAX_OPENING_S):
            async for chunk in answer.chunks():
                read_chunks.append(chunk)
                read_bytes += len(chunk)
                events = cutter.feed(decode(chunk))
                word = find_first_word(events)
                if word is not None or read_bytes > MAX_OPENING_BYTES:
                    break
    except UpstreamError as exc:
        return _replay(answer, read_chunks, exc)
    except Exception:  # it is slow, or cannot be read: the client gets what came
        word = None
    except BaseException:
        await answer.aclose()
        raise
    if read_chunks:
        answer.put_back([b"".join(read_chunks)])
    if word is not None and refusals.has_too_long_text(next(cut_events(events[word:]))):
        answer.told_status = refusals.UNNAMED_STATUS
    return answer


def _replay(
    answer: UpstreamResponse, read_chunks: Sequence[bytes], exc: UpstreamError
) -> UpstreamResponse:
    """Return the answer as if nothing of its body had been read. It breaks off as that did."""

    async def close(_response: RawResponse, _is_read: bool) -> None:
        await answer.aclose()

    body = Body(break_off(exc, read_chunks))
    return UpstreamResponse(RawResponse(answer.status, answer.headers, body), close)


async def break_off(exc: UpstreamError, chunks: Sequence[bytes] = ()) -> AsyncIterator[bytes]:
    """Break off after these chunks, as the body that was read did."""
    for chunk in chunks:
        yield chunk
    raise exc


def _decompress(answer: UpstreamResponse, body: bytes, max_bytes: int) -> bytes | None:
    headers = [(name.lower(), value) for name, value in answer.headers]
    decode = create_decoder(find_header(headers, b"content-encoding"), max_bytes)
    try:
        return decode(body) if decode else None
    except Exception:  # any error of a decoder: the client gets the bytes, the proxy reads nothing
        return None


class Body(httpx.AsyncByteStream):
    """A body of these pieces."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces


async def iterate_body(body: bytes) -> AsyncIterator[bytes]:
    """Yield the body in one piece; an empty one in none."""
    if body:
        yield body


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
