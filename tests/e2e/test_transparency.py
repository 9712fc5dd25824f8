# ruff: noqa: E501 - a case of a table is one line
"""What the proxy has no business with passes byte for byte, over raw sockets; what it rewrites is
rewritten in `messages` only."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from itertools import count

import msgspec
import orjson
import pytest
import pytest_asyncio
from msgspec.structs import replace

from om_proxy.memory.model import Key, Memory
from om_proxy.settings.identity.tenants import LOCAL_TENANT
from tests.e2e.raw_upstream import (
    COMPLETION,
    EVENTS,
    ProxyUnderTest,
    chat_body,
    drop_receipt,
    read_reason,
    run_with_raw_upstream,
    script_stream,
)
from tests.support.upstream_server import SSE_HEAD, Call, Script, chunk, script_answer, script_bytes

pytestmark = pytest.mark.asyncio(loop_scope="module")
numbers = count(1)

CLIENT = (
    b"User-Agent: odd/1.0 (x; y)",
    b"Authorization: Bearer sk-a",
    b"X-Twice: 1",
    b"Accept: text/event-stream, */*;q=0.1",
    b"Content-Type: application/json; charset=utf-8",
    b"Accept-Encoding: br, gzip",
    b"X-Twice: 2",
    b"OpenAI-Organization: org-\xc3\xa9",
    b"Cookie: a=b; c=d",
    b"X-Empty:",
    b"x-stainless-retry-count: 0",
)
ALIASES = (
    b"x-thread-id: t",
    b"X-OpenWebUI-Chat-Id: t",
    b"X-Resource-Id: r",
    b"X-OpenWebUI-User-Id: r",
)
SERVER = (
    b"Date: Mon, 01 Jan 2024 00:00:00 GMT",
    b"Server: wire/upstream/2",
    b"Content-Type: application/json; charset=UTF-8",
    b"X-Request-Id: req-1",
    b"x-ratelimit-remaining-tokens: 149984",
    b"openai-processing-ms: 7",
    b"Set-Cookie: a=1",
    b"Set-Cookie: b=2",
    b"x-should-retry: false",
    b"X-Empty:",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ProxyUnderTest]:
    async with run_with_raw_upstream(tmp_path_factory.mktemp("transparency")) as site:
        yield site


def pairs(lines: tuple[bytes, ...]) -> list[tuple[bytes, bytes]]:
    """As they are compared: names in lower case, values bare, order kept."""
    return [
        (name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)
    ]


def end_to_end(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Without what each connection says anew."""
    framing = (b"host", b"content-length", b"transfer-encoding", b"connection")
    return [(name.lower(), value) for name, value in headers if name.lower() not in framing]


def thread() -> bytes:
    return b"X-OM-Thread: transparent-%d" % next(numbers)


# ── without a thread ──────────────────────────────────────────────────────────────────────────────

BODIES = [
    pytest.param(b'{"model":"m","messages":[{"role":"user","content":"hi"}]}', id="plain"),
    pytest.param(b'\n{ "messages" : [ ] ,\t"model":"m" , "n":1.0,"x":1e400,"y":-0,"z":12345678901234567890123}\r\n', id="spaces and numbers"),
    pytest.param(b'{"model":"a","model":"b","messages":[],"messages":[1]}', id="keys twice"),
    pytest.param(b'{"model":"m","messages":[{"role":"user","content":"\\ud83d \\u00e9 \xc3\xa9 \\/"}]}', id="escapes"),
    pytest.param(b'{"model":null,"messages":{"role":"user"}}', id="messages that are none"),
    pytest.param(b"[" * 100_000, id="deep"),
    pytest.param(b'{"messages":', id="broken off"),
    pytest.param(b"[]", id="a list"),
    pytest.param(b"\x00\xff\xfe no JSON \r\n\r\n", id="no JSON at all"),
    pytest.param(b"", id="nothing"),
    pytest.param(b'\xef\xbb\xbf{"messages":[]}', id="byte order mark"),
    pytest.param(b'{"model":"m","messages":[{"role":"user","content":"' + b"x" * 3_000_000 + b'"}]}', id="3 MB"),
]  # fmt: skip


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/chat/completions",
        "/v1/chat/completions?api-version=2%20x&q=%C3%A9&q=",
    ],
)
@pytest.mark.parametrize("body", BODIES)
async def test_without_a_thread(site: ProxyUnderTest, body: bytes, path: str) -> None:
    """The upstream gets the client's bytes, path, query and headers; the client gets the upstream's
    bytes, status and headers."""
    got = await site.ask(
        body, *CLIENT, path=path, script=script_answer(COMPLETION, *SERVER, status=b"203 Odd")
    )
    assert site.seen.line == f"POST /v1{path.removeprefix('/v1')} HTTP/1.1".encode()
    assert site.seen.body == body
    assert end_to_end(site.seen.headers) == pairs(CLIENT)
    assert (got.status, got.body, got.whole) == (203, COMPLETION, True)
    assert end_to_end(drop_receipt(got)) == pairs(SERVER)
    assert read_reason(got) == "off/no-thread"
    assert await site.threads() == 0


