"""Who may use the proxy, as whom, and with whose key at the provider: over the wire, on every kind
of route."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import httpx
import pytest

from om_proxy.app.app import App
from om_proxy.settings.config import parse
from om_proxy.settings.identity.user_token import Claims, sign_claims
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import ScriptedServer
from tests.e2e.running import Clock, Running
from tests.e2e.written import collect_log_lines
from tests.memory.notes.test_redaction import SHAPES, filled

KEYS = "keys: [{tenant: acme, key: sk-acme}, {tenant: globex, key: sk-globex}]"
SIGNING = "0123456789abcdef0123456789abcdef"
CHAT, MODEL_LIST = ("POST", "/v1/chat/completions"), ("GET", "/v1/models")
BODY = {"model": "scripted-actor", "messages": [{"role": "user", "content": "hello"}]}
OWN = {"authorization": "Bearer sk-provider"}


class Hearing(ScriptedServer):
    """Keeps the headers of every request, also of those that are no chat."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[dict[bytes, bytes]] = []

    async def __call__(self, scope, receive, send):  # type: ignore[no-untyped-def] # as its parent has it
        self.heard.append(dict(scope["headers"]))
        await super().__call__(scope, receive, send)


@asynccontextmanager
async def house(
    tmp_path: Path, auth: str, api_key: str = "null"
) -> AsyncIterator[tuple[Running, Hearing]]:
    models = Hearing()
    async with serve_on_loopback(models, lifespan="off") as upstream:
        text = f'upstream: [{{base_url: "{upstream}/v1", api_key: {api_key}}}]\nstorage: {{url: "sqlite:///{tmp_path}/om.db"}}\n'
        app = App(parse(f"{text}auth: {{{auth}}}"), clock=Clock())
        async with (
            serve_on_loopback(app) as base,
            httpx.AsyncClient(trust_env=False, timeout=30) as http,
        ):
            yield Running(app, base, models, app._clock, http), models  # type: ignore[arg-type] # it is the Clock given


async def send_route(
    run: Running, route: tuple[str, str], headers: dict[str, str]
) -> httpx.Response:
    method, path = route
    return await run.http.request(
        method, run.base + path, headers=headers, json=BODY if method == "POST" else None
    )


def credential(heard: dict[bytes, bytes]) -> dict[bytes, bytes]:
    return {
        name: value
        for name, value in heard.items()
        if name in (b"authorization", b"x-api-key", b"api-key")
    }


@pytest.mark.parametrize("route", [CHAT, MODEL_LIST], ids=["chat", "any other"])
@pytest.mark.parametrize("api_key", ["null", "sk-upstream"])
async def test_whose_key_goes_upstream(
    tmp_path: Path, route: tuple[str, str], api_key: str
) -> None:
    """Ours never; the caller's own, where it came beside ours; else the upstream's, where there is
    one."""
    theirs = {} if api_key == "null" else {b"authorization": b"Bearer sk-upstream"}
    async with house(tmp_path, KEYS, api_key) as (run, models):
        for sent, expected in (
            ({"authorization": "Bearer sk-acme"}, theirs),
            ({"x-api-key": "sk-acme"}, theirs),
            ({"x-om-authorization": "Bearer sk-acme"}, theirs),
            ({"x-om-authorization": "sk-acme", **OWN}, {b"authorization": b"Bearer sk-provider"}),
            (
                {"x-memory-gateway-authorization": "sk-acme", "x-api-key": "sk-provider"},
                {b"x-api-key": b"sk-provider"},
            ),
            ({"x-om-authorization": "sk-acme", "authorization": "Bearer sk-globex"}, theirs),
        ):
            assert (await send_route(run, route, {**sent, "x-om-thread": "t"})).status_code == 200
            assert credential(models.heard[-1]) == expected
            assert not [
                name for name in models.heard[-1] if name.startswith(b"x-om-") or b"gateway" in name
            ]


