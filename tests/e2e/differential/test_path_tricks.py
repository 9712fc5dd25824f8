# ruff: noqa: E501 - a case of a table is one line
"""A path leads where it says, under the one base that is configured, or nowhere: to no other route,
server or memory."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from itertools import product

import orjson
import pytest
import pytest_asyncio

from tests.e2e.differential.both_ways import Heard, Talker, spoken
from tests.e2e.differential.exchange import JSON, Exchange, answer
from tests.e2e.raw_upstream import COMPLETION, ProxyUnderTest, chat_body, run_with_raw_upstream
from tests.support.long_forms import IS_LONG
from tests.support.upstream_server import Call, UpstreamServer, run_upstream_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

OWN = (
    "/",
    "/healthz",
    "/readyz",
    "/om/v1/threads",
    "/om/",
)  # what must not be reached by another name
ADMIN = b"X-OM-Admin: sesame"  # whoever reached the admin API would be let in
CHAT = ("/v1/chat/completions", "/chat/completions")
BODY = chat_body("hi")

STEPS = [
    "..", ".", "%2e%2e", ".%2e", "%2E.", "%2e", "..;", "..;x=y", "%2e%2e;", "..%3b", "..%2f", "..%5c", "..\\", "%2f", "%2F..", "%5C..", "%00",
    "..%00", "", "a%2f..", "a%5c..", "a/..", "a/../..", "a/%2e%2e", "a/./..", "%252e%252e", "%252f", "%c0%ae%c0%ae", "%c0%af", "%uff0e%uff0e",
    "..%20", "..%09", "%0d%0a", "~", "...", "....//", "..%ef%bc%8f", "@evil.example", ":443", "%40", "*", "a;/..",
]  # fmt: skip
STARTS = ["", "/v1", "/v1/chat", "/v1/x", "/healthz", "/om", "/om/v1"]
ENDS = [
    "/healthz",
    "/readyz",
    "/om/v1/threads",
    "/om/",
    "/chat/completions",
    "/v1/chat/completions",
    "/v1/models",
    "",
]
TRICKS = {start: [f"{start}/{step}{end}" for step, end in product(STEPS, ENDS)] for start in STARTS}

# What a server may take for something else than it says.
AMBIGUOUS = re.compile(r"//|%2f|%5c|\\|%00|/(\.|%2e){1,2}(/|;|%3b|$)", re.IGNORECASE)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def elsewhere() -> AsyncIterator[UpstreamServer]:
    """A server that nobody configured."""
    async with run_upstream_server(answer(b"{}").script()) as server:
        yield server
        assert server.accepted == 0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ProxyUnderTest]:
    async with run_with_raw_upstream(
        tmp_path_factory.mktemp("paths"), "server: {admin_token: sesame}"
    ) as site:
        yield site


async def send_target(
    site: ProxyUnderTest, method: str, target: str, *headers: bytes, body: bytes = b""
) -> Heard:
    site.server.seen.clear()
    site.server.script = answer(COMPLETION, JSON).script()
    exchange = Exchange(target, method, target, (JSON, *headers), body)
    return await spoken(site.port, exchange.wire(b"127.0.0.1", target), method)


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("start", STARTS)
async def test_where_it_leads(site: ProxyUnderTest, start: str, method: str) -> None:
    """To exactly what it says below the upstream's base, unless it could be taken for something
    else: that is refused."""
    for target in TRICKS[start][:: 1 if IS_LONG else 3]:
        heard = await send_target(site, method, target, b"X-OM-Thread: t", ADMIN, body=BODY)
        went = [seen.line.decode("latin-1") for seen in site.server.seen]
        if target in OWN or (target in CHAT and method == "POST"):
            continue  # it is that route, by its own name
        told = heard.all(b"x-om-status"), heard.all(b"x-om-reason")
        assert told in (([], []), ([b"off"], [b"route"])), f"{target} had a memory"
        assert went or 400 <= heard.status < 500, f"{target} was answered by a route of ours"
        if target.startswith("/om/"):
            assert went == [], f"{target} is the admin API's to refuse"
        elif AMBIGUOUS.search(target):
            assert (heard.status, went) == (400, []), target
        elif went:
            below = target[3:] if target == "/v1" or target.startswith("/v1/") else target
            assert went == [f"{method} /v1{below} HTTP/1.1"], target


async def test_the_admin_api_by_its_name(site: ProxyUnderTest) -> None:
    """It answers: the tests above would notice."""
    heard = await send_target(site, "GET", "/om/v1/threads", ADMIN)
    assert (heard.status, list(orjson.loads(heard.body))) == (200, ["items", "threads", "cursor"])


async def test_they_are_many() -> None:
    """Of every kind, and both ends: what is refused and what is not."""
    tricks = {trick for some in TRICKS.values() for trick in some}
    refused = [trick for trick in tricks if AMBIGUOUS.search(trick)]
    assert len(tricks) > 1_500
    assert 500 < len(refused) < len(tricks) - 300


@pytest.mark.parametrize(
    "target",
    [
        "/v1/chat%2fcompletions", "/v1%2Fchat/completions", "/v1/chat/completions%2f", "/v1/chat/completions%00", "/v1/x/../chat/completions",
        "/v1/./chat/completions", "/v1//chat/completions", "//v1/chat/completions", "/v1/chat\\completions", "/v1/chat%5ccompletions",
    ],
)  # fmt: skip
async def test_the_chat_route_in_disguise(site: ProxyUnderTest, target: str) -> None:
    """It is refused: neither has it a memory, nor does it pass without one."""
    heard = await send_target(site, "POST", target, b"X-OM-Thread: t", body=BODY)
    assert (heard.status, orjson.loads(heard.body)["error"]["code"], site.server.seen) == (
        400,
        "om_bad_path",
        [],
    )
    assert await site.threads() == 0


@pytest.mark.parametrize(
    "target",
    [
        "/v1/chat/completions/",
        "/v1/chat/%63ompletions",
        "/V1/chat/completions",
        "/v1/chat/completions;a",
    ],
)
async def test_what_only_looks_like_the_chat_route(site: ProxyUnderTest, target: str) -> None:
    """It passes as any other path, without a memory."""
    heard = await send_target(site, "POST", target, b"X-OM-Thread: t", body=BODY)
    assert (heard.status, heard.all(b"x-om-reason"), site.seen.body) == (200, [b"route"], BODY)
    assert await site.threads() == 0


# ── other servers ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ("http://{elsewhere}/v1/models", "GET /v1/models HTTP/1.1"),
        ("http://user:pass@{elsewhere}/v1/models?a=b", "GET /v1/models?a=b HTTP/1.1"),
        ("https://{elsewhere}/models", "GET /v1/models HTTP/1.1"),
        ("ftp://{elsewhere}/v1/models", "GET /v1/models HTTP/1.1"),
        ("http://{elsewhere}/../healthz", None),
        ("http://{elsewhere}//v1/models", None),
        ("http://{elsewhere}", None),
        ("//{elsewhere}/v1/models", None),
        ("{elsewhere}", None),
        ("@{elsewhere}/v1/models", None),
        (".{elsewhere}/v1/models", None),
        ("file:///etc/passwd", None),
    ],
)  # fmt: skip
async def test_absolute_form(
    site: ProxyUnderTest, elsewhere: UpstreamServer, target: str, line: str | None
) -> None:
    """A whole address is its path (RFC 9112 3.2.2 has it accepted), asked of the configured server
    and of no other."""
    host = f"127.0.0.1:{elsewhere.port}"
    site.server.seen.clear()
    site.server.script = answer(b"{}", JSON).script()
    wire = f"GET {target.format(elsewhere=host)} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    heard = await spoken(site.port, wire, "GET")
    assert [seen.line.decode() for seen in site.server.seen] == ([line] if line else [])
    assert heard.status == (200 if line else heard.status)
    assert not 200 <= heard.status < 300 or line


@pytest.mark.parametrize("named", [False, True], ids=["without a thread", "with a thread"])
@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/embeddings"])
async def test_nothing_in_a_request_names_a_server(
    site: ProxyUnderTest, elsewhere: UpstreamServer, target: str, named: bool
) -> None:
    """Whatever header, parameter or member of the body asks for another, the configured one is
    asked."""
    host = f"127.0.0.1:{elsewhere.port}"
    url = f"http://{host}/v1"
    names = [
        "base_url",
        "api_base",
        "endpoint",
        "upstream",
        "url",
        "proxy",
        "host",
        "webhook",
        "model",
    ]
    headers = [
        f"{name}: {value}"
        for name, value in product(
            ["X-Forwarded-Host", "X-Upstream", "X-OM-Upstream", "X-OM-Base-Url", "X-Base-Url", "X-Api-Base", "X-Original-URL", "X-Rewrite-URL",
             "X-Portkey-Custom-Host", "Helicone-Target-URL", "Forwarded", "Destination", "Proxy", "Referer", "Origin"],
            [url],
        )
    ]  # fmt: skip
    body = chat_body(
        "hi", **dict.fromkeys(names, url), stream_options={"url": url}, metadata={"api_base": url}
    )
    own = [f"X-OM-Thread: server-{target[4:]}".replace("/", "-").encode()] if named else []
    query = "&".join(f"{name}={url}" for name in names)
    heard = await send_target(
        site, "POST", f"{target}?{query}", *(h.encode() for h in headers), *own, body=body
    )
    await site.app.background.wait_idle()
    assert heard.status == 200
    assert (len(site.server.seen), site.seen.body) == (1, body)
    assert elsewhere.accepted == 0


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    "headers", [(), (b"X-OM-Thread: redirected",)], ids=["without a thread", "with a thread"]
)
@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/embeddings"])
async def test_redirects_are_the_client_s(
    site: ProxyUnderTest,
    elsewhere: UpstreamServer,
    target: str,
    headers: tuple[bytes, ...],
    status: int,
) -> None:
    """None is followed: it is answered as it came."""
    location = b"Location: http://127.0.0.1:%d/v1/chat/completions" % elsewhere.port

    async def script(call: Call) -> None:
        call.send(answer(b"there", location, b"Refresh: 0", status=b"%d Moved" % status).wire)

    site.server.seen.clear()
    site.server.script = script
    async with await Talker.connect(site.port) as talker:
        heard = await talker.ask(
            Exchange("x", headers=headers, body=BODY).wire(b"localhost", target)
        )
    await asyncio.wait_for(site.app.background.wait_idle(), 30)
    assert (heard.status, heard.body, heard.all(b"location")) == (status, b"there", [location[10:]])
    assert (len(site.server.seen), elsewhere.accepted) == (1, 0)
