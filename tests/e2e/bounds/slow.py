"""What slow clients by the thousand do to a good one: its p99 without them and beside them, from
the moment they come; apart from that, what it is when they have all left in one moment; and how
soon they are cut off.

The good client, its model server and the slow ones have one processor core and the proxy the other,
where the system lets us choose; what this process itself held up (`STALL`) is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from tests.e2e.bounds.serving import proxied
from tests.e2e.bounds.slow_ones import KINDS
from tests.e2e.raw_upstream import chat_body, script_completion
from tests.support.free_port import free_port
from tests.support.raw_client import RawClient
from tests.support.upstream_server import UpstreamServer, run_upstream_server

EVERY = 0.02  # seconds between two requests of the good client
AROUND = 2.0  # seconds after they have all come, or left, that count to that
STALL = 0.005  # seconds in which this process did nothing although it wanted to


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
    phases: dict[str, Latencies]  # of it: while they come, stay, and after they have left
    slow: dict[str, dict[str, Any]]  # kind → see slow_ones.py
    grown: int  # MiB of memory, at most
    own: int  # requests not counted, for they met a stall of ours

    @property
    def usual(self) -> float:
        """p99 without the slow ones, in ms."""
        return sum(one.p99 for one in self.quiet) / len(self.quiet)

    @property
    def ratio(self) -> float:
        return self.beside.p99 / self.usual


class Good:
    """A request every `EVERY` seconds, whether or not the one before has its answer; each thread is
    ten turns long."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[RawClient] = []
        self._name = time.monotonic_ns()
        self._answered: list[tuple[float, float]] = []  # when it was due, and when it came
        self._stalls: list[tuple[float, float]] = []

    async def ask(self, seconds: float) -> None:
        begun, asking = time.monotonic(), set[asyncio.Task[None]]()
        watch = asyncio.create_task(self._watch())
        for turn in range(int(seconds / EVERY)):
            due = begun + turn * EVERY
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            asking.add(asyncio.create_task(self._one(turn, due)))
        await asyncio.gather(*asking)
        watch.cancel()
        for client in self._idle:
            await client.close()
        self._idle.clear()

    async def _one(self, turn: int, due: float) -> None:
        thread, length = divmod(turn, 10)
        request = chat_body(*(f"message {n} of a conversation" for n in range(length + 1)))
        headers = (
            b"X-OM-Thread: %d-%d" % (self._name, thread),
            b"Authorization: Bearer sk-good",
        )
        client, is_kept = await self._connection()
        client.send(request, headers=headers)
        try:
            try:
                got = await client.answer()
            except (ConnectionError, asyncio.IncompleteReadError):
                if not is_kept:
                    raise
                client.leave()  # the server closed it meanwhile, as it had rested for long
                client = await RawClient.connect(self._port)
                client.send(request, headers=headers)
                got = await client.answer()
        except TimeoutError:  # of the client's own patience, which is then what it took
            client.leave()
        else:
            assert (got.status, got.whole) == (200, True), got
            self._idle.append(client)
        self._answered.append((due, time.monotonic()))

    async def _connection(self) -> tuple[RawClient, bool]:
        """Return one, and whether it has served before."""
        while self._idle:
            if not (
                client := self._idle.pop()
            ).reader.at_eof():  # the server closes those that rest for long
                return client, True
            await client.close()
        return await RawClient.connect(self._port), False

    async def _watch(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.001)
            if (now := time.monotonic()) - before > STALL:
                self._stalls.append((before, now))

    def counted(self, since: float = 0.0, until: float = float("inf")) -> list[float]:
        """Seconds of those due in this time; of all of them, where none was free of a stall."""
        stalls = self._stalls
        asked = [(due, came) for due, came in self._answered if since <= due < until]
        free = [
            (due, came)
            for due, came in asked
            if not any(due < end and came > begin for begin, end in stalls)
        ]
        return [came - due for due, came in free or asked]

    @property
    def own(self) -> int:
        return len(self._answered) - len(self.counted())


async def asking(port: int, seconds: float) -> Latencies:
    good = Good(port)
    await good.ask(seconds)
    return Latencies.of(good.counted())


