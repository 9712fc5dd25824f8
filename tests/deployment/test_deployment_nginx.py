"""nginx as examples/replicas configures it: what it accepts, and what passes through it."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from om_proxy.settings.config import Settings
from om_proxy.testing.loopback import serve_on_loopback
from tests.deployment.test_deployment import REPLICAS, read_compose
from tests.support.free_port import free_port

CONFIGURATION = (REPLICAS / "nginx.conf").read_text(encoding="utf-8")
CONTAINERS_FOLDER = "/tmp/"  # noqa: S108 - a container's own
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
needs_nginx = pytest.mark.skipif(NGINX is None, reason="apt-get install nginx")


def find_number(directive: str) -> int:
    (number,) = re.findall(rf"^\s*{directive} (\d+)[sm]?;", CONFIGURATION, flags=re.M)
    return int(number)


def test_times_and_sizes_are_ours() -> None:
    """An idle stream is not cut before om-proxy would; no connection is used as it closes."""
    settings = Settings()
    waits_s = settings.upstream[0].read_timeout + settings.memory.observation.block_timeout
    assert find_number("proxy_read_timeout") > waits_s
    (kept_s,) = re.findall(r"upstream om_proxy \{.*?keepalive_timeout (\d+)s;", CONFIGURATION, re.S)
    assert int(kept_s) < settings.limits.keep_alive
    assert find_number("client_max_body_size") == settings.limits.body >> 20


def test_servers_are_those_of_the_compose_file() -> None:
    services = read_compose(REPLICAS / "compose.yaml")["services"]
    named = re.findall(r"^\s*server ([\w-]+):8400 ", CONFIGURATION, flags=re.M)
    assert named == [name for name in services if name.startswith("om-proxy-")]
    assert services["nginx"]["ports"] == ["127.0.0.1:8400:8400"]
    assert "listen 8400;" in CONFIGURATION
    mounted, _, place = services["nginx"]["volumes"][0].partition(":")
    assert (mounted, place) == ("./nginx.conf", "/etc/nginx/nginx.conf:ro")


def write_configuration(folder: Path, port: int, servers: list[str]) -> Path:
    """Write the configuration as it stands, with these servers, and with a port and folders of the
    test's own."""
    text = CONFIGURATION.replace("listen 8400", f"listen 127.0.0.1:{port}")
    text = text.replace(CONTAINERS_FOLDER, f"{folder}/")
    names = iter(servers)
    text = re.sub(r"server om-proxy-\d:8400", lambda _: f"server {next(names)}", text)
    file = folder / "nginx.conf"
    file.write_text(text, encoding="utf-8")
    return file


@asynccontextmanager
async def run_nginx(folder: Path, servers: list[str]) -> AsyncIterator[str]:
    """Run nginx in front of these servers. Yield its address."""
    assert NGINX is not None
    port = free_port()
    file = write_configuration(folder, port, servers)
    process = await asyncio.create_subprocess_exec(
        NGINX, "-c", str(file), "-g", "daemon off; master_process off;"
    )
    base = f"http://127.0.0.1:{port}"
    try:
        async with asyncio.timeout(30), httpx.AsyncClient(trust_env=False) as http:
            while True:
                try:
                    await http.get(f"{base}/healthz")
                    break
                except httpx.TransportError:
                    await asyncio.sleep(0.02)  # it does not listen yet
        yield base
    finally:
        process.terminate()
        await process.wait()


class Replica:
    """Stands in for a replica: it streams two pieces, the second one when the test says so."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.go_on = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        self.threads.append(headers.get(b"x-om-thread", b"").decode())
        more = [(b"x-om-status", b"applied"), (b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": more})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        if b"x-om-thread" in headers:
            await self.go_on.wait()
        await send({"type": "http.response.body", "body": b"data: 2\n\n"})


@needs_nginx
def test_configuration_is_valid(tmp_path: Path) -> None:
    assert NGINX is not None
    file = write_configuration(tmp_path, free_port(), ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"])
    checked = subprocess.run(
        [NGINX, "-t", "-c", file], capture_output=True, text=True, timeout=60, check=False
    )
    assert checked.returncode == 0, checked.stderr
    assert "warn" not in checked.stderr


@needs_nginx
async def test_streams_and_headers_pass(tmp_path: Path) -> None:
    """A piece arrives while the next one is not even sent; a thread stays with its replica; what is
    not for clients is not found."""
    replicas = [Replica() for _ in range(3)]
    # The ports are other ones in each run: five threads share a replica in one run of eighty.
    threads = [f"thread-{number}" for number in range(30)]
    async with (
        serve_on_loopback(replicas[0], lifespan="off") as first,
        serve_on_loopback(replicas[1], lifespan="off") as second,
        serve_on_loopback(replicas[2], lifespan="off") as third,
        run_nginx(tmp_path, [base.removeprefix("http://") for base in (first, second, third)]) as base,
        httpx.AsyncClient(trust_env=False, timeout=30, base_url=base) as http,
    ):  # fmt: skip
        for turn in range(2):
            for thread in threads:
                for replica in replicas:
                    replica.go_on.clear()
                request = http.stream(
                    "POST", "/v1/chat/completions", json={}, headers={"x-om-thread": thread}
                )
                async with request as answer:
                    assert answer.headers["x-om-status"] == "applied"
                    pieces = answer.aiter_raw()
                    assert await anext(pieces) == b"data: 1\n\n", (thread, turn)
                    for replica in replicas:
                        replica.go_on.set()
                    assert await anext(pieces) == b"data: 2\n\n"
        served = [set(replica.threads) - {""} for replica in replicas]
        assert sum(map(len, served)) == len(threads), "each thread stays with one replica"
        assert sum(map(bool, served)) > 1, "threads are spread"
        for path in ("/om/v1/threads", "/om", "/metrics"):
            assert (await http.get(path)).status_code == 404
