# ruff: noqa: E501 - a case of a table is one line
"""Requests of other sites' pages and other machines, over the wire, to a server whose upstream has a
key of the operator's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest

from om_proxy.settings.config import Settings, parse
from tests.e2e.raw_upstream import ProxyUnderTest, chat_body, read_reason, run_with_raw_upstream

KEY = ', api_key: "sk-operator"'
OWN = b"Authorization: Bearer sk-own"
SMALL_MEMORY = ", observation: {message_tokens: 60, buffer_tokens: false}"
BODY = chat_body("hi")

# each is of one kind that tests/settings/identity/test_spending.py knows in full
STRANGERS = [
    (b"Host: rebound.example:8400",),
    (b"Host: rebound.example:8400", b"Origin: http://rebound.example:8400"),
    (b"Origin: https://evil.example",),
    (b"Origin: null",),
    (b"Sec-Fetch-Site: cross-site",),
    (b"X-Forwarded-For: 8.8.8.8",),
    (b"Forwarded: for=192.0.2.60",),
    (b"Host: 10.0.0.5:8400",),
    (b"X-Forwarded-Proto: https",),
]

# who gets no memory and no money by a made-up credential either
STRANGERS_WITH_CREDENTIAL = [
    (b"Host: rebound.example:8400", b"Origin: http://rebound.example:8400", b"Sec-Fetch-Site: same-origin"),
    (b"Host: evil.local:8400", b"Origin: http://evil.local:8400"),
    (b"Host: evil:8400", b"Origin: http://evil:8400"),
    (b"Host: 10.0.0.5:8400",),
    (b"X-Forwarded-For: 8.8.8.8",),
    (b"CF-Connecting-IP: 8.8.8.8",),
    (b"Via: 1.1 proxy",),
]  # fmt: skip
LONG_BODY = chat_body("word " * 100)  # above the threshold

ROUTES = [
    ("POST", "/v1/chat/completions"), ("POST", "/chat/completions"), ("POST", "/t/a/v1/chat/completions"), ("POST", "/r/b/t/a/v1/chat/completions"),
    ("OPTIONS", "/v1/chat/completions"), ("GET", "/v1/models"), ("POST", "/v1/responses"), ("POST", "/v1/embeddings"), ("POST", "/v1/messages"),
    ("GET", "/t/a/v1/models"), ("DELETE", "/v1/files/f"), ("PATCH", "/anything"),
]  # fmt: skip

OWN_ROUTES = [
    ("GET", "/om/v1/threads", b""), ("GET", "/om/v1/search?query=hi", b""), ("POST", "/om/v1/threads/a/context", BODY), ("POST", "/om/v1/threads/a/observe", b"{}"),
    ("POST", "/om/mcp", b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_threads","arguments":{}}}'),
]  # fmt: skip


@asynccontextmanager
async def run_with_key(tmp_path: Path, more: str = "") -> AsyncIterator[ProxyUnderTest]:
    async with run_with_raw_upstream(tmp_path, more, upstream=KEY, memory=SMALL_MEMORY) as site:
        yield site


def parse_without_key(text: str) -> Settings:
    """Parse the settings, with a memory model that has the key of the request alone."""
    return parse(text.replace(", api_key: sk-observer", ""))


async def ask_status(site: ProxyUnderTest, method: str, path: str, *headers: bytes) -> int:
    body = BODY if method == "POST" else b""
    return (await site.ask(body, *headers, method=method, path=path)).status


@pytest.mark.parametrize("stranger", STRANGERS)
async def test_a_stranger_spends_no_key(tmp_path: Path, stranger: tuple[bytes, ...]) -> None:
    """Nothing goes to the model server or a memory model, on any route, and nothing is stored."""
    async with run_with_key(tmp_path) as site:
        for method, path in ROUTES:
            assert (await ask_status(site, method, path, *stranger), path) == (403, path)
            assert site.server.seen == []
        for method, path, body in OWN_ROUTES:
            json = b"Content-Type: application/json"
            got = await site.ask(body, json, *stranger, method=method, path=path)
            assert (got.status, path) == (401, path)
            assert site.server.seen == []
        assert await site.threads() == 0


async def test_the_error_says_what_to_do(tmp_path: Path) -> None:
    """It has OpenAI's shape, and the answer is not worth a retry."""
    async with run_with_key(tmp_path) as site:
        got = await site.ask(BODY, b"Origin: https://evil.example", b"X-OM-Thread: t")
        error = orjson.loads(got.body)["error"]
        assert (error["type"], error["code"], error["param"]) == ("om_error", "om_forbidden", None)
        assert all(word in error["message"] for word in ("auth.keys", "http://127.0.0.1"))
        assert got.header(b"x-should-retry") == [b"false"]
        assert read_reason(got) == "off"