ANSWERS: list[tuple[str, Script, int, bytes]] = [
    ("stream", script_stream(*EVENTS), 200, b"".join(EVENTS)),
    ("stream that ends without [DONE]", script_stream(*EVENTS[:-1]), 200, b"".join(EVENTS[:-1])),
    ("stream that goes on after [DONE]", script_stream(*EVENTS, b": late\n\n"), 200, b"".join(EVENTS) + b": late\n\n"),
    ("400", script_answer(b'{"error": {"message": "no"}}', *SERVER, status=b"400 Bad Request"), 400, b'{"error": {"message": "no"}}'),
    ("401", script_answer(b'{"error":1}\n', b"WWW-Authenticate: Bearer", *SERVER, status=b"401 Unauthorized"), 401, b'{"error":1}\n'),
    ("429", script_answer(b"{}", b"Retry-After: 7", b"retry-after-ms: 6543", *SERVER, status=b"429 Too Many"), 429, b"{}"),
    ("500", script_answer(b"", *SERVER, status=b"500 Oh"), 500, b""),
    ("502 in HTML", script_answer(b"<html>\x00\xff</html>", b"Content-Type: text/html", status=b"502 Bad Gateway"), 502, b"<html>\x00\xff</html>"),
    ("redirect", script_answer(b"", b"Location: /v1/elsewhere", status=b"307 Temporary Redirect"), 307, b""),
    ("a body of unknown length", script_bytes(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"{") + chunk(b"}") + chunk(b"")), 200, b"{}"),
    ("no JSON where JSON is announced", script_answer(b"oops", b"Content-Type: application/json"), 200, b"oops"),
]  # fmt: skip


@pytest.mark.parametrize("threaded", [False, True], ids=["without a thread", "with a thread"])
@pytest.mark.parametrize(
    ("script", "status", "body"), [pytest.param(*row[1:], id=row[0]) for row in ANSWERS]
)
async def test_answers(
    site: ProxyUnderTest, script: Script, status: int, body: bytes, threaded: bool
) -> None:
    """Whatever the upstream answers arrives as it came, with memory or without, once and not
    retried."""
    asked = chat_body("hi", stream=body.startswith(b":"))
    got = await site.ask(asked, *([thread()] if threaded else []), script=script)
    assert site.seen.body == asked
    assert (got.status, got.body, got.whole) == (status, body, True)
    plain = await site.ask(asked, path="/v1/other", script=script)
    assert drop_receipt(got) == plain.headers, "the same headers as on a route that is only relayed"


@pytest.mark.parametrize("threaded", [False, True], ids=["without a thread", "with a thread"])
async def test_an_answer_that_breaks_off(site: ProxyUnderTest, threaded: bool) -> None:
    """A broken answer ends in a broken connection: no clean end and no `[DONE]` is made up."""

    async def script(call: Call) -> None:
        call.send(SSE_HEAD + chunk(EVENTS[0]))
        call.close()

    got = await site.ask(
        chat_body("hi", stream=True), *([thread()] if threaded else []), script=script
    )
    assert (got.status, got.body, got.whole) == (200, EVENTS[0], False)


@pytest.mark.parametrize("threaded", [False, True], ids=["without a thread", "with a thread"])
async def test_a_compressed_answer(site: ProxyUnderTest, threaded: bool) -> None:
    """It is relayed as it is, also where we asked for none."""
    body = gzip.compress(COMPLETION, mtime=0)
    script = script_answer(body, b"Content-Encoding: gzip", b"Content-Type: application/json")
    got = await site.ask(chat_body("hi"), *([thread()] if threaded else []), script=script)
    assert (got.body, got.header(b"content-encoding")) == (body, [b"gzip"])


