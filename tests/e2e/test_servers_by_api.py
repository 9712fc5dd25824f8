"""Each API has its own model server: a request goes to the one for its API, and no key to another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import anthropic
import httpx
import openai
import pytest

from om_proxy.app.app import App
from om_proxy.settings.config import parse
from om_proxy.testing.loopback import serve_on_loopback
from tests.support.raw_client import RawClient
from tests.support.upstream_server import (
    SeenRequest,
    UpstreamServer,
    run_upstream_server,
    script_answer,
)

JSON = b"Content-Type: application/json"
MESSAGE = (
    b'{"id":"m","type":"message","role":"assistant","model":"claude-x","stop_reason":"end_turn",'
    b'"content":[{"type":"text","text":"from Anthropic"}],"usage":{"input_tokens":1,"output_tokens":1}}'
)
RESPONSE = b'{"id":"r","object":"response","output":[],"model":"gpt-x","tools":[],"created_at":1}'
VERSION = {"anthropic-version": "2023-06-01"}
KEY_HEADERS = (b"authorization", b"x-api-key", b"api-key")


class Site(NamedTuple):
    base: str
    http: httpx.AsyncClient
    openai: UpstreamServer
    anthropic: UpstreamServer


@asynccontextmanager
async def run(
    folder: Path, first: str = "", second: str = "", more: str = ""
) -> AsyncIterator[Site]:
    """Run a proxy with a server for chat and responses, and one for messages. `first`, `second`:
    further keys of them."""
    async with (
        run_upstream_server(script_answer(RESPONSE, JSON)) as one,
        run_upstream_server(script_answer(MESSAGE, JSON)) as two,
    ):
        app = App(
            parse(f"""
                upstream:
                  - {{name: openai, apis: [chat, responses], base_url: "{one.base}"{first}}}
                  - {{name: anthropic, apis: [messages], base_url: "{two.base}"{second}}}
                storage: {{url: "sqlite:///{folder}/om.db"}}
                telemetry: {{log: "off"}}
                {more}
            """)
        )
        async with (
            serve_on_loopback(app) as base,
            httpx.AsyncClient(base_url=base, trust_env=False, timeout=60) as http,
        ):
            yield Site(base, http, one, two)


def keys_of(seen: SeenRequest) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in seen.headers if name.lower() in KEY_HEADERS]


@pytest.mark.parametrize(
    ("method", "path", "headers", "goes_to"),
    [
        ("POST", "/v1/chat/completions", {}, "openai"),
        ("POST", "/v1/responses", {}, "openai"),
        ("GET", "/v1/conversations/c", {}, "openai"),
        ("POST", "/v1/embeddings", {}, "openai"),
        ("GET", "/v1/models", {}, "openai"),
        ("GET", "/v1/models", VERSION, "anthropic"),
        ("POST", "/v1/messages", {}, "anthropic"),
        ("POST", "/messages", VERSION, "anthropic"),
        ("POST", "/v1/messages/count_tokens", VERSION, "anthropic"),
        ("POST", "/t/a-thread/v1/messages", VERSION, "anthropic"),
        ("POST", "/v1/files", VERSION, "anthropic"),
    ],
)
async def test_each_request_to_the_server_of_its_api(
    tmp_path: Path, method: str, path: str, headers: dict[str, str], goes_to: str
) -> None:
    """Its bytes and its key arrive there, and nothing at the other."""
    body = b'{ "model":"m", "n":1e400 }' if method == "POST" else b""
    async with run(tmp_path) as site:
        sent = {"x-api-key": "sk-own", "content-type": "application/json", **headers}
        answer = await site.http.request(method, path, content=body, headers=sent)
        assert answer.status_code == 200
        there, elsewhere = (
            (site.openai, site.anthropic) if goes_to == "openai" else (site.anthropic, site.openai)
        )
        (seen,) = there.seen
        assert (seen.body, keys_of(seen)) == (body, [(b"x-api-key", b"sk-own")])
        assert elsewhere.seen == []
        if path.startswith("/t/"):
            assert answer.headers["x-om-status"] == "off"
            assert answer.headers["x-om-reason"] == "unreadable"


@pytest.mark.parametrize("auth", ["", "auth: {keys: [{tenant: acme, key: sk-client}]}"])
@pytest.mark.parametrize("by", [{"authorization": "Bearer sk-client"}, {"x-api-key": "sk-client"}])
async def test_the_operator_s_keys(tmp_path: Path, auth: str, by: dict[str, str]) -> None:
    """Each server gets its own key, in the header of its API, and the client's key in none."""
    first, second = ", api_key: sk-openai", ", api_key: sk-ant"
    async with run(tmp_path, first, second, auth) as site:
        for path in ("/v1/responses", "/v1/messages", "/v1/chat/completions"):
            answer = await site.http.post(path, json={"model": "m"}, headers={**by, **VERSION})
            assert answer.status_code == 200
        assert [keys_of(seen) for seen in site.openai.seen] == [
            [(b"authorization", b"Bearer sk-openai")]
        ] * 2
        assert [keys_of(seen) for seen in site.anthropic.seen] == [[(b"x-api-key", b"sk-ant")]]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_two_keys_at_once(tmp_path: Path, path: str) -> None:
    """Two different keys may be for two servers, so neither leaves. One key in two headers may."""
    async with run(tmp_path) as site:
        two = {"authorization": "Bearer sk-openai", "x-api-key": "sk-ant"}
        answer = await site.http.post(path, json={"model": "m"}, headers=two)
        assert answer.status_code == 400
        assert "om_two_credentials" in answer.text
        assert site.openai.seen == site.anthropic.seen == []
        twice = {"authorization": "Bearer sk-ant", "x-api-key": "sk-ant"}
        assert (await site.http.post(path, json={"model": "m"}, headers=twice)).status_code == 200


