"""A server that only serves and a worker, as processes on one PostgreSQL: who calls the memory model,
and what becomes of a call whose worker ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import OBSERVER, Fault, ScriptedServer
from tests.e2e.process import Process
from tests.support.free_port import free_port
from tests.support.postgres_server import find_postgres_url, own_schema

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
SAID = "Crate {n} weighs {n} kilos, is painted red and goes to dock {n} at Quarry Steps. " * 6
HANGING = Fault(kind="hang", model=OBSERVER)


@dataclass
class Site:
    """A server and its workers. Each process has a key of its own for the memory model."""

    folder: Path
    models: ScriptedServer
    configuration: str
    server: Process
    workers: list[Process] = field(default_factory=list)
    history: list[dict[str, str]] = field(default_factory=list)

    def add(self, name: str, *options: str, module: str = "om_proxy") -> Process:
        config, port = self.folder / f"{name}.yaml", free_port()
        text = self.configuration.format(port=port, key=f"sk-{name}")
        config.write_text(text, encoding="utf-8")
        return Process(config, port, (module,), options)

    async def start_worker(self, name: str, module: str = "om_proxy") -> Process:
        worker = self.add(name, "--worker", module=module)
        self.workers.append(worker)
        await worker.start()
        return worker

    async def say(self) -> str:
        """Perform a turn. Return the status of the receipt."""
        self.history.append({"role": "user", "content": SAID.format(n=len(self.history))})
        async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http:
            answer = await http.post(
                f"{self.server.base}/v1/chat/completions",
                json={"model": "scripted-actor", "messages": self.history},
                headers={"authorization": "Bearer sk-a", "x-om-thread": "crates"},
            )
        assert answer.status_code == 200, answer.text
        self.history.append(answer.json()["choices"][0]["message"])
        return answer.headers["x-om-status"]

    def list_observers(self) -> list[str]:
        """Return the processes that called the observer, one for each call."""
        return [
            dict(request.headers)[b"authorization"].decode().removeprefix("Bearer sk-")
            for request in self.models.requests_to(OBSERVER)
        ]

    async def see(self, condition: Callable[[list[str]], bool]) -> None:
        """Wait until the calls of the observer are as they shall be."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition(self.list_observers()):  # noqa: ASYNC110 - called by other processes
                await asyncio.sleep(0.05)


@asynccontextmanager
async def open_site(folder: Path) -> AsyncIterator[Site]:
    """Start a server with `background.external`, on a schema of its own."""
    url, models = find_postgres_url(), ScriptedServer()
    with own_schema(url) as schema:
        async with serve_on_loopback(models, lifespan="off") as upstream:
            configuration = f"""
            server: {{{{port: {{port}}}}}}
            upstream: [{{{{name: scripted, base_url: "{upstream}/v1", layout: blocks}}}}]
            storage: {{{{url: "{url}", prefix: {schema}, connections: 3, timeout: 10s}}}}
            memory: {{{{model: openai/scripted-observer, api_base: "{upstream}/v1", api_key: {{key}},
                      observation: {{{{message_tokens: 1200, buffer_tokens: 300, block_after: 90000}}}}}}}}
            background: {{{{external: true, observer_interval: 200ms}}}}
            telemetry: {{{{log: "off"}}}}
            """
            site = Site(folder, models, configuration, None)  # type: ignore[arg-type] - set below
            site.server = site.add("server")
            try:
                await site.server.start()
                yield site
                assert await site.server.terminate() == 0
            finally:
                for process in (site.server, *site.workers):
                    if process.alive:
                        await process.kill()


async def test_a_worker_does_the_work(tmp_path: Path) -> None:
    """The server observes nothing, with and without a worker. A worker that is killed in a call, or
    ends in one, is followed by another; each prompt gets its notes in the end."""
    async with open_site(tmp_path) as site:
        site.models.faults.switch(HANGING)
        for _ in range(4):
            assert await site.say() == "raw"
        assert site.list_observers() == []

        killed = await site.start_worker("killed", "tests.e2e.short_leases")
        await site.see(lambda seen: seen == ["killed"])
        await killed.kill()

        ended = await site.start_worker("ended")
        await site.see(lambda seen: seen == ["killed", "ended"])
        async with asyncio.timeout(35):
            assert await ended.terminate() == 0
        site.models.faults.switch()

        # at once: the one that ended gave its lease back, which lasts 100 s
        await site.start_worker("last")
        await site.see(lambda seen: "last" in seen)
        async with asyncio.timeout(PATIENCE_S):
            while await site.say() != "applied":  # noqa: ASYNC110 - made by another process
                await asyncio.sleep(0.1)
        assert set(site.list_observers()) == {"killed", "ended", "last"}