@pytest.mark.parametrize(
    "sender",
    [
        (),
        (b"Host: localhost.:8400",),
        (b"Host: [::1]:8400",),
        (b"Origin: http://localhost:3000", b"Sec-Fetch-Site: same-site"),
        (b"X-Forwarded-For: ::ffff:127.0.0.1", b"X-Forwarded-Host: localhost:3000"),
        (OWN, b"Origin: https://app.example", b"Sec-Fetch-Site: cross-site"),
        (OWN, b"Host: app.localhost:8400"),
    ],
)
async def test_who_may_read_memory_spends_the_key(
    tmp_path: Path, sender: tuple[bytes, ...]
) -> None:
    """Programs and pages of this machine, and callers with a credential."""
    async with run_with_key(tmp_path) as site:
        for method, path in ROUTES:
            assert await ask_status(site, method, path, *sender) == 200
            keys = [site.seen.header(name) for name in (b"authorization", b"x-api-key")]
            spent = [[b"Bearer sk-operator"], []]
            assert keys == ([[], [b"sk-operator"]] if path == "/v1/messages" else spent)


@pytest.mark.parametrize("stranger", STRANGERS_WITH_CREDENTIAL)
@pytest.mark.parametrize("upstream", ["", KEY], ids=["keyless", "keyed"])
async def test_no_made_up_credential_has_memory_paid(
    tmp_path: Path, stranger: tuple[bytes, ...], upstream: str
) -> None:
    """The model server may take any credential. The memory model's key is the operator's."""
    async with run_with_raw_upstream(tmp_path, upstream=upstream, memory=SMALL_MEMORY) as site:
        for path in (
            "/v1/chat/completions",
            "/t/a/v1/chat/completions",
            "/r/b/t/a/chat/completions",
        ):
            for _ in range(2):
                got = await site.ask(LONG_BODY, OWN, b"X-OM-Thread: t", *stranger, path=path)
                assert (got.status, site.server.seen) == (403, [])
        for method, path, body in OWN_ROUTES:
            json = b"Content-Type: application/json"
            got = await site.ask(body, OWN, json, *stranger, method=method, path=path)
            assert got.status in (401, 403)
            assert site.server.seen == []
        assert await site.threads() == 0


async def test_a_request_without_memory_spends_no_key_of_memory_s(tmp_path: Path) -> None:
    """The model server judges it, as without memory. A preflight may be for one with memory."""
    async with run_with_raw_upstream(tmp_path, memory=SMALL_MEMORY) as site:
        for stranger in STRANGERS_WITH_CREDENTIAL:
            for more in ((), (b"X-OM-Thread: t", b"X-OM-Mode: off")):
                assert (await site.ask(LONG_BODY, OWN, *stranger, *more)).status == 200
                assert site.seen.header(b"authorization") == [OWN.partition(b" ")[2]]
            got = await site.ask(LONG_BODY, b"X-OM-Thread: t", *stranger)
            assert (got.status, read_reason(got)) == (200, "off/no-credential")
        asks = (b"Origin: https://evil.example", b"Access-Control-Request-Method: POST")
        assert await ask_status(site, "OPTIONS", "/v1/chat/completions", *asks) == 403
        assert await site.threads() == 0


