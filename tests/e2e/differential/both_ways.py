"""Send an exchange to a recording model server, directly and through the proxy, and say where the
two differ."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import h11

from tests.e2e.differential.exchange import Exchange
from tests.e2e.raw_upstream import ProxyUnderTest
from tests.support.upstream_server import SeenRequest

WITHIN = 20.0  # seconds one exchange may take; it takes milliseconds
# Of a connection and not of the exchange (RFC 9110 7.6.1), the same by older names, and what the
# next connection says anew. Written out here once more, so that the proxy's own list is compared
# with something.
CONNECTION = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding upgrade".split()
)
FRAMING = frozenset((b"host", b"content-length", b"expect"))
ANEW = frozenset((b"host", b"content-length", b"transfer-encoding", b"connection"))
OWN = (b"x-om-", b"x-thread-id", b"x-resource-id", b"x-openwebui-chat-id", b"x-openwebui-user-id")

Headers = list[tuple[bytes, bytes]]


@dataclass
class Heard:
    """An answer as a client hears it. Names of headers in lower case; interim answers (1xx) are the
    connection's."""

    status: int = 0
    headers: Headers = field(default_factory=list)
    body: bytes = b""
    whole: bool = False  # it ended as its framing promised
    reusable: bool = False  # another request may follow on the connection

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key == name]


@dataclass
class Both:
    """What the model server saw and the client heard, without the proxy and with it."""

    exchange: Exchange
    seen_directly: SeenRequest
    seen: SeenRequest
    heard_directly: Heard
    heard: Heard


