"""A new master key takes over while several processes serve from one PostgreSQL or Redis: no request
fails, none goes without memory, and the old key is refused afterwards."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from om_proxy.common.errors import WrongMasterKey
from om_proxy.storage.base import Store
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from om_proxy.storage.redis.store import RedisOptions, RedisStore
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import ScriptedServer
from tests.e2e.process import Process
from tests.support.free_port import free_port
from tests.support.long_forms import IS_LONG, long_form
from tests.support.postgres_server import ask_server, find_postgres_url, own_schema
from tests.support.redis_server import find_redis_url, own_prefix

OLD, NEW = bytes(range(32)), bytes(range(1, 33))
SERVERS = 2
CLIENTS = 3 if IS_LONG else 2
# turns that each client has taken between two steps, at least
TURNS = 20 if IS_LONG else 2
# of a client, between two turns
PAUSE_S = 0.0 if IS_LONG else 0.1


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
            await asyncio.sleep(PAUSE_S)

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
            write_keys(config, (OLD,) if IS_LONG else (OLD, NEW))
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
    command = (sys.executable, "-m", "om_proxy", "store", "rekey", "--config", str(config))
    done = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    said, _ = await done.communicate()
    assert done.returncode == 0
    return said.decode()


class PostgresPlace:
    """A schema."""

    def __init__(self) -> None:
        self.url = find_postgres_url()
        self.own = own_schema

    async def open_with(self, schema: str, key: bytes) -> Store:
        options = PostgresOptions(prefix=schema, connections=1, timeout_s=30.0)
        return await PostgresStore.open(self.url, options, masters=MasterKeys([key]))

    def list_masters(self, schema: str) -> list[str]:
        """Return the master keys that wrap any data key."""
        sql = f'SELECT DISTINCT master FROM "{schema}".data_key'  # noqa: S608 - a name of our own
        return [master for (master,) in ask_server(self.url, lambda c: c.fetch(sql))]


class RedisPlace:
    """A prefix."""

    def __init__(self) -> None:
        self.url = find_redis_url()
        self.own = own_prefix

    async def open_with(self, prefix: str, key: bytes) -> Store:
        options = RedisOptions(prefix=prefix, connections=1, timeout_s=30.0)
        return await RedisStore.open(self.url, options, masters=MasterKeys([key]))

    def list_masters(self, prefix: str) -> list[str]:
        with redis.Redis.from_url(self.url) as server:
            stored = server.hvals(f"{prefix}:data_keys")
        return sorted({value.partition(b"\0")[0].decode() for value in stored})


@pytest.mark.parametrize(
    "place_of", [PostgresPlace, pytest.param(RedisPlace, marks=long_form)], ids=["pg", "redis"]
)
async def test_a_master_key_is_changed_under_load(
    tmp_path: Path, place_of: type[PostgresPlace] | type[RedisPlace]
) -> None:
    """In the short form each server can read both keys from the start, and keeps them."""
    place = place_of()
    with place.own(place.url) as name:
        async with run_servers(tmp_path, place.url, name) as rotation:
            clients = [asyncio.create_task(rotation.converse(n)) for n in range(CLIENTS)]
            rotation.clients = clients
            await rotation.go_on()
            if IS_LONG:
                await rotation.restart_each(OLD, NEW)
            await rotation.restart_each(NEW, OLD)
            assert (await run_rekey(rotation.processes[0].config)).startswith("wrapped anew: ")
            await rotation.go_on()
            if IS_LONG:
                await rotation.restart_each(NEW)
            rotation.is_over = True
            await asyncio.gather(*clients)
            statuses = rotation.statuses
            # every answer came, and had its memory
            assert {status for status, _ in statuses} == {200}
            assert {memory for _, memory in statuses} <= {"raw", "applied"}
            assert statuses.total() > 3 * CLIENTS * TURNS
        assert place.list_masters(name) == [MasterKeys([NEW]).newest_id]
        with pytest.raises(WrongMasterKey, match=MasterKeys([NEW]).newest_id):
            await place.open_with(name, OLD)
        await (await place.open_with(name, NEW)).close()
