"""Watches an om-proxy as its users do while a cell is measured: `watchers.py PORT`, until SIGTERM.

Prometheus scrapes `/metrics`, dashboards poll what their pages poll, and streams of events stay
open. Loopback only. Prints `watching` once every stream is open, and at the end what was answered.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

import httpx

SCRAPE_INTERVAL_S = 5.0
DASHBOARD_INTERVAL_S = 5.0
DASHBOARDS = 10
STREAMS = 50  # of events; each dashboard has one of them
POLLED_PAGES = ("/om/v1/threads?order=recent&limit=20", "/om/v1/stats?by=day")
HEADERS = {"authorization": "Bearer sk-bench"}


async def poll(
    http: httpx.AsyncClient, page: str, interval_s: float, answers: Counter[str]
) -> None:
    while True:
        # a scraper on loopback needs no token, and a caller's key is none
        headers = {} if page == "/metrics" else HEADERS
        answer = await http.get(page, headers=headers)
        answers[f"{page.partition('?')[0]} {answer.status_code}"] += 1
        await asyncio.sleep(interval_s)


async def follow_events(
    http: httpx.AsyncClient, opened: asyncio.Semaphore, answers: Counter[str]
) -> None:
    headers = HEADERS | {"accept": "text/event-stream"}
    async with http.stream("GET", "/om/v1/events", headers=headers) as stream:
        answers[f"/om/v1/events {stream.status_code}"] += 1
        opened.release()
        async for _ in stream.aiter_raw():
            answers["pieces of streams"] += 1


async def watch_server(port: int) -> Counter[str]:
    """Watch until SIGTERM. Return how often each page was answered with which status."""
    answers: Counter[str] = Counter()
    opened = asyncio.Semaphore(0)
    is_over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, is_over.set)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}",
        timeout=60,  # a stream says something every 15 s
        limits=limits,
        trust_env=False,
    ) as http:
        tasks = [asyncio.create_task(follow_events(http, opened, answers)) for _ in range(STREAMS)]
        for _ in range(STREAMS):
            await opened.acquire()
        tasks.append(asyncio.create_task(poll(http, "/metrics", SCRAPE_INTERVAL_S, answers)))
        tasks += [
            asyncio.create_task(poll(http, page, DASHBOARD_INTERVAL_S, answers))
            for page in POLLED_PAGES
            for _ in range(DASHBOARDS)
        ]
        print("watching", flush=True)
        await is_over.wait()
        failed = [task for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    answers["watchers that ended early"] = len(failed)
    return answers


@contextmanager
def watched(port: int, core: str) -> Iterator[None]:
    """Watch the server on this port, from this core, until the block ends."""
    command = ["taskset", "-c", core, sys.executable, str(Path(__file__)), str(port)]
    with Popen(command, stdout=PIPE, text=True) as process:
        try:
            assert process.stdout is not None  # it is a pipe
            if process.stdout.readline() != "watching\n":
                raise SystemExit("scripts/bench: the watchers found no streams to open")
            yield
        finally:
            process.terminate()
            said, _ = process.communicate(timeout=30)
            print(f"watchers: {said.strip()}", flush=True)


def main() -> None:
    answers = asyncio.run(watch_server(int(sys.argv[1])))
    print(", ".join(f"{name}: {count}" for name, count in sorted(answers.items())), flush=True)


if __name__ == "__main__":
    main()