OTHERS = [
    ("GET", "/v1/models", b""),
    ("GET", "/v1/chat/completions?limit=2", b""),
    ("GET", "/v1/chat/completions/chatcmpl-1/messages", b""),
    ("DELETE", "/v1/files/a%20b", b""),
    ("POST", "/v1/embeddings", b'{"input" : "\\u00e9", "dimensions":1.0}'),
    ("POST", "/v1/completions", b'{"model":"m","input":"hi","store":false}'),
    (
        "POST",
        "/v1/audio/transcriptions",
        b"--b\r\nContent-Disposition: form-data; name=x\r\n\r\n\x00\xff\r\n--b--\r\n",
    ),
    ("POST", "/v1/chat/completions/", b'{"messages":[]}'),
    ("PUT", "/v1/chat/completions", b"{}"),
    ("PATCH", "/anything/else?x=%2F", b"\x00"),
]


@pytest.mark.parametrize(("method", "path", "body"), OTHERS)
async def test_other_routes(site: ProxyUnderTest, method: str, path: str, body: bytes) -> None:
    """Any method and path is relayed both ways, also with a thread's headers, which stay here; the
    receipt says that memory does not reach it."""
    before = await site.threads()
    script = script_answer(b"\x00 answer \xff", *SERVER, status=b"207 Many")
    got = await site.ask(body, *CLIENT, thread(), *ALIASES, method=method, path=path, script=script)
    assert site.seen.line == f"{method} /v1{path.removeprefix('/v1')} HTTP/1.1".encode()
    assert site.seen.body == body
    assert end_to_end(site.seen.headers) == pairs(CLIENT)
    assert (got.status, got.body) == (207, b"\x00 answer \xff")
    assert end_to_end(drop_receipt(got)) == pairs(SERVER)
    assert read_reason(got) == "off/route"
    assert await site.threads() == before


# ── with a thread ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_below_the_threshold(site: ProxyUnderTest, stream: bool) -> None:
    """Until there is something to rewrite, the body is the client's to the byte, and so are the
    headers but for ours."""
    headers, history = (
        (*CLIENT, thread(), *ALIASES[2:], b"X-OM-Timezone: Europe/Lisbon", b"x-om-anything: 1"),
        "",
    )
    for n in range(3):
        history += (
            ',{"role":"assistant","content":"fünf €"},' if n else ""
        ) + f'{{"role" : "user", "content":"\\u00e9 {n}"}}'
        body = f'{{"stream": {"true" if stream else "false"},\n"x":1e400, "messages": [{history} ]}} '.encode()
        got = await site.ask(body, *headers, script=script_stream(*EVENTS) if stream else None)
        assert site.seen.body == body
        assert end_to_end(site.seen.headers) == identity_encoding(pairs(CLIENT))
        assert got.body == (b"".join(EVENTS) if stream else COMPLETION)
        assert read_reason(got) == "raw"


