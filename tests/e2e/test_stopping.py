"""A process that is told to end by SIGTERM, with a reply, a memory call and an event stream under
way."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import httpx
import pytest

from om_proxy.testing.loopback import Receive, Scope, Send, serve_on_loopback
from om_proxy.testing.scripted import ACTOR, OBSERVER, Fault, ScriptedServer
from tests.e2e.process import Process
from tests.support.free_port import free_port
from tests.support.long_forms import long_form
from tests.support.postgres_server import ask_server, find_postgres_url, own_schema

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
EVENTS = {"accept": "text/event-stream"}
SAID = "Crate {n} weighs {n} kilos, is painted red and goes to dock {n} at Quarry Steps. " * 6


class HoldingServer(ScriptedServer):
    """A model server that holds one request until `go`."""

    def __init__(self) -> None:
        super().__init__(faults=[Fault(kind="hang", model=OBSERVER)])
        self.holds_next = False
        self.is_held = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.holds_next:
            self.holds_next = False
            self.is_held.set()
            await self.go.wait()
        await super().__call__(scope, receive, send)


class Client:
    """Each request takes a connection of its own."""

    def __init__(self, base: str) -> None:
        self._base = base

    async def get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http:
            return await http.get(f"{self._base}{path}")

    async def say(self, thread: str, text: str) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http:
            answer = await http.post(
                f"{self._base}/v1/chat/completions",
                json={"model": ACTOR, "messages": [{"role": "user", "content": text}]},
                headers={"authorization": "Bearer sk-a", "x-om-thread": thread},
            )
        assert answer.status_code == 200, answer.text
        return answer

    async def read_events(self, is_open: asyncio.Event) -> None:
        """Read the stream of events until the server ends it."""
        async with (
            httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http,
            http.stream("GET", f"{self._base}/om/v1/events", headers=EVENTS) as answer,
        ):
            assert answer.status_code == 200
            async for _ in answer.aiter_raw():
                is_open.set()


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=long_form)])
async def test_a_process_that_is_told_to_end(tmp_path: Path, workers: int) -> None:
    """It says at once that it is not ready, and serves on until the reply is whole. Event streams
    end. A memory call is given up, and its lease given back."""
    url, models = find_postgres_url(), HoldingServer()
    port = free_port()
    process, client = Process(tmp_path / "om.yaml", port), Client(f"http://127.0.0.1:{port}")
    with own_schema(url) as schema:
        async with serve_on_loopback(models, lifespan="off") as upstream:
            process.config.write_text(f"""
            server: {{port: {port}, workers: {workers}}}
            upstream: [{{name: scripted, base_url: "{upstream}/v1", layout: blocks}}]
            storage: {{url: "{url}", prefix: {schema}, connections: 3, timeout: 10s}}
            memory: {{model: openai/scripted-observer, api_base: "{upstream}/v1", api_key: sk-m,
                      observation: {{message_tokens: 1200, buffer_tokens: 300, block_after: 90000}}}}
            background: {{observer_interval: 200ms}}
            telemetry: {{log: "off"}}
            """)
            await process.start()
            try:
                threads = await end_it(process, client, models)
            finally:
                if process.alive:
                    await process.kill()
        leases = ask_server(url, lambda c: c.fetch(f'SELECT * FROM "{schema}".lease'))  # noqa: S608 - a test's own name
        stored = ask_server(
            url,
            lambda c: c.fetchval(
                f"""SELECT count(*) FROM "{schema}".message JOIN "{schema}".thread
                ON thread.id = thread_id WHERE thread = ANY($1)""",  # noqa: S608 - a test's own name
                threads,
            ),
        )
    assert (leases, stored) == ([], 2 * len(threads))


async def end_it(process: Process, client: Client, models: HoldingServer) -> list[str]:
    """Return the threads whose turns began before the end, or came after it was told."""
    for number in range(4):
        await client.say("crates", SAID.format(n=number))
    async with asyncio.timeout(PATIENCE_S):
        while not models.requests_to(OBSERVER):  # noqa: ASYNC110 - asked by another process
            await asyncio.sleep(0.02)
    is_open = asyncio.Event()
    reading = asyncio.create_task(client.read_events(is_open))
    await is_open.wait()
    models.holds_next = True
    held = asyncio.create_task(client.say("boats", "This reply is held."))
    await models.is_held.wait()

    process.signal(signal.SIGTERM)
    async with asyncio.timeout(PATIENCE_S):
        while (ready := await client.get("/readyz")).status_code == 200:  # noqa: ASYNC110 - told to another process
            await asyncio.sleep(0.02)
        await reading
    assert (ready.status_code, ready.json()) == (503, {"status": "stopping"})
    assert (await client.get("/healthz")).status_code == 200
    late_threads = await say_until_told_to_close(client)
    assert not held.done()
    models.go.set()
    await held
    async with asyncio.timeout(35):
        assert await process.wait() == 0
    return ["boats", *late_threads]


async def say_until_told_to_close(client: Client) -> list[str]:
    """Begin a thread by each request until an answer closes its connection, and return the threads.

    Each worker learns of the end by a signal of its own. One that has not been told yet serves as
    before."""
    threads: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        while True:
            threads.append(f"cars-{len(threads)}")
            late = await client.say(threads[-1], "This one comes late.")
            assert late.headers["x-om-status"] == "raw"
            if late.headers.get("connection") == "close":
                return threads
