"""A new master key takes over while several processes serve from one PostgreSQL: no request fails, none
goes without memory, and the old key is refused afterwards."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from om_proxy.errors import WrongMasterKey
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import ScriptedServer
from tests.e2e.process import Process, free_port
from tests.support.postgres_server import ask_server, find_postgres_url, own_schema

OLD, NEW = bytes(range(32)), bytes(range(1, 33))
SERVERS = 2
CLIENTS = 3
# turns that each client has taken between two steps, at least
IS_WHOLE = os.environ.get("OM_TEST_LONG") == "all"
TURNS = 20 if IS_WHOLE else 2


class Rotation:
    """The servers, and clients that send each next request to another of them."""

    def __init__(self, processes: list[Process], http: httpx.AsyncClient) -> None:
        self.processes = processes
        self.out_of_service: Process | None = None
        self.statuses: Counter[tuple[int, str]] = Counter()
        self.turns = [0] * CLIENTS
        self.clients: list[asyncio.Task[None]] = []
        self.is_over = False
        self._http = http
        self._sent = 0
        self._in_flight: Counter[str] = Counter()

    def choose_server(self) -> Process:
        self._sent += 1
        serving = [each for each in self.processes if each is not self.out_of_service]
        return serving[self._sent % len(serving)]

    async def converse(self, client: int) -> None:
        """Go on with one thread, and begin another each time: its key is made meanwhile."""
        history: list[dict[str, Any]] = []
        while not self.is_over:
            history.append({"role": "user", "content": f"Crate {len(history)} is red."})
            history.append(await self.ask(f"long-{client}", history))
            first = [{"role": "user", "content": f"Hello {self.turns[client]}."}]
            thread = f"short-{client}-{self.turns[client]}"
            for _ in range(2):  # the second one is read by the other server
                first += [await self.ask(thread, first), {"role": "user", "content": "And?"}]
            self.turns[client] += 1

    async def ask(self, thread: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
        server = self.choose_server()
        self._in_flight[server.base] += 1
        try:
            answer = await self._http.post(
                f"{server.base}/v1/chat/completions",
                json={"model": "scripted-actor", "messages": messages},
                headers={"x-om-thread": thread, "authorization": "Bearer sk-client"},
            )
        finally:
            self._in_flight[server.base] -= 1
        assert answer.status_code == 200, answer.text
        self.statuses[answer.status_code, answer.headers["x-om-status"]] += 1
        message: dict[str, Any] = answer.json()["choices"][0]["message"]
        return message

    async def go_on(self) -> None:
        """Wait until every client has had some more turns."""
        wanted = [count + TURNS for count in self.turns]
        async with asyncio.timeout(240):
            while any(have < want for have, want in zip(self.turns, wanted, strict=True)):
                for task in self.clients:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.02)

    async def restart_each(self, *keys: bytes) -> None:
        """Take one server after the other out of service, and bring it back with these keys."""
        for process in self.processes:
            self.out_of_service = process
            async with asyncio.timeout(60):
                while self._in_flight[process.base]:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.01)
            assert await process.terminate() == 0
            write_keys(process.config, keys)
            await process.start()
            self.out_of_service = None
            await self.go_on()


def write_keys(config: Path, keys: tuple[bytes, ...]) -> None:
    template = config.with_suffix(".template").read_text(encoding="utf-8")
    listed = ", ".join(key.hex() for key in keys)
    config.write_text(template.replace("KEYS", f"[{listed}]"), encoding="utf-8")


@asynccontextmanager
async def run_servers(folder: Path, url: str, schema: str) -> AsyncIterator[Rotation]:
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(
            serve_on_loopback(ScriptedServer(), lifespan="off")
        )
        http = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=60))
        processes = []
        for number in range(SERVERS):
            config, port = folder / f"om-{number}.yaml", free_port()
            config.with_suffix(".template").write_text(
                f"""
                server: {{port: {port}}}
                upstream: [{{name: scripted, base_url: "{upstream}/v1"}}]
                storage: {{url: "{url}", prefix: {schema}, connections: 3, timeout: 30s,
                           required: true, encryption_key: KEYS}}
                memory: {{model: openai/scripted-observer, api_base: "{upstream}/v1", api_key: k}}
                telemetry: {{log: "off"}}
                """,
                encoding="utf-8",
            )
            write_keys(config, (OLD,) if IS_WHOLE else (OLD, NEW))
            processes.append(Process(config, port))
        try:
            for process in processes:
                await process.start()
            yield Rotation(processes, http)
        finally:
            for process in processes:
                if process.alive:
                    await process.kill()


async def run_rekey(config: Path) -> str:
    command = (sys.executable, "-m", "om_proxy", "rekey", "--config", str(config))
    done = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    said, _ = await done.communicate()
    assert done.returncode == 0
    return said.decode()


async def open_with(url: str, schema: str, key: bytes) -> PostgresStore:
    options = PostgresOptions(prefix=schema, connections=1, timeout_s=30.0)
    return await PostgresStore.open(url, options, masters=MasterKeys([key]))


async def test_a_master_key_is_changed_under_load(tmp_path: Path) -> None:
    """In the short form each server can read both keys from the start, and keeps them."""
    url = find_postgres_url()
    with own_schema(url) as schema:
        async with run_servers(tmp_path, url, schema) as rotation:
            clients = [asyncio.create_task(rotation.converse(n)) for n in range(CLIENTS)]
            rotation.clients = clients
            await rotation.go_on()
            if IS_WHOLE:
                await rotation.restart_each(OLD, NEW)
            await rotation.restart_each(NEW, OLD)
            assert (await run_rekey(rotation.processes[0].config)).startswith("wrapped anew: ")
            await rotation.go_on()
            if IS_WHOLE:
                await rotation.restart_each(NEW)
            rotation.is_over = True
            await asyncio.gather(*clients)
            statuses = rotation.statuses
            # every answer came, and had its memory
            assert {status for status, _ in statuses} == {200}
            assert {memory for _, memory in statuses} <= {"raw", "applied"}
            assert statuses.total() > 3 * CLIENTS * TURNS
        masters = f'SELECT DISTINCT master FROM "{schema}".data_key'  # noqa: S608 - a name of our own
        assert ask_server(url, lambda c: c.fetch(masters)) == [(MasterKeys([NEW]).newest_id,)]
        with pytest.raises(WrongMasterKey, match=MasterKeys([NEW]).newest_id):
            await open_with(url, schema, OLD)
        await (await open_with(url, schema, NEW)).close()
