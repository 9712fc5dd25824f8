"""Two processes on one PostgreSQL. One loses the way to it in the middle of turns, and their clients
go on in the other one."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import httpx
import pytest

from om_proxy.testing.loopback import Receive, Scope, Send, serve_on_loopback
from om_proxy.testing.scripted import ScriptedServer
from tests.e2e.process import Process
from tests.support.free_port import free_port
from tests.support.postgres_server import find_postgres_url
from tests.support.wire import open_wire

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
CONFIGURATION = """
server: {{port: {port}}}
upstream: [{{name: scripted, base_url: "{models}/v1"}}]
storage: {{url: "{url}", prefix: {schema}, connections: 4, timeout: 2s}}
memory: {{model: openai/scripted-observer, api_base: "{models}/v1", api_key: sk-memory}}
telemetry: {{log: "off"}}
"""
Message = dict[str, Any]


class GatedModels(ScriptedServer):
    """Model servers whose answers wait for a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        await super().__call__(scope, receive, send)


class Client:
    """A client that sends its whole history to the process it is told."""

    def __init__(self, http: httpx.AsyncClient, thread: str) -> None:
        self._http = http
        self._thread = thread

    async def ask(self, process: Process, history: list[Message], text: str) -> list[Message]:
        """Return the history with this message and its reply."""
        asked = [*history, {"role": "user", "content": text}]
        answer = await self._http.post(
            f"{process.base}/v1/chat/completions",
            json={"model": "scripted-actor", "messages": asked},
            headers={"x-om-thread": self._thread},
        )
        assert answer.status_code == 200, answer.text
        return [*asked, answer.json()["choices"][0]["message"]]

    async def forget(self, process: Process) -> None:
        answer = await self._http.delete(f"{process.base}/om/v1/threads/{self._thread}")
        assert answer.status_code == 200, answer.text

    async def list_live(self, process: Process) -> list[str]:
        answer = await self._http.get(f"{process.base}/om/v1/threads/{self._thread}/messages")
        if answer.status_code == 404:
            return []
        return [one["raw"]["content"] for one in answer.json()["items"]]


def list_texts(history: list[Message]) -> list[str]:
    return [message["content"] for message in history]


async def wait_for(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.05)


async def test_clients_that_go_on_in_another_process(tmp_path: Path) -> None:
    """What was taken back, answered again or forgotten there stays so, and nothing that a client
    holds is lost, once the waiting turns are stored."""
    url, schema = find_postgres_url(), f"om_waited_{secrets.token_hex(6)}"
    address = urlsplit(url)
    assert address.hostname
    assert address.port
    models = GatedModels()
    async with (
        serve_on_loopback(models, lifespan="off") as models_url,
        open_wire(address.hostname, address.port) as wire,
        httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http,
    ):
        processes = []
        for number, port in enumerate((wire.port, address.port)):
            config, own_port = tmp_path / f"om-{number}.yaml", free_port()
            config.write_text(
                CONFIGURATION.format(
                    port=own_port,
                    models=models_url,
                    url=url.replace(f":{address.port}/", f":{port}/"),
                    schema=schema,
                ),
                encoding="utf-8",
            )
            processes.append(Process(config, own_port))
        here, there = processes
        try:
            for process in processes:
                await process.start()
            edits, retries, goes_on, forgets, begins, misses = clients = [
                Client(http, name)
                for name in ("edits", "retries", "goes-on", "forgets", "begins", "misses")
            ]
            first = {c: await c.ask(there, [], "one") for c in (edits, retries, goes_on, forgets)}
            models.gate.clear()
            asking = {
                c: asyncio.create_task(c.ask(here, first.get(c, []), "two"))
                for c in clients
                if c is not misses
            }

            async def is_under_way() -> bool:
                return models.waiting == len(asking)

            await wait_for(is_under_way)
            wire.refuse()
            models.gate.set()
            held = {c: await task for c, task in asking.items()}
            # its thread cannot be read when it comes
            await misses.ask(here, [], "two")

            edited = await edits.ask(there, first[edits], "another two")
            retried = await retries.ask(there, first[retries], "two")
            gone_on = await goes_on.ask(there, held[goes_on], "three")
            for client in (begins, misses):
                await client.ask(there, [], "two")
            for client in (forgets, begins, misses):
                await client.forget(there)
            wire.restore()

            async def is_stored() -> bool:
                page = (await http.get(f"{here.base}/metrics")).text
                ready = (await http.get(f"{here.base}/readyz")).text
                return "\nom_turns_waiting 0" in page and '"ok"' in ready

            await wait_for(is_stored)
            for process in processes:
                assert await edits.list_live(process) == list_texts(edited)
                assert await retries.list_live(process) == list_texts(retried)
                assert await goes_on.list_live(process) == list_texts(gone_on)
                for client in (forgets, begins, misses):
                    assert await client.list_live(process) == []
        finally:
            models.gate.set()
            for process in processes:
                if process.alive:
                    await process.kill()
            connection = await asyncpg.connect(url)
            await connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
            await connection.close()
