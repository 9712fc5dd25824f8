"""A request in one piece, on one of aiohttp's connections: written at once, its answer read as aiohttp parses it.

aiohttp's session above the same connections makes of every request a task that writes it, a new address, timers and cookies: with
the task that we held it in, a third of the instructions of passing a request on. And it writes headers as text: bytes that are no
UTF-8 would be changed. What a request needs of it is here; finding, opening, securing, keeping and parsing stay aiohttp's (its
connector, its protocol).

The parser is stricter than some clients and has no switch for it: a length given twice, or beside chunks, other codings of the
transfer than chunks, and odd bytes in a header's name make an answer unreadable (502). calls.py takes no status above 599.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, cast

import aiohttp
import httpx
from yarl import URL

# bytes of one response header line; httpx takes 100 KiB of all together, and aiohttp's own 8 190 is less than some cookies
HEADER_LIMIT = 1 << 17
HEADERS = 1_000  # lines of an answer's head; aiohttp's own are 128
READ_AHEAD = 1 << 15  # bytes; with twice as many that nobody has taken, no more are read. aiohttp's own are 1 << 18
READING: dict[str, Any] = {  # by the session too
    "read_bufsize": READ_AHEAD,
    "auto_decompress": False,
    "max_line_size": HEADER_LIMIT,
    "max_field_size": HEADER_LIMIT,
    "max_headers": HEADERS,
}
ROADS = 256  # addresses remembered; a client's query may make as many as it likes
LONG = 2_048  # characters of one that is not
UNSEEN = 1 << 16  # bytes of a body that may lie unsent below TLS, where nobody tells how many do
# What may be said twice, being the same as once (RFC 9110 9.2.2).
REPEATABLE = frozenset(("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"))
BROKEN = (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)  # the connection, before an answer's head had come
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")  # beside line breaks, which are counted


class Whole(NamedTuple):
    """An answer, its head read. `close` ends the connection, or does nothing once the answer's end has given it back."""

    status: int
    headers: list[tuple[bytes, bytes]]
    content: aiohttp.StreamReader
    close: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Road:
    """Where a request goes: what the connector wants to know, the first lines of the head, and what is to be known of its method."""

    origin: aiohttp.ClientRequest
    begin: bytes
    tls: bool
    repeatable: bool
    bodiless: bool  # the answer, whatever length its head tells of


class Roads:
    """To the addresses asked lately, by method."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Road] = {}

    def to(self, method: str, url: str) -> Road:
        """Raises aiohttp.InvalidURL, NonHttpUrlClientError for another scheme, or ValueError for a method that is none."""
        asked = (method, url)
        found = self._known.get(asked)
        if found is None and len(url) > LONG:
            return _road(method, url)
        if found is None:
            if len(self._known) >= ROADS:
                self._known.clear()
            found = self._known[asked] = _road(method, url)
        return found


def _road(method: str, url: str) -> Road:
    try:
        address = URL(url, encoded=True)
    except ValueError as exc:
        raise aiohttp.InvalidURL(url) from exc
    if address.scheme not in ("http", "https"):
        raise aiohttp.NonHttpUrlClientError(url)
    origin = aiohttp.ClientRequest(method, address, loop=asyncio.get_running_loop(), ssl=trust(url))
    line = f"{method} {address.raw_path_qs} HTTP/1.1\r\nhost: {origin.headers['Host']}\r\n"
    return Road(origin, line.encode(), address.scheme == "https", method in REPEATABLE, method == "HEAD")


def trust(url: str) -> ssl.SSLContext | bool:
    """Whom to believe that they are who they say: httpx's rules (SSL_CERT_FILE, else certifi's list), not the system's, which an image
    may lack. Read with the first address that needs it: 35 ms and 1 MB."""
    return _trusted() if url.startswith("https:") else True


@cache
def _trusted() -> ssl.SSLContext:
    return httpx.create_ssl_context()


async def ask(
    connector: aiohttp.BaseConnector,
    road: Road,
    headers: Sequence[tuple[bytes, bytes]],
    content: bytes,
    within: aiohttp.ClientTimeout,
) -> Whole:
    """The answer's head; `headers` tell the content's length. Raises what aiohttp raises, HttpProcessingError, and ValueError for a
    header that cannot be written. Whoever is cancelled here has no connection left. What may be said twice is said once more where a
    kept connection broke before the answer's head: its end may have crossed the request."""
    head = written(road, headers)
    repeats = road.repeatable
    while True:
        try:
            connection = await connector.connect(road.origin, [], within)
        except TimeoutError as exc:
            raise aiohttp.ConnectionTimeoutError(str(road.origin.url)) from exc
        repeats = repeats and cast(Any, connection.protocol).kept
        try:
            return await _exchanged(connection, road, head, content, within.sock_read)
        except BaseException as exc:
            connection.close()
            if not (repeats and isinstance(exc, BROKEN)):
                raise
        repeats = False  # once


async def _exchanged(
    connection: aiohttp.connector.Connection, road: Road, head: bytes, content: bytes, read_timeout: float | None
) -> Whole:
    protocol: Any = connection.protocol  # a Connection of ours
    protocol.set_response_params(**READING, skip_payload=road.bodiless, read_until_eof=True, read_timeout=read_timeout)
    protocol.write(head, content)
    message, payload = await protocol.read()
    while 100 <= message.code < 200 and message.code != 101:
        message, payload = await protocol.read()
    if message.code != 101:
        unsure = road.tls and message.code >= 400 and len(content) > UNSEEN
        payload.on_eof(connection.close if unsure else partial(_back, connection, protocol))
    return Whole(message.code, list(message.raw_headers), payload, connection.close)


def _back(connection: aiohttp.connector.Connection, protocol: Any) -> None:
    """An answer that came before its request was written ends the connection: the rest of the one would be read as the next."""
    if protocol.unwritten():
        connection.close()
    else:
        connection.release()


def written(road: Road, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The head. Raises ValueError where a header holds what would end it, or a control character."""
    lines = [b"%s: %s\r\n" % item for item in headers]
    head = b"%s%s\r\n" % (road.begin, b"".join(lines))
    if not head.count(b"\r") == head.count(b"\n") == len(lines) + 3 or _CONTROL.search(head):
        raise ValueError("a header holds a line break or a control character")
    return head