class Talker:
    """A client with one connection, which hears answers by the book (h11) and keeps every byte of
    them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._side = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
        self.continued = asyncio.Event()  # the server has said 100

    @classmethod
    async def connect(cls, port: int) -> Talker:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def __aenter__(self) -> Talker:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._writer.transport.abort()

    def write(self, wire: bytes) -> None:
        self._writer.write(wire)

    async def ask(self, wire: bytes, method: str = "POST") -> Heard:
        """The answer to these bytes."""
        self.write(wire)
        return await self.hear(method)

    async def hear(self, method: str = "POST") -> Heard:
        if self._side.our_state is not h11.IDLE:
            self._side.start_next_cycle()
        self._side.send(
            h11.Request(method=method, target="/", headers=[("host", "x")])
        )  # tells what an answer may look like
        self._side.send(h11.EndOfMessage())
        heard, body = Heard(), bytearray()
        async with asyncio.timeout(WITHIN):
            with contextlib.suppress(
                h11.RemoteProtocolError
            ):  # it ended before its framing promised
                await self._hear(heard, body)
        heard.body = bytes(body)
        return heard

    async def _hear(self, heard: Heard, body: bytearray) -> None:
        while not isinstance(event := self._side.next_event(), h11.EndOfMessage):
            match event:
                case h11.NEED_DATA:
                    self._side.receive_data(await self._received())
                case h11.InformationalResponse():
                    self.continued.set()
                case h11.Response():
                    heard.status = event.status_code
                    heard.headers = [
                        (name.lower(), value) for name, value in event.headers.raw_items()
                    ]
                case h11.Data():
                    body += event.data
                case h11.ConnectionClosed():
                    return
        heard.whole = True
        heard.reusable = self._side.their_state is h11.DONE

    async def _received(self) -> bytes:
        try:
            return await self._reader.read(1 << 16)
        except ConnectionResetError:
            return b""


async def spoken(port: int, wire: bytes, method: str = "POST") -> Heard:
    """The answer to these bytes, sent on a connection of their own."""
    async with await Talker.connect(port) as talker:
        return await talker.ask(wire, method)


async def both_ways(site: ProxyUnderTest, exchange: Exchange, *own: bytes) -> Both:
    """Both forms, one after the other. `own`: headers that only the proxy is sent."""
    site.server.script = exchange.answer.script()
    direct = exchange.wire(b"127.0.0.1:%d" % site.server.port, exchange.direct_target)
    seen_directly, heard_directly = await _one(site, site.server.port, direct, exchange)
    through = exchange.with_headers(*own).wire(b"localhost:8400", exchange.target)
    seen, heard = await _one(site, site.port, through, exchange)
    await site.app.background.wait_idle()
    return Both(exchange, seen_directly, seen, heard_directly, heard)


async def _one(
    site: ProxyUnderTest, port: int, wire: bytes, exchange: Exchange
) -> tuple[SeenRequest, Heard]:
    site.server.seen.clear()
    heard = await spoken(port, wire, exchange.method)
    assert len(site.server.seen) == 1, (
        f"{exchange.name}: the model server saw {len(site.server.seen)} requests, {heard}"
    )
    return site.server.seen[0], heard


# ── where they differ ─────────────────────────────────────────────────────────────────────────────


def differences(both: Both, *, identity: bool = False, rewritten: bool = False) -> list[str]:
    """In words; none is what a transparent proxy has.

    `identity`: the reply is read, so that it is asked for uncompressed
    (docs/contributing/http.md#requests). `rewritten`: the body is compared elsewhere.
    """
    return [*_of_requests(both, identity, rewritten), *_of_answers(both)]


def _of_requests(both: Both, identity: bool, rewritten: bool) -> list[str]:
    before, after = both.seen_directly, both.seen
    expected = sent_on(before.headers)
    if identity:
        expected = [item for item in expected if item[0] != b"accept-encoding"] + [
            (b"accept-encoding", b"identity")
        ]
    found = [
        *_differ("request line", before.line, after.line),
        *_differ("host", before.header(b"host"), after.header(b"host")),
        *_differ("request headers", expected, arrived(after.headers)),
        *_differ("request came whole", before.whole, after.whole),
    ]
    if not rewritten:
        found += _differ("request body", before.body, after.body)
        found += _differ("request length", *_lengths(before, after))
    return found + [
        f"ours travelled on: {name!r}" for name, _ in after.headers if name.lower().startswith(OWN)
    ]


def _lengths(before: SeenRequest, after: SeenRequest) -> tuple[list[bytes], list[bytes]]:
    """Announced lengths, where both forms announce one: a body of unknown length may get one, and
    one of none lose it."""
    lengths = before.header(b"content-length"), after.header(b"content-length")
    if not after.chunked and len(lengths[1]) > 1:
        return lengths
    return lengths if all(lengths) else ([], [])


def _of_answers(both: Both) -> list[str]:
    before, after = both.heard_directly, both.heard
    found = [
        *_differ("status", before.status, after.status),
        *_differ(
            "answer headers",
            sent_on(before.headers),
            without_receipt(both.exchange, arrived(after.headers)),
        ),
        *_differ("answer body", before.body, after.body),
        *_differ("answer came whole", before.whole, after.whole),
    ]
    if before.all(b"content-length") and before.status not in (204, 304):
        found += _differ(
            "answer length", before.all(b"content-length"), after.all(b"content-length")
        )
    if before.whole and before.reusable and not _closes(both.exchange):
        found += _differ("connection lives on", True, after.reusable)
    return found


def sent_on(headers: Sequence[tuple[bytes, bytes]]) -> Headers:
    """Without what is a connection's own; names in lower case, order and duplicates kept."""
    lowered = [(name.lower(), value) for name, value in headers]
    named = {
        token.strip().lower()
        for name, value in lowered
        if name == b"connection"
        for token in value.split(b",")
    }
    return [item for item in lowered if item[0] not in CONNECTION | FRAMING | named]


def arrived(headers: Sequence[tuple[bytes, bytes]]) -> Headers:
    """Without what the new connection says for itself; anything else of the old one's has no
    business here."""
    return [(name.lower(), value) for name, value in headers if name.lower() not in ANEW]


def without_receipt(exchange: Exchange, headers: Headers) -> Headers:
    """Only the intercepted route has a receipt: on any other it is a difference."""
    return [item for item in headers if not (exchange.is_turn and item[0].startswith(b"x-om-"))]


def _closes(exchange: Exchange) -> bool:
    return any(
        header.lower().startswith(b"connection:") and b"close" in header
        for header in exchange.headers
    )


def _differ(what: str, before: object, after: object) -> list[str]:
    return [] if before == after else [f"{what}: {_short(before)} became {_short(after)}"]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 600 else f"{text[:300]} … {text[-300:]}"
