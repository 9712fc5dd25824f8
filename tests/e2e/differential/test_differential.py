"""Some hundred exchanges, sent directly and through the proxy to the same recording model server,
are told apart by nothing.

What arrives there (request line, headers but the connection's own, body) and what the client hears
(status, headers in their order, duplicates among them, body, how it ends, whether the connection
lives on) is compared as bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count

import pytest
import pytest_asyncio

from tests.e2e.differential.both_ways import Both, Talker, both_ways, differences, spoken
from tests.e2e.differential.chats import chats
from tests.e2e.differential.exchange import EVENTS, JSON, Answer, Exchange, answer, chunked
from tests.e2e.differential.replies import BODY, replies
from tests.e2e.differential.routes import BOUNDARY, form, routes
from tests.e2e.raw_upstream import ProxyUnderTest, run_with_raw_upstream
from tests.support.upstream_server import SSE_HEAD, Call, chunk

pytestmark = pytest.mark.asyncio(loop_scope="module")
numbers = count(1)

CHAT_EXCHANGES, REPLY_EXCHANGES, ROUTE_EXCHANGES = chats(), replies(), routes()
ALIASES = (
    b"x-thread-id: t",
    b"X-OpenWebUI-Chat-Id: t",
    b"X-Resource-Id: r",
    b"X-OpenWebUI-User-Id: r",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ProxyUnderTest]:
    """One that nobody names a thread to."""
    async with run_with_raw_upstream(tmp_path_factory.mktemp("plain")) as site:
        yield site
        assert await site.threads() == 0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def remembering(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ProxyUnderTest]:
    async with run_with_raw_upstream(tmp_path_factory.mktemp("remembering")) as site:
        yield site


def each(exchanges: list[Exchange]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("exchange", [pytest.param(e, id=e.name) for e in exchanges])


def thread() -> bytes:
    return b"X-OM-Thread: differential-%d" % next(numbers)


async def test_how_many() -> None:
    """Each has a name of its own, and they are twice as many as were asked for."""
    names = [exchange.name for exchange in (*CHAT_EXCHANGES, *REPLY_EXCHANGES, *ROUTE_EXCHANGES)]
    assert len(names) == len(set(names)) >= 400


@each([*CHAT_EXCHANGES, *REPLY_EXCHANGES, *ROUTE_EXCHANGES])
async def test_without_a_thread(site: ProxyUnderTest, exchange: Exchange) -> None:
    """Nobody can tell that there is a proxy, the receipt of the routes with memory aside."""
    assert differences(await both_ways(site, exchange)) == []


@each([exchange for exchange in ROUTE_EXCHANGES if not exchange.is_turn])
async def test_other_routes_with_a_thread(remembering: ProxyUnderTest, exchange: Exchange) -> None:
    """Headers that name a thread change nothing where there is no memory, and stay here; the
    receipt says that there is none."""
    own = (thread(), *ALIASES, b"X-OM-Mode: on", b"X-OM-Anything: 1")
    both = await both_ways(remembering, exchange, *own)
    receipt = [item for item in both.heard.headers if item[0].startswith(b"x-om-")]
    assert receipt[:2] == [(b"x-om-status", b"off"), (b"x-om-reason", b"route")]
    assert {name for name, _ in receipt[2:]} <= {b"x-om-thread"}
    both.heard.headers = [item for item in both.heard.headers if item not in receipt]
    assert differences(both) == []


@pytest.mark.sample(101)
@each(
    [
        *CHAT_EXCHANGES,
        *REPLY_EXCHANGES,
        *(exchange for exchange in ROUTE_EXCHANGES if exchange.is_turn),
    ]
)
async def test_a_first_turn(remembering: ProxyUnderTest, exchange: Exchange) -> None:
    """It differs in nothing but that an uncompressed reply is asked for; whatever is no chat
    differs in nothing at all."""
    both = await both_ways(remembering, exchange, thread())
    (status,) = both.heard.all(b"x-om-status")
    assert differences(both, identity=status == b"raw") == []
    if status != b"raw":
        assert both.heard.all(b"x-om-reason")[0] in (
            b"unreadable",
            b"no-messages",
            b"no-credential",
        )


# ── what differs, and why it may ──────────────────────────────────────────────────────────────────

KNOWN = [
    (
        Exchange("a query of nothing", "GET", "/v1/models?", (), bare=True),
        ["request line: b'GET /v1/models? HTTP/1.1' became b'GET /v1/models HTTP/1.1'"],
    ),
    (  # no part of a request's address; it is for the client alone (RFC 9110 4.2.5)
        Exchange("a fragment", "GET", "/v1/models?a#b", (), bare=True),
        ["request line: b'GET /v1/models?a#b HTTP/1.1' became b'GET /v1/models?a HTTP/1.1'"],
    ),
    # with a body of at most 1 MiB that came at once, or none, they pass as they are, and so they do
    # of an answer
    (
        Exchange("Latin-1 in a header of an upload", target="/v1/files", headers=(b"X-A: \xe9",), pieces=(b"a" * 1_000_000,) * 3),
        ["request headers: [(b'x-a', b'\\xe9')] became [(b'x-a', b'\\xc3\\xa9')]"],
    ),
    (  # no such thing may stand in a header (RFC 9110 5.5), and with a line break it would be two
        Exchange("a control character in an answer's header", body=BODY, answer=answer(b"{}", b"X-A: a\x01b", b"X-B: 1")),
        ["answer headers: [(b'x-a', b'a\\x01b'), (b'x-b', b'1')] became [(b'x-b', b'1')]"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("exchange", "expected"), [pytest.param(*row, id=row[0].name) for row in KNOWN]
)
async def test_what_differs(site: ProxyUnderTest, exchange: Exchange, expected: list[str]) -> None:
    """All that is known to: it may become less."""
    assert differences(await both_ways(site, exchange)) == expected


# ── large, and slowly ─────────────────────────────────────────────────────────────────────────────

LARGE = 30_000_000  # bytes
BLOCK = bytes(n * 31 % 251 for n in range(1 << 16))
FILE = (BLOCK * (LARGE // len(BLOCK) + 1))[:LARGE]


def cut(size: int) -> tuple[bytes, ...]:
    return tuple(FILE[at : at + size] for at in range(0, LARGE, size))


IMAGE = (
    b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,'
    + b"A" * LARGE
    + b'"}}]}]}'
)
PDF = b"Content-Type: application/pdf"
LARGEST = [
    Exchange(
        "a file sent",
        target="/v1/files",
        headers=(BOUNDARY,),
        body=form(("name=file; filename=a", FILE)),
    ),
    Exchange("a file sent in chunks", target="/v1/files", pieces=cut(1_000_000)),
    Exchange("a file read", "GET", "/v1/files/f/content", (), bare=True, answer=answer(FILE, PDF)),
    Exchange(
        "a file read in chunks",
        "GET",
        "/v1/files/f/content",
        (),
        bare=True,
        answer=chunked(*cut(300_000), headers=(PDF,)),
    ),
    Exchange("an image in a chat", body=IMAGE),
]


@each(LARGEST)
async def test_large(site: ProxyUnderTest, exchange: Exchange) -> None:
    """30 MB pass like 30 bytes."""
    both = await both_ways(site, exchange)
    assert max(len(both.seen.body), len(both.heard.body)) >= LARGE
    assert differences(both) == []


@pytest.mark.parametrize("closes", [False, True], ids=["and reads on", "and closes"])
@pytest.mark.parametrize("cut", [False, True], ids=["a length", "chunks"])
@pytest.mark.parametrize("target", ["/v1/files", "/v1/chat/completions"])
async def test_answered_before_the_body_has_come(
    site: ProxyUnderTest, target: str, cut: bool, closes: bool
) -> None:
    """A server that refuses an upload at its head, as one does that knows no such key, is heard all
    the same."""
    refusal = answer(
        b'{"error":1}',
        JSON,
        *([b"Connection: close"] if closes else []),
        status=b"401 Unauthorized",
    )

    async def script(call: Call) -> None:
        call.send(refusal.wire)
        if closes:
            call.close()
        else:
            await call.rest_of_body()

    body = FILE[:5_000_000]
    pieces = tuple(body[at : at + 100_000] for at in range(0, len(body), 100_000)) if cut else None
    exchange = Exchange("early", target=target, body=b"" if cut else body, pieces=pieces)
    site.server.script, site.server.early = script, True
    try:
        heard = [
            await spoken(port, exchange.wire(b"localhost", target))
            for port in (site.server.port, site.port)
        ]
    finally:
        site.server.early = False
    assert [(h.status, h.body, h.whole) for h in heard] == [(401, b'{"error":1}', True)] * 2


@pytest.mark.parametrize("named", [False, True], ids=["without a thread", "with a thread"])
@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/completions"])
async def test_each_event_at_once(remembering: ProxyUnderTest, target: str, named: bool) -> None:
    """An event is heard before the next one is sent: nothing is collected on the way."""
    heard = [asyncio.Event() for _ in EVENTS]

    async def script(call: Call) -> None:
        call.send(SSE_HEAD)
        for event, arrived in zip(EVENTS, heard, strict=True):
            call.send(chunk(event))
            await asyncio.wait_for(arrived.wait(), 30)
        call.send(chunk(b""))

    remembering.server.script = script
    reader, writer = await asyncio.open_connection("127.0.0.1", remembering.port)
    exchange = Exchange(
        "stream", target=target, body=b'{"stream":true,"messages":[{"role":"user","content":"hi"}]}'
    )
    writer.write(exchange.with_headers(*([thread()] if named else [])).wire(b"localhost", target))
    await reader.readuntil(b"\r\n\r\n")
    for event, arrived in zip(EVENTS, heard, strict=True):
        assert chunk(event) == await asyncio.wait_for(reader.readexactly(len(chunk(event))), 30)
        arrived.set()
    assert await asyncio.wait_for(reader.readexactly(5), 30) == chunk(b"")
    writer.transport.abort()
    await remembering.app.background.wait_idle()


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/files"])
async def test_expecting_100(site: ProxyUnderTest, target: str) -> None:
    """A client that waits for its word before it sends the body gets it, and the model server
    nothing to wait for."""
    site.server.seen.clear()
    site.server.script = answer(b"{}", JSON).script()
    exchange = Exchange("expecting", target=target, headers=(b"Expect: 100-continue",), body=BODY)
    head, _, body = exchange.wire(b"localhost", target).partition(b"\r\n\r\n")
    async with await Talker.connect(site.port) as talker:
        talker.write(head + b"\r\n\r\n")
        hearing = asyncio.create_task(talker.hear())
        await asyncio.wait_for(talker.continued.wait(), 30)
        assert site.server.seen == []
        talker.write(body)
        assert (await hearing).body == b"{}"
    assert site.seen.body == BODY
    assert site.seen.header(b"expect") == []


# ── on one connection ─────────────────────────────────────────────────────────────────────────────


def one_after_the_other() -> list[Exchange]:
    """Those after which neither side has closed its connection."""
    return [
        e
        for e in (*CHAT_EXCHANGES, *REPLY_EXCHANGES, *ROUTE_EXCHANGES)
        if not e.answer.closes and len(e.payload) < 1_000_000
    ]


async def test_on_one_connection(site: ProxyUnderTest) -> None:
    """Whatever came before, the next exchange is its own: bodies do not run over, in either
    direction."""
    async with await Talker.connect(site.port) as talker:
        for exchange in one_after_the_other():
            site.server.seen.clear()
            site.server.script = exchange.answer.script()
            heard = await talker.ask(exchange.wire(b"localhost", exchange.target), exchange.method)
            assert (heard.whole, heard.reusable) == (True, True), exchange.name
            assert [seen.body for seen in site.server.seen] == [exchange.payload], exchange.name
            if exchange.method != "HEAD":
                assert heard.body in exchange.answer.wire or b"chunked" in exchange.answer.wire, (
                    exchange.name
                )


async def test_sent_ahead(site: ProxyUnderTest) -> None:
    """Requests sent without waiting are answered in their order, each with its own answer."""
    site.server.seen.clear()

    async def echo(call: Call) -> None:
        call.send(answer(call.seen.body, JSON).wire)

    site.server.script = echo
    bodies = [b'{"n":%d,"messages":[]}' % n for n in range(20)]
    targets = ["/v1/chat/completions", "/v1/embeddings"] * 10
    async with await Talker.connect(site.port) as talker:
        wires = [
            Exchange("x", target=t, body=b).wire(b"localhost", t)
            for t, b in zip(targets, bodies, strict=True)
        ]
        talker.write(b"".join(wires))
        assert [(await talker.hear()).body for _ in bodies] == bodies
    assert [seen.body for seen in site.server.seen] == bodies


# ── the comparison itself ─────────────────────────────────────────────────────────────────────────


async def test_the_comparison_bites(site: ProxyUnderTest) -> None:
    """Each thing that is compared is told apart when it differs."""

    def told(**changes: object) -> list[str]:
        for name, value in changes.items():
            target, _, attribute = name.partition("__")
            setattr(getattr(both, target), attribute, value)
        return [line.partition(":")[0] for line in differences(both)]

    async def fresh() -> Both:
        return await both_ways(
            site,
            Exchange(
                "x",
                "GET",
                "/v1/models",
                (b"X-A: 1", b"X-B: 2"),
                bare=True,
                answer=Answer(answer(b"{}", b"X-A: 1", b"X-B: 2").wire),
            ),
        )

    both = await fresh()
    assert told() == []
    assert told(seen__line=b"GET /v1/model HTTP/1.1") == ["request line"]
    both = await fresh()
    assert told(seen__headers=both.seen.headers[:-1]) == ["request headers"]
    assert told(seen__headers=[*both.seen_directly.headers, (b"X-OM-Thread", b"t")]) == [
        "request headers",
        "ours travelled on",
    ]
    both = await fresh()
    assert told(
        seen__headers=[
            (n, b"elsewhere" if n.lower() == b"host" else v) for n, v in both.seen.headers
        ]
    ) == ["host"]
    both = await fresh()
    assert told(seen__body=b"x", heard__body=b"{ }", heard__status=201) == [
        "request body",
        "status",
        "answer body",
    ]
    both = await fresh()
    assert told(heard__headers=both.heard.headers[::-1]) == ["answer headers"]
    assert told(
        heard__headers=both.heard_directly.headers, heard__whole=False, heard__reusable=False
    ) == [
        "answer came whole",
        "connection lives on",
    ]
    both = await fresh()
    assert told(heard__headers=[*both.heard.headers, (b"x-om-status", b"off")]) == [
        "answer headers"
    ]
    assert told(
        heard__headers=[h for h in both.heard_directly.headers if h[0] != b"content-length"]
    ) == ["answer length"]