@pytest.mark.parametrize(
    ("path", "model", "is_shaped"),
    [
        ("/v1/messages", "gpt-x", True),
        ("/v1/messages/count_tokens", "gpt-x", True),
        ("/v1/responses", "claude-x", False),
        ("/v1/chat/completions", "claude-x", False),
    ],
)
async def test_a_model_of_another_api(
    tmp_path: Path, path: str, model: str, is_shaped: bool
) -> None:
    """A model that only the server of another API has is refused: no key leaves for either."""
    async with run(tmp_path, ", match: ['gpt-*']", ", match: ['claude-*']") as site:
        answer = await site.http.post(path, json={"model": model}, headers={"x-api-key": "k"})
        check_refusal(answer, is_shaped=is_shaped)
        assert site.openai.seen == site.anthropic.seen == []


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_an_api_without_a_server(tmp_path: Path, method: str) -> None:
    """Its requests are refused, whatever their model and body."""
    async with run_upstream_server(script_answer(b"{}")) as server:
        text = f"upstream: [{{base_url: '{server.base}', apis: [chat]}}]"
        app = App(parse(f"{text}\nstorage: {{url: 'sqlite:///{tmp_path}/om.db'}}"))
        async with serve_on_loopback(app) as base, httpx.AsyncClient(trust_env=False) as http:
            for path, is_shaped in (("/v1/messages", True), ("/v1/responses", False)):
                check_refusal(await http.request(method, base + path), is_shaped=is_shaped)
            assert server.seen == []


def check_refusal(answer: httpx.Response, *, is_shaped: bool) -> None:
    assert (answer.status_code, answer.headers["x-should-retry"]) == (400, "false")
    error = answer.json()["error"]
    if is_shaped:
        assert answer.json()["type"] == "error"
        assert error["type"] == "invalid_request_error"
        assert error["message"].endswith(" [om_no_upstream]")
    else:
        assert (error["type"], error["code"]) == ("om_error", "om_no_upstream")


async def test_official_clients_need_their_base_url_only(tmp_path: Path) -> None:
    """Each adds its own path and key. Anthropic's adds `/v1` too, behind the name of a thread. Its
    key comes in `x-api-key` or, from version 2 on, in `Authorization`."""
    async with run(tmp_path) as site:
        async with anthropic.AsyncAnthropic(
            base_url=f"{site.base}/t/boat", api_key="sk-ant"
        ) as its:
            message = await its.messages.create(
                model="claude-x", max_tokens=1, messages=[{"role": "user", "content": "hi"}]
            )
        assert message.content[0].type == "text"
        assert message.content[0].text == "from Anthropic"
        async with openai.AsyncOpenAI(base_url=f"{site.base}/v1", api_key="sk-openai") as theirs:
            assert (await theirs.responses.create(model="gpt-x", input="hi")).id == "r"
        ((_, key),) = keys_of(site.anthropic.seen[0])
        assert key.removeprefix(b"Bearer ") == b"sk-ant"
        assert site.anthropic.seen[0].line == b"POST /v1/messages HTTP/1.1"
        assert keys_of(site.openai.seen[0]) == [(b"authorization", b"Bearer sk-openai")]
        assert (len(site.anthropic.seen), len(site.openai.seen)) == (1, 1)


async def test_a_body_that_is_too_slow(tmp_path: Path) -> None:
    """What the server itself refuses has the shape of the API too."""
    async with run(tmp_path, more="limits: {body_timeout: 100ms}") as site:
        port = int(site.base.rpartition(":")[2])
        client = await RawClient.connect(port)
        client.send_head(
            "POST", "/t/boat/v1/messages", b"Content-Length: 9", b"anthropic-version: 1"
        )
        got = await client.answer()
        assert got.status == 408
        assert b'"type":"timeout_error"' in got.body
        await client.close()
