"""What slow clients by the thousand do to a good one: its p99 without them and beside them, and how soon they are cut off."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from tests.e2e.between import chat_body, completing
from tests.e2e.bounds.serving import proxied
from tests.e2e.process import free_port
from tests.support.raw_client import RawClient
from tests.support.upstream_server import UpstreamServer, upstream_server

EVERY = 0.04  # seconds between two requests of the good client


@dataclass(frozen=True)
class Latencies:
    """Of one window, in ms."""

    count: int
    p50: float
    p99: float
    worst: float

    @classmethod
    def of(cls, seconds: list[float]) -> Latencies:
        ordered = sorted(1_000 * s for s in seconds)
        count = len(ordered)
        return cls(count, ordered[count // 2], ordered[count * 99 // 100], ordered[-1])

    def __str__(self) -> str:
        return f"{self.count} requests, p50 {self.p50:.2f} ms, p99 {self.p99:.2f} ms, worst {self.worst:.1f} ms"


@dataclass(frozen=True)
class Measured:
    quiet: list[Latencies]
    beside: Latencies
    slow: dict[str, dict[str, Any]]  # kind → see slow_ones.py
    grown: int  # MiB of memory, at most

    @property
    def usual(self) -> float:
        """p99 without the slow ones, in ms."""
        return sum(one.p99 for one in self.quiet) / len(self.quiet)

    @property
    def ratio(self) -> float:
        return self.beside.p99 / self.usual


async def asking(port: int, seconds: float) -> Latencies:
    """A request every `EVERY` seconds, each thread ten turns long. One that is late delays the next, which is counted with it: a
    client that waits for its turn would not notice a server that stands still."""
    client, took, begun, turn = await RawClient.connect(port), [], time.perf_counter(), 0
    name = time.monotonic_ns()
    while (due := turn * EVERY) < seconds:
        await asyncio.sleep(max(0.0, begun + due - time.perf_counter()))
        thread, length = divmod(turn, 10)
        request = chat_body(*(f"message {n} of a conversation" for n in range(length + 1)))
        asked = begun + due if time.perf_counter() - begun - due > EVERY else time.perf_counter()
        client.send(request, headers=(b"X-OM-Thread: %d-%d" % (name, thread), b"Authorization: Bearer sk-good"))
        got = await client.answer()
        took.append(time.perf_counter() - asked)
        assert (got.status, got.whole, got.header(b"x-om-status")) == (200, True, [b"raw"]), got
        turn += 1
    await client.close()
    return Latencies.of(took)


async def measured(
    folder: Path, *, heads: int, bodies: int, readers: int, seconds: float, window: float, limits: str = "{}"
) -> Measured:
    """`seconds` beside the slow ones, between two windows without them. They begin when the readers stall: until then these cost
    what any readers cost."""
    flood = free_port()
    async with upstream_server(completing()) as server, proxied(folder, server, limits, both(server, flood)) as proxy:
        await asking(proxy.port, window / 2)  # warm
        quiet = [await asking(proxy.port, window)]
        before = proxy.resident()
        proxy.forget_peak()
        async with slow_ones(proxy.port, flood, 0, 0, readers) as stalled:
            await proxy.rests()
            async with slow_ones(proxy.port, 0, heads, bodies, 0) as trickling:
                beside = await asking(proxy.port, seconds)
                grown = proxy.resident("VmHWM") - before
        await proxy.rests()
        quiet.append(await asking(proxy.port, window))
        return Measured(quiet, beside, {**trickling, **stalled}, grown)


@asynccontextmanager
async def slow_ones(port: int, *numbers: int) -> AsyncIterator[dict[str, Any]]:
    """They, from when all have come; at the end what they tell of themselves is in the dictionary, by kind."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.e2e.bounds.slow_ones", *map(str, (port, *numbers)),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    told: dict[str, Any] = {}
    try:
        assert await asyncio.wait_for(process.stdout.readline(), 60) == b"all have come\n"
        yield told
        process.stdin.close()
        kinds = orjson.loads(await asyncio.wait_for(process.stdout.read(), 60))
        told |= {name: kind for name, kind in kinds.items() if kind["connections"]}
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def both(server: UpstreamServer, flood: int) -> str:
    """The model servers of the good client and of the slow readers."""
    return f"""
        upstream:
          - {{name: flood, match: [flood], base_url: "http://127.0.0.1:{flood}/v1"}}
          - {{name: good, base_url: "{server.base}"}}
        """


def main() -> int:
    options = argparse.ArgumentParser(prog="scripts/slow-clients", description=__doc__)
    options.add_argument("--heads", type=int, default=1_000, help="whose headers trickle (%(default)s)")
    options.add_argument("--bodies", type=int, default=1_000, help="whose bodies trickle (%(default)s)")
    options.add_argument("--readers", type=int, default=500, help="who hardly read (%(default)s)")
    options.add_argument("--seconds", type=float, default=75.0, help="beside them (%(default)s)")
    options.add_argument(
        "--window", type=float, default=15.0, help="seconds without them, before and after (%(default)s)"
    )
    told = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measured(Path(folder), **vars(told)))
    for name, one in zip(("before", "after"), found.quiet, strict=True):
        print(f"{name:8} {one}")
    print(f"{'beside':8} {found.beside}")
    print(f"p99 beside / without: {found.ratio:.2f}; memory at most {found.grown} MiB more")
    for name, kind in found.slow.items():
        print(
            f"slow {name:8} {kind['connections']} connections, {kind['ended']} cut off, after {kind['longest']:.1f} s at most"
        )
    return 0 if found.ratio <= 2 else 1


if __name__ == "__main__":
    sys.exit(main())
