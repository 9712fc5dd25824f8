"""Requests that are no chat go, with their caller's key, to the model server that their model is meant for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from proxy.app import create_app
from proxy.demo.loopback import serving
from proxy.edge.routing import LOOKED_INTO
from proxy.settings import parse
from tests.support.upstream_server import UpstreamServer, answering, upstream_server

FORM = "multipart/form-data; boundary=x"


def form(model: str, file: bytes = b"RIFF", *, first: bool = False) -> bytes:
    parts = [
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n%b\r\n' % file,
        b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n' % model.encode(),
    ]
    return b"".join(reversed(parts) if first else parts) + b"--x--\r\n"


@asynccontextmanager
async def two(
    folder: Path, local: str = "*"
) -> AsyncIterator[tuple[httpx.AsyncClient, UpstreamServer, UpstreamServer]]:
    """A proxy before a server for `gpt-*` and `whisper-*`, and one for the rest."""
    async with upstream_server(answering(b"{}")) as openai, upstream_server(answering(b"{}")) as rest:
        settings = parse(f"""
            upstream:
              - {{name: openai, match: ["gpt-*", "whisper-*"], base_url: "{openai.base}"}}
              - {{name: local, match: ["{local}"], base_url: "{rest.base}"}}
            storage: {{url: "sqlite:///{folder}/om.db"}}
            telemetry: {{log: "off"}}
        """)
        async with (
            serving(create_app(settings)) as base,
            httpx.AsyncClient(base_url=base, headers={"authorization": "Bearer sk-openai"}) as http,
        ):
            yield http, openai, rest


@pytest.mark.parametrize(
    ("path", "kind", "body", "to"),
    [
        ("/v1/embeddings", "application/json", b'{"input": "x", "model": "gpt-4o"}', "openai"),
        ("/v1/responses", "application/json", b'{"model": "gpt-4o", "input": "x"}', "openai"),
        ("/v1/responses", "application/json", b'{"model": "qwen", "input": "gpt-4o"}', "rest"),
        ("/v1/responses", "application/json", b'{"model": "gpt-4o", "input": "%b"}' % (b"x" * 300_000), "openai"),
        ("/v1/audio/transcriptions", FORM, form("whisper-1"), "openai"),
        ("/v1/audio/transcriptions", FORM, form("whisper-1", b"\0" * 3_000_000, first=True), "openai"),
        # nobody says which: the server for all models
        ("/v1/files", FORM, form("", b"\0" * 3_000_000), "rest"),
        (
            "/v1/embeddings",
            "application/json",
            b'{"input": "%b", "model": "gpt-4o"}' % (b"x" * 2 * LOOKED_INTO),
            "rest",
        ),
        ("/v1/threads", "application/json", b"", "rest"),
        ("/v1/embeddings", "application/json", b"{broken", "rest"),
    ],
)
async def test_route(tmp_path: Path, path: str, kind: str, body: bytes, to: str) -> None:
    """The bytes arrive as they were sent, at one of the two and with the caller's key there only."""
    async with two(tmp_path) as (http, openai, rest):
        answer = await http.post(path, content=body, headers={"content-type": kind})
        assert answer.status_code == 200
        there, elsewhere = (openai, rest) if to == "openai" else (rest, openai)
        assert [seen.body for seen in there.seen] == [body]
        assert there.seen[0].header(b"authorization") == [b"Bearer sk-openai"]
        assert elsewhere.seen == []


async def test_what_names_no_model(tmp_path: Path) -> None:
    async with two(tmp_path) as (http, openai, rest):
        assert (await http.get("/v1/models")).status_code == 200
        assert (len(openai.seen), len(rest.seen)) == (0, 1)


async def test_a_model_for_nobody(tmp_path: Path) -> None:
    """Refused as for chat: it is nobody's, so no server gets it with a key that is meant for another one."""
    async with two(tmp_path, local="llama-*") as (http, openai, rest):
        answer = await http.post("/v1/embeddings", json={"model": "qwen", "input": "x"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "om_no_upstream")
        assert openai.seen == rest.seen == []
        assert (await http.get("/v1/models")).status_code == 200
        assert (len(openai.seen), len(rest.seen)) == (1, 0)