async def measured(
    folder: Path,
    numbers: dict[str, int],
    *,
    seconds: float,
    window: float,
    spread: float = 0.0,
    limits: str = "{}",
) -> Measured:
    """`numbers` of slow ones, by kind, come within `spread` seconds and stay for `seconds`, between
    two windows without them."""
    flood = free_port()
    async with (
        run_upstream_server(script_completion()) as server,
        proxied(folder, server, limits, both(server, flood)) as proxy,
    ):
        pinned(proxy.pid)
        await asking(proxy.port, window / 2)  # warm
        quiet = [await asking(proxy.port, window)]
        before = proxy.resident()
        proxy.forget_peak()
        async with slow_ones(proxy.port, flood, [numbers[name] for name in KINDS], spread) as slow:
            good = Good(proxy.port)
            asked = asyncio.create_task(good.ask(spread + seconds + 2 * AROUND))
            came = time.monotonic()
            await slow.come()
            stay = time.monotonic() + AROUND
            await asyncio.sleep(came + spread + seconds - time.monotonic())
            left = time.monotonic()
            await slow.leave()
            grown = proxy.resident("VmHWM") - before
            await asked
        await proxy.rests()
        quiet.append(await asking(proxy.port, window))
    times = {"come": (came, stay), "stay": (stay, left), "left": (left, float("inf"))}
    phases = {
        name: Latencies.of(found)
        for name, time_ in times.items()
        if (found := good.counted(*time_))
    }
    return Measured(
        quiet, Latencies.of(good.counted(until=left)), phases, slow.told, grown, good.own
    )


def pinned(pid: int) -> None:
    """The proxy has a core, we and the slow ones another."""
    if hasattr(os, "sched_setaffinity") and len(cores := os.sched_getaffinity(0)) > 1:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {min(cores)})


@dataclass
class Slow:
    """The process of slow ones."""

    process: asyncio.subprocess.Process
    told: dict[str, Any] = field(default_factory=dict)  # by kind, when they have left

    async def says(self, line: bytes) -> None:
        assert self.process.stdout is not None
        said = await asyncio.wait_for(self.process.stdout.readline(), 120)
        assert said == line, said

    async def come(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")
        await self.says(b"all have come\n")

    async def leave(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        kinds = orjson.loads(await asyncio.wait_for(self.process.stdout.read(), 60))
        self.told |= {name: kind for name, kind in kinds.items() if kind["connections"]}
        await self.process.wait()


@asynccontextmanager
async def slow_ones(
    port: int, flood: int, numbers: list[int], spread: float
) -> AsyncIterator[Slow]:
    """They, ready to come."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.e2e.bounds.slow_ones", *map(str, (port, flood, *numbers, spread)),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    slow = Slow(process)
    try:
        await slow.says(b"ready\n")
        yield slow
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def both(server: UpstreamServer, flood: int) -> str:
    """The model servers of the good client and of the slow readers."""
    return f"""
        upstream:
          - {{name: flood, match: [flood], base_url: "http://127.0.0.1:{flood}/v1"}}
          - {{name: large, match: [large], base_url: "http://127.0.0.1:{flood}/large/v1"}}
          - {{name: good, base_url: "{server.base}"}}
        """


def main() -> int:
    options = argparse.ArgumentParser(prog="scripts/slow-clients", description=__doc__)
    options.add_argument(
        "--heads", type=int, default=1_000, help="whose headers trickle (%(default)s)"
    )
    options.add_argument(
        "--bodies", type=int, default=1_000, help="whose bodies trickle (%(default)s)"
    )
    options.add_argument(
        "--streams",
        type=int,
        default=250,
        help="who hardly read a stream without end (%(default)s)",
    )
    options.add_argument(
        "--replies", type=int, default=250, help="who hardly read a reply of 0.9 MB (%(default)s)"
    )
    options.add_argument("--seconds", type=float, default=75.0, help="they stay (%(default)s)")
    options.add_argument(
        "--spread", type=float, default=20.0, help="seconds within which they come (%(default)s)"
    )
    options.add_argument(
        "--window",
        type=float,
        default=15.0,
        help="seconds without them, before and after (%(default)s)",
    )
    told = vars(options.parse_args())
    numbers = {name: told.pop(name) for name in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measured(Path(folder), numbers, **told))
    for name, one in zip(("before", "after"), found.quiet, strict=True):
        print(f"{name:8} {one}")
    for name, one in {"beside": found.beside, **found.phases}.items():
        print(f"{name:8} {one}")
    print(
        f"p99 beside / without: {found.ratio:.2f}; {found.own} not counted; memory at most {found.grown} MiB more"
    )
    for name, kind in found.slow.items():
        print(
            f"slow {name:8} {kind['connections']} connections, {kind['ended']} cut off, after {kind['longest']:.1f} s at most"
        )
    return 0 if found.ratio <= 2 else 1


if __name__ == "__main__":
    sys.exit(main())
