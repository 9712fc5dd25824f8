"""`/metrics` of two replicas with two workers each, summed as Prometheus sums: exactly what was
sent, also after kills."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from om_proxy.observability.figures.figures import GAUGES
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import Fault, ScriptedServer
from tests.e2e.process import Process
from tests.e2e.test_workers import children
from tests.storage.memory_builder import KEY, store_covered
from tests.support.free_port import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path("/proc/self/task").exists(), reason="the processes are found in /proc"
    ),
]

REPLICAS, WORKERS = 2, 2
PATIENCE_S = 60.0
TOLD = "Crate {n} of {who} weighs {n} kilos, is painted red and goes to dock {n} at Quarry. " * 6
TURNS = 8
AT_ONCE = 4  # requests under way during a kill
BROKEN, BUSY = "broken-model", "busy-model"

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]
# of requests, by status and reason of the receipt
Receipts = Counter[tuple[str, str]]


@dataclass
class Replicas:
    """The replicas, behind which a client counts what it was told."""

    processes: list[Process]
    store: SqliteStore
    receipts: Receipts = field(default_factory=Counter)
    _turns: count[int] = field(default_factory=count)

    def choose(self) -> str:
        return self.processes[next(self._turns) % len(self.processes)].base

    async def send(
        self,
        path: str = "/v1/chat/completions",
        *,
        counts_as: tuple[str, str] | None = None,
        **options: Any,
    ) -> httpx.Response:
        """Send a request on a connection of its own, so that requests spread over the workers.
        `counts_as`: where the receipt does not say it."""
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            headers = {"authorization": "Bearer sk-a", **options.pop("headers", {})}
            answer = await http.post(f"{self.choose()}{path}", headers=headers, **options)
            receipt = (answer.headers["x-om-status"], answer.headers.get("x-om-reason", ""))
            self.receipts[counts_as or receipt] += 1
            return answer

    async def chat(self, thread: str | None, *said: Mapping[str, str], **body: Any) -> Any:
        headers = {"x-om-thread": thread} if thread else {}
        return await self.send(
            json={"model": "scripted-actor", "messages": list(said), **body}, headers=headers
        )

    async def converse(self, who: str) -> None:
        history: list[dict[str, str]] = []
        for number in range(TURNS):
            history.append({"role": "user", "content": TOLD.format(n=number, who=who)})
            answer = await self.chat(who, *history)
            history.append(answer.json()["choices"][0]["message"])

    async def read(self) -> list[Series]:
        """Scrape each replica once, on a connection of its own: any of its workers answers."""
        pages = []
        for process in self.processes:
            async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
                answer = await http.get(f"{process.base}/metrics")
                assert answer.status_code == 200, answer.text
                pages.append(parse(answer.text))
        return pages

    async def read_until(self, expected: Receipts) -> list[Series]:
        """Wait until the requests are counted: each is at its end, after its last byte."""
        async with asyncio.timeout(PATIENCE_S):
            while sum_requests(pages := await self.read()) != expected:  # noqa: ASYNC110 - counted in other processes
                await asyncio.sleep(0.05)
        return pages

    async def list_workers(self, process: Process) -> set[int]:
        """Return all workers of a replica, once they are there."""
        async with asyncio.timeout(PATIENCE_S):
            while len(workers := children(process.pid)) < WORKERS:  # noqa: ASYNC110 - the kernel sends no event of it
                await asyncio.sleep(0.05)
        return workers

    async def kill_workers(self) -> None:
        """Kill a worker of each replica. Return once another one has taken its place."""
        for process in self.processes:
            killed = min(await self.list_workers(process))
            os.kill(killed, signal.SIGKILL)
            async with asyncio.timeout(PATIENCE_S):
                while len(children(process.pid) - {killed}) < WORKERS:  # noqa: ASYNC110 - the kernel sends no event of it
                    await asyncio.sleep(0.05)


def parse(page: str) -> Series:
    found: Series = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            name = (sample.name, tuple(sorted(sample.labels.items())))
            assert name not in found
            found[name] = sample.value
    return found


def sum_requests(pages: list[Series]) -> Receipts:
    """Return what Prometheus says to `sum by (status, reason) (om_requests_total)`."""
    sums: Receipts = Counter()
    for page in pages:
        for (name, labels), value in page.items():
            if name == "om_requests_total":
                words = dict(labels)
                assert value == int(value)
                sums[words["status"], words["reason"]] += int(value)
    return sums


def select_counters(page: Series) -> Series:
    return {
        name: value
        for name, value in page.items()
        if name[0].endswith(("_total", "_count", "_bucket", "_sum"))
        and name[0] != "om_cost_savings_total"
    }


@asynccontextmanager
async def run_replicas(folder: Path) -> AsyncIterator[Replicas]:
    models = ScriptedServer(
        faults=[
            Fault(kind="http", status=500, model=BROKEN),
            Fault(kind="http", status=429, model=BUSY),
        ]
    )
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(serve_on_loopback(models, lifespan="off"))
        store = await SqliteStore.open(folder / "om.db")
        stack.push_async_callback(store.close)
        await store_covered(store, KEY, 6, 2)
        processes = []
        for number in range(REPLICAS):
            config, port = folder / f"om-{number}.yaml", free_port()
            config.write_text(
                f"""
                server: {{port: {port}, workers: {WORKERS}}}
                upstream: [{{name: scripted, base_url: "{upstream}/v1", layout: blocks}}]
                storage: {{url: "sqlite:///{folder}/om.db"}}
                memory: {{model: openai/scripted-observer, api_base: "{upstream}/v1", api_key: sk-memory,
                          observation: {{message_tokens: 1200, buffer_tokens: 300, block_timeout: 2s}}}}
                telemetry: {{log: "off"}}
                """,
                encoding="utf-8",
            )
            processes.append(Process(config, port))
        try:
            for process in processes:
                await process.start()
            replicas = Replicas(processes, store)
            for process in processes:
                await replicas.list_workers(process)
            yield replicas
        finally:
            for process in processes:
                if process.alive:
                    assert await process.terminate() == 0


async def send_of_each_kind(replicas: Replicas, number: int) -> None:
    """Send what each status and some reasons come of."""
    said = {"role": "user", "content": f"Crate {number} is red."}
    thread = f"t{number}"
    await replicas.chat(thread, said)
    await replicas.chat(f"{thread}-streamed", said, stream=True)
    await replicas.chat(None, said)
    assert (await replicas.chat(thread, said, model=BROKEN)).status_code == 500
    assert (await replicas.chat(thread, said, model=BUSY)).status_code == 429
    off = {"x-om-thread": thread, "x-om-mode": "off"}
    await replicas.send(json={"model": "m", "messages": [said]}, headers=off)
    two_keys = {"x-api-key": "b", "x-om-thread": thread}
    refused = await replicas.send(
        json={"model": "m", "messages": [said]}, headers=two_keys, counts_as=("off", "refused")
    )
    assert refused.status_code == 400
    await replicas.send(
        "/v1/embeddings", json={}, headers={"x-om-thread": thread}, counts_as=("off", "route")
    )


async def test_figures_of_replicas(tmp_path: Path) -> None:
    """One after the other, on the same replicas: what they tell of the store, of what was sent, and
    of what was sent during a kill."""
    async with run_replicas(tmp_path) as replicas:
        await replicas.read_until(Counter())
        await check_that_one_tells_of_the_store(replicas)
        await check_sums(replicas)
        await check_kill_under_load(replicas)


async def check_that_one_tells_of_the_store(replicas: Replicas) -> None:
    """Each gauge over the whole store stands on the page of one replica, so that a sum is true."""
    names = [gauge.name for gauge in GAUGES]
    async with asyncio.timeout(PATIENCE_S):
        while not any((names[0], ()) in page for page in await replicas.read()):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.2)
    totals = await replicas.store.totals(0.0)
    for _ in range(10):
        pages = await replicas.read()
        for name, total in zip(names, totals, strict=True):
            assert sum((name, ()) in page for page in pages) == 1, name
            assert sum_named(pages, name) == total
    assert totals.messages_tokens > 0


async def check_sums(replicas: Replicas) -> None:
    """By status and reason, exactly, whichever workers answer, before and after kills. What a
    killed worker had counted stays in every counter."""
    await asyncio.gather(
        *(replicas.converse(who) for who in ("ada", "bea")),
        *(send_of_each_kind(replicas, number) for number in range(6)),
    )
    assert {status for status, _ in replicas.receipts} >= {"raw", "applied", "off"}
    before = await replicas.read_until(replicas.receipts)
    for _ in range(5):
        assert sum_requests(await replicas.read()) == replicas.receipts

    await replicas.kill_workers()
    after = await replicas.read()
    assert sum_requests(after) == replicas.receipts
    for old, new in zip(before, after, strict=True):
        lost = {
            name: (value, new.get(name))
            for name, value in select_counters(old).items()
            if new.get(name, 0.0) < value
        }
        assert lost == {}

    await asyncio.gather(*(send_of_each_kind(replicas, number) for number in range(6, 10)))
    pages = await replicas.read_until(replicas.receipts)
    for name in ("om_overhead_seconds_count", "om_requests_total"):
        assert sum_named(pages, name) >= 40
    failed = sum_by_label(pages, "om_failures_total", "cause")
    assert failed["upstream-5xx"] == failed["upstream-429"] == 10
    assert failed["refused"] == 10


def sum_named(pages: list[Series], name: str) -> float:
    return sum(value for page in pages for (found, _), value in page.items() if found == name)


def sum_by_label(pages: list[Series], name: str, label: str) -> Counter[str]:
    sums: Counter[str] = Counter()
    for page in pages:
        for (found, labels), value in page.items():
            if found == name:
                sums[dict(labels)[label]] += int(value)
    return sums


async def check_kill_under_load(replicas: Replicas) -> None:
    """Requests that were under way in the killed workers may be missing, and no other."""
    most_lost = REPLICAS * AT_ONCE
    before = replicas.receipts.total()
    attempts = answered = 0
    is_over = asyncio.Event()

    async def send_on() -> None:
        nonlocal attempts, answered
        while not is_over.is_set() or answered <= 2 * most_lost:
            attempts += 1
            try:
                await replicas.chat(None, {"role": "user", "content": "Hello."})
            except httpx.TransportError:
                continue
            answered += 1

    sending = [asyncio.create_task(send_on()) for _ in range(AT_ONCE)]
    try:
        await replicas.kill_workers()
    finally:
        is_over.set()
        await asyncio.gather(*sending)
    async with asyncio.timeout(PATIENCE_S):
        while (  # noqa: ASYNC110 - as above
            counted := sum_requests(await replicas.read()).total() - before
        ) < answered - most_lost:
            await asyncio.sleep(0.05)
    assert counted <= attempts
