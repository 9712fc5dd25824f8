"""Run the whole program between a raw client and a raw model server, served as `om-proxy serve` does
it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson
import uvicorn

from om_proxy.app.app import App
from om_proxy.settings.config import Settings, WatchedSettings, parse
from om_proxy.wire.server.protocol import BoundedProtocol
from tests.e2e.running import Clock
from tests.support.raw_client import RawResponse, ask
from tests.support.upstream_server import (
    SSE_HEAD,
    Script,
    SeenRequest,
    UpstreamServer,
    chunk,
    run_upstream_server,
    script_answer,
)

COMPLETION = (
    b'{"id":"x", "object":"chat.completion","created":1.0e3,"choices":[ {"index":0,"finish_reason":"stop",'
    b'"message":{"role":"assistant","content":"f\\u00fcnf \xe2\x82\xac"}} ],"unknown":1e400}\n'
)
EVENTS = (
    b': a comment\r\n\r\ndata: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"f\xc3\xbcnf \xe2\x82',
    b'\xac"}}], "x":1.0}\n\ndata:{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
    b"data: [DONE]\n\n",
)


def script_stream(*pieces: bytes) -> Script:
    return lambda call: call.send_slowly(SSE_HEAD + b"".join(map(chunk, (*pieces, b""))), 97)


def script_completion() -> Script:
    return script_answer(COMPLETION, b"Content-Type: application/json")


@dataclass
class ProxyUnderTest:
    server: UpstreamServer
    app: App
    port: int
    clock: Clock

    async def ask(
        self,
        body: bytes,
        *headers: bytes,
        method: str = "POST",
        path: str = "/v1/chat/completions",
        script: Script | None = None,
    ) -> RawResponse:
        """Send one request, answer it by the script, and wait for the background work."""
        self.server.seen.clear()
        self.server.script = script or script_completion()
        got = await ask(self.port, body, method=method, path=path, headers=headers)
        await self.app.background.wait_idle()
        return got

    @property
    def seen(self) -> SeenRequest:
        """The one request that went upstream."""
        (seen,) = self.server.seen
        return seen

    async def threads(self) -> int:
        return len(await self.app.store.threads(None))


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@asynccontextmanager
async def run_with_raw_upstream(
    tmp_path: Path,
    more: str = "",
    *,
    upstream: str = "",
    memory: str = "",
    base_url: str = "",
    read_settings: Callable[[str], Settings | WatchedSettings] = parse,
) -> AsyncIterator[ProxyUnderTest]:
    """Run the program until the block ends. `more`: further sections of the configuration;
    `upstream`, `memory`: further keys of these sections; `read_settings`: from their text."""
    async with run_upstream_server(script_completion()) as server:
        settings = read_settings(
            f"""
            upstream: [{{base_url: "{base_url or server.base}", layout: blocks{upstream}}}]
            storage: {{url: "sqlite:///{tmp_path}/om.db"}}
            memory: {{model: openai/observer, api_base: "{server.base}", api_key: sk-observer{memory}}}
            telemetry: {{log: "off"}}
            {more}
            """
        )
        clock = Clock()
        app = App(settings, clock=clock, model_timeout_s=5.0)
        async with serve_app(app) as port:
            yield ProxyUnderTest(server, app, port, clock)


@asynccontextmanager
async def serve_app(app: App) -> AsyncIterator[int]:
    """Serve the app, and yield its port. The flags are those of
    proxy/om_proxy/cli/serving.py: the server adds no header to the upstream's."""
    config = uvicorn.Config(
        app, http=BoundedProtocol, ws="none", lifespan="on", log_config=None, access_log=False, proxy_headers=False,
        server_header=False, date_header=False, timeout_graceful_shutdown=2,
    )  # fmt: skip
    server = _Server(config)
    # named in full: asyncio sets TCP_NODELAY only on sockets that say TCP
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # a client that connects before uvicorn runs waits in the backlog
        run = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield int(listener.getsockname()[1])
        finally:
            server.should_exit = True
            await run


def chat_body(*contents: object, **members: object) -> bytes:
    """Write a request with user messages of these contents."""
    messages = [{"role": "user", "content": content} for content in contents]
    return orjson.dumps({"model": "m", **members, "messages": messages})


def read_reason(got: RawResponse) -> str:
    """Read `status` or `status/reason` of a receipt."""
    status, why = got.header(b"x-om-status"), got.header(b"x-om-reason")
    return b"/".join([*status, *why]).decode()


def drop_receipt(got: RawResponse) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in got.headers if not name.startswith(b"x-om-")]
