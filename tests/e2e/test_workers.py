"""Several processes on one port: one memory, whoever of them serves, and one that dies is
replaced."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import httpx
import pytest

from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import ScriptedServer
from tests.e2e.process import Process
from tests.support.free_port import free_port
from tests.support.long_forms import IS_LONG

CONVERSATIONS, TURNS = 6 if IS_LONG else 3, 12
TOLD = (
    "Crate {n} of {who} weighs {n} kilos, is painted red and goes to dock {n} at Quarry Steps. " * 6
)


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="the processes are found in /proc"
)


def children(pid: int) -> set[int]:
    """The workers of this server."""
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


@needs_proc
async def test_one_memory_behind_several_processes(tmp_path: Path) -> None:
    """Each request on a connection of its own, so that they spread; one worker is killed on the
    way."""
    async with serve_on_loopback(ScriptedServer(), lifespan="off") as upstream:
        process = Process(tmp_path / "om.yaml", port := free_port())
        (tmp_path / "om.yaml").write_text(
            f"""
            server: {{port: {port}, workers: 2}}
            upstream: [{{name: scripted, base_url: "{upstream}/v1", layout: blocks}}]
            storage: {{url: "sqlite:///{tmp_path}/om.db"}}
            memory: {{model: openai/scripted-observer, api_base: "{upstream}/v1", api_key: sk-observer,
                      observation: {{message_tokens: 1200, buffer_tokens: 300, block_timeout: 2s}}}}
            """,
            encoding="utf-8",
        )
        await process.start(within=60)
        try:
            async with asyncio.timeout(30):
                while len(workers := children(process.pid)) < 2:  # noqa: ASYNC110 - the kernel sends no event of it
                    await asyncio.sleep(0.05)
            said = await asyncio.gather(
                *(conversation(process.base, f"t{n}") for n in range(CONVERSATIONS - 1))
            )
            os.kill(min(workers), signal.SIGKILL)
            said.append(await conversation(process.base, "after"))
            async with asyncio.timeout(30):
                while len(children(process.pid) - {min(workers)}) < 2:  # noqa: ASYNC110 - the kernel sends no event of it
                    await asyncio.sleep(0.05)
        finally:
            assert await process.terminate() == 0
        assert all(status == "applied" for statuses in said for status in statuses[-3:])
        store = await SqliteStore.open(tmp_path / "om.db")
        try:
            stored = {info.key.thread: info.messages for info in await store.threads(None)}
            assert stored == dict.fromkeys(
                ["after", *(f"t{n}" for n in range(CONVERSATIONS - 1))], 2 * TURNS
            )
        finally:
            await store.close()


async def conversation(base: str, name: str) -> list[str]:
    """What the receipts said. A client tries again where its connection breaks, as SDKs do."""
    history: list[dict[str, str]] = []
    statuses = []
    for n in range(TURNS):
        history.append({"role": "user", "content": TOLD.format(n=n, who=name)})
        answer = await send_history(base, name, history)
        history.append(answer.json()["choices"][0]["message"])
        statuses.append(answer.headers["x-om-status"])
    return statuses


async def send_history(base: str, name: str, history: list[dict[str, str]]) -> httpx.Response:
    for _ in range(5):
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
                answer = await http.post(
                    f"{base}/v1/chat/completions",
                    json={"model": "scripted-actor", "messages": history},
                    headers={"authorization": "Bearer sk-a", "x-om-thread": name},
                )
                assert answer.status_code == 200, answer.text
                return answer
        except httpx.TransportError:
            continue
    raise AssertionError("five broken connections in a row")
