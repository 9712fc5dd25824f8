"""The way of docs/guides/moving.md: a server on a SQLite file, a copy beside it, and two replicas on
the PostgreSQL. Every process is one of its own."""

from __future__ import annotations

import asyncio
import copy
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import ACTOR, OBSERVER, Fault, ScriptedServer
from tests.e2e.process import Process
from tests.support.free_port import free_port
from tests.support.postgres_server import find_postgres_url, own_schema

pytestmark = pytest.mark.slow

# four of them are more than a thread may have raw
PIER_REPORT = "Pier {n} is 2.85 m high, takes {n} boats and opens at {n} o'clock on Mondays. " * 20
THREADS = ("monday", "tuesday", "wednesday")
Message = dict[str, Any]


class Site:
    """A folder with a configuration for each store, and a model server for all of them."""

    def __init__(self, folder: Path, models: ScriptedServer, upstream: str) -> None:
        self.models = models
        self._folder = folder
        self._upstream = upstream

    def configure(self, name: str, storage: str) -> Process:
        """Write the file and return its server, not started."""
        port = free_port()
        config = self._folder / f"{name}.yaml"
        config.write_text(f"""
        server: {{port: {port}}}
        upstream: [{{name: scripted, base_url: "{self._upstream}/v1", layout: blocks}}]
        storage: {{{storage}}}
        memory: {{model: openai/scripted-observer, api_base: "{self._upstream}/v1", api_key: sk-m,
                  observation: {{message_tokens: 1200, buffer_tokens: 300, block_timeout: 60s}}}}
        background: {{observer_interval: 200ms}}
        telemetry: {{log: "off"}}
        """)
        return Process(config, port)

    @asynccontextmanager
    async def serve(self, *processes: Process) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for process in processes:
                await process.start()
                stack.push_async_callback(process.terminate)
            yield

    async def run_command(self, *arguments: str) -> tuple[int, str]:
        """Return the exit status of `om-proxy` with these arguments, and what it printed."""
        command = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "om_proxy", *arguments),
            cwd=self._folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        printed, _ = await command.communicate()
        assert command.returncode is not None
        return command.returncode, printed.decode()

    async def ask(self, process: Process, thread: str, messages: list[Message]) -> tuple[str, str]:
        """Return the reply's text and the receipt's status."""
        async with httpx.AsyncClient(trust_env=False, timeout=90) as http:
            answer = await http.post(
                f"{process.base}/v1/chat/completions",
                json={"model": ACTOR, "messages": messages},
                headers={"authorization": "Bearer sk-a", "x-om-thread": thread},
            )
        assert answer.status_code == 200, answer.text
        text = orjson.loads(answer.content)["choices"][0]["message"]["content"]
        return text, answer.headers["x-om-status"]

    async def say(self, process: Process, thread: str, history: list[Message], text: str) -> str:
        """Add a turn to the history. Return the receipt's status."""
        history.append({"role": "user", "content": text})
        reply, status = await self.ask(process, thread, history)
        history.append({"role": "assistant", "content": reply})
        return status

    async def go_on(self, process: Process, thread: str, history: list[Message]) -> tuple[Any, str]:
        """Ask one question more. Return the prompt that the actor got, and the receipt's status."""
        question = {"role": "user", "content": "And how high is it?"}
        _, status = await self.ask(process, thread, [*history, question])
        return self.models.requests_to(ACTOR)[-1].messages, status


async def test_two_replicas_go_on_where_one_file_stood(tmp_path: Path) -> None:
    """Each thread gets the same prompt from either replica as from the file, which stays whole."""
    models, url = ScriptedServer(), find_postgres_url()
    histories: dict[str, list[Message]] = {thread: [] for thread in THREADS}
    with own_schema(url) as schema:
        async with serve_on_loopback(models, lifespan="off") as upstream:
            site = Site(tmp_path, models, upstream)
            old = site.configure("old", f'url: "sqlite:///{tmp_path}/old.db"')
            patient = "connections: 3, timeout: 30s"
            postgres = f'url: "{url}", prefix: {schema}, {patient}'
            replicas = [site.configure(name, postgres) for name in ("one", "two")]
            spare = site.configure("spare", f'url: "sqlite:///{tmp_path}/spare.db"')

            async with site.serve(old):
                for number in range(5):
                    for thread, history in histories.items():
                        report = PIER_REPORT.format(n=f"{number}{len(thread)}")
                        status = await site.say(old, thread, history, report)
                assert status == "applied"
                await site.run_command(
                    "store", "copy", "old.db", "one.yaml"
                )  # names what changes meanwhile
                for thread in THREADS[:2]:
                    await site.say(old, thread, histories[thread], "Pier 7 has 3 cranes.")
            status_of_copy, printed = await site.run_command(
                "store", "copy", "old.db", "one.yaml", "--update", "--verify"
            )
            assert (status_of_copy, "verified: both stores are equal" in printed) == (0, True)

            # nothing may become ready between the two ways of asking
            models.faults.switch(Fault(kind="http", model=OBSERVER, status=503))
            await asyncio.to_thread(shutil.copy, tmp_path / "old.db", tmp_path / "spare.db")
            async with site.serve(spare):
                expected = {t: await site.go_on(spare, t, h) for t, h in histories.items()}
            assert {status for _, status in expected.values()} == {"applied"}
            async with site.serve(*replicas):
                for number, (thread, history) in enumerate(histories.items()):
                    for replica in (replicas[number % 2], replicas[(number + 1) % 2]):
                        said = await site.go_on(replica, thread, copy.deepcopy(history))
                        assert said == expected[thread], thread
            status_of_file, printed = await site.run_command(
                "store", "verify", "--config", "old.yaml"
            )
            assert status_of_file == 0, printed