async def test_a_program_of_this_machine_has_memory_paid(tmp_path: Path) -> None:
    """With any credential and with none, before a model server without a key."""
    async with run_with_raw_upstream(tmp_path, memory=SMALL_MEMORY) as site:
        for thread, headers in enumerate([(), (OWN,), (OWN, b"Origin: http://localhost:3000")]):
            for words in ("a ", "b "):  # the second request waits for notes of the first
                body = chat_body(words * 100)
                got = await site.ask(body, b"X-OM-Thread: %d" % thread, *headers)
                assert got.status == 200
            paid = [seen.header(b"authorization") for seen in site.server.seen]
            assert [b"Bearer sk-observer"] in paid


async def test_without_a_key_of_the_operator_s_nothing_is_refused(tmp_path: Path) -> None:
    """The model server judges the page's request. Without a credential it has no memory."""
    async with run_with_raw_upstream(tmp_path, read_settings=parse_without_key) as site:
        page = (b"Origin: https://app.example", b"X-OM-Thread: t")
        assert await ask_status(site, "OPTIONS", "/v1/chat/completions", *page) == 200
        assert read_reason(await site.ask(BODY, *page)) == "off/no-credential"
        assert read_reason(await site.ask(BODY, OWN, *page)) == "raw"


async def test_a_preflight_is_refused_for_every_server(tmp_path: Path) -> None:
    """It names no model. If the server for it has no key and allows it, the page's own request may
    be for a model whose server has one."""
    with_key = '}, {name: b, match: ["x-*"], base_url: "http://127.0.0.1:9", api_key: sk-operator'
    async with run_with_raw_upstream(tmp_path, upstream=with_key) as site:
        asks = (b"Origin: https://evil.example", b"Access-Control-Request-Method: POST")
        assert await ask_status(site, "OPTIONS", "/v1/chat/completions", *asks) == 403
        assert await ask_status(site, "OPTIONS", "/v1/chat/completions") == 200


async def test_off_loopback_nobody_spends_the_key_without_a_credential(tmp_path: Path) -> None:
    """No host name says who is local there."""
    more = 'server: {host: 0.0.0.0, admin_token: "0123456789abcdef0123456789abcdef"}'
    async with run_with_key(tmp_path, more) as site:
        for method, path in ROUTES:
            assert await ask_status(site, method, path) == 403
            assert site.server.seen == []
            assert await ask_status(site, method, path, OWN) == 200


async def test_the_admin_token_never_goes_upstream(tmp_path: Path) -> None:
    """Who sends it as the key for a model is told so, on every route."""
    token = b"0123456789abcdef0123456789abcdef"
    more = f'server: {{admin_token: "{token.decode()}"}}'
    async with run_with_raw_upstream(tmp_path, more) as site:
        for method, path in ROUTES:
            assert await ask_status(site, method, path, b"Authorization: Bearer " + token) == 401
            assert await ask_status(site, method, path, b"x-api-key: " + token) == 401
            assert site.server.seen == []
        got = await site.ask(BODY, b"Authorization: Bearer " + token, b"X-OM-Thread: t")
        assert b"X-OM-Admin" in got.body
        assert token not in got.body
        assert await site.threads() == 0


async def test_with_keys_the_key_decides(tmp_path: Path) -> None:
    """A page of a browser app behind a reverse proxy sends one of them."""
    more = "auth: {keys: [{tenant: acme, key: sk-acme}]}"
    page = (b"Host: app.example", b"Origin: https://app.example", b"X-Forwarded-For: 8.8.8.8")
    async with run_with_key(tmp_path, more) as site:
        assert await ask_status(site, "GET", "/v1/models", *page) == 401
        assert (
            await ask_status(site, "GET", "/v1/models", *page, b"Authorization: Bearer sk-acme")
            == 200
        )