def identity_encoding(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """A reply we have to read is asked for uncompressed: the one header that changes
    (docs/contributing/http.md#requests)."""
    return [h for h in headers if h[0] != b"accept-encoding"] + [(b"accept-encoding", b"identity")]


@pytest.mark.parametrize("alias", [*ALIASES[:2], b"X-OM-Thread: t"])
async def test_aliases_name_the_thread(site: ProxyUnderTest, alias: bytes) -> None:
    """Each header that names a thread is understood, and none is passed on."""
    credential = b"Authorization: Bearer " + alias[:10].strip(
        b":"
    )  # each its own tenant, so each thread is new
    got = await site.ask(chat_body("hi"), credential, alias, *ALIASES[2:])
    assert got.header(b"x-om-thread") == [b"t"]
    assert read_reason(got) == "raw"
    assert not [name for name, _ in site.seen.headers if b"om-" in name or b"-id" in name]


ODD = (
    b'{ "temperature":1.0 ,"messages" : %s, "x":1e400,"big":12345678901234567890123, "esc":"\\u00e9\\/", "raw":"\xc3\xa9",'
    b'"tools":[ {"type":"function" ,"function":{"name":"f","parameters":{"b":1,"a":0.10}}} ],"model":"m"\n,"null":null,'
    b'"stream":false, "stream_options":{"z":1,"a":2},"prompt_cache_key":"k" }'
)


async def test_rewritten_in_the_messages_only(site: ProxyUnderTest) -> None:
    """Key order, numbers, unknown fields and escapes stay as sent; the client's own messages go on
    as it wrote them."""
    named, first = thread(), b'{"role":"user","content":"\xe2\x82\xac one","unknown":1.50}'
    system = (
        b'{ "content":"Be \\u00e9brief", "role":"system", "cache_control":{"type":"ephemeral"} }'
    )
    newest = b'{"name":"n" , "role":"user","content":[{"type":"text","text":"two \\u00e9"}],"unknown":-0.0}'
    await site.ask(ODD % (b"[" + system + b"," + first + b"]"), named)
    body = ODD % (b"[" + system + b", " + newest + b"]")
    got = await site.ask(body, named)
    assert read_reason(got) == "applied"
    sent, seen = (
        msgspec.json.decode(x, type=dict[str, msgspec.Raw]) for x in (body, site.seen.body)
    )
    assert list(seen) == list(sent)
    assert [(k, bytes(v)) for k, v in seen.items() if k != "messages"] == [
        (k, bytes(v)) for k, v in sent.items() if k != "messages"
    ]
    messages = msgspec.json.decode(seen["messages"], type=list[msgspec.Raw])
    assert [bytes(messages[i]) for i in (0, 1, -1)] == [system, first, newest]
    assert orjson.loads(bytes(messages[2]))["content"] == "fünf €"
    assert len(messages) == 4


# ── modes and side requests ───────────────────────────────────────────────────────────────────────


async def remembering(site: ProxyUnderTest, *headers: bytes) -> bytes:
    """A thread of a client that sends its newest message alone, so that its next request would be
    rewritten."""
    named = thread()
    await site.ask(chat_body("my first words"), named, *headers)
    return named


@pytest.mark.parametrize(
    ("header", "body", "why"),
    [
        pytest.param(b"X-OM-Mode: off", chat_body("next"), "mode-off", id="mode off"),
        pytest.param(b"x-om-mode:  OFF ", chat_body("next"), "mode-off", id="mode off, spelled oddly"),
        pytest.param(b"X-OM-Task: title", chat_body("next"), "side-request", id="a task"),
        pytest.param(b"X: y", chat_body("### Task:\nWrite a title"), "side-request", id="a prompt of Open WebUI"),
        pytest.param(b"X: y", b'{"messages":"none"}', "unreadable", id="no messages"),
        pytest.param(b"X: y", b'{"model":"m","messages":[{"role":"system","content":"x"}]}', "no-messages", id="instructions alone"),
    ],
)  # fmt: skip
async def test_without_memory(site: ProxyUnderTest, header: bytes, body: bytes, why: str) -> None:
    """The request passes to the byte, is told nothing of the thread, and leaves no trace in it."""
    named = await remembering(site)
    before = await state(site, named)
    got = await site.ask(body, named, header)
    assert read_reason(got) == f"off/{why}"
    assert (site.seen.body, got.body) == (body, COMPLETION)
    assert b"x-om-thread" not in dict(got.headers) or why in (
        "unreadable",
        "side-request",
        "no-messages",
    )
    after = await state(site, named)
    # a title that the client asked a model for is the thread's
    assert replace(after, title=before.title, version=before.version) == before
    assert after.title == before.title or why == "side-request"


async def test_a_side_request_in_a_new_thread(site: ProxyUnderTest) -> None:
    """It makes none."""
    named = thread()
    got = await site.ask(chat_body("### Task:\nWrite a title"), named)
    assert read_reason(got) == "off/side-request"
    assert (await state(site, named)).version == 0


async def test_mode_read(site: ProxyUnderTest) -> None:
    """What is remembered is injected, and nothing is stored."""
    named = await remembering(site)
    before = await state(site, named)
    got = await site.ask(chat_body("next"), named, b"X-OM-Mode: read")
    assert read_reason(got) == "applied"
    assert b"my first words" in site.seen.body
    assert await state(site, named) == before


async def test_mode_write(site: ProxyUnderTest) -> None:
    """Everything is stored, and nothing is injected."""
    named, body = await remembering(site), chat_body("next")
    got = await site.ask(body, named, b"X-OM-Mode: write")
    assert read_reason(got) == "raw/write-only"
    assert site.seen.body == body
    assert (await state(site, named)).count == 4


@pytest.mark.parametrize(
    "status", [b"400 Bad Request", b"401 Unauthorized", b"403 Forbidden", b"404 Not Found"]
)
async def test_an_upstream_that_refuses_the_caller(site: ProxyUnderTest, status: bytes) -> None:
    """Nothing is stored for a caller or a request that the upstream does not take."""
    named = thread()
    await site.ask(chat_body("hi"), named, script=script_answer(b"{}", status=status))
    assert (await state(site, named)).version == 0


async def state(site: ProxyUnderTest, named: bytes) -> Memory:
    thread = named.partition(b": ")[2].decode()
    return await site.app.store.load(Key(LOCAL_TENANT, thread, thread))
