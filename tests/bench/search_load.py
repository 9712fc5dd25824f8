"""Measure a neighbour's chat while one tenant searches as much as it can.

    scripts/bench search-load [--searches 64] [--messages 20000] [--seconds 15]

One tenant has a resource of made texts (as `scripts/bench recall`). A client of another tenant goes
on with a chat of its own, one turn after another, first alone and then while so many searches over
MCP run at once. Printed are the 95th percentile of the turns' times in both, how many searches were
answered and refused a second, how long a refusal took, and the memory of the proxy's process above
what it held idle. The proxy is a process of its own, the searching client another; the model server
answers at once from this one. Everything binds 127.0.0.1 and ends by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple

import httpx

from tests.bench.long_thread import proxy
from tests.bench.recall import Writer
from tests.bench.unused_tool import Model

IMPORTED_AT_ONCE = 200
MESSAGE_CHARS = 400
PAUSE_S = 0.02  # between a neighbour's turns
IDLE_S = 2.0  # before a figure of an idle process is read
OWN = {"authorization": "Bearer sk-searching", "x-om-resource": "books"}
NEIGHBOUR = {"authorization": "Bearer sk-neighbour", "x-om-thread": "chat"}


class Searches(NamedTuple):
    """What the searching client saw. Times in milliseconds."""

    answered: int
    refused: int
    slowest_refusal_ms: float
    failures: int


async def fill(client: httpx.AsyncClient, messages: int) -> None:
    """Give the searching tenant its conversations, and both tenants a key that was accepted."""
    for headers in (OWN | {"x-om-thread": "new"}, NEIGHBOUR):
        await say(client, headers, [{"role": "user", "content": "turn 0: hello"}])
    writer = Writer(1)
    for first in range(0, messages, IMPORTED_AT_ONCE):
        said = [
            {"role": "user" if n % 2 else "assistant", "content": writer.write(MESSAGE_CHARS)}
            for n in range(1, IMPORTED_AT_ONCE + 1)
        ]
        path = f"/om/v1/threads/book-{first}/messages"
        answer = await client.post(path, json={"messages": said}, headers=OWN)
        answer.raise_for_status()


async def say(
    client: httpx.AsyncClient, headers: dict[str, str], history: list[dict[str, Any]]
) -> float:
    """Perform one turn. Return its time in milliseconds."""
    body = {"model": "m", "messages": history}
    begin = time.perf_counter()
    answer = await client.post("/v1/chat/completions", json=body, headers=headers)
    took = time.perf_counter() - begin
    answer.raise_for_status()
    history.append(answer.json()["choices"][0]["message"])
    return took * 1_000


async def measure_chat(client: httpx.AsyncClient, seconds: float, name: str) -> list[float]:
    """Return the times of one chat's turns, in milliseconds."""
    headers = NEIGHBOUR | {"x-om-thread": name}
    history: list[dict[str, Any]] = []
    times = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        history.append({"role": "user", "content": f"turn {len(history)}: and now?"})
        times.append(await say(client, headers, history))
        await asyncio.sleep(PAUSE_S)
    return times


async def search_at_once(base: str, count: int, seconds: float) -> Searches:
    """Search with so many connections, each one search after another; a refused one waits as it was
    told, at most a second."""
    answered, refusals, failures = 0, [0.0], 0

    async def search(number: int, client: httpx.AsyncClient) -> None:
        nonlocal answered, failures
        writer = Writer(number + 2)
        while time.monotonic() < end:
            arguments = {"query": writer.write_query(), "resource": "books"}
            call = {"name": "search_memory", "arguments": arguments}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
            begin = time.perf_counter()
            answer = await client.post("/om/mcp", json=body, headers=OWN)
            took = time.perf_counter() - begin
            if answer.status_code == 503 and "retry-after" in answer.headers:
                refusals.append(took * 1_000)
                await asyncio.sleep(min(float(answer.headers["retry-after"]), 1.0))
            elif answer.status_code == 200 and not answer.json()["result"].get("isError"):
                answered += 1
            else:
                failures += 1

    limits = httpx.Limits(max_connections=count)
    async with httpx.AsyncClient(base_url=base, timeout=60, limits=limits) as client:
        end = time.monotonic() + seconds  # a client takes long to make
        await asyncio.gather(*(search(number, client) for number in range(count)))
    return Searches(answered, len(refusals) - 1, max(refusals), failures)


def read_rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def watch_rss_mb(pid: int, done: asyncio.Event) -> float:
    """Return the most that the process held until `done`."""
    most = read_rss_mb(pid)
    while not done.is_set():
        await asyncio.sleep(0.05)
        most = max(most, read_rss_mb(pid))
    return most


async def run(asked: argparse.Namespace, folder: Path) -> None:
    model = Model()
    settings = {"retrieval": True, "observation": {"message_tokens": 10**9, "buffer_tokens": False}}
    with proxy(folder, model.port, settings) as served:
        base = f"http://127.0.0.1:{served.port}"
        async with httpx.AsyncClient(base_url=base, timeout=60) as client:
            await fill(client, asked.messages)
            await asyncio.sleep(IDLE_S)
            quiet = await measure_chat(client, asked.seconds, "quiet")
            await asyncio.sleep(IDLE_S)
            idle_mb = read_rss_mb(served.pid)
            done = asyncio.Event()
            watching = asyncio.create_task(watch_rss_mb(served.pid, done))
            command = [sys.executable, "-m", "tests.bench.search_load", "--search", base]
            command += ["--searches", str(asked.searches), "--seconds", str(asked.seconds + 1)]
            searching = await asyncio.create_subprocess_exec(*command, stdout=-1)
            await asyncio.sleep(1)
            loaded = await measure_chat(client, asked.seconds, "loaded")
            out, _ = await searching.communicate()
            done.set()
            searches = Searches(*json.loads(out))
            print_figures(asked, quiet, loaded, searches, await watching - idle_mb)
    model.close()


def print_figures(
    asked: argparse.Namespace,
    quiet: Sequence[float],
    loaded: Sequence[float],
    searches: Searches,
    more_mb: float,
) -> None:
    quiet_p95, loaded_p95 = quantiles(quiet, n=20)[-1], quantiles(loaded, n=20)[-1]
    seconds = asked.seconds + 1
    print(f"{asked.searches} searches at once over {asked.messages} messages, {seconds:.0f} s")
    print(f"neighbour's turns, p95    {quiet_p95:6.1f} ms alone   {loaded_p95:6.1f} ms beside them")
    print(f"  as a ratio              {loaded_p95 / quiet_p95:6.2f}    (goal 1.5)")
    print(f"searches answered         {searches.answered / seconds:6.1f} a second (goal 8)")
    print(f"refused (503)             {searches.refused / seconds:6.1f} a second")
    print(f"  the slowest refusal     {searches.slowest_refusal_ms:6.0f} ms (goal 100)")
    print(f"failed otherwise          {searches.failures:6}")
    print(f"memory above idle         {more_mb:6.0f} MB (goal 100)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--searches", type=int, default=64)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--search", help=argparse.SUPPRESS)  # the searching client's process
    asked = parser.parse_args()
    if asked.search:
        found = asyncio.run(search_at_once(asked.search, asked.searches, asked.seconds))
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(asked, Path(folder)))


if __name__ == "__main__":
    main()