@pytest.mark.parametrize("route", [CHAT, MODEL_LIST], ids=["chat", "any other"])
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({}, 401),
        (OWN, 401),
        ({"x-om-authorization": "sk-provider", "authorization": "Bearer sk-acme"}, 401),
        ({"authorization": "Bearer sk-acme", "x-api-key": "sk-globex"}, 400),
        ({"x-om-authorization": "sk-acme", "x-memory-gateway-authorization": "sk-globex"}, 400),
    ],
)
async def test_who_may_not(
    tmp_path: Path, route: tuple[str, str], sent: dict[str, str], status: int
) -> None:
    """Nobody without a key of ours, with or without a thread; nothing of it goes anywhere."""
    async with house(tmp_path, KEYS, "sk-upstream") as (run, models):
        for thread in ({}, {"x-om-thread": "t"}):
            answer = await send_route(run, route, {**sent, **thread})
            assert answer.status_code == status
            assert answer.headers["x-should-retry"] == "false"
            assert answer.json()["error"]["type"] == "om_error"
        assert models.heard == []


async def test_a_user_with_a_token(tmp_path: Path) -> None:
    """Speaks for its own resource in its own threads, until the token ends; without a thread,
    nothing is asked."""
    auth = f"{KEYS}, token_secret: {SIGNING}, token_required: true"
    async with house(tmp_path, auth) as (run, models):

        def token(**more: object) -> dict[str, str]:
            claims = {"resource": "ada", "exp": time.time() + 60, "tenant": "acme", **more}
            return {"x-om-token": sign_claims(Claims(**claims), SIGNING.encode())}  # type: ignore[arg-type] # by name

        key = {"authorization": "Bearer sk-acme"}
        for sent, status in (
            ({**token(), "x-om-thread": "t"}, 200),
            ({**token(thread="u")}, 200),
            ({}, 200),
            ({"x-om-thread": "t"}, 401),
            ({"x-om-thread": "t", "x-om-resource": "ada"}, 401),
            ({**token(), "x-om-thread": "t", "x-om-resource": "eve"}, 401),
            ({**token(thread="u"), "x-om-thread": "t"}, 401),
            ({**token(tenant="globex"), "x-om-thread": "t"}, 401),
            ({**token(exp=time.time() - 60), "x-om-thread": "t"}, 401),
        ):
            answer = await send_route(run, CHAT, key | sent)
            assert answer.status_code == status, (sent, answer.text)
        await run.app.background.wait_idle()
        assert {m.key for m in await run.memories()} == {("acme", "ada", "t"), ("acme", "ada", "u")}
        assert not [name for heard in models.heard for name in heard if name.startswith(b"x-om-")]


async def test_no_answer_and_no_log_repeats_a_key(tmp_path: Path) -> None:
    """Of every shape, in every header it could come in: refused without a word of it, and no log a
    word of the other headers."""
    rng = Random(3)
    secrets = [filled(template, rng) for templates in SHAPES.values() for template in templates]
    names = [
        "authorization",
        "x-api-key",
        "api-key",
        "x-om-authorization",
        "x-om-token",
        "x-om-mode",
        "x-om-timezone",
    ]
    said = {
        "x-om-thread": "told-thread",
        "x-om-resource": "told-resource",
        "x-om-timezone": "Antarctica/Vostok",
    }
    with collect_log_lines() as out:
        async with house(tmp_path, f"{KEYS}, token_secret: {SIGNING}") as (run, _):
            texts = []
            for n, secret in enumerate(secrets):
                name = names[n % len(names)]
                key = {} if n % len(names) < 4 else {"authorization": "Bearer sk-acme"}
                answer = await send_route(run, CHAT, {**said, **key, name: secret})
                assert answer.status_code in (400, 401), answer.text
                texts.append(answer.text + str(answer.headers))
            for more in ({}, {"x-om-task": "told-task"}):
                (
                    await send_route(run, CHAT, {"authorization": "Bearer sk-acme", **said, **more})
                ).raise_for_status()
        text = out.text
    assert text.count('"turn"') == 2
    assert [secret for secret in secrets if secret in "".join([*texts, text])] == []
    assert [canary for canary in ("told-", "Vostok", "sk-acme") if canary in text] == []
