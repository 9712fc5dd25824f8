"""Requests that are no chat go, with their caller's key, to the model server that matches their
model."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from om_proxy.app.app import App
from om_proxy.settings.config import parse
from om_proxy.testing.loopback import serve_on_loopback
from tests.support.upstream_server import (
    Call,
    Script,
    UpstreamServer,
    run_upstream_server,
    script_answer,
)

MOST = 4_000_000  # bytes of a body that is read
FORM = "multipart/form-data; boundary=x"
FINE = script_answer(b"{}")


def form(model: str, file: bytes = b"RIFF", *, first: bool = False) -> bytes:
    parts = [
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n%b\r\n'
        % file,
        b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n' % model.encode(),
    ]
    return b"".join(reversed(parts) if first else parts) + b"--x--\r\n"


@asynccontextmanager
async def two(
    folder: Path, local: str = "*", script: Script = FINE
) -> AsyncIterator[tuple[httpx.AsyncClient, UpstreamServer, UpstreamServer, App]]:
    """Run a proxy with a server for `gpt-*` and `whisper-*`, and one for the other models."""
    async with run_upstream_server(FINE) as openai, run_upstream_server(script) as rest:
        settings = parse(f"""
            upstream:
              - {{name: openai, match: ["gpt-*", "whisper-*"], base_url: "{openai.base}"}}
              - {{name: local, match: ["{local}"], base_url: "{rest.base}"}}
            storage: {{url: "sqlite:///{folder}/om.db"}}
            limits: {{body: {MOST}}}
            telemetry: {{log: "off"}}
        """)
        app = App(settings)
        async with (
            serve_on_loopback(app) as base,
            httpx.AsyncClient(
                base_url=base, headers={"authorization": "Bearer sk-openai"}, timeout=60
            ) as http,
        ):
            yield http, openai, rest, app


@pytest.mark.parametrize(
    ("path", "kind", "body", "to"),
    [
        ("/v1/embeddings", "application/json", b'{"input": "x", "model": "gpt-4o"}', "openai"),
        ("/v1/responses", "application/json", b'{"model": "gpt-4o", "input": "x"}', "openai"),
        ("/v1/responses", "application/json", b'{"model": "qwen", "input": "gpt-4o"}', "rest"),
        (
            "/v1/responses",
            "application/json",
            b'{"model": "gpt-4o", "input": "%b"}' % (b"x" * 300_000),
            "openai",
        ),
        ("/v1/audio/transcriptions", FORM, form("whisper-1"), "openai"),
        (
            "/v1/audio/transcriptions",
            FORM,
            form("whisper-1", b"\0" * 3_000_000, first=True),
            "openai",
        ),
        ("/v1/audio/transcriptions", FORM, form("whisper-1", b"\0" * 3_000_000), "openai"),
        (
            "/v1/embeddings",
            "application/json",
            b'{"input": "%b", "model": "gpt-4o"}' % (b"x" * 3_000_000),
            "openai",
        ),
        # nobody says which: the server for all models
        ("/v1/files", FORM, form("", b"\0" * 3_000_000), "rest"),
        ("/v1/files", FORM, form("gpt-4o", b"\0" * 3_000_000), "rest"),
        ("/v1/uploads/u/parts", FORM, form("gpt-4o"), "rest"),
        ("/v1/threads", "application/json", b"", "rest"),
        ("/v1/audio/speech", "application/octet-stream", b"\x00\x01", "rest"),
        # whatever a server may make of it
        (
            "/v1/embeddings",
            "application/json",
            b'{"model": "gpt-4o", "input": "cut \\ud83d"}',
            "openai",
        ),
        (
            "/v1/embeddings",
            "application/json",
            b'\xef\xbb\xbf{"model": "gpt-4o", "input": NaN}',
            "openai",
        ),
        (
            "/v1/chat/completions",
            "application/json",
            b'{"messages": 7, "model": "gpt-4o"}',
            "openai",
        ),
    ],
)
async def test_route(tmp_path: Path, path: str, kind: str, body: bytes, to: str) -> None:
    """The bytes arrive unchanged at one of the two servers. Only that server gets the caller's
    key."""
    async with two(tmp_path) as (http, openai, rest, _):
        answer = await http.post(path, content=body, headers={"content-type": kind})
        assert answer.status_code == 200
        there, elsewhere = (openai, rest) if to == "openai" else (rest, openai)
        assert [seen.body for seen in there.seen] == [body]
        assert there.seen[0].header(b"authorization") == [b"Bearer sk-openai"]
        assert elsewhere.seen == []


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b'{"model": "gpt-4o"'),
        ("application/json", b'{"model": "%b"}' % (b"x" * 100_000)),
        ("multipart/form-data; " + ";" * 8_000, form("whisper-1")),
        ("multipart/form-data", form("whisper-1")),
        ("multipart/form-data; boundary*=punycode''%ff", form("whisper-1")),
    ],
    ids=["broken", "long", "long type", "no boundary", "odd boundary"],
)
async def test_what_cannot_be_read(tmp_path: Path, path: str, kind: str, body: bytes) -> None:
    """A body whose model cannot be read is refused, because the caller's key is for one server
    only. Nothing of it is stored."""
    async with two(tmp_path) as (http, openai, rest, app):
        answer = await http.post(path, content=body, headers={"content-type": kind})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "om_no_upstream")
        assert openai.seen == rest.seen == []
        assert sum(len(name or "") for _, name in app._current_config().upstreams) < 1_000


async def test_a_compressed_body(tmp_path: Path) -> None:
    """A compressed body is read, and relayed as it came."""
    body = gzip.compress(b'{"model": "gpt-4o", "input": "x"}')
    async with two(tmp_path) as (http, openai, rest, _):
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        assert (await http.post("/v1/embeddings", content=body, headers=headers)).status_code == 200
        assert [seen.body for seen in openai.seen] == [body]
        headers["content-encoding"] = "zstd"
        assert (await http.post("/v1/embeddings", content=body, headers=headers)).status_code == 400
        assert rest.seen == []


async def test_what_names_no_model(tmp_path: Path) -> None:
    async with two(tmp_path) as (http, openai, rest, _):
        assert (await http.get("/v1/models")).status_code == 200
        assert (len(openai.seen), len(rest.seen)) == (0, 1)


async def test_a_model_for_nobody(tmp_path: Path) -> None:
    """A model that no server matches is refused as in chat: no server may get a key that is meant
    for another one."""
    async with two(tmp_path, local="llama-*") as (http, openai, rest, _):
        answer = await http.post("/v1/embeddings", json={"model": "qwen", "input": "x"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "om_no_upstream")
        assert openai.seen == rest.seen == []
        assert (await http.get("/v1/models")).status_code == 200
        assert (len(openai.seen), len(rest.seen)) == (1, 0)


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "in chunks"])
async def test_too_large_to_look_into(tmp_path: Path, announced: bool) -> None:
    """A body that is too large to read is refused, because it may be for any server. A body that
    names no model is relayed, however large."""
    body = b"x" * (MOST + 1)

    async def pieces() -> AsyncIterator[bytes]:
        yield body

    async with two(tmp_path) as (http, openai, rest, _):
        sent = body if announced else pieces()
        answer = await http.post(
            "/v1/embeddings", content=sent, headers={"content-type": "application/json"}
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "om_too_large")
        assert openai.seen == rest.seen == []
        assert (
            await http.post("/v1/files", content=body, headers={"content-type": FORM})
        ).status_code == 200
        assert [seen.body for seen in rest.seen] == [body]


async def test_what_is_read_is_counted(tmp_path: Path) -> None:
    """The bodies of all routes are counted until they are answered, so they are bounded
    together."""
    body, held = b'{"input": "%b", "model": "qwen"}' % (b"x" * 3_000_000), []

    async def script(call: Call) -> None:
        held.append(app.admission.held_bytes)
        call.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with two(tmp_path, script=script) as (http, _, _, app):
        assert (await http.post("/v1/embeddings", content=body)).status_code == 200
        assert held == [len(body)]
        assert app.admission.held_bytes == 0
