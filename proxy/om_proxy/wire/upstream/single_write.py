"""Send a request in one piece on one of aiohttp's connections: write it at once, and read its
response as aiohttp parses it.

aiohttp's session, on the same connections, makes for every request a task that writes it, a new
address, timers and cookies. Together with our own task around it, that was a third of the
instructions of forwarding a request. The session also writes headers as text, which changes bytes
that are not UTF-8. This module does only what a request needs. Name lookup, connecting, TLS, the
pool and parsing remain aiohttp's (its connector, its protocol).

The parser is stricter than some clients, and cannot be made lenient. It refuses a response (502)
with a length given twice or beside chunks, with another transfer coding than chunks, or with odd
bytes in the name of a header. calls.py refuses a status above 599.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, cast

import aiohttp
import httpx
from yarl import URL

# httpx accepts 100 KiB of all lines together; aiohttp's default, 8 190, is less than some cookies
MAX_HEADER_LINE_BYTES = 1 << 17
MAX_HEADER_LINES = 1_000  # of a response's head; aiohttp's default is 128
# reading stops at twice as many untaken bytes; aiohttp's default is 1 << 18
READ_AHEAD_BYTES = 1 << 15
READ_OPTIONS: dict[str, Any] = {  # the session has the same
    "read_bufsize": READ_AHEAD_BYTES,
    "auto_decompress": False,
    "max_line_size": MAX_HEADER_LINE_BYTES,
    "max_field_size": MAX_HEADER_LINE_BYTES,
    "max_headers": MAX_HEADER_LINES,
}
# bytes of a body that may be unsent below TLS, which does not tell their number
MAX_HIDDEN_UNSENT_BYTES = 1 << 16
# a repeated request means the same as one (RFC 9110 9.2.2)
IDEMPOTENT_METHODS = frozenset(("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"))
# the connection broke before a response's head had come
BROKEN_CONNECTION_ERRORS = (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)
# without line breaks, which `encode_head` counts
_CONTROL_CHARACTERS = bytes([*range(0x09), 0x0B, 0x0C, *range(0x0E, 0x20), 0x7F])


class OpenResponse(NamedTuple):
    """A response whose head was read. `close` closes the connection, or does nothing if the
    connection returned to the pool at the end of the response."""

    status: int
    headers: list[tuple[bytes, bytes]]
    content: aiohttp.StreamReader
    close: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Route:
    """A method and an address, prepared for sending."""

    connect_request: aiohttp.ClientRequest  # the request that the connector wants
    first_lines: bytes  # of the head: the request line and the host
    is_tls: bool
    is_idempotent: bool
    has_empty_response: bool  # whatever length the response's head announces


def make_route(method: str, url: str) -> Route:
    """Make the route. Raises aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError for another scheme,
    or ValueError for an invalid method."""
    try:
        address = URL(url, encoded=True)
    except ValueError as exc:
        raise aiohttp.InvalidURL(url) from exc
    if address.scheme not in ("http", "https"):
        raise aiohttp.NonHttpUrlClientError(url)
    connect_request = aiohttp.ClientRequest(
        method, address, loop=asyncio.get_running_loop(), ssl=get_tls_context(url)
    )
    first_lines = (
        f"{method} {address.raw_path_qs} HTTP/1.1\r\nhost: {connect_request.headers['Host']}\r\n"
    )
    return Route(
        connect_request,
        first_lines.encode(),
        is_tls=address.scheme == "https",
        is_idempotent=method in IDEMPOTENT_METHODS,
        has_empty_response=method == "HEAD",
    )


def get_tls_context(url: str) -> ssl.SSLContext | bool:
    """Return the certificates to trust, by httpx's rules: SSL_CERT_FILE, else certifi's list,
    because a container image may lack the system's list. They are read for the first address that
    needs them, which takes 35 ms and 1 MB."""
    return _load_tls_context() if url.startswith("https:") else True


@cache
def _load_tls_context() -> ssl.SSLContext:
    return httpx.create_ssl_context()


async def send_request(
    connector: aiohttp.BaseConnector,
    route: Route,
    headers: Sequence[tuple[bytes, bytes]],
    content: bytes,
    timeouts: aiohttp.ClientTimeout,
) -> OpenResponse:
    """Send a request, and return its response when the head was read. `headers` announce the length
    of the content.

    Raises what aiohttp raises, HttpProcessingError, and ValueError for a header that cannot be
    written. If the caller is cancelled, the connection is closed. An idempotent request is sent
    once more if a kept connection broke before the response's head: the server may have closed the
    connection while the request was on its way.
    """
    head = encode_head(route, headers)
    may_repeat = route.is_idempotent
    while True:
        try:
            connection = await connector.connect(route.connect_request, [], timeouts)
        except TimeoutError as exc:
            raise aiohttp.ConnectionTimeoutError(str(route.connect_request.url)) from exc
        may_repeat = may_repeat and cast(Any, connection.protocol).is_reused
        try:
            return await _exchange(connection, route, head, content, timeouts.sock_read)
        except BaseException as exc:
            connection.close()
            if not (may_repeat and isinstance(exc, BROKEN_CONNECTION_ERRORS)):
                raise
        may_repeat = False  # the request is repeated only once


async def _exchange(
    connection: aiohttp.connector.Connection,
    route: Route,
    head: bytes,
    content: bytes,
    read_timeout_s: float | None,
) -> OpenResponse:
    protocol: Any = connection.protocol  # our own Connection (connection.py)
    protocol.set_response_params(
        **READ_OPTIONS,
        skip_payload=route.has_empty_response,
        read_until_eof=True,
        read_timeout=read_timeout_s,
    )
    protocol.write(head, content)
    message, payload = await protocol.read()
    while 100 <= message.code < 200 and message.code != 101:
        message, payload = await protocol.read()
    if message.code != 101:
        may_be_unsent = (
            route.is_tls and message.code >= 400 and len(content) > MAX_HIDDEN_UNSENT_BYTES
        )
        payload.on_eof(
            connection.close if may_be_unsent else partial(_return_connection, connection, protocol)
        )
    return OpenResponse(message.code, list(message.raw_headers), payload, connection.close)


def _return_connection(connection: aiohttp.connector.Connection, protocol: Any) -> None:
    """Return the connection to the pool. Close the connection instead if the response came before
    all of its request was written: the remaining bytes would be read as the next request."""
    if protocol.count_unwritten():
        connection.close()
    else:
        connection.release()


def encode_head(route: Route, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the request's head in bytes. Raises ValueError if a header holds a line break or a
    control character."""
    lines = [b"%s: %s\r\n" % header for header in headers]
    head = b"%s%s\r\n" % (route.first_lines, b"".join(lines))
    # the first two lines, the headers, and the empty line at the end
    has_only_own_breaks = head.count(b"\r") == head.count(b"\n") == len(lines) + 3
    # three times as fast as a regular expression
    has_control_character = head.translate(None, _CONTROL_CHARACTERS) != head
    if not has_only_own_breaks or has_control_character:
        raise ValueError("a header holds a line break or a control character")
    return head
