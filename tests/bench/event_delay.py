"""Measures how long an event takes to a stream of another process, and what a webhook whose receiver
never answers costs a chat request.

Starts `om-proxy serve` three times on one SQLite file and opens a stream of each. Another title of
a thread is an event that is stored with its commit. The time runs from before the request for it is
sent, so it is an upper bound. Then chat requests go by turns to a server without a webhook and to
one whose webhook hangs. Everything binds 127.0.0.1 and ends by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx

from om_proxy.testing import loopback
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import ScriptedServer
from om_proxy.wire.server.disconnect import wait_for_disconnect
from tests.e2e.process import Process
from tests.support.free_port import free_port

PROCESSES = 3
THREAD = "measured"
ACCEPTED_S = 1.5
LONGEST_PAUSE_S = 0.4  # between two events, so that they fall anywhere between two polls
HEADERS = {"authorization": "Bearer sk-bench", "x-om-thread": THREAD}


async def hang(scope: loopback.Scope, receive: loopback.Receive, send: loopback.Send) -> None:
    """A receiver that takes a request and never answers."""
    await loopback.read_body(receive)
    await wait_for_disconnect(receive)


@asynccontextmanager
async def serve(
    folder: Path, models: str, count: int, *, database: str = "om.db", hook: str = ""
) -> AsyncIterator[list[Process]]:
    webhooks = [{"url": hook, "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}] if hook else []
    processes = []
    try:
        for _ in range(count):
            port = free_port()
            config = folder / f"om-{port}.yaml"
            config.write_text(
                json.dumps(
                    {
                        "server": {"port": port},
                        "upstream": [{"base_url": f"{models}/v1"}],
                        "storage": {"url": f"sqlite:///{folder}/{database}"},
                        "telemetry": {"log": "off", "webhooks": webhooks},
                    }
                )
            )
            processes.append(Process(config, port))
            await processes[-1].start()
        yield processes
    finally:
        for process in processes:
            if process.alive:
                await process.terminate()


# ── events ────────────────────────────────────────────────────────────────────────────────────────


class Arrivals:
    """When each title came on the stream of one process."""

    def __init__(self) -> None:
        self.at_s: dict[str, float] = {}
        self.opened = asyncio.Event()

    async def read(self, process: Process) -> None:
        headers = HEADERS | {"accept": "text/event-stream"}
        url = f"{process.base}/om/v1/events"
        async with (
            httpx.AsyncClient(trust_env=False, timeout=60) as http,
            http.stream("GET", url, headers=headers) as answer,
        ):
            async for line in answer.aiter_lines():
                self.opened.set()  # the first line comes once the stream listens
                if line.startswith("data: "):
                    title = json.loads(line.removeprefix("data: "))["data"].get("newTitle")
                    self.at_s[title] = time.perf_counter()


async def measure_events(processes: Sequence[Process], events: int) -> list[float]:
    """Return the seconds of each event to each stream of another process."""
    arrivals = [Arrivals() for _ in processes]
    readers = [
        asyncio.create_task(arrived.read(process))
        for arrived, process in zip(arrivals, processes, strict=True)
    ]
    for arrived in arrivals:
        await asyncio.wait_for(arrived.opened.wait(), 60)
    sent_s: dict[str, float] = {}
    async with httpx.AsyncClient(trust_env=False, timeout=60, headers=HEADERS) as http:
        await chat(http, processes[0].base)
        for number in range(events):
            title = f"title {number}"
            base = processes[number % len(processes)].base
            sent_s[title] = time.perf_counter()
            answer = await http.patch(f"{base}/om/v1/threads/{THREAD}", json={"title": title})
            answer.raise_for_status()
            await asyncio.sleep(random.uniform(0, LONGEST_PAUSE_S))
    await asyncio.sleep(2 * ACCEPTED_S)
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    return [
        arrived.at_s.get(title, float("inf")) - at_s
        for number, (title, at_s) in enumerate(sent_s.items())
        for place, arrived in enumerate(arrivals)
        if place != number % len(processes)
    ]


# ── requests beside a webhook ─────────────────────────────────────────────────────────────────────


async def chat(http: httpx.AsyncClient, base: str, text: str = "Hello.") -> float:
    """Send a chat request. Return its milliseconds."""
    began_s = time.perf_counter()
    answer = await http.post(
        f"{base}/v1/chat/completions",
        json={"model": "scripted-actor", "messages": [{"role": "user", "content": text}]},
    )
    answer.raise_for_status()
    return 1_000 * (time.perf_counter() - began_s)


async def measure_requests(bases: Sequence[str], requests: int) -> list[list[float]]:
    """Return the milliseconds of requests to each server, asked by turns. Each stores an event
    besides, so that the webhook has something to send."""
    times_ms: list[list[float]] = [[] for _ in bases]
    async with httpx.AsyncClient(trust_env=False, timeout=60, headers=HEADERS) as http:
        for number in range(requests):
            for place, base in enumerate(bases):
                times_ms[place].append(await chat(http, base, f"Message {number}."))
                url = f"{base}/om/v1/threads/{THREAD}"
                (await http.patch(url, json={"title": f"title {number}"})).raise_for_status()
    return times_ms


async def measure(folder: Path, events: int, requests: int) -> None:
    async with AsyncExitStack() as stack:
        models = await stack.enter_async_context(
            serve_on_loopback(ScriptedServer(), lifespan="off")
        )
        async with serve(folder, models, PROCESSES) as processes:
            delays_s = await measure_events(processes, events)
        late = sum(delay > ACCEPTED_S for delay in delays_s)
        print(
            f"{len(delays_s)} arrivals at other processes: p50 {statistics.median(delays_s):.2f} s"
            f"  p95 {statistics.quantiles(delays_s, n=20)[-1]:.2f} s  longest {max(delays_s):.2f} s"
            f"  accepted {ACCEPTED_S} s  {'reached' if not late else f'NOT REACHED: {late} late'}"
        )
        receiver = await stack.enter_async_context(serve_on_loopback(hang, lifespan="off"))
        [without] = await stack.enter_async_context(serve(folder, models, 1, database="one.db"))
        [hanging] = await stack.enter_async_context(
            serve(folder, models, 1, database="two.db", hook=f"{receiver}/hook")
        )
        times_ms = await measure_requests([without.base, hanging.base], requests)
        for name, found in zip(("no webhook", "a webhook that hangs"), times_ms, strict=True):
            p95 = statistics.quantiles(found, n=20)[-1]
            print(
                f"{requests} requests, {name:20}  p50 {statistics.median(found):6.1f} ms  p95 {p95:6.1f} ms"
            )


def main() -> None:
    options = argparse.ArgumentParser(prog="scripts/bench-events", description=__doc__)
    options.add_argument("--events", type=int, default=200)
    options.add_argument("--requests", type=int, default=200, help="to each of two servers")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="om-bench-") as folder:
        asyncio.run(measure(Path(folder), chosen.events, chosen.requests))


if __name__ == "__main__":
    main()
